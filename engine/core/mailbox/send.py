"""Selects what to send next on one connection: messages and gaps in sequence order, within its window.

While the shard is under pressure, a low-priority message is held: neither sent nor read back from storage. Messages are sent in order, so
it is held only while nothing of higher priority follows it (`Mailbox.newest_above_low`): pressure never delays a message of higher
priority.

Early copies. A message of high priority behind lower numbers that have no room is sent at once as an early copy, to connections that take
those (`Attachment.early`). Its states on a connection:

    waiting   in its place: in memory, above `sent`, not in `early`
    early     in `early`: a copy was sent, its place is above `sent`
    settled   acknowledged by id, refused, expired or trimmed: it left `early`; its place is passed without a send
    reached   `sent` passed its number: sent in order as any other message, left `early`

An early copy moves neither `sent` nor a cursor, is not retried, and counts as an attempt: conflation never replaces a message that a client
has seen. It was sent before gaps below its place, so its acknowledgement settles none of them (`Mailbox.settle`). Beside the window a
connection has room for an eighth of it; beyond that a message waits for its place, or for room.

The end of a connection, of its link session or of the shard, and the hand-over of a slot, drop `early`: the message is pending as before,
and comes again, early or in its place. An acknowledgement by id that no journal holds is lost with the shard, as any other; the client
acknowledges the repeat. A message that is only in the offline stream comes in its place: only messages in memory are copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from engine.config import Config
from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import HIGH, LOW
from engine.core.model.message import Message

_ACKED_WINDOWS: Final = 4
"""As many may be acknowledged above one that is exhausted on the connection. Pages and journal hold each of these numbers: 3 KB with every
settlement of the user."""


_EARLY_PART: Final = 8
"""Early copies outstanding on a connection: the window, and its bytes, divided by this; at least one."""


class Early(Struct, gc=False):
    """Early copies to send on one connection: [(sequence number, attempt, body)]."""

    messages: list[tuple[int, int, bytes]]


class Sendable(Struct, gc=False):
    """What to send on one connection.

    Attributes:
        parts: in sending order, gaps as (first, last) and batches of messages as [(sequence number, attempt, body)]; last, early copies.
        load_from: the first number to read from the offline stream before anything more can be sent; 0 for none.
        expired: messages that were found expired.
        held: whether sending stopped at a held message.
    """

    parts: list[tuple[int, int] | list[tuple[int, int, bytes]] | Early]
    load_from: int = 0
    expired: tuple[Message, ...] = ()
    held: bool = False


def send(mailbox: Mailbox, connection: Attachment, now_ms: int, config: Config, *, hold_low: bool) -> Sendable | None:
    """Select what can be sent on the connection now and mark it as sent.

    Returns `None` when there is nothing to send, to load or to hold.
    """
    head = mailbox.head
    if (seq := connection.sent + 1) > head:
        return None
    flight, hot = connection.flight, mailbox.hot
    window = config.window if not connection.exhausted else _window(mailbox, connection, now_ms, config)
    if seq == head and len(flight) < window and not hold_low:  # the common case: one new message, the only unsent one
        message = hot.get(seq)
        room = config.window_bytes - connection.flight_bytes
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
            if flight and connection.flight_bytes + length > config.window_bytes:
                break
            if batch is None or size + length > config.deliver_bytes_max:
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
    result.parts += _early(mailbox, connection, now_ms, config) if connection.sent < mailbox.newest_high else ()
    return result if result.parts or result.load_from or result.held else None


def _early(mailbox: Mailbox, connection: Attachment, now_ms: int, config: Config) -> list[Early]:
    """Return early copies of the messages of high priority behind `sent`, as far as there is room. Each number is looked at once."""
    sent, hot, early = connection.sent, mailbox.hot, connection.early
    if early is None:
        return []
    for seq in [seq for seq, (expires_ms, _) in early.items() if seq <= sent or expires_ms <= now_ms or not mailbox.is_pending(seq)]:
        del early[seq]
    room = max(config.window // _EARLY_PART, 1) - len(early)
    start = max(connection.looked, sent, mailbox.floor) + 1
    if room <= 0 or start > mailbox.newest_high:
        return []
    numbers: Iterable[int] = range(start, mailbox.newest_high + 1)
    if mailbox.newest_high - start >= len(hot):  # after a jump of the head, most of these were never in memory
        numbers = sorted(seq for seq in hot if start <= seq <= mailbox.newest_high)
    messages: list[tuple[int, int, bytes]] = []
    size = sum(len(hot[seq].envelope.body) for seq in early if seq in hot)
    for seq in numbers:
        message = hot.get(seq)
        if message is not None and message.envelope.priority == HIGH and message.expires_ms > now_ms:
            size += len(message.envelope.body)
            if not room or (early and size > config.window_bytes // _EARLY_PART):
                break
            room -= 1
            message.attempts += 1
            messages.append((seq, message.attempts, message.envelope.body))
            early[seq] = (message.expires_ms, message.envelope.id)
        connection.looked = seq
    return [Early(messages)] if messages else []


def _window(mailbox: Mailbox, connection: Attachment, now_ms: int, config: Config) -> int:
    """How many messages may be in flight beside the exhausted ones."""
    crowded = len(mailbox.acked) >= _ACKED_WINDOWS * config.window
    if crowded or len(connection.exhausted) + len(connection.flight) >= config.window:
        connection.forget_expired(now_ms)
    return config.window - len(connection.exhausted) if not (crowded and connection.exhausted) else 0
