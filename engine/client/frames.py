"""What a client is told: messages, and the frames around them as PROTOCOL.md writes them (`GET /v1/ws`, server to client).

A frame of an unknown type is ignored, and so are unknown members, so that old clients understand new engines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import Struct


class Handed:
    """Awaitable that is done already, so that `message.ack()` and `await message.ack()` are both right."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # a generator that never suspends


class Owner(Protocol):
    """The client a message came from."""

    def settle(self, message: Message, reason: str | None) -> None:
        """Acknowledge, or with a reason refuse."""


class Message(Struct, kw_only=True, dict=True):
    """One notification.

    Attributes:
        seq: its number in the user's sequence; a repeat carries the same.
        id: the publisher's idempotency key, or the UUIDv7 that was made for it; what duplicates are known by.
        event_id: `<epoch>-<seq>`, the cursor once this message is handled.
        type: dotted event type, `post.liked`.
        priority: `high`, `normal` or `low`.
        ts: when it happened, milliseconds since the epoch.
        attempt: 1 the first time it was sent, one more with every repeat.
        actor, target, context: who did it, to what, where; whatever JSON the publisher gave.
        count: how many events were merged into this one, `None` when none were.
        actors: the first few of who did them; `first_ts` and `last_ts` say when, `text` what to show, if the publisher said so.
        replaces: id of a message that this one stands for: show it in its place, and acknowledge both.
        data: the publisher's payload.
    """

    seq: int
    id: str
    event_id: str
    type: str
    priority: Literal["high", "normal", "low"] = "normal"
    ts: int = 0
    attempt: int = 1
    actor: Any = None
    target: Any = None
    context: Any = None
    count: int | None = None
    actors: list[Any] | None = None
    first_ts: int | None = None
    last_ts: int | None = None
    text: str | None = None
    replaces: str | None = None
    data: Any = None

    def ack(self) -> Awaitable[None]:
        """This message is handled: it never comes again, on any device of the user.

        Takes effect at once, awaited or not: it is written to the connection in this turn of the loop, or when the
        connection is back. Doing it twice is harmless.
        """
        return self._settle(None)

    def nack(self, reason: str) -> Awaitable[None]:
        """This message cannot be handled: it goes to the dead-letter queue with `reason` and is not tried again.

        The client says it until the engine has confirmed it, on later connections too; the cursor waits for that.
        """
        return self._settle(reason or "refused")

    def _settle(self, reason: str | None) -> Awaitable[None]:
        owner: Owner | None = self.__dict__.get("owner")
        if owner is None:
            raise RuntimeError("this message did not come from a client, so there is nobody to acknowledge it to")
        owner.settle(self, reason)
        return Handed()


# -- frames ------------------------------------------------------------------------------------------------------------
class Reconnect(Struct, frozen=True):
    """How long to wait before the first, second, ... attempt; each wait varies by +-`jitter`."""

    delays_ms: tuple[int, ...] = (1000, 2000, 5000, 10_000)
    jitter: float = 0.3


class WelcomeFrame(Struct, tag="welcome"):
    """The first frame of a connection. `seq` is the user's newest number, `from_` the first that will be delivered."""

    epoch: str
    seq: int
    resumed: str
    connection: str = ""
    user: str = ""
    from_: int = msgspec.field(name="from", default=0)
    heartbeat_ms: int = 30_000
    timeout_ms: int = 60_000
    reconnect: Reconnect = Reconnect()


class MessagesFrame(Struct, tag="messages"):
    """Messages in sequence order, new ones or repeats."""

    messages: list[Message]


class RevokeFrame(Struct, tag="revoke"):
    """These were handled on another device."""

    ids: list[str]


class GapFrame(Struct, tag="gap"):
    """The messages `from_`..`to` are gone."""

    from_: int = msgspec.field(name="from")
    to: int


class NackedFrame(Struct, tag="nacked"):
    """What was refused by these ids is in the dead-letter queue, or was settled before."""

    ids: list[str]


class PongFrame(Struct, tag="pong"):
    """Answer to a ping; that it came is all there is to know."""


class DrainFrame(Struct, tag="drain"):
    """The server is going away; reconnect in `after_ms`."""

    after_ms: int = 0


class ErrorFrame(Struct, tag="error"):
    """The server did not understand, or refuses something."""

    code: str = ""
    detail: str = ""


Frame = WelcomeFrame | MessagesFrame | RevokeFrame | GapFrame | NackedFrame | PongFrame | DrainFrame | ErrorFrame


class _Typed(Struct):
    type: str


_KNOWN: Final = frozenset({"welcome", "messages", "revoke", "gap", "nacked", "pong", "drain", "error"})
_frames: Final = msgspec.json.Decoder(Frame)
_typed: Final = msgspec.json.Decoder(_Typed)


def parse(text: str | bytes) -> Frame | None:
    """One frame of the server; `None` when its type is unknown, which is to be ignored.

    Raises:
        msgspec.DecodeError: not JSON, or not as the protocol writes a frame of this type.
    """
    try:
        frame: Frame = _frames.decode(text)
    except msgspec.ValidationError:
        if _typed.decode(text).type in _KNOWN:
            raise
        return None
    return frame
