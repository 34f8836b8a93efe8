"""Steps: by which other channels a user is told of a message, and when, unless the user has come to it first.

A category of the rules file lists them. Each step of a message is a durable timer; the judge of a shard decides when it fires.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from engine.core.model.category import CAP_MAX, DAY_MS, Instant, Span

CHANNELS: Final = ("push", "email", "apprise")
"""The channels that a step may name."""

DIGEST_CHANNEL: Final = "email"
"""The channel that has a digest."""

EXTRAS: Final = {"push": ("push", "http_ece"), "email": ("mail", "aiosmtplib"), "apprise": ("apprise", "apprise")}
"""By channel: the extra of the package that it needs, and the module that this brings."""

STEPS_MAX: Final = 8
"""Of one category: each is a timer of every message."""

ALWAYS: Final = 0
DELIVERED: Final = 1
SEEN: Final = 2
READ: Final = 3
ACTED: Final = 4
PROGRESS: Final = ("", "delivered", "seen", "read", "acted")
"""How far a user has come with a message, by code. Each includes those before it; with `ALWAYS` a step is taken in any case."""

NEVER_CAME: Final = -2
GONE: Final = -1
PENDING: Final = 0
"""In place of progress: no message has the id yet; the message has expired or was replaced; nobody has acknowledged it."""

MessageProgress = Annotated[int, Meta(ge=ALWAYS, le=ACTED)]


class ChannelStep(Struct, frozen=True, array_like=True, gc=False):
    """One step of a category.

    Args:
        after_ms: how long after the message.
        unless: not taken when the user has come so far; ALWAYS: it is.
        mandatory: taken in quiet hours too.
        to: a recipient that the operator has named, in place of the user; "": the user.
        cap: how many of them a user gets of the category by the channel within `cap_ms`; 0: any number. As with a category's cap, high
            priority and what is mandatory is not counted.
        cap_ms: rolling window of the cap, ms.
    """

    channel: str
    after_ms: Span = 0
    unless: MessageProgress = ALWAYS
    mandatory: bool = False
    to: str = ""
    cap: Annotated[int, Meta(ge=0, le=CAP_MAX)] = 0
    cap_ms: Span = DAY_MS

    @property
    def target(self) -> str:
        return f"channel://{self.channel}/to:{self.to}" if self.to else f"channel://{self.channel}"


class StepTerms(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What the timer of a step must know of its message.

    Args:
        id: of the message.
        seq: its number in the mailbox; 0: it had none yet, because it was delayed.
        until_ms: the step waits for a message without a number until then.
        sid: scheduled id of a message without a number, by which its number is found.
    """

    step: ChannelStep
    id: str
    seq: Annotated[int, Meta(ge=0)] = 0
    until_ms: Instant = 0
    sid: str = ""
