"""ShardCore: every decision of a shard, as one state machine without clock, sockets or storage.

The shell (engine/actors/shard.py) feeds it records of edges and schedulers and the answers of storage, and carries away
what it wants: `output` for the edges, `to_scheduler`, pages and stream ranges to read, one journal group at a time,
checkpoints, dead letters, session events.

A mailbox comes into memory when something concerns its user: the page is wanted, whatever concerns the user waits in
`_waiting` in order, and goes on when the page is there. It leaves memory when nobody is connected, nothing of it is
unwritten, and it has been idle.

What a crash does: everything here is lost. The successor takes a new epoch, reads pages and journal, and is fed by the
edges, which announce their connections and repeat unanswered posts, and by the schedulers, which fire again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from engine.core.batch import (
    ACCEPTED,
    OVERLOADED,
    UNAVAILABLE,
    Ack,
    AckIds,
    Attach,
    Detach,
    Fault,
    FireDone,
    Hangup,
    Moved,
    Nack,
    Post,
    Posted,
    Probe,
    Probed,
    Settle,
    Timer,
    Welcome,
    Written,
)
from engine.core.batch import Settled as SettledRecord
from engine.core.cabinet import Cabinet, DeadLetter, StreamRead
from engine.core.checkpoint import Handled, Page, Stored, message_of
from engine.core.commit import Answer, Group, Intake, Pending
from engine.core.courier import COUNTERS, LATENCY_BUCKETS_MS, Courier, SessionEvent, ShardPolicy
from engine.core.mailbox import Connection, Mailbox, Settled
from engine.core.slots import SlotMap, slot_of


class ShardCore:
    """See the module's text. Not reentrant: one caller, one event at a time; `now_ms` is wall-clock milliseconds."""

    def __init__(self, index: int, policy: ShardPolicy, slot_map: SlotMap, data_epoch: str) -> None:
        self.index = index
        self.policy = policy
        self.slot_map = slot_map
        self.data_epoch = data_epoch
        self.cabinet = Cabinet(policy.recent_ids, policy.hot_messages_max, policy.mailbox_idle_ms, policy.retry)
        self.mailboxes = self.cabinet.mailboxes
        self.intake = Intake(self.mailboxes, policy.recent_ids)
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.courier = Courier(self.cabinet, policy, self.counters)
        self.output = self.courier.output
        self.to_scheduler: list[tuple[int, Struct]] = []
        self.session_events: list[SessionEvent] = []
        self.storage_away = False
        self._sessions: dict[str, dict[int, tuple[Mailbox, Connection]]] = {}
        self._waiting: dict[str, list[tuple[str, Struct | Pending]]] = {}  # key -> what waits for its page
        self._pages_wanted: dict[str, None] = {}
        self._ack_dirty: dict[str, Mailbox] = {}
        self._acked_since_ms = 0
        self._firing: set[str] = set()
        self._handlers: dict[type, Callable[[str, Any, int], None]] = {
            Post: self._post,
            Attach: self._attach,
            Detach: self._detach,
            Ack: self._ack,
            AckIds: self._ack_ids,
            Nack: self._nack,
            Settle: self._settle,
            Probe: self._probe,
            Written: self._written,
        }

    # -- edges --------------------------------------------------------------------------------------------------------

    def opened(self, session: str) -> None:
        """An edge's link session began."""
        self._sessions[session] = {}

    def closed(self, session: str, now_ms: int) -> None:
        """An edge's link session is over: its connections are no more, until it announces them again."""
        for conn in list(self._sessions.get(session, ())):
            self._detach(session, Detach(conn, 1006), now_ms)
        self._sessions.pop(session, None)

    def handle(self, session: str, records: Iterable[Struct], now_ms: int) -> None:
        """Records of an edge, in order."""
        handlers = self._handlers
        for record in records:
            handlers[type(record)](session, record, now_ms)

    def _owns(self, key: str) -> bool:
        return self.slot_map.owners[slot_of(key)] == self.index

    def _post(self, session: str, record: Post, now_ms: int) -> None:
        if not self._owns(record.key):
            self.output.append((session, Moved(record.ref, -1, self.slot_map.version)))
        elif self.storage_away:
            self.output.append((session, Posted(record.ref, UNAVAILABLE)))
        elif len(self.intake) >= self.policy.posts_pending_max or self.cabinet.hot_messages >= self.policy.memory_messages_max:
            self.output.append((session, Posted(record.ref, OVERLOADED)))
        else:
            self._enqueue(Pending(session, record), now_ms)

    def _enqueue(self, pending: Pending, now_ms: int) -> None:
        key = pending.post.key
        mailbox = self.mailboxes.get(key)
        if mailbox is None:
            self._wait_for_page(key, pending.session, pending)
        else:
            mailbox.active_ms = now_ms
            self.intake.add(pending, now_ms)

    def _wait_for_page(self, key: str, session: str, what: Struct | Pending) -> None:
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = waiting = []
            self._pages_wanted[key] = None
        waiting.append((session, what))

    def _attach(self, session: str, record: Attach, now_ms: int) -> None:
        if not self._owns(record.key):
            self.output.append((session, Moved(-1, record.conn, self.slot_map.version)))
            return
        mailbox = self.mailboxes.get(record.key)
        if mailbox is None:
            self._wait_for_page(record.key, session, record)
            return
        connections = self._sessions.get(session)
        if connections is None:
            return  # the link session ended while the page was read
        if record.resume and record.cursor_epoch != self.data_epoch:
            # Storage has lost data: a new connection with the old cursor is told of the gap.
            self.output.append((session, Hangup(record.conn, 1012, "the epoch has changed")))
            return
        mailbox.active_ms = now_ms
        resumed = "new"
        if record.cursor_epoch:
            resumed = "gap"
            if record.cursor_epoch == self.data_epoch and 0 <= record.cursor_seq <= mailbox.head:
                resumed = "ok"
                self._settled(mailbox, mailbox.settle_through(record.cursor_seq, None, now_ms, self.policy.retry), None, now_ms)
        connection = Connection((session, record.conn), record.kind, record.session, record.device, mailbox.floor, now_ms)
        while len(mailbox.connections) >= self.policy.connections_per_user_max:
            oldest = next(iter(mailbox.connections))
            self.output.append((oldest[0], Hangup(oldest[1], 4409, "too many connections of this user")))
            self._detach(oldest[0], Detach(oldest[1], 4409), now_ms)
        mailbox.connections[connection.conn] = connection
        connections[record.conn] = (mailbox, connection)
        if record.resume:
            self._readopt(mailbox, connection, record.sent, now_ms)
        else:
            self._session_event("connect", mailbox, connection, now_ms, 0)
            welcome = Welcome(record.conn, mailbox.head, resumed, mailbox.oldest_pending(), self.data_epoch)
            self.output.append((session, welcome))
        self.courier.pump(mailbox, connection, now_ms)

    def _readopt(self, mailbox: Mailbox, connection: Connection, sent: int, now_ms: int) -> None:
        """A connection that outlived the link: what it was sent is in flight again, as far as it is in memory."""
        sent = min(sent, mailbox.head)
        if mailbox.cold:
            sent = min(sent, mailbox.cold[0] - 1)
        connection.sent = max(connection.sent, sent)
        for seq in sorted(seq for seq in mailbox.hot if seq <= sent):
            connection.flight[seq] = (now_ms, 1)
            connection.flight_bytes += len(mailbox.hot[seq].body)
        if connection.flight:
            self.courier.watch(mailbox, now_ms)

    def _detach(self, session: str, record: Detach, now_ms: int) -> None:
        found = self._sessions.get(session, {}).pop(record.conn, None)
        if found is None:
            self._forget_waiting(session, record.conn)
            return
        mailbox, connection = found
        mailbox.detach(connection.conn)
        mailbox.active_ms = now_ms
        self._session_event("disconnect", mailbox, connection, now_ms, record.code)
        if not mailbox.connections and mailbox.hot:
            self.cabinet.mark_urgent(mailbox)

    def _forget_waiting(self, session: str, conn: int) -> None:
        """The connection ended before its user's page was read."""
        for waiting in self._waiting.values():
            for entry in waiting:
                if entry[0] == session and isinstance(entry[1], Attach) and entry[1].conn == conn:
                    waiting.remove(entry)
                    return

    def _session_event(self, event: str, mailbox: Mailbox, connection: Connection, now_ms: int, code: int) -> None:
        edge = connection.conn[0].partition("/")[0]
        self.session_events.append(
            SessionEvent(event, mailbox.key, connection.session, connection.device, edge, connection.kind, now_ms, code)
        )

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def _ack(self, session: str, record: Ack, now_ms: int) -> None:
        found = self._sessions.get(session, {}).get(record.conn)
        if found is None:
            return
        mailbox, connection = found
        if not 0 <= record.seq <= mailbox.head:
            detail = f"nothing beyond {mailbox.head} was sent, {record.seq} cannot be acknowledged"
            self.output.append((session, Fault(record.conn, "unknown_seq", detail)))
            return
        self._settled(mailbox, mailbox.settle_through(record.seq, connection, now_ms, self.policy.retry), connection, now_ms)

    def _ack_ids(self, session: str, record: AckIds, now_ms: int) -> None:
        found = self._sessions.get(session, {}).get(record.conn)
        if found is not None:
            mailbox, connection = found
            seqs = mailbox.seqs_of(record.ids)
            self._settled(mailbox, mailbox.settle(seqs, connection, now_ms, self.policy.retry), connection, now_ms)

    def _settle(self, session: str, record: Settle, now_ms: int) -> None:
        if not self._owns(record.key):
            self.output.append((session, Moved(record.ref, -1, self.slot_map.version)))
            return
        mailbox = self.mailboxes.get(record.key)
        if mailbox is None:
            self._wait_for_page(record.key, session, record)
            return
        mailbox.active_ms = now_ms
        if record.seq > mailbox.head:
            self.output.append((session, SettledRecord(record.ref, f"nothing beyond {mailbox.head} exists")))
            return
        if record.seq >= 0:
            self._settled(mailbox, mailbox.settle_through(record.seq, None, now_ms, self.policy.retry), None, now_ms)
        if record.ids:
            seqs = mailbox.seqs_of(record.ids)
            self._settled(mailbox, mailbox.settle(seqs, None, now_ms, self.policy.retry), None, now_ms)
        self.output.append((session, SettledRecord(record.ref)))

    def _settled(self, mailbox: Mailbox, settled: Settled, by: Connection | None, now_ms: int) -> None:
        self._ack_dirty[mailbox.key] = mailbox
        if not self._acked_since_ms:
            self._acked_since_ms = now_ms
        self.courier.settled(mailbox, settled, by, now_ms)

    def _nack(self, session: str, record: Nack, now_ms: int) -> None:
        found = self._sessions.get(session, {}).get(record.conn)
        if found is None:
            return
        mailbox, connection = found
        self.cabinet.refuse(mailbox, record.ids, record.reason)
        if connection.stalled:
            mailbox.rewind(connection)
        self.courier.pump(mailbox, connection, now_ms)

    def _written(self, session: str, record: Written, now_ms: int) -> None:
        found = self._sessions.get(session, {}).get(record.conn)
        if found is not None:
            mailbox, connection = found
            mailbox.written(connection, record.seq)
            self.courier.pump(mailbox, connection, now_ms)

    def _probe(self, session: str, record: Probe, now_ms: int) -> None:
        if not self._owns(record.key):
            self.output.append((session, Moved(record.ref, -1, self.slot_map.version)))
            return
        mailbox = self.mailboxes.get(record.key)
        if mailbox is None:
            self._wait_for_page(record.key, session, record)
            return
        self.output.append((session, Probed(record.ref, bool(mailbox.connections), mailbox.head)))

    # -- timers -------------------------------------------------------------------------------------------------------

    def fire(self, timers: Iterable[Timer], now_ms: int) -> None:
        """Durable timers that are due; the same one may come again until `FireDone`."""
        for timer in timers:
            if timer.sid in self._firing or not self._owns(timer.key) or self.storage_away:
                continue
            expires_ms = timer.due_ms + timer.ttl_ms
            if expires_ms <= now_ms:
                self.counters["expired"] += 1
                self._fired([timer.sid])
                continue
            self._firing.add(timer.sid)
            post = Post(-1, timer.key, timer.id, True, timer.digest, timer.priority, expires_ms, timer.retain, timer.body)
            self._enqueue(Pending("", post, timer.sid), now_ms)

    def _fired(self, sids: Sequence[str]) -> None:
        by_partition: dict[int, list[str]] = {}
        for sid in sids:
            by_partition.setdefault(int(sid.partition("-")[0]), []).append(sid)
        self.to_scheduler.extend((partition, FireDone(done)) for partition, done in by_partition.items())

    # -- journal ------------------------------------------------------------------------------------------------------

    def take_group(self, now_ms: int) -> Group | None:
        """The next group to append, if none is under way and there is something to write."""
        if self.intake.group is not None or self.storage_away:
            return None
        acks_due = bool(self._ack_dirty) and now_ms - self._acked_since_ms >= self.policy.ack_journal_ms
        if not len(self.intake) and not acks_due:
            return None
        handled = [Handled(key, mailbox.floor, sorted(mailbox.acked)) for key, mailbox in self._ack_dirty.items()]
        self._ack_dirty.clear()
        self._acked_since_ms = 0
        group, answers = self.intake.build(handled, self.policy.commit_records_max, self.policy.commit_bytes_max, now_ms)
        self._answer(answers)
        return group

    def group_known(self, hits: Mapping[int, bytes], now_ms: int) -> Group | None:
        """Storage remembers some ids of the group and took nothing: the group without them, or `None`."""
        group, answers = self.intake.known(hits, now_ms)
        self._answer(answers)
        return group

    def group_committed(self, now_ms: int) -> None:
        """The group is durable: publishers are answered, clients are sent the messages."""
        group, touched = self.intake.committed()
        self.cabinet.committed(group.number)
        self.counters["commits"] += 1
        self.counters["published"] += len(group.stored)
        self.cabinet.hot_messages += len(group.stored)
        self._answer(group.answers)
        for mailbox in touched:
            self.cabinet.mark(mailbox)
            trimmed = mailbox.trim(self.policy.offline_max)
            self.counters["trimmed"] += len(trimmed)
            self.cabinet.hot_messages -= len(trimmed)
            for connection in mailbox.connections.values():
                self.courier.pump(mailbox, connection, now_ms)

    def group_refused(self) -> None:
        """Storage is away and the group is rolled back: it never was. So are all waiting posts, until `storage_back`."""
        group = self.intake.refused()
        self.storage_away = True
        for handled in group.handled:
            mailbox = self.mailboxes.get(handled.key)
            if mailbox is not None:
                self._ack_dirty[handled.key] = mailbox
        refused = [answer.pending for answer in group.answers] + self.intake.drop_waiting()
        for key, waiting in list(self._waiting.items()):
            refused.extend(what for _, what in waiting if isinstance(what, Pending))
            self._waiting[key] = [entry for entry in waiting if not isinstance(entry[1], Pending)]
        self._answer([Answer(pending, UNAVAILABLE) for pending in refused])

    def storage_back(self) -> None:
        """Storage answers again."""
        self.storage_away = False

    def _answer(self, answers: Iterable[Answer]) -> None:
        fired = []
        output = self.output
        for answer in answers:
            pending = answer.pending
            if pending.timer:
                self._firing.discard(pending.timer)
                if answer.status != UNAVAILABLE:
                    fired.append(pending.timer)
                continue
            if answer.status != ACCEPTED:
                self.counters["duplicates"] += 1
            output.append((pending.session, Posted(pending.post.ref, answer.status, answer.seq, answer.detail)))
        if fired:
            self._fired(fired)

    @property
    def wants_ack_commit(self) -> bool:
        """Are there acknowledgements that no group carries yet?"""
        return bool(self._ack_dirty)

    # -- pages and streams --------------------------------------------------------------------------------------------

    @property
    def wants_fetch(self) -> bool:
        """Is there anything to read, or to write beside journal and checkpoints?"""
        return bool(self._pages_wanted or self.session_events or self.cabinet.wants_io)

    def take_session_events(self, kept_max: int) -> list[SessionEvent]:
        """Session events to write, the newest `kept_max` of them."""
        events, self.session_events = self.session_events[-kept_max:], []
        return events

    def take_pages_wanted(self) -> list[str]:
        """Keys whose page is to be read; answer with `pages_loaded`, or `pages_failed`."""
        wanted = list(self._pages_wanted)
        self._pages_wanted.clear()
        return wanted

    def pages_failed(self, keys: Iterable[str]) -> None:
        """The pages could not be read: they are wanted again. Posts that wait are answered "unavailable"."""
        for key in keys:
            waiting = self._waiting.get(key, [])
            self._answer([Answer(what, UNAVAILABLE) for _, what in waiting if isinstance(what, Pending)])
            self._waiting[key] = [entry for entry in waiting if not isinstance(entry[1], Pending)]
            self._pages_wanted[key] = None

    def pages_loaded(self, pages: Mapping[str, Page | None], now_ms: int) -> None:
        """Pages as storage has them, `None` for users never seen; what waited for them goes on."""
        for key, page in pages.items():
            self.cabinet.restore(key, page, now_ms)
            for session, what in self._waiting.pop(key, ()):
                if isinstance(what, Pending):
                    self._enqueue(what, now_ms)
                else:
                    self._handlers[type(what)](session, what, now_ms)

    def read_done(self, read: StreamRead, entries: Iterable[Stored], now_ms: int) -> None:
        """What the stream holds of the range."""
        mailbox = self.mailboxes.get(read.key)
        if mailbox is None:
            return
        mailbox.loading = False
        self.cabinet.hot_messages += mailbox.loaded(read.first, read.last, [message_of(stored) for stored in entries])
        for connection in mailbox.connections.values():
            self.courier.pump(mailbox, connection, now_ms)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_lettered(self, letters: Sequence[DeadLetter], now_ms: int) -> None:
        """They are there: now they are settled."""
        self.counters["dead_lettered"] += len(letters)
        for letter in letters:
            mailbox = self.mailboxes[letter.key]
            self._settled(mailbox, mailbox.settle([letter.message.seq], None, now_ms, self.policy.retry), None, now_ms)

    def evict(self, now_ms: int) -> int:
        """Idle mailboxes leave memory. Returns how many did."""
        return self.cabinet.evict(self.intake.busy() | self._ack_dirty.keys(), now_ms)

    def stats(self, now_ms: int) -> dict[str, Any]:
        """Plain numbers for status and metrics."""
        return {
            **self.counters,
            "users": len(self.mailboxes),
            "connections": sum(map(len, self._sessions.values())),
            "pending": sum(mailbox.pending_count() for mailbox in self.mailboxes.values()),
            "lag_ms": now_ms - self.intake.oldest_ms if self.intake.oldest_ms else 0,
            "storage": "down" if self.storage_away else "ok",
            "latency": [[upper, count] for upper, count in zip((*LATENCY_BUCKETS_MS, -1), self.courier.latency, strict=True)],
        }
