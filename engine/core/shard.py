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

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from engine.core.batch import (
    ACCEPTED,
    OVERLOADED,
    UNAVAILABLE,
    Ack,
    AckIds,
    Attach,
    Deliver,
    Detach,
    Fault,
    FireDone,
    Gap,
    Hangup,
    Moved,
    Nack,
    Post,
    Posted,
    Probe,
    Probed,
    Revoke,
    Settle,
    Timer,
    Welcome,
    Written,
)
from engine.core.batch import Settled as SettledRecord
from engine.core.checkpoint import Checkpoint, Handled, Page, Stored, message_of, restore, spill_of
from engine.core.commit import Answer, Group, Intake, Pending, apply_stored
from engine.core.mailbox import Connection, Mailbox, Message, Pumped, Settled
from engine.core.retry import RetryPolicy
from engine.core.slots import SlotMap, slot_of

LATENCY_BUCKETS_MS: Final = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000, 60_000)
"""Upper bounds of the accept-to-ACK histogram; the last bucket is everything slower."""


class ShardPolicy(Struct, frozen=True):
    """The shard's limits; see engine.config for what each is and why."""

    retry: RetryPolicy
    window: int
    window_bytes: int
    deliver_bytes_max: int
    connections_per_user_max: int
    offline_max: int
    recent_ids: int
    hot_messages_max: int
    mailbox_idle_ms: int
    commit_records_max: int
    commit_bytes_max: int
    ack_journal_ms: int
    posts_pending_max: int
    memory_messages_max: int


class DeadLetter(Struct):
    """A message a client refused, on its way to the dead-letter stream."""

    key: str
    message: Message
    reason: str


class SessionEvent(Struct):
    """A connection began or ended, for `session:stream`."""

    event: str  # connect | disconnect
    key: str
    session: str
    device: str
    edge: str
    transport: int
    at_ms: int
    code: int


class StreamRead(Struct, frozen=True):
    """A range of an offline stream to read: the numbers `first`..`last`, both included."""

    key: str
    first: int
    last: int


