"""Selects what to send next on one connection: messages and gaps in sequence order, within its window.

While the shard is under pressure, a low-priority message is held: neither sent nor read back from storage. Messages are sent in order, so
it is held only while nothing of higher priority follows it (`Mailbox.newest_above_low`): pressure never delays a message of higher
priority."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import LOW
from engine.core.model.message import Message

_ACKED_WINDOWS: Final = 4
"""As many may be acknowledged above one that is exhausted on the connection. Pages and journal hold each of these numbers: 3 KB with every
settlement of the user."""


class SendLimits(Struct, frozen=True):
    """Maximum messages and bytes in flight on one connection, and maximum bytes of one `Deliver`."""

    window: int
    window_bytes: int
    batch_bytes: int


class Sendable(Struct, gc=False):
    """What to send on one connection.

    Attributes:
        parts: in sending order, gaps as (first, last) and batches of messages as [(sequence number, attempt, body)].
        load_from: the first number to read from the offline stream before anything more can be sent; 0 for none.
        expired: messages that were found expired.
        held: whether sending stopped at a held message.
    """

    parts: list[tuple[int, int] | list[tuple[int, int, bytes]]]
    load_from: int = 0
    expired: tuple[Message, ...] = ()
    held: bool = False


def send(mailbox: Mailbox, connection: Attachment, now_ms: int, limits: SendLimits, *, hold_low: bool) -> Sendable | None:
    """Select what can be sent on the connection now and mark it as sent.

    Returns `None` when there is nothing to send, to load or to hold.
    """
    head = mailbox.head
    if (seq := connection.sent + 1) > head:
        return None
    flight, hot = connection.flight, mailbox.hot
    window = limits.window if not connection.exhausted else _window(mailbox, connection, now_ms, limits)
    if seq == head and len(flight) < window and not hold_low:  # the common case: one new message, the only unsent one
        message = hot.get(seq)
        room = limits.window_bytes - connection.flight_bytes
        if message is not None and message.expires_ms > now_ms and (len(body := message.envelope.body) <= room or not flight):
            flight[seq] = (now_ms, 1)
            connection.flight_bytes += len(body)
            connection.sent = seq
            return Sendable([[(seq, message.attempts + 1, body)]])
    seq = max(seq, mailbox.floor + 1)
    result = Sendable([])
    batch: list[tuple[int, int, bytes]] | None = None
    size = 0
    while seq <= head and len(flight) < window:  # a gap waits too: until it is sent, more numbers may join it
        message = hot.get(seq)
        if message is not None and message.expires_ms > now_ms:
            if hold_low and message.envelope.priority == LOW and seq > mailbox.newest_above_low:
                result.held = True
                break
            body = message.envelope.body
            length = len(body)
            if flight and connection.flight_bytes + length > limits.window_bytes:
                break
            if batch is None or size + length > limits.batch_bytes:
                batch, size = [], 0
                result.parts.append(batch)
            batch.append((seq, message.attempts + 1, body))
            size += length
            flight[seq] = (now_ms, 1)
            connection.flight_bytes += length
            connection.sent = seq
            seq += 1
            continue
        if message is not None:
            result.expired = (*result.expired, *mailbox.expire(seq, now_ms))
        gap = mailbox.gap_at(seq)
        if gap is not None:
            result.parts.append((seq, gap[1]))
            batch = None
        elif mailbox.is_cold(seq):
            result.held = hold_low and seq > mailbox.newest_above_low
            result.load_from = 0 if result.held else seq
            break
        connection.sent = seq if gap is None else gap[1]  # settled or dying
        seq = connection.sent + 1
    return result if result.parts or result.load_from or result.held else None


def _window(mailbox: Mailbox, connection: Attachment, now_ms: int, limits: SendLimits) -> int:
    """How many messages may be in flight beside the exhausted ones."""
    crowded = len(mailbox.acked) >= _ACKED_WINDOWS * limits.window
    if crowded or len(connection.exhausted) + len(connection.flight) >= limits.window:
        connection.forget_expired(now_ms)
    return limits.window - len(connection.exhausted) if not (crowded and connection.exhausted) else 0
