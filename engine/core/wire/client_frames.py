"""The frames of `notify.v1.json`: parses those of clients, and builds those of the server besides `messages`.

Frames are JSON objects; `type` names them. Unknown types and unknown members are ignored, so that clients and servers of different
versions can talk to each other. Any other deviation is malformed.

`messages` frames are built by `engine.core.model.message` from encoded bodies.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from engine.core.model.constants import TS_MS_MAX
from engine.errors import Invalid

SEQ_MAX: Final = (1 << 63) - 1
"""Sequence numbers fit a signed 64-bit integer in every encoding."""

_ACK: Final = re.compile(rb'\{"type": ?"ack", ?"seq": ?(0|[1-9][0-9]{0,17})(?:, ?"ts": ?([1-9][0-9]{0,12}))?\}').fullmatch
"""The frame that arrives once per message, as JSON.stringify and json.dumps write it: 0.4 us instead of 0.9 for the decoder."""

REF_CHARS_MAX: Final = 128
"""Of the name that a client gives to a request, to find its answer by: as long as an id."""

Seq = Annotated[int, Meta(ge=0, le=SEQ_MAX)]
Number = int | float


class ClientAck(Struct, tag="ack", gc=False):
    """Acknowledges everything up to and including `seq`, and the messages `ids`. At least one of the two is present."""

    seq: Seq | None = None
    ids: list[str] | None = None
    ts: Number | None = None


class ClientNack(Struct, tag="nack", gc=False):
    """Rejects messages: they are not retried and go to the dead letters."""

    ids: list[str]
    reason: str = ""


class ClientPing(Struct, tag="ping", gc=False):
    """An application-level heartbeat; the pong repeats `ts`."""

    ts: Number | None = None


class ClientAuth(Struct, tag="auth", gc=False):
    """Replaces the connection's token before it expires."""

    token: str


class ClientSubscribe(Struct, tag="subscribe", gc=False):
    """Subscribes the user to topics; answered by `subscribed`."""

    topics: list[str]


class ClientUnsubscribe(Struct, tag="unsubscribe", gc=False):
    """Ends the user's subscriptions to topics; answered by `subscribed`."""

    topics: list[str]


class ClientRequest(Struct, gc=False):
    """A frame that a feature answers, by `<type>_result` with the same `ref`; the rest of it is the feature's."""

    type: str
    ref: Annotated[str, Meta(max_length=REF_CHARS_MAX)] = ""


class _Typed(Struct, gc=False):
    type: str


ClientFrame = ClientAck | ClientNack | ClientPing | ClientAuth | ClientSubscribe | ClientUnsubscribe

_Frame = TypeVar("_Frame")
_KNOWN: Final = frozenset({"ack", "nack", "ping", "auth", "subscribe", "unsubscribe"})
_frames: Final = msgspec.json.Decoder(ClientFrame)
_requests: Final = msgspec.json.Decoder(ClientRequest)
_typed: Final = msgspec.json.Decoder(_Typed)
_encoder: Final = msgspec.json.Encoder()


def parse_ack(text: bytes) -> tuple[int, int]:
    """The sequence number of a cumulative ACK, and its `ts`, 0 when it has none; (-1, 0) for every other frame."""
    match = _ACK(text)
    if match is None:
        return -1, 0
    ts = match[2]
    return int(match[1]), 0 if ts is None else int(ts)


def time_of(ts: Number | None) -> int:
    """The `ts` of a frame in whole milliseconds since the epoch; 0 when there is none, or it is no such time."""
    return int(ts) if ts is not None and 0 < ts <= TS_MS_MAX else 0


def parse(text: bytes) -> ClientFrame | None:
    """One text frame of a client; None when its type is unknown, which must be ignored.

    Raises:
        Invalid: not JSON, not an object, or a member has the wrong type.
        UnicodeDecodeError: not UTF-8; the connection must be failed (RFC 6455, section 8.1).
    """
    text.decode()
    try:
        frame: ClientFrame = _frames.decode(text)
    except msgspec.ValidationError as error:
        try:
            if _typed.decode(text).type not in _KNOWN:
                return None
        except (msgspec.DecodeError, RecursionError):
            pass  # the first error is the better message
        raise Invalid(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(f"malformed JSON: {error}") from error
    if type(frame) is ClientAck and frame.seq is None and frame.ids is None:
        raise Invalid("`ack` needs `seq` or `ids`")
    return frame


def parse_request(text: bytes, types: Container[str]) -> ClientRequest | None:
    """A frame of which `parse` does not know the type; None when it is none of these either. Raises Invalid."""
    return decode(_requests, text) if _typed.decode(text).type in types else None


def decode(decoder: msgspec.json.Decoder[_Frame], text: bytes) -> _Frame:
    """A frame whose type is known. Raises Invalid."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(str(error)) from error


class ReconnectAdvice(Struct):
    """How long a client waits before its first, second, ... attempt to reconnect, each spread by +-`jitter` (a fraction of it)."""

    delays_ms: tuple[int, ...]
    jitter: float


class WelcomeEvent(Struct, tag="welcome"):
    """The first frame of a connection, or event of a stream. Times in milliseconds."""

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
    """The connection's name, its user and the cursor it is served from."""
    return _encoder.encode(frame)


def revoke(ids: Sequence[str]) -> bytes:
    """Another connection of the user acknowledged these messages."""
    return _encoder.encode({"type": "revoke", "ids": ids})


def nacked(ids: Sequence[str]) -> bytes:
    """The nacks of these ids are durable: the messages are dead letters, or were settled before."""
    return _encoder.encode({"type": "nacked", "ids": ids})


def gap(first: int, last: int) -> bytes:
    """The sequence numbers `first`..`last` will not be delivered."""
    return b'{"type":"gap","from":%d,"to":%d}' % (first, last)


def counts(unread: int, unseen: int, revision: int) -> bytes:
    """The counts of the user's inbox; a higher revision is newer."""
    return b'{"type":"counts","unread":%d,"unseen":%d,"revision":%d}' % (unread, unseen, revision)


def pong(ts: Number | None) -> bytes:
    """The answer to a client's `ping`."""
    return _encoder.encode({"type": "pong", "ts": ts})


def subscribed(topics: Sequence[str]) -> bytes:
    """All topics that the user is subscribed to."""
    return _encoder.encode({"type": "subscribed", "topics": topics})


def request_result(type: str, ref: str, status: int, members: Mapping[str, object]) -> bytes:
    """The answer to a `ClientRequest`: the status and the members of the answer to the same request over HTTP."""
    return _encoder.encode({"type": f"{type}_result", "ref": ref, "status": status, **members})


def drain(after_ms: int) -> bytes:
    """The server is shutting down; reconnect after `after_ms`."""
    return b'{"type":"drain","after_ms":%d}' % after_ms


def error(code: str, detail: str) -> bytes:
    """A frame of the client had no effect."""
    return _encoder.encode({"type": "error", "code": code, "detail": detail})
