"""What an operator may see of connections: their state, no content. Read-only.

`slow_connections` chooses among all connections of a shard those that are behind. A client is slow when the oldest message that it has not
acknowledged is older than a limit, or has used up its tries, which is what becomes of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest

from msgspec import Struct

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.wire.records import TRANSPORTS, ConnectionState

Attached = tuple[Mailbox, Attachment]


class SlowConnection(Struct, frozen=True):
    """A connection that is behind, and whose it is. `behind`: pending messages that were not sent to it."""

    key: str
    behind: int
    state: ConnectionState


def connection_state(connection: Attachment) -> ConnectionState:
    """The state of a connection."""
    return ConnectionState(
        connection.conn[0].partition("/")[0],
        connection.session,
        connection.device,
        TRANSPORTS[connection.kind],
        connection.since_ms,
        connection.sent,
        len(connection.flight),
        _oldest_ms(connection),
        int(connection.rtt_ms),
        len(connection.exhausted),
    )


def slow_connections(attached: Iterable[Attached], now_ms: int, slow_ms: int) -> Iterator[SlowConnection]:
    """Those of these connections that have exhausted messages, or have not acknowledged one for `slow_ms`."""
    for mailbox, connection in attached:
        if connection.flight or connection.exhausted:
            oldest_ms = _oldest_ms(connection)
            if connection.exhausted or (oldest_ms and now_ms - oldest_ms >= slow_ms):
                yield SlowConnection(mailbox.key, max(mailbox.head - connection.sent, 0), connection_state(connection))


def slowest(found: Iterable[SlowConnection], count: int) -> Sequence[SlowConnection]:
    """The worst of these: those with most exhausted messages, then by the age of what they have not acknowledged."""
    return nlargest(count, found, key=lambda one: (one.state.exhausted, -(one.state.oldest_ms or 1 << 62), one.behind))


def _oldest_ms(connection: Attachment) -> int:
    """When the oldest message in flight was first sent on the connection, 0 for none."""
    if not connection.flight:
        return 0
    seq, (sent_ms, _) = next(iter(connection.flight.items()))
    return connection.first_sent_ms.get(seq, sent_ms)
