"""A pending message in memory, and the bytes sent to a client for it: its JSON body is encoded once, at the edge that accepted it.

`body` is the message object of PROTOCOL.md without braces and without the members that depend on the receiver: `"id":"...",
"type":"...",...,"data":{...}`. A client receives `{"seq":..,"event_id":"..","attempt":..,` + body + `}`, so every
edge, shard and stream handles opaque bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.model.envelope import Envelope

TIMER_EFFECT: Final = "timer:"
"""Reserved prefix of the ids made by `timer_effect_id`: the edge rejects a publisher's id that begins with it."""


def timer_effect_id(sid: str) -> str:
    """The id under which a durable timer takes effect once, independent of its message."""
    return f"{TIMER_EFFECT}{sid}"


class SharedBody(bytes):
    """The body of a broadcast with its log position `pos`: one object, shared by every mailbox that adopted it.

    No encoder accepts it, on purpose: only the position is written or sent (`engine.core.mailbox.broadcast_log`).
    """

    pos: int

    @classmethod
    def at(cls, pos: int, body: bytes) -> SharedBody:
        """The body of the log entry at a position."""
        shared = cls(body)
        shared.pos = pos
        return shared


class Message(Struct, gc=False):
    """A pending message in memory. Times in ms since the epoch.

    `attempts` counts deliveries on connections that have ended, or on which its tries are used up.

    The envelope of a broadcast is one object for all mailboxes that adopted it, with a `SharedBody`.
    """

    seq: int
    envelope: Envelope
    expires_ms: int
    accepted_ms: int
    attempts: int = 0

    @property
    def size(self) -> int:
        """Bytes of the body, 0 for a `SharedBody`, which other messages share."""
        body = self.envelope.body
        return len(body) if type(body) is bytes else 0


class Collapsing(Struct, frozen=True, array_like=True, gc=False):
    """The newest message of a collapse key: its sequence number, and the number of messages it represents."""

    seq: int
    count: int
    priority: int
    retain: bool


def with_due(envelope: Envelope, due_ms: int) -> Envelope:
    """The envelope of a delayed message as it is delivered: with the time at which it was due."""
    return msgspec.structs.replace(envelope, body=b'%b,"due":%d' % (envelope.body, due_ms))


def counted(body: bytes, count: int) -> bytes:
    """The body of a message that represents `count` messages, with a `count` member when it is above 1."""
    return b'%b,"count":%d' % (body, count) if count > 1 else body


_OBJECT: Final = b'{"seq":%d,"event_id":"%b-%d","attempt":%d,%b}'
_FRAME: Final = b'{"type":"messages","messages":[%b]}'
_FRAME_OF_ONE: Final = _FRAME.replace(b"%b", _OBJECT)


def object_bytes(epoch: str, seq: int, attempt: int, body: bytes) -> bytes:
    """The message object as sent to a client."""
    return _OBJECT % (seq, epoch.encode(), seq, attempt, body)


def early_bytes(seq: int, attempt: int, body: bytes) -> bytes:
    """The object of an early copy: without `event_id`, so that nobody takes it for a cursor."""
    return b'{"seq":%d,"early":true,"attempt":%d,%b}' % (seq, attempt, body)


def early_frame(messages: Sequence[tuple[int, int, bytes]]) -> bytes:
    """One `early` frame of (seq, attempt, body) triples."""
    return b'{"type":"early","messages":[%b]}' % b",".join([early_bytes(*message) for message in messages])


def frame_bytes(epoch: str, messages: Sequence[tuple[int, int, bytes]]) -> bytes:
    """One `messages` frame of (seq, attempt, body) triples, in the order given."""
    prefix = epoch.encode()
    if len(messages) == 1:  # nearly always; 0.4 us less
        seq, attempt, body = messages[0]
        return _FRAME_OF_ONE % (seq, prefix, seq, attempt, body)
    return _FRAME % b",".join([_OBJECT % (seq, prefix, seq, attempt, body) for seq, attempt, body in messages])