class ShardCore:
    """See the module's text. Not reentrant: one caller, one event at a time; `now_ms` is wall-clock milliseconds."""

    def __init__(self, index: int, policy: ShardPolicy, slot_map: SlotMap, data_epoch: str) -> None:
        self.index = index
        self.policy = policy
        self.slot_map = slot_map
        self.data_epoch = data_epoch
        self.mailboxes: dict[str, Mailbox] = {}
        self.intake = Intake(self.mailboxes, policy.recent_ids)
        self.output: list[tuple[str, Struct]] = []
        self.to_scheduler: list[tuple[int, Struct]] = []
        self.session_events: list[SessionEvent] = []
        self.storage_away = False
        self.latency = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self.counters: dict[str, int] = dict.fromkeys(
            (
                "published",
                "delivered",
                "acknowledged",
                "retried",
                "stalled",
                "dead_lettered",
                "expired",
                "trimmed",
                "duplicates",
                "commits",
            ),
            0,
        )
        self.hot_messages = 0
        self._sessions: dict[str, dict[int, tuple[Mailbox, Connection]]] = {}
        self._waiting: dict[str, list[tuple[str, Struct | Pending]]] = {}  # key -> what waits for its page
        self._pages_wanted: dict[str, None] = {}
        self._reads_wanted: dict[str, StreamRead] = {}
        self._ack_dirty: dict[str, Mailbox] = {}
        self._acked_since_ms = 0
        self._dirty: dict[str, Mailbox] = {}
        self._urgent: dict[str, Mailbox] = {}
        self._unarmed: dict[str, Mailbox] = {}
        self._dead: list[DeadLetter] = []
        self._dead_out: list[DeadLetter] = []
        self._firing: set[str] = set()
        self._checkpoint: Checkpoint | None = None
        self._committed_number = 0
        self._trimmed_number = -1  # below 0: what earlier incarnations left is to be trimmed too
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
        elif len(self.intake) >= self.policy.posts_pending_max or self.hot_messages >= self.policy.memory_messages_max:
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
        self._pump(mailbox, connection, now_ms)

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
            self._unarmed[mailbox.key] = mailbox

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
            self._urgent[mailbox.key] = self._dirty[mailbox.key] = mailbox

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
        self._dirty[mailbox.key] = mailbox
        if not self._acked_since_ms:
            self._acked_since_ms = now_ms
        self.counters["acknowledged"] += len(settled.messages)
        self.hot_messages -= len(settled.messages)
        latency = self.latency
        for message in settled.messages:
            latency[bisect_left(LATENCY_BUCKETS_MS, now_ms - message.accepted_ms)] += 1
        for conn, ids in settled.revoked.items():
            self.output.append((conn[0], Revoke(conn[1], ids)))
        if by is not None and by.stalled and settled.messages:
            mailbox.rewind(by)
        for connection in mailbox.connections.values():
            if connection.sent < mailbox.head:
                self._pump(mailbox, connection, now_ms)

    def _nack(self, session: str, record: Nack, now_ms: int) -> None:
        found = self._sessions.get(session, {}).get(record.conn)
        if found is None:
            return
        mailbox, connection = found
        for message in mailbox.refuse(mailbox.seqs_of(record.ids)):
            letter = DeadLetter(mailbox.key, message, record.reason)
            self._dead.append(letter)
            self._dead_out.append(letter)
        self._dirty[mailbox.key] = mailbox
        if connection.stalled:
            mailbox.rewind(connection)
        self._pump(mailbox, connection, now_ms)

    def _written(self, session: str, record: Written, now_ms: int) -> None:
        found = self._sessions.get(session, {}).get(record.conn)
        if found is not None:
            mailbox, connection = found
            mailbox.written(connection, record.seq)
            self._pump(mailbox, connection, now_ms)

    def _probe(self, session: str, record: Probe, now_ms: int) -> None:
        if not self._owns(record.key):
            self.output.append((session, Moved(record.ref, -1, self.slot_map.version)))
            return
        mailbox = self.mailboxes.get(record.key)
        if mailbox is None:
            self._wait_for_page(record.key, session, record)
            return
        self.output.append((session, Probed(record.ref, bool(mailbox.connections), mailbox.head)))

    # -- sending ------------------------------------------------------------------------------------------------------

    def _pump(self, mailbox: Mailbox, connection: Connection, now_ms: int) -> None:
        policy = self.policy
        pumped = mailbox.pump(connection, now_ms, policy.window, policy.window_bytes, policy.deliver_bytes_max)
        if pumped is not None:
            self._send(mailbox, connection, pumped)

    def _send(self, mailbox: Mailbox, connection: Connection, pumped: Pumped) -> None:
        session, conn = connection.conn
        self.counters["expired"] += pumped.expired
        self.hot_messages -= pumped.expired
        for part in pumped.parts:
            if isinstance(part, list):
                self.counters["delivered"] += len(part)
                self.output.append((session, Deliver(conn, part)))
            else:
                self.output.append((session, Gap(conn, *part)))
                self._dirty[mailbox.key] = mailbox
        if pumped.parts and not mailbox.timer_ms and connection.retries:
            self._unarmed[mailbox.key] = mailbox
        if pumped.load_from and not mailbox.loading and mailbox.cold:
            mailbox.loading = True
            last = min(mailbox.cold[1], pumped.load_from + self.policy.window - 1)
            self._reads_wanted[mailbox.key] = StreamRead(mailbox.key, pumped.load_from, last)

    # -- timers -------------------------------------------------------------------------------------------------------

    def arms(self) -> list[tuple[str, int]]:
        """Retry timers to arm: (key, at ms). Call it once per pacing interval: what was acknowledged since needs none."""
        arms = []
        for key, mailbox in self._unarmed.items():
            at_ms = mailbox.next_retry_ms(self.policy.retry)
            if at_ms:
                mailbox.timer_ms = at_ms
                arms.append((key, at_ms))
        self._unarmed.clear()
        return arms

    @property
    def wants_timers(self) -> bool:
        """Would `arms` look at anything?"""
        return bool(self._unarmed)

    def scheduler_reset(self, holds: Callable[[str], bool]) -> None:
        """A scheduler forgot the volatile timers of the keys it holds: arm them again."""
        for key, mailbox in self.mailboxes.items():
            if mailbox.timer_ms and holds(key):
                mailbox.timer_ms = 0
                self._unarmed[key] = mailbox

    def due(self, keys: Iterable[str], now_ms: int) -> None:
        """Retry timers that are due."""
        for key in keys:
            mailbox = self.mailboxes.get(key)
            if mailbox is None:
                continue
            mailbox.timer_ms = 0
            for connection in mailbox.connections.values():
                stalled = connection.stalled
                again = mailbox.overdue(connection, now_ms, self.policy.retry)
                if again:
                    self.counters["retried"] += len(again)
                    self.output.append((connection.conn[0], Deliver(connection.conn[1], again)))
                if connection.stalled and not stalled:
                    self.counters["stalled"] += 1
                    self._urgent[key] = self._dirty[key] = mailbox
            self._unarmed[key] = mailbox

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
        self._committed_number = group.number
        self.counters["commits"] += 1
        self.counters["published"] += len(group.stored)
        self.hot_messages += len(group.stored)
        self._answer(group.answers)
        for mailbox in touched:
            self._dirty[mailbox.key] = mailbox
            trimmed = mailbox.trim(self.policy.offline_max)
            self.counters["trimmed"] += len(trimmed)
            self.hot_messages -= len(trimmed)
            for connection in mailbox.connections.values():
                self._pump(mailbox, connection, now_ms)

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
        return bool(self._pages_wanted or self._reads_wanted or self._dead_out or self.session_events)

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
            if key not in self.mailboxes:
                self.mailboxes[key] = restore(key, page, now_ms)
            for session, what in self._waiting.pop(key, ()):
                if isinstance(what, Pending):
                    self._enqueue(what, now_ms)
                else:
                    self._handlers[type(what)](session, what, now_ms)

    def replay(self, records: Iterable[Stored | Handled], now_ms: int) -> None:
        """Journal records of a predecessor, oldest first; the pages of all their keys are loaded."""
        for record in records:
            mailbox = self.mailboxes[record.key]
            self._dirty[record.key] = mailbox
            if isinstance(record, Stored):
                self.hot_messages += apply_stored(mailbox, record, self.policy.recent_ids)
            else:
                retry = self.policy.retry
                settled = len(mailbox.settle_through(min(record.floor, mailbox.head), None, now_ms, retry).messages)
                settled += len(mailbox.settle([seq for seq in record.acked if seq <= mailbox.head], None, now_ms, retry).messages)
                self.hot_messages -= settled

    def take_reads_wanted(self) -> list[StreamRead]:
        """Stream ranges to read; answer each with `read_done` or `read_failed`."""
        wanted = list(self._reads_wanted.values())
        self._reads_wanted.clear()
        return wanted

    def read_failed(self, read: StreamRead) -> None:
        """The range could not be read: it is wanted again."""
        self._reads_wanted[read.key] = read

    def read_done(self, read: StreamRead, entries: Iterable[Stored], now_ms: int) -> None:
        """What the stream holds of the range."""
        mailbox = self.mailboxes.get(read.key)
        if mailbox is None:
            return
        mailbox.loading = False
        self.hot_messages += mailbox.loaded(read.first, read.last, [message_of(stored) for stored in entries])
        for connection in mailbox.connections.values():
            self._pump(mailbox, connection, now_ms)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def take_dead_letters(self) -> list[DeadLetter]:
        """Messages to write to the dead-letter stream; answer with `dead_lettered` or `dead_letters_failed`."""
        letters, self._dead_out = self._dead_out, []
        return letters

    def dead_lettered(self, letters: Iterable[DeadLetter], now_ms: int) -> None:
        """They are there: now they are settled."""
        done = list(letters)
        for letter in done:
            self.counters["dead_lettered"] += 1
            mailbox = self.mailboxes[letter.key]
            self._settled(mailbox, mailbox.settle([letter.message.seq], None, now_ms, self.policy.retry), None, now_ms)
            self.hot_messages -= 1
        self._dead = [letter for letter in self._dead if letter not in done]

    def dead_letters_failed(self, letters: Iterable[DeadLetter]) -> None:
        """They could not be written: they are wanted again."""
        self._dead_out.extend(letters)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def wants_spill(self) -> bool:
        """Has a user gone offline, or stalled, whose messages are to be moved to the offline stream at once?"""
        return bool(self._urgent)

    def take_checkpoint(self, full: bool, messages_max: int) -> Checkpoint | None:
        """Mailboxes to write: all dirty ones and the journal's end (`full`), or those that went offline.

        A partial one carries at most about `messages_max` messages. At most one checkpoint is under way.
        """
        if self._checkpoint is not None:
            return None
        if full:
            chosen, self._dirty, self._urgent = list(self._dirty.values()), {}, {}
        else:
            chosen, count = [], 0
            for mailbox in self._urgent.values():
                chosen.append(mailbox)
                count += len(mailbox.hot)
                if count >= messages_max:
                    break
            for mailbox in chosen:
                self._urgent.pop(mailbox.key, None)
                self._dirty.pop(mailbox.key, None)
        # A refused message lives in the journal only until it is dead-lettered, so the journal stays until then.
        through = self._committed_number if full and not self._dead and self._committed_number > self._trimmed_number else None
        if not chosen and through is None:
            return None
        self._checkpoint = Checkpoint([spill_of(m) for m in chosen], through, {m.key: m.head for m in chosen})
        return self._checkpoint

    def checkpoint_done(self) -> None:
        """It is written: what is offline leaves memory."""
        checkpoint, self._checkpoint = self._checkpoint, None
        assert checkpoint is not None, "no checkpoint is under way"
        if checkpoint.through_commit is not None:
            self._trimmed_number = checkpoint.through_commit
        for key, upto in checkpoint.upto.items():
            mailbox = self.mailboxes.get(key)
            if mailbox is None:
                continue
            mailbox.spilled = max(mailbox.spilled, upto)
            if not mailbox.connections or len(mailbox.hot) > self.policy.hot_messages_max:
                cooled = mailbox.cool()
                self.hot_messages -= len(cooled)
                oldest = min((message.expires_ms for message in cooled if message.retain), default=0)
                if oldest:
                    mailbox.oldest_expires_ms = min(oldest, mailbox.oldest_expires_ms or oldest)

    def checkpoint_failed(self) -> None:
        """It could not be written, or only in part: everything in it is dirty again."""
        checkpoint, self._checkpoint = self._checkpoint, None
        assert checkpoint is not None, "no checkpoint is under way"
        for key in checkpoint.upto:
            if key in self.mailboxes:
                self._dirty[key] = self.mailboxes[key]

    def evict(self, now_ms: int) -> int:
        """Idle mailboxes leave memory. Returns how many did."""
        busy = {pending.post.key for pending, _ in self.intake.waiting()}
        if self.intake.group is not None:
            busy.update(stored.key for _, stored in self.intake.group.stored)
        idle = [
            key
            for key, mailbox in self.mailboxes.items()
            if not mailbox.connections
            and now_ms - mailbox.active_ms >= self.policy.mailbox_idle_ms
            and key not in self._dirty
            and key not in self._ack_dirty
            and key not in busy
            and not mailbox.hot
            and not mailbox.dying
            and not mailbox.loading
            and (self._checkpoint is None or key not in self._checkpoint.upto)
        ]
        for key in idle:
            del self.mailboxes[key]
            self._unarmed.pop(key, None)
        self.hot_messages = sum(len(mailbox.hot) for mailbox in self.mailboxes.values())
        return len(idle)

    def swept(self, key: str, page: Page, oldest_expires_ms: int, now_ms: int) -> None:
        """The sweeper removed expired entries of an offline user's stream; the page gets the new oldest expiry."""
        mailbox = self.mailboxes.get(key)
        if mailbox is None:
            mailbox = self.mailboxes[key] = restore(key, page, now_ms)
        mailbox.oldest_expires_ms = oldest_expires_ms
        self._dirty[key] = mailbox

    def stats(self, now_ms: int) -> dict[str, Any]:
        """Plain numbers for status and metrics."""
        return {
            **self.counters,
            "users": len(self.mailboxes),
            "connections": sum(map(len, self._sessions.values())),
            "pending": sum(mailbox.pending_count() for mailbox in self.mailboxes.values()),
            "lag_ms": now_ms - self.intake.oldest_ms if self.intake.oldest_ms else 0,
            "storage": "down" if self.storage_away else "ok",
            "latency": [[upper, count] for upper, count in zip((*LATENCY_BUCKETS_MS, -1), self.latency, strict=True)],
        }
