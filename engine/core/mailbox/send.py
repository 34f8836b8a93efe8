"""What goes out next on one connection: messages and gaps in sequence order, as far as its window allows.

Held: while the shard is pressed, a low-priority message is not sent, nor read back from storage. Numbers arrive in order, so it is held
only as long as nothing of higher priority stands behind it (`Mailbox.newest_above_low`): a high message never waits for the pressure to
end."""

from __future__ import annotations

from msgspec import Struct

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import LOW


class SendLimits(Struct, frozen=True):
    """Messages and bytes in flight on one connection, and bytes of one `Deliver`."""

    window: int
    window_bytes: int
    batch_bytes: int


class Sendable(Struct):
    """What to send on one connection: `Gap` ranges and messages in the order they go out, and whether a read is needed."""

    parts: list[tuple[int, int] | list[tuple[int, int, bytes]]]
    load_from: int = 0
    expired: int = 0
    held: bool = False


def pump(mailbox: Mailbox, connection: Attachment, now_ms: int, limits: SendLimits, *, hold_low: bool) -> Sendable | None:
    """What can be sent on the connection now; `None` when nothing. Marks it as sent."""
    seq = max(connection.sent, mailbox.floor) + 1
    if connection.stalled or seq > mailbox.head:
        return None
    flight, hot = connection.flight, mailbox.hot
    result = Sendable([])
    batch: list[tuple[int, int, bytes]] = []
    size = 0
    while seq <= mailbox.head and len(flight) < limits.window:  # a gap waits too: until it is told, more may become of it
        message = hot.get(seq)
        if message is not None and message.expires_ms > now_ms:
            if hold_low and message.priority == LOW and seq > mailbox.newest_above_low:
                result.held = True
                break
            length = len(message.body)
            if flight and connection.flight_bytes + length > limits.window_bytes:
                break
            if batch and size + length > limits.batch_bytes:
                result.parts.append(batch)
                batch, size = [], 0
            batch.append((seq, message.attempts + 1, message.body))
            size += length
            flight[seq] = (now_ms, 1)
            connection.flight_bytes += length
            connection.sent = seq
            seq += 1
            continue
        if message is not None:
            result.expired += mailbox.expire(seq, now_ms)
        gap = mailbox.gap_at(seq)
        if gap is None and mailbox.is_cold(seq):
            result.held = hold_low and seq > mailbox.newest_above_low
            result.load_from = 0 if result.held else seq
            break
        if gap is not None:
            if batch:
                result.parts.append(batch)
                batch, size = [], 0
            result.parts.append((seq, gap[1]))
        connection.sent = seq if gap is None else gap[1]  # settled or dying
        seq = connection.sent + 1
    if batch:
        result.parts.append(batch)
    return result if result.parts or result.load_from or result.held else None
