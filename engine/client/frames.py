"""Frames from server to client and the messages in them, as docs/PROTOCOL-RECEIVING.md defines them (`GET /v1/ws`).

Frames of unknown types and unknown members are ignored, so that old clients work with new engines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, Final, Protocol, get_args

import msgspec
from msgspec import Struct

from engine.client.digest import Digest
from engine.client.message_members import DeliveredMembers


class Done:
    """An awaitable that is done: `message.ack()` and `await message.ack()` both work."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # a generator that never suspends


class Owner(Protocol):
    """The client a message came from."""

    def settle(self, message: Message, reason: str | None) -> None:
        """Acknowledge a message, or reject it with a reason."""


class Message(DeliveredMembers, dict=True):
    """One notification, with the members of `engine.client.message_members.DeliveredMembers`."""

    def ack(self) -> Awaitable[None]:
        """Acknowledge this message: it is not delivered again, on any device of the user. Idempotent.

        It need not be awaited: the frame is written in this iteration of the event loop, or after reconnecting.
        """
        return self._settle(None)

    def nack(self, reason: str) -> Awaitable[None]:
        """Reject this message: it goes to the dead-letter stream with `reason` and is not retried.

        The client repeats it until the engine confirms it, also on later connections; the cursor waits for that.
        """
        return self._settle(reason or "refused")

    def _settle(self, reason: str | None) -> Awaitable[None]:
        owner: Owner | None = self.__dict__.get("owner")
        if owner is None:
            raise RuntimeError("this message did not come from a client, so it cannot be acknowledged")
        owner.settle(self, reason)
        return Done()


# -- frames ------------------------------------------------------------------------------------------------------------
class Reconnect(Struct, frozen=True):
    """Delays before the first, second, ... attempt, each varied by +-`jitter` (a fraction)."""

    delays_ms: tuple[int, ...] = (1000, 2000, 5000, 10_000)
    jitter: float = 0.3


class WelcomeFrame(Struct, tag="welcome"):
    """The first frame of a connection. `seq` is the user's newest sequence number, `from_` the first to be delivered."""

    epoch: str
    seq: int
    resumed: str
    connection: str = ""
    user: str = ""
    from_: int = msgspec.field(name="from", default=0)
    heartbeat_ms: int = 30_000
    timeout_ms: int = 60_000
    window: int = 256
    reconnect: Reconnect | None = None


class MessagesFrame(Struct, tag="messages"):
    """Messages in sequence order, new or repeated."""

    messages: list[Message]


class EarlyFrame(Struct, tag="early"):
    """Early copies: messages of high priority ahead of their place. They move no cursor, and come again in their place unless settled."""

    messages: list[Message]


class RevokeFrame(Struct, tag="revoke"):
    """These messages were settled on another device."""

    ids: list[str]


class GapFrame(Struct, tag="gap"):
    """The messages `from_`..`to` will not be delivered."""

    from_: int = msgspec.field(name="from")
    to: int


class Counts(Struct, tag="counts"):
    """How many messages of the user's inbox are unread, and unseen. Keep those with the highest `revision`."""

    unread: int
    unseen: int
    revision: int


class Part(Struct, tag="part"):
    """A part of a message that grows. What is missing before it, `Client.grown` reads (docs/PROTOCOL-RECEIVING.md).

    Attributes:
        id: of the message that comes at the end.
        generation: grows when the message is begun anew; what an older one had is dropped.
        offset: bytes of the text in UTF-8 before this part.
        text: of the part.
        progress: `value`, `text` and `step`, where it has changed.
        message: members of the message, with its first part.
        list: likewise, the text is a list of JSON values, one a line.
    """

    id: str
    generation: int
    offset: int
    text: str
    progress: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    list: bool = False


class NackedFrame(Struct, tag="nacked"):
    """The nacks of these ids are durable, or the messages were settled before."""

    ids: list[str]


class PongFrame(Struct, tag="pong"):
    """Answer to a ping."""


class DrainFrame(Struct, tag="drain"):
    """The server is shutting down; reconnect in `after_ms`."""

    after_ms: int = 0


class ErrorFrame(Struct, tag="error"):
    """The server could not read a frame, or rejects it."""

    code: str = ""
    detail: str = ""


Frame = (
    WelcomeFrame
    | MessagesFrame
    | EarlyFrame
    | RevokeFrame
    | GapFrame
    | NackedFrame
    | PongFrame
    | DrainFrame
    | ErrorFrame
    | Digest
    | Counts
    | Part
)


class _Typed(Struct):
    type: str


_KNOWN: Final = frozenset(kind.__struct_config__.tag for kind in get_args(Frame))
_frames: Final = msgspec.json.Decoder(Frame)
_typed: Final = msgspec.json.Decoder(_Typed)


def parse(text: str | bytes) -> Frame | None:
    """Decode one frame of the server; None when its type is unknown: ignore it then.

    Raises:
        msgspec.DecodeError: not JSON, or not a valid frame of its type.
    """
    try:
        frame: Frame = _frames.decode(text)
    except msgspec.ValidationError:
        if _typed.decode(text).type in _KNOWN:
            raise
        return None
    return frame
