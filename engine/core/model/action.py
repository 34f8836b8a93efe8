"""Actions: what a rule does with `do = "..."` in place of notifying its users when it fires.

    ray://NAMESPACE/ACTOR.METHOD      a method of a named Ray actor
    serve://APP/DEPLOYMENT.METHOD     a method of a deployment of Ray Serve; `__call__` where METHOD is left out
    https://HOST[:PORT]/PATH          a webhook; `http://` too, within private networks that the settings allow
    channel://NAME                    a channel by which the user is told of a message: a step of its category; no rule names it

An action travels with the timer of its message. The shard of the user evaluates the conditions when the timer fires; then the action is
appended to the stream of its target, from which edges carry it out.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from msgspec import Struct

from engine.core.model.routing import split_key
from engine.errors import Invalid

TARGET_CHARS_MAX: Final = 2048

CHANNELS: Final = "channel://"
"""The beginning of the targets that are channels."""

_RAY: Final = re.compile(r"ray://([A-Za-z0-9_.-]{1,128})/([A-Za-z0-9_.:-]{1,128})\.([A-Za-z][A-Za-z0-9_]{0,127})")
_SERVE: Final = re.compile(r"serve://([A-Za-z0-9_.-]{1,128})/([A-Za-z0-9_-]{1,128})(?:\.([A-Za-z][A-Za-z0-9_]{0,127}))?")
_CHANNEL: Final = re.compile(r"channel://([a-z][a-z0-9-]{0,31})(?:/([A-Za-z0-9.:_-]{1,255}))?")
_WEBHOOK: Final = re.compile(
    r"(https?)://([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?(/[!-\"$-~]*)?", re.ASCII
)


class ChannelCap(Struct, frozen=True, array_like=True, gc=False):
    """How many messages of a category a user gets by a channel: at most so many within `span_ms`."""

    category: str
    most: int
    span_ms: int


class Action(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What a timer does in place of delivering its message.

    Args:
        target: `do` of the rule.
        key: identifies the action, in every try and after a redrive, so that the target can recognise what it did before.
        cap: of a channel; None: the user may be told any number of times.
    """

    target: str
    key: str
    cap: ChannelCap | None = None


class ActorTarget(Struct, frozen=True):
    """A method of a named Ray actor."""

    namespace: str
    actor: str
    method: str

    @property
    def label(self) -> str:
        """What metrics call it."""
        return f"ray://{self.namespace}/{self.actor}.{self.method}"


class ServeTarget(Struct, frozen=True):
    """A method of a deployment of Ray Serve."""

    app: str
    deployment: str
    method: str

    @property
    def label(self) -> str:
        """What metrics call it."""
        return f"serve://{self.app}/{self.deployment}.{self.method}"


class WebhookTarget(Struct, frozen=True):
    """A URL. `host` is a name or an address, without brackets; `path` has the query, too."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """What goes into the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    @property
    def label(self) -> str:
        """What metrics call it: without its path and query, which may hold a secret."""
        return f"http{'s' if self.secure else ''}://{self.authority}"


class ChannelTarget(Struct, frozen=True):
    """A channel. `host`: the service that its messages go to; "" before the addresses of the user are looked up."""

    channel: str
    host: str = ""

    @property
    def label(self) -> str:
        """What metrics call it."""
        return str(self)

    def __str__(self) -> str:
        return f"channel://{self.channel}/{self.host}" if self.host else f"channel://{self.channel}"


Target = ActorTarget | ServeTarget | WebhookTarget | ChannelTarget


def parse_target(text: str) -> Target:
    """The target of an action. Raises Invalid."""
    if len(text) <= TARGET_CHARS_MAX:
        if found := _RAY.fullmatch(text):
            return ActorTarget(*found.groups())
        if found := _SERVE.fullmatch(text):
            app, deployment, method = found.groups()
            return ServeTarget(app, deployment, method or "__call__")
        if found := _CHANNEL.fullmatch(text):
            return ChannelTarget(found[1], found[2] or "")
        if found := _WEBHOOK.fullmatch(text):
            scheme, host, port, path = found.groups()
            number = int(port) if port else 443 if scheme == "https" else 80
            if 0 < number < 65536:
                return WebhookTarget(scheme == "https", host.strip("[]").lower(), number, path or "/")
    raise Invalid(
        f"ray://NAMESPACE/ACTOR.METHOD or serve://APP/DEPLOYMENT.METHOD of a public method, or an https:// URL without user and fragment; "
        f"{TARGET_CHARS_MAX} characters"
    )


def action_of(target: str, key: str, id: str) -> Action:
    """The action of a message.

    Args:
        target: `do` of the rule.
        key: mailbox key of the user; messages to several users may have one id.
        id: of the message.
    """
    tenant, user = split_key(key)
    return Action(target, hashlib.sha256("\n".join((target, tenant, user, id)).encode()).hexdigest()[:32])
