"""Delivery to attached connections: first sends, revocations, and retries.

A mailbox with messages in flight and no armed retry timer is in `_unarmed`. Its timer is armed only `ARM_AHEAD_MS` before it would fire,
because nearly every message is acknowledged before that.

A connection on which all that is unsettled is exhausted has no timer. While more waits behind, its mailbox is in `_stuck` until the first
of these messages expires, which frees a place in the window; `tick` looks.

While `hold_low` is set, mailboxes whose next message is of low priority are held back in `held`. `release` sends them a few at a time, so
that the end of overload does not cause the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, TypeGuard

from engine.config import Config
from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.broadcast_log import BodyCache
from engine.core.mailbox.mailbox import Mailbox, Settlement
from engine.core.mailbox.send import Early, send
from engine.core.model.message import Message, SharedBody
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import ShardOutput, place_of
from engine.core.wire.outcomes import Outcome
from engine.core.wire.records import Deliver, DeliverEarly, DeliverShared, GapRange, Revoke, Shared

ARM_AHEAD_MS: Final = 60
"""How long before it fires a retry timer is sent to its scheduler: a few pacing intervals and the latency of one call."""

_Together: TypeAlias = dict[tuple[int, str], tuple[SharedBody, DeliverShared]]
"""Broadcasts for many connections, by position and link session."""


class Delivery:
    """Sends for one shard. Records for the edges are appended to `output.to_edges` as (link session, record)."""

    def __init__(self, config: Config, mailbox_store: MailboxStore, output: ShardOutput) -> None:
        self._output = output
        self._to_edges = output.to_edges
        self._counters = output.counters
        self._mailbox_store = mailbox_store
        self._config = config
        self._retry = mailbox_store.retry
        self.unarmed: Final[dict[str, tuple[Mailbox, int]]] = {}  # mailboxes without a retry timer, since when, oldest first
        self.hold_low = False
        self.held: dict[str, Mailbox] = {}
        self._stuck: dict[str, tuple[int, Mailbox]] = {}  # and when each goes on
        self._bodies: dict[str, BodyCache] = {}  # by link session: the bodies that its edge caches

    def opened(self, session: str) -> None:
        """An edge's link session began. Its body cache is empty."""
        self._bodies[session] = BodyCache(self._config.shared_bytes_max)

    def closed(self, session: str) -> None:
        """An edge's link session ended."""
        self._bodies.pop(session, None)

    def watch(self, mailbox: Mailbox, now_ms: int) -> None:
        """Arm a retry timer for the mailbox, which has messages in flight, when the time comes."""
        if not mailbox.timer_ms:
            self.unarmed.setdefault(mailbox.key, (mailbox, now_ms))

    def settled(self, mailbox: Mailbox, settled: Settlement, by: Attachment | None, now_ms: int, client_ms: int = 0) -> None:
        """After an acknowledgement: revoke its messages on other connections, and send what the windows have room for now.

        Args:
            by: the connection that acknowledged; `None` if it was none: an HTTP request, a cursor or a dead letter.
            client_ms: as in `ShardOutput.acknowledged`.
        """
        if mailbox.inbox is None:
            self._mailbox_store.mark(mailbox)
        else:
            self._mailbox_store.settled(mailbox)
        self._output.acknowledged(mailbox, settled, by, now_ms, client_ms)
        if settled.revoked:
            for conn, ids in settled.revoked.items():
                if ids:
                    self._revoke(mailbox, mailbox.connections[conn], ids, "acknowledged elsewhere", now_ms)
        head = mailbox.head
        for connection in mailbox.connections.values():
            if connection.sent < head:
                self.send(mailbox, connection, now_ms)

    def _revoke(self, mailbox: Mailbox, connection: Attachment, ids: list[str], reason: str, now_ms: int) -> None:
        session, conn = connection.conn
        self._to_edges.append((session, Revoke(conn, ids)))
        outcomes = self._output.outcomes
        if outcomes is not None:
            session, device, transport, node = place_of(connection)
            key = mailbox.key
            outcomes.extend(
                Outcome(key, now_ms, "revoked", id, reason=reason, session=session, device=device, transport=transport, node=node)
                for id in ids
            )

    def fan_out(self, mailboxes: Iterable[Mailbox], now_ms: int) -> None:
        """Send newly adopted broadcasts: one record per broadcast and link session, for all connections of that edge."""
        together: _Together = {}
        for mailbox in mailboxes:
            for connection in mailbox.connections.values():
                self.send(mailbox, connection, now_ms, together)
        # Their positions grow with the numbers of a connection (`_as_in_log`): sorting by position keeps its order.
        for (_, session), (body, record) in sorted(together.items(), key=_by_position):
            self._share(session, body)
            self._to_edges.append((session, record))

    def send(self, mailbox: Mailbox, connection: Attachment, now_ms: int, together: _Together | None = None) -> None:
        """Send the connection's next messages, as far as its window has room.

        Args:
            together: collects broadcasts, if nothing else is sent on the connection; the caller sends them.
        """
        sendable = send(mailbox, connection, now_ms, self._config, hold_low=self.hold_low)
        if sendable is None:
            self._await_expiry(mailbox, connection)
            return
        session, conn = connection.conn
        parts = sendable.parts
        for part in parts:
            if isinstance(part, list):
                self._output.sent(mailbox, part, connection, now_ms)
                if together is not None and len(parts) == 1 and _as_in_log(part):
                    for seq, attempt, body in part:
                        entry = together.get((body.pos, session))
                        if entry is None:
                            entry = together[body.pos, session] = body, DeliverShared(body.pos, [])
                        entry[1].deliveries.append((conn, seq, attempt))
                else:
                    self._deliver(session, conn, part)
            elif isinstance(part, Early):
                self._output.sent(mailbox, part.messages, connection, now_ms)
                copies = [(seq, attempt, bytes(body)) for seq, attempt, body in part.messages]
                self._to_edges.append((session, DeliverEarly(conn, copies)))
            else:
                self._announce_gap(mailbox, connection, part, now_ms)
        if sendable.expired:
            self._output.expired(mailbox, sendable.expired, now_ms)
        if parts and connection.retries and not mailbox.timer_ms:
            self.unarmed.setdefault(mailbox.key, (mailbox, now_ms))
        if sendable.load_from:
            self._mailbox_store.want_read(mailbox, sendable.load_from, self._config.window)
        if sendable.held:
            self.held[mailbox.key] = mailbox

    def _await_expiry(self, mailbox: Mailbox, connection: Attachment) -> None:
        if connection.silent and connection.sent < mailbox.head:
            expires_ms = min(expires_ms for expires_ms, _ in connection.exhausted.values())
            known_ms, _ = self._stuck.get(mailbox.key, (expires_ms, mailbox))
            self._stuck[mailbox.key] = min(expires_ms, known_ms), mailbox

    def tick(self, now_ms: int) -> None:
        """Send what waits behind messages that are exhausted and have expired."""
        for mailbox in [mailbox for until_ms, mailbox in self._stuck.values() if until_ms <= now_ms]:
            del self._stuck[mailbox.key]
            for connection in mailbox.connections.values():
                self.send(mailbox, connection, now_ms)

    def _announce_gap(self, mailbox: Mailbox, connection: Attachment, gap: tuple[int, int], now_ms: int) -> None:
        session, conn = connection.conn
        self._to_edges.append((session, GapRange(conn, *gap)))
        self._mailbox_store.mark(mailbox)
        self._mailbox_store.counts_changed(mailbox)
        if self._output.outcomes is not None:
            reason = f"numbers {gap[0]} to {gap[1]}: expired, trimmed or superseded"
            self._output.outcomes.add(Outcome(mailbox.key, now_ms, "gap", reason=reason))

    def superseded(self, mailbox: Mailbox, message: Message, now_ms: int) -> None:
        """A newer message replaced this one: revoke it on the connections that were sent it after that was decided."""
        id = message.envelope.id
        if self._output.outcomes is not None:
            self._output.outcomes.add(Outcome(mailbox.key, now_ms, "superseded", id, message.seq))
        for connection in mailbox.connections.values():
            if connection.sent >= message.seq or (connection.early and message.seq in connection.early):
                self._revoke(mailbox, connection, [id], "superseded", now_ms)

    def release(self, now_ms: int, messages_max: int) -> None:
        """Overload is over: resume held mailboxes until about `messages_max` messages are sent."""
        until = self._counters["delivered"] + messages_max
        while self.held and self._counters["delivered"] < until:
            mailbox = self.held.pop(next(iter(self.held)))
            for connection in mailbox.connections.values():
                self.send(mailbox, connection, now_ms)

    def _deliver(self, session: str, conn: int, messages: list[tuple[int, int, bytes]]) -> None:
        """Send messages to one connection, in order; broadcasts by reference to their body."""
        run: list[tuple[int, int, bytes]] = []
        for message in messages:
            body = message[2]
            if type(body) is not SharedBody:
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
        """Send the body to the edge unless the edge caches it."""
        cache = self._bodies[session]
        if body.pos not in cache:
            cache.put(body.pos, body)
            self._to_edges.append((session, Shared(body.pos, bytes(body))))

    def arms(self, now_ms: int) -> list[tuple[str, int]]:
        """Returns the retry timers to arm now, as (mailbox key, wall-clock ms). To be called every pacing interval while any is `unarmed`.

        A timer is armed at most `ARM_AHEAD_MS` before it fires, so messages acknowledged before that cost none.
        """
        retry = self._retry
        due_since_ms = now_ms - max(retry.first_ms - ARM_AHEAD_MS, 0)  # a mailbox watched since later cannot be that close to its retry
        arms = []
        candidates: list[tuple[str, Mailbox]] = []
        for key, (mailbox, since_ms) in self.unarmed.items():
            if since_ms > due_since_ms:
                break
            candidates.append((key, mailbox))
        for key, mailbox in candidates:
            del self.unarmed[key]
            at_ms = mailbox.next_retry_ms(now_ms, retry)
            if at_ms > now_ms + ARM_AHEAD_MS:
                self.unarmed[key] = (mailbox, now_ms)
            elif at_ms:
                mailbox.timer_ms = at_ms
                arms.append((key, at_ms))
        return arms

    def forget(self, keys: Iterable[str]) -> None:
        """These mailboxes have no connection any more, so they may leave memory."""
        for key in keys:
            self.unarmed.pop(key, None)
            self.held.pop(key, None)
            self._stuck.pop(key, None)

    def scheduler_reset(self, holds: Callable[[str], bool]) -> None:
        """A scheduler restarted and lost its volatile timers, those of the keys for which `holds` is true: arm them again."""
        for key, mailbox in self._mailbox_store.mailboxes.items():
            if mailbox.timer_ms and holds(key):
                mailbox.timer_ms = 0
                if mailbox.connections:  # else it may leave memory
                    self.watch(mailbox, 0)

    def due(self, keys: Iterable[str], now_ms: int) -> None:
        """Retry timers of these mailboxes fired: send overdue messages again, but those that used up their tries."""
        for key in keys:
            mailbox = self._mailbox_store.mailboxes.get(key)
            if mailbox is None:
                continue
            mailbox.timer_ms = 0
            for connection in mailbox.connections.values():
                exhausted = len(connection.exhausted)
                again = connection.overdue(mailbox.hot, now_ms, self._retry)
                if again:
                    self._counters["retried"] += len(again)
                    mailbox.tally.repeated[connection.kind] += len(again)
                    self._output.record_sent(mailbox, again, connection, now_ms)
                    self._deliver(*connection.conn, again)
                if len(connection.exhausted) > exhausted:
                    self._counters["exhausted"] += len(connection.exhausted) - exhausted
                    self._mailbox_store.mark_urgent(mailbox)
                    self.send(mailbox, connection, now_ms)  # bytes of the window are free
            self.watch(mailbox, now_ms)


def _as_in_log(messages: list[tuple[int, int, bytes]]) -> TypeGuard[list[tuple[int, int, SharedBody]]]:
    """Whether these are broadcasts in the order of the log; one that was owed may follow a later one."""
    if len(messages) == 1:
        return type(messages[0][2]) is SharedBody
    positions = [body.pos for _, _, body in messages if type(body) is SharedBody]
    return len(positions) == len(messages) and positions == sorted(positions)


def _by_position(item: tuple[tuple[int, str], object]) -> int:
    return item[0][0]
