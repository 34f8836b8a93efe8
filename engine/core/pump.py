"""What goes out next on one connection: messages and gaps in sequence order, as far as its window allows."""

from __future__ import annotations

from msgspec import Struct

from engine.core.flight import Connection
from engine.core.mailbox import Mailbox


class Pumped(Struct):
    """What to send on one connection: `Gap` ranges and messages in the order they go out, and whether a read is needed."""

    parts: list[tuple[int, int] | list[tuple[int, int, bytes]]]
    load_from: int = 0
    expired: int = 0


def pump(mailbox: Mailbox, connection: Connection, now_ms: int, window: int, window_bytes: int, batch_bytes: int) -> Pumped | None:
    """What can be sent on the connection now; `None` when nothing. Marks it as sent."""
    seq = max(connection.sent, mailbox.floor) + 1
    if connection.stalled or seq > mailbox.head:
        return None
    flight, hot = connection.flight, mailbox.hot
    result = Pumped([])
    batch: list[tuple[int, int, bytes]] = []
    size = 0
    while seq <= mailbox.head:
        message = hot.get(seq)
        if message is not None:
            if message.expires_ms > now_ms:
                length = len(message.body)
                if flight and (len(flight) >= window or connection.flight_bytes + length > window_bytes):
                    break
                if batch and size + length > batch_bytes:
                    result.parts.append(batch)
                    batch, size = [], 0
                batch.append((seq, message.attempts + 1, message.body))
                size += length
                connection.fly(message, now_ms)
                connection.sent = seq
                seq += 1
                continue
            result.expired += mailbox.expire(seq, now_ms)
        gap = next(((first, last) for first, last in mailbox.gone if first <= seq <= last), None)
        if gap is None:
            if mailbox.is_cold(seq):
                result.load_from = seq
                break
            connection.sent = seq  # settled or dying
            seq += 1
            continue
        if batch:
            result.parts.append(batch)
            batch, size = [], 0
        result.parts.append((seq, gap[1]))
        connection.sent = gap[1]
        seq = gap[1] + 1
    if batch:
        result.parts.append(batch)
    return result if result.parts or result.load_from else None
