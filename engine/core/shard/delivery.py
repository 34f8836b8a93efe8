"""What goes out to connections, and when it goes out again.

The courier pumps mailboxes into connections, hears what was settled, and watches over the retry timers. A mailbox with
messages in flight and no armed timer is `_unarmed`; its timer is armed shortly before it would fire, because nearly
everything is acknowledged before that.

While `hold_low`, connections whose next message is of low priority wait in `held`; `release` goes on with them, a few at a time, so that
the end of a pressure is not the beginning of the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeGuard

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.broadcast_log import BodyCache
from engine.core.mailbox.mailbox import Mailbox, Settlement
from engine.core.mailbox.send import Sendable, SendLimits, send
from engine.core.model.message import Message, SharedBody
from engine.core.shard.limits import ShardLimits
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import Deliver, DeliverShared, GapRange, Revoke, Shared

ARM_AHEAD_MS: Final = 60
"""A retry timer goes to its scheduler this long before it fires: a few pacing intervals and a call's way."""


class Delivery:
    """Sends for one shard. `output` holds (link session, record) for the edges until the shell carries it away."""

    def __init__(self, limits: ShardLimits, mailbox_store: MailboxStore, output: ShardOutput) -> None:
        self._output = output
        self._to_edges = output.to_edges
        self._counters = output.counters
        self._mailbox_store = mailbox_store
        self._limits = limits
        self._send_limits = SendLimits(limits.window, limits.window_bytes, limits.deliver_bytes_max)
        self._unarmed: dict[str, tuple[Mailbox, int]] = {}  # since when, oldest first
        self.hold_low = False
        self.held: dict[str, Mailbox] = {}
        self._bodies: dict[str, BodyCache] = {}  # by link session: which bodies its edge keeps

    def opened(self, session: str) -> None:
        """An edge's link session began: the edge keeps no body yet."""
        self._bodies[session] = BodyCache(self._limits.shared_bytes_max)

    def closed(self, session: str) -> None:
        """An edge's link session is over."""
        self._bodies.pop(session, None)

    def watch(self, mailbox: Mailbox, now_ms: int) -> None:
        """The mailbox has messages in flight."""
        if not mailbox.timer_ms:
            self._unarmed.setdefault(mailbox.key, (mailbox, now_ms))

    def settled(self, mailbox: Mailbox, settled: Settlement, by: Attachment | None, now_ms: int) -> None:
        """An acknowledgement was applied: revoke its messages on the other connections, and send what there is room for now.

        Args:
            by: the connection that acknowledged; `None` when it came another way.
        """
        self._mailbox_store.mark(mailbox)
        self._output.acknowledged(settled.messages, now_ms)
        if settled.revoked:
            for conn, ids in settled.revoked.items():
                if ids:
                    self._to_edges.append((conn[0], Revoke(conn[1], ids)))
        if by is not None and by.stalled and settled.news:
            mailbox.rewind(by)
        head = mailbox.head
        for connection in mailbox.connections.values():
            if connection.sent < head or connection.stalled:
                self.send(mailbox, connection, now_ms)

    def fan_out(self, mailboxes: Iterable[Mailbox], now_ms: int) -> None:
        """Send what these mailboxes have just adopted. What is the same on many connections of an edge leaves as one record."""
        together: dict[tuple[int, str], DeliverShared] = {}
        bodies: dict[int, SharedBody] = {}

        for mailbox in mailboxes:
            for connection in mailbox.connections.values():
                sendable = self._next(mailbox, connection, now_ms)
                if sendable is None:
                    continue
                parts = sendable.parts
                if len(parts) != 1 or not _all_shared(parts[0]):
                    self._send(mailbox, connection, sendable, now_ms)
                    continue
                session, conn = connection.conn
                # Each connection sends once here, and positions grow with its numbers: sorted by position, all is in order.
                for seq, attempt, body in parts[0]:
                    self._output.sent(mailbox.hot[seq], connection.since_ms, now_ms)
                    record = together.get((body.pos, session))
                    if record is None:
                        record = together[body.pos, session] = DeliverShared(body.pos, [])
                        bodies[body.pos] = body
                    record.deliveries.append((conn, seq, attempt))
                self._sent(mailbox, connection, sendable, now_ms)
        for (pos, session), record in sorted(together.items(), key=_by_position):
            self._share(session, bodies[pos])
            self._counters["delivered"] += len(record.deliveries)
            self._to_edges.append((session, record))

    def send(self, mailbox: Mailbox, connection: Attachment, now_ms: int) -> None:
        """Send what the connection has not been sent and has room for.

        A stall ends here when the messages that caused it were settled elsewhere, or have expired.
        """
        sendable = self._next(mailbox, connection, now_ms)
        if sendable is not None:
            self._send(mailbox, connection, sendable, now_ms)

    def _next(self, mailbox: Mailbox, connection: Attachment, now_ms: int) -> Sendable | None:
        if connection.stalled and connection.may_go_on(now_ms):
            mailbox.rewind(connection)
        return send(mailbox, connection, now_ms, self._send_limits, hold_low=self.hold_low)

    def _send(self, mailbox: Mailbox, connection: Attachment, sendable: Sendable, now_ms: int) -> None:
        session, conn = connection.conn
        for part in sendable.parts:
            if isinstance(part, list):
                self._counters["delivered"] += len(part)
                for seq, _, _ in part:
                    self._output.sent(mailbox.hot[seq], connection.since_ms, now_ms)
                self._deliver(session, conn, part)
            else:
                self._to_edges.append((session, GapRange(conn, *part)))
                self._mailbox_store.mark(mailbox)
        self._sent(mailbox, connection, sendable, now_ms)

    def _sent(self, mailbox: Mailbox, connection: Attachment, sendable: Sendable, now_ms: int) -> None:
        if sendable.expired:
            self._counters["expired"] += sendable.expired
        if sendable.parts and connection.retries and not mailbox.timer_ms:
            self._unarmed.setdefault(mailbox.key, (mailbox, now_ms))
        if sendable.load_from:
            self._mailbox_store.want_read(mailbox, sendable.load_from, self._limits.window)
        if sendable.held:
            self.held[mailbox.key] = mailbox

    def superseded(self, mailbox: Mailbox, message: Message) -> None:
        """A newer message stands for this one: who was sent it since that was decided is told that it is no more."""
        for connection in mailbox.connections.values():
            if connection.sent >= message.seq:
                self._to_edges.append((connection.conn[0], Revoke(connection.conn[1], [message.envelope.id])))

    def release(self, now_ms: int, messages_max: int) -> None:
        """The pressure is over: go on with what was held, until about `messages_max` messages are sent."""
        until = self._counters["delivered"] + messages_max
        while self.held and self._counters["delivered"] < until:
            mailbox = self.held.pop(next(iter(self.held)))
            for connection in mailbox.connections.values():
                self.send(mailbox, connection, now_ms)

    def _deliver(self, session: str, conn: int, messages: list[tuple[int, int, bytes]]) -> None:
        """Messages for one connection, bodies of broadcasts by reference."""
        run: list[tuple[int, int, bytes]] = []
        for message in messages:
            body = message[2]
            if not isinstance(body, SharedBody):
                run.append(message)
                continue
            if run:
                self._to_edges.append((session, Deliver(conn, run)))
                run = []
            self._share(session, body)
            self._to_edges.append((session, DeliverShared(body.pos, [(conn, message[0], message[1])])))
        if run:
            self._to_edges.append((session, Deliver(conn, run)))

    def _share(self, session: str, body: SharedBody) -> None:
        """See that the edge has the body."""
        cache = self._bodies[session]
        if body.pos not in cache:
            cache.put(body.pos, body)
            self._to_edges.append((session, Shared(body.pos, bytes(body))))

    def arms(self, now_ms: int) -> list[tuple[str, int]]:
        """Retry timers to arm now: (key, at ms). Call it every pacing interval while `wants_timers`.

        A timer is armed shortly before it would fire: what is acknowledged until then, nearly everything, costs none.
        """
        retry = self._limits.retry
        due_since_ms = now_ms - max(retry.first_ms - ARM_AHEAD_MS, 0)  # no timer can be near for what is younger
        arms = []
        looked: list[tuple[str, Mailbox]] = []
        for key, (mailbox, since_ms) in self._unarmed.items():
            if since_ms > due_since_ms:
                break
            looked.append((key, mailbox))
        for key, mailbox in looked:
            del self._unarmed[key]
            at_ms = mailbox.next_retry_ms(now_ms, retry)
            if at_ms > now_ms + ARM_AHEAD_MS:
                self._unarmed[key] = (mailbox, now_ms)
            elif at_ms:
                mailbox.timer_ms = at_ms
                arms.append((key, at_ms))
        return arms

    @property
    def wants_timers(self) -> bool:
        """Would `arms` look at anything?"""
        return bool(self._unarmed)

    def scheduler_reset(self, holds: Callable[[str], bool]) -> None:
        """A scheduler forgot the volatile timers of the keys it holds: arm them again."""
        for key, mailbox in self._mailbox_store.mailboxes.items():
            if mailbox.timer_ms and holds(key):
                mailbox.timer_ms = 0
                self._unarmed[key] = (mailbox, 0)

    def due(self, keys: Iterable[str], now_ms: int) -> None:
        """Retry timers that are due."""
        for key in keys:
            mailbox = self._mailbox_store.mailboxes.get(key)
            if mailbox is None:
                continue
            mailbox.timer_ms = 0
            for connection in mailbox.connections.values():
                stalled = connection.stalled
                again = connection.overdue(mailbox.hot, now_ms, self._limits.retry)
                if again:
                    self._counters["retried"] += len(again)
                    self._deliver(*connection.conn, again)
                if connection.stalled and not stalled:
                    self._counters["stalled"] += 1
                    self._mailbox_store.mark_urgent(mailbox)
            self.watch(mailbox, now_ms)


def _all_shared(part: tuple[int, int] | list[tuple[int, int, bytes]]) -> TypeGuard[list[tuple[int, int, SharedBody]]]:
    if type(part) is not list or type(part[0][2]) is not SharedBody:
        return False
    return len(part) == 1 or all(type(body) is SharedBody for _, _, body in part)


def _by_position(item: tuple[tuple[int, str], DeliverShared]) -> int:
    return item[0][0]
