"""The client codec: what a client may say on a WebSocket, and what it is told besides messages.

Frames are JSON objects; `type` names them. Unknown types and unknown members are ignored, so that clients and servers
of different ages understand each other. Everything else that is not as written here is malformed.

`messages` frames are built by `engine.core.model.message` from opaque bodies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from engine.errors import Invalid

SEQ_MAX: Final = (1 << 63) - 1
"""Sequence numbers fit a signed 64-bit integer everywhere they travel."""

_ACK: Final = re.compile(rb'\{"type": ?"ack", ?"seq": ?(0|[1-9][0-9]{0,17})\}').fullmatch
"""The one frame that comes once per message, as JSON.stringify and json.dumps write it. 0.4 us instead of 0.9."""

Seq = Annotated[int, Meta(ge=0, le=SEQ_MAX)]
Number = int | float


class ClientAck(Struct, tag="ack", gc=False):
    """`seq`: everything up to and including it is handled. `ids`: these are. At least one of them is given."""

    seq: Seq | None = None
    ids: list[str] | None = None
    ts: Number | None = None


class ClientNack(Struct, tag="nack", gc=False):
    """These messages cannot be handled: no retry."""

    ids: list[str]
    reason: str = ""


class ClientPing(Struct, tag="ping", gc=False):
    """An application-level heartbeat; `ts` is echoed."""

    ts: Number | None = None


class ClientAuth(Struct, tag="auth", gc=False):
    """A fresh token before the old one expires."""

    token: str


class ClientSubscribe(Struct, tag="subscribe", gc=False):
    """Subscribe the user to these topics; answered by `subscribed`."""

    topics: list[str]


class ClientUnsubscribe(Struct, tag="unsubscribe", gc=False):
    """End the user's subscription to these topics; answered by `subscribed`."""

    topics: list[str]


class _Typed(Struct, gc=False):
    type: str


ClientFrame = ClientAck | ClientNack | ClientPing | ClientAuth | ClientSubscribe | ClientUnsubscribe

_KNOWN: Final = frozenset({"ack", "nack", "ping", "auth", "subscribe", "unsubscribe"})
_frames: Final = msgspec.json.Decoder(ClientFrame)
_typed: Final = msgspec.json.Decoder(_Typed)
_encoder: Final = msgspec.json.Encoder()


def parse_ack(text: bytes) -> int:
    """The number of a plain cumulative ACK, -1 for every other frame."""
    match = _ACK(text)
    return -1 if match is None else int(match[1])


def parse(text: bytes) -> ClientFrame | None:
    """One text frame of a client; `None` when its type is unknown, which is to be ignored.

    Raises:
        Invalid: not JSON, not an object, or a member has the wrong type.
        UnicodeDecodeError: not UTF-8: RFC 6455, section 8.1 wants the connection failed.
    """
    text.decode()
    try:
        frame: ClientFrame = _frames.decode(text)
    except msgspec.ValidationError as error:
        try:
            if _typed.decode(text).type not in _KNOWN:
                return None
        except msgspec.DecodeError:
            pass  # the first error says what is wrong
        raise Invalid(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(f"malformed JSON: {error}") from error
    if type(frame) is ClientAck and frame.seq is None and frame.ids is None:
        raise Invalid("`ack` needs `seq` or `ids`")
    return frame


class ReconnectAdvice(Struct):
    """How long a client waits before the first, second, ... attempt; each wait varies by +-`jitter`."""

    delays_ms: tuple[int, ...]
    jitter: float


class WelcomeEvent(Struct, tag="welcome"):
    """The first frame of a connection, and the first event of a stream. Times in milliseconds."""

    connection: str
    user: str
    epoch: str
    seq: int
    resumed: str
    from_: int = msgspec.field(name="from")
    heartbeat_ms: int
    timeout_ms: int
    window: int
    reconnect: ReconnectAdvice


def welcome(frame: WelcomeEvent) -> bytes:
    """Who the connection is and from where it is served."""
    return _encoder.encode(frame)


def revoke(ids: Sequence[str]) -> bytes:
    """These were handled on another device."""
    return _encoder.encode({"type": "revoke", "ids": ids})


def nacked(ids: Sequence[str]) -> bytes:
    """What the client refused is in the dead-letter queue, or there was nothing left to refuse."""
    return _encoder.encode({"type": "nacked", "ids": ids})


def gap(first: int, last: int) -> bytes:
    """The messages `first`..`last` are gone."""
    return b'{"type":"gap","from":%d,"to":%d}' % (first, last)


def pong(ts: Number | None) -> bytes:
    """The answer to a client's ping."""
    return _encoder.encode({"type": "pong", "ts": ts})


def subscribed(topics: Sequence[str]) -> bytes:
    """The topics that the user is subscribed to now."""
    return _encoder.encode({"type": "subscribed", "topics": topics})


def drain(after_ms: int) -> bytes:
    """The server goes away; reconnect after this time."""
    return b'{"type":"drain","after_ms":%d}' % after_ms


def error(code: str, detail: str) -> bytes:
    """Something the client sent was not acted upon."""
    return _encoder.encode({"type": "error", "code": code, "detail": detail})
