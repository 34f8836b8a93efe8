"""ShardCore: all decisions of a shard, as one state machine without clock, sockets or storage.

The shell (engine/actors/shard.py) passes in records of edges and schedulers and results of storage, and carries out what the core wants:
`output` to the edges and schedulers, pages and stream ranges to read, one journal group at a time, checkpoints, dead letters, session
events.

Its parts:
    engine.core.shard.connections         attached connections and their acknowledgements
    engine.core.shard.delivery            sending to them, retries
    engine.core.shard.user_requests       requests made without a connection
    engine.core.shard.user_handlers       those that features handle
    engine.core.shard.inbox_counts        counts of inboxes, for answers and connections
    engine.core.shard.page_wait           records and posts that wait for a user's page
    engine.core.commit.group              journal groups
    engine.core.shard.broadcast_audience  broadcasts on their way into mailboxes
    engine.core.shard.fired_timers        durable timers that fired
    engine.core.shard.admission           rejecting and holding back under overload
    engine.core.shard.slot_release        slots on their way to another shard

A mailbox is loaded on the first record that concerns its user: the page is read, and the user's records wait for it in order
(`PageWait`). It is evicted when it has no connection, is written completely, and has been idle for `mailbox_idle_ms`, or memory is
wanted for others.

Crash: everything here is lost. The successor takes a new epoch and reads pages and journal; the edges announce their connections and
repeat unanswered posts, and the schedulers fire unconfirmed timers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, Final, get_args

from msgspec import Struct

from engine.config import Config
from engine.core.commit.broadcast_step import BroadcastStep
from engine.core.commit.group import NO_RIDERS, NOBODY_CONNECTED, Group, PostQueue, Riders
from engine.core.commit.judge import Answer, MakeJudge, Pending
from engine.core.journal.journal_records import AnyPage, Decided, Record, StoredMessage, Topics, recalled
from engine.core.mailbox.broadcast_log import BroadcastMirror
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import HIGH, LOW
from engine.core.model.message import with_due
from engine.core.model.routing import NOBODY, TIMER_PARTITIONS, SlotMap, split_key, topic_of
from engine.core.policy.conditions import Again, Drop
from engine.core.shard.admission import Admission
from engine.core.shard.broadcast_audience import BroadcastAudience
from engine.core.shard.connections import Connections
from engine.core.shard.delivery import Delivery
from engine.core.shard.fired_timers import FiredTimers
from engine.core.shard.inbox_counts import InboxCounts
from engine.core.shard.journalled_outcomes import adopted_outcomes, journalled_outcomes
from engine.core.shard.mailbox_store import DeadLetter, JudgeDue, MailboxStore, StreamRead, Swept
from engine.core.shard.output import SessionEvent, ShardOutput
from engine.core.shard.page_wait import PageWait
from engine.core.shard.poison import RecordFailed, fingerprint
from engine.core.shard.slot_loads import SlotLoads
from engine.core.shard.slot_release import SlotRelease
from engine.core.shard.user_handlers import UserHandlers
from engine.core.shard.user_requests import MAKES_USERS, UserRequest, UserRequests, admission_of
from engine.core.wire.outcomes import Outcome, OutcomeLog
from engine.core.wire.records import (
    DEFERRED,
    DUPLICATE,
    OVERLOADED,
    POISONED,
    SUPPRESSED,
    UNAVAILABLE,
    USERS_FULL,
    USERS_FULL_RETRY_MS,
    Ack,
    AckIds,
    Attach,
    Detach,
    Hangup,
    Moved,
    Nack,
    Post,
    Posted,
    Rejected,
    Rejoin,
    Show,
    Timer,
    Written,
)

TICK_REST_MS: Final = 1000
"""Between two calls of `tick` when nothing happens: idle mailboxes are evicted after minutes."""


class ShardCore:
    """See the module's docstring. Not reentrant: one caller, one event at a time. `now_ms` is wall-clock milliseconds.

    Attributes:
        map_doubted: an edge sent something for a user of another shard. By a newer slot map, which it may have read, the user may be of
            this one.
        storage_work: what the shell's tasks read and write; one of them is not empty while a task has something to do.
    """

    def __init__(
        self,
        index: int,
        config: Config,
        slot_map: SlotMap,
        data_epoch: str,
        handlers: UserHandlers | None = None,
        make_judge: MakeJudge | None = None,
    ) -> None:
        self.index = index
        self.config = config
        self.slot_map = slot_map
        self.map_doubted = False
        self.data_epoch = data_epoch
        self.storage_away = False
        self.output = output = ShardOutput(OutcomeLog() if config.history_url else None)
        self.mailbox_store = store = MailboxStore(config, BroadcastMirror(), make_judge)
        self.mailboxes = store.mailboxes
        self.post_queue = PostQueue(store.mailboxes, config, store.judge)
        self.page_wait = PageWait()
        self.delivery = Delivery(config, store, output)
        self.broadcast_step = step = BroadcastStep(store.log, config.window, config.adopt_max, config.recent_ids, store.judge)
        self.broadcast_audience = BroadcastAudience(config, store, step, self.delivery, output)
        self.inbox_counts = InboxCounts(store, output)
        self.connections = Connections(config, store, step, self.delivery, output, data_epoch, self.page_wait.behind, self.inbox_counts)
        self.user_requests = UserRequests(config, store, self.connections, step, output, self.inbox_counts, handlers or {})
        self.fired_timers = FiredTimers(config.timer_claims_max * TIMER_PARTITIONS, output, store.judge, config.idempotency_caller_s * 1000)
        self.admission = Admission(config, store, self.delivery, self.post_queue, self.page_wait, self.user_requests, output)
        self.slot_loads = SlotLoads()
        self.slot_release = SlotRelease(
            store,
            self.post_queue,
            self.page_wait,
            self.connections,
            self.user_requests,
            self.fired_timers,
            self.delivery,
            output,
        )
        self._evicting = False
        self.failed = False  # applying a record raised: nothing may be journalled any more
        self.refused_records: frozenset[str] = frozenset()  # by `fingerprint`, see `engine.core.shard.poison`
        self.full_tenants: frozenset[str] = frozenset()  # those that have as many users as they may
        self._undecided: list[Pending] = []  # of a group that is being rolled back
        # Parts with something to do are found by what they hold: one look at all, whatever their number. None of these is ever replaced.
        self._broadcasts_due: Final = (step.urgent, step.behind)
        self._changes_due: Final = (store.judge.deadlines.due, self.user_requests.waiting)
        self._commit_due: Final = (*self.post_queue.lanes, *self._changes_due)
        self.storage_work: Final[tuple[Sized, ...]] = (
            self.page_wait.pages_wanted,
            self.page_wait.doubted,
            store.reads_wanted,
            store.dead_letters,
            store.urgent,
            self.broadcast_audience.announcements,
            self.fired_timers.doubted,
            self.fired_timers.acting,
            self.fired_timers.awaited,
            self.user_requests.reads_wanted,
            self.user_requests.erasing,
            output.session_events,
        )
        self._handlers: dict[type, Callable[[str, Any, int], None]] = {
            Post: self._post,
            Attach: self._attach,
            Detach: self._detach,
            Ack: self.connections.ack,
            AckIds: self.connections.ack_ids,
            Nack: self.connections.nack,
            Written: self.connections.written,
            Rejoin: self.connections.rejoin,
            Show: self.connections.show,
            **dict.fromkeys(get_args(UserRequest), self._ask),
        }

    # -- edges --------------------------------------------------------------------------------------------------------

    def opened(self, session: str) -> None:
        """An edge's link session began."""
        self.connections.opened(session)

    def closed(self, session: str, now_ms: int) -> None:
        """An edge's link session ended: detach its connections. The edge attaches them again under its next session."""
        self.connections.closed(session, now_ms)
        self.page_wait.closed(session)

    def data_epoch_changed(self, data_epoch: str, now_ms: int) -> None:
        """Storage has lost data, of this shard or another: end all connections (`Connections.data_epoch_changed`)."""
        self.data_epoch = data_epoch
        self.connections.data_epoch_changed(data_epoch, now_ms)

    def handle(self, session: str, records: Iterable[Struct], now_ms: int) -> None:
        """Apply an edge's records, in order.

        Raises:
            RecordFailed: a record could not be applied; the core must not be used any more.
        """
        handlers, refused = self._handlers, self.refused_records
        self.admission.look()
        for record in records:
            if refused and fingerprint(record) in refused:
                self._refuse(session, record)
                continue
            try:
                handlers[type(record)](session, record, now_ms)
            except Exception as error:
                raise self._failed(record) from error

    def _failed(self, record: Struct) -> RecordFailed:
        self.failed = True
        return RecordFailed(record)

    def _refuse(self, session: str, record: Struct) -> None:
        """Reject a record that has crashed shards before; records without an answer are dropped."""
        if isinstance(record, Post):
            self.output.to_edges.append((session, Posted(record.ref, UNAVAILABLE, 0, POISONED)))
        elif isinstance(record, Attach):
            self.output.to_edges.append((session, Hangup(record.conn, 1011, POISONED)))

    def _post(self, session: str, record: Post, now_ms: int) -> None:
        if self.slot_map.owner(record.key) != self.index:
            self._redirect(session, ref=record.ref)
        elif self.storage_away:
            self.output.to_edges.append((session, Posted(record.ref, UNAVAILABLE)))
        elif self.admission.open or self.admission.takes(record.envelope.priority):
            self._enqueue(Pending(session, record), now_ms)
        else:
            self._answer([self.admission.refuse(Pending(session, record))])

    def _redirect(self, session: str, *, ref: int = -1, conn: int = -1) -> None:
        """Answer what came for a user of another shard."""
        self.map_doubted = True
        self.output.to_edges.append((session, Moved(ref, conn, self.slot_map.version)))

    def _enqueue(self, pending: Pending, now_ms: int) -> None:
        key = pending.post.key
        mailbox = self.mailboxes.get(key)
        if mailbox is None:
            self.page_wait.add(key, pending.session, pending)
        elif self.full_tenants and not pending.timer and self._is_one_too_many(mailbox):
            self._answer([Answer(pending, OVERLOADED, 0, USERS_FULL, USERS_FULL_RETRY_MS)])
        else:
            mailbox.active_ms = now_ms
            if not pending.timer or self._is_to_be_sent(pending, mailbox, now_ms):
                self.post_queue.add(pending, now_ms)

    def _is_one_too_many(self, mailbox: Mailbox) -> bool:
        """Whether the user is a new one, of a tenant that may have no more. What was accepted before, such as a timer, makes users."""
        return mailbox.is_new and split_key(mailbox.key)[0] in self.full_tenants

    def _attach(self, session: str, record: Attach, now_ms: int) -> None:
        if self.slot_map.owner(record.key) != self.index:
            self._redirect(session, conn=record.conn)
        elif (mailbox := self.mailboxes.get(record.key)) is None:
            self.page_wait.add(record.key, session, record)
        elif record.cursor_epoch == self.data_epoch and record.cursor_seq > mailbox.head:
            self.page_wait.doubt(record.key, session, record)
        else:
            self.connections.attach(mailbox, session, record, now_ms)

    def _detach(self, session: str, record: Detach, now_ms: int) -> None:
        if not self.connections.detach(session, record, now_ms):
            self.page_wait.forget(session, record.conn)

    def _ask(self, session: str, record: UserRequest, now_ms: int) -> None:
        """A request that needs a mailbox and no connection."""
        if self.slot_map.owner(record.key) != self.index:
            self._redirect(session, ref=record.ref)
            return
        mailbox = self.mailboxes.get(record.key)
        priority = admission_of(record, in_memory=mailbox is not None)
        if priority is not None and not self.admission.open and not self.admission.takes(priority):
            self.output.to_edges.append((session, self.admission.reject(record.ref)))
        elif mailbox is None:
            self.page_wait.add(record.key, session, record)
        elif self.full_tenants and isinstance(record, MAKES_USERS) and self._is_one_too_many(mailbox):
            self.output.to_edges.append((session, Rejected(record.ref, OVERLOADED, USERS_FULL, USERS_FULL_RETRY_MS)))
        else:
            self.user_requests.ask(mailbox, session, record, now_ms)

    # -- timers -------------------------------------------------------------------------------------------------------

    def fire(self, timers: Iterable[Timer], now_ms: int) -> None:
        """Apply durable timers that fired; a timer may fire again until `FireDone`.

        Raises:
            RecordFailed: a timer could not be applied; the core must not be used any more.
        """
        self.admission.look()
        failed: list[str] = []
        for timer in timers:
            if self.refused_records and fingerprint(timer) in self.refused_records:
                self.fired_timers.done([timer.sid])
                continue
            try:
                self._fire(timer, failed, now_ms)
            except Exception as error:
                raise self._failed(timer) from error
        self.fired_timers.failed(failed)

    def _fire(self, timer: Timer, failed: list[str], now_ms: int) -> None:
        if not self.fired_timers.take(timer):
            return
        if self.slot_map.owner(timer.key) != self.index or self.storage_away:
            failed.append(timer.sid)
            return
        expires_ms = timer.due_ms + timer.ttl_ms
        if expires_ms <= now_ms:
            self.output.counters["expired"] += 1
            self.mailbox_store.tallies.of(timer.key).expired += 1
            if self.output.outcomes is not None:
                reason = "delay: it could not be delivered before its time to live ended"
                self.output.outcomes.add(Outcome(timer.key, now_ms, "expired", timer.envelope.id, reason=reason, timer=timer.sid))
            self.fired_timers.done([timer.sid])
            return
        if not self.admission.takes(timer.envelope.priority):
            failed.append(timer.sid)
            return
        if topic_of(timer.key) is not None:
            self.broadcast_audience.announce(timer, now_ms)
            return
        post = Post(-1, timer.key, True, expires_ms, with_due(timer.envelope, timer.due_ms))
        self._enqueue(Pending("", post, timer.sid), now_ms)

    def _is_to_be_sent(self, pending: Pending, mailbox: Mailbox, now_ms: int) -> bool:
        """Whether the conditions of a fired timer let its post go to the journal now, and not later, and it has no action instead.

        A post that they drop goes there too, as a record of the decision.
        """
        verdict = self.fired_timers.verdict(pending.timer, mailbox, now_ms)
        if isinstance(verdict, Again):
            self.output.counters["postponed"] += 1
            self.fired_timers.again([(pending.timer, verdict.at_ms)])
            return False
        if isinstance(verdict, Drop):
            pending.unmet = verdict
            return True
        return not self.fired_timers.acts(pending.timer)

    # -- journal ------------------------------------------------------------------------------------------------------

    def take_group(self, now_ms: int) -> Group | None:
        """Returns the next group to append; None while one is under way, storage is away, or nothing is to be written."""
        if self.post_queue.group is not None or self.storage_away or self.failed:
            return None
        if not self.wants_commit and not self.connections.handled_due(now_ms):
            return None
        riders = self._take_riders(now_ms) if any(self._changes_due) or any(self._broadcasts_due) else NO_RIDERS
        config = self.config
        handled = self.connections.take_handled()
        group, answers = self.post_queue.build(handled, config.commit_records_max, config.commit_bytes_max, now_ms, riders)
        if answers:
            self._answer(answers)
            self._record_suppressed(answers, now_ms)
        if group is None:
            self._watch(riders.due)  # the clock was set back since they were due
        return group

    def _take_riders(self, now_ms: int) -> Riders:
        takes = self.admission.takes
        notes = self.user_requests.take()
        changing = {note.mailbox.key for note in notes if isinstance(note.record, Topics)}
        adoptions = self.broadcast_audience.take(now_ms, low=takes(LOW), high=takes(HIGH), changing=changing)
        due = self.mailbox_store.judge.deadlines.take(now_ms)
        return Riders(adoptions, due, notes)

    def _record_suppressed(self, answers: Iterable[Answer], now_ms: int) -> None:
        """Count and record the posts that were suppressed without a journal record: nobody was connected."""
        for answer in answers:
            if answer.status == SUPPRESSED and answer.detail == NOBODY_CONNECTED:
                post = answer.pending.post
                self.output.counters["suppressed"] += 1
                terms = post.envelope.policy_terms
                self.output.decided("suppressed", "nobody_connected", "" if terms is None else terms.category)
                self.mailboxes[post.key].tally.suppressed += 1
                if self.output.outcomes is not None:
                    reason = f"nobody_connected: {answer.detail}"
                    self.output.outcomes.add(Outcome(post.key, now_ms, "suppressed", post.envelope.id, reason=reason))

    def _watch(self, mailboxes: Iterable[Mailbox]) -> None:
        for mailbox in mailboxes:
            self.mailbox_store.judge.deadlines.watch(mailbox)

    @property
    def wants_commit(self) -> bool:
        """Whether something waits for a group and is urgent: anything but acknowledgements."""
        if any(self._commit_due):
            return True
        if not any(self._broadcasts_due):
            return False
        admission = self.admission
        return self.broadcast_step.wants_commit(low=admission.takes(LOW), high=admission.takes(HIGH))

    def group_known(self, hits: Mapping[int, bytes], now_ms: int) -> Group | None:
        """Storage appended nothing, because it has these ids of the group already: returns the group without them, or None."""
        before = self.post_queue.group
        group, answers = self.post_queue.known(hits, now_ms)
        self._record_suppressed(answers, now_ms)
        self._answer(answers)
        if group is None and before is not None:
            self._watch(before.riders.due)
        return group

    def group_committed(self, now_ms: int) -> None:
        """The group is durable: answer its publishers and deliver its messages."""
        group, touched, superseded = self.post_queue.committed()
        self.output.counters["commits"] += 1
        self._count(group)
        outcomes = self.output.outcomes
        if outcomes is not None:  # before what is sent of it
            outcomes.extend(journalled_outcomes(group.records, self.mailbox_store))
            outcomes.extend(adopted_outcomes(group.riders.adoptions))
        self.slot_loads.committed(group.records, now_ms)
        self._answer(group.answers)
        for mailbox, older in superseded:
            self.delivery.superseded(mailbox, older, now_ms)
        hot_bytes_max, offline_max, tight = self.config.hot_bytes_max, self.config.offline_max, self.mailbox_store.tight
        self.mailbox_store.committed(group.number, touched)
        for mailbox in touched.values():
            if mailbox.judge_state is not None:
                self.mailbox_store.judged(mailbox)
            if mailbox.head - mailbox.floor > offline_max:
                self.output.trimmed(mailbox, mailbox.trim(offline_max), now_ms)
            for connection in mailbox.connections.values():
                self.delivery.send(mailbox, connection, now_ms)
            if mailbox.hot_bytes > hot_bytes_max or (tight and mailbox.is_behind()):
                self.mailbox_store.mark_urgent(mailbox)
        if group.riders is not NO_RIDERS:
            self._riders_committed(group.riders, now_ms)

    def _riders_committed(self, riders: Riders, now_ms: int) -> None:
        self._watch(riders.due)
        self.broadcast_audience.committed(riders.adoptions, now_ms)
        for adoption in riders.adoptions:
            self.mailbox_store.counts_changed(adoption.mailbox)
        self.user_requests.committed(riders.notes, now_ms)

    def _count(self, group: Group) -> None:
        counters = self.output.counters
        counters["conflated"] += group.conflated
        if group.only_messages:
            counters["published"] += len(group.records)
            return
        for record in group.records:
            if isinstance(record, StoredMessage):
                counters["published"] += 1
            elif isinstance(record, Decided):
                counters[record.entry.event] += 1
                self.mailboxes[record.key].tally.add(record.entry.event)
            else:
                self.mailbox_store.judge.committed(record)
        for (event, reason, category), count in group.decisions.items():
            self.output.decided(event, reason, category, count)

    def replay(self, slot: int, pages: Mapping[str, AnyPage | None], records: Sequence[Record], now_ms: int) -> None:
        """Apply what the journal of a slot has of earlier owners (`MailboxStore.replay`), and record its outcomes again: they may be lost.

        Full mailboxes are trimmed again, since clients may have been sent those gaps.
        """
        if self.output.outcomes is not None:
            self.output.outcomes.extend(journalled_outcomes(records, self.mailbox_store))
        self.mailbox_store.replay(slot, pages, records, now_ms)
        for key in pages:
            mailbox = self.mailboxes[key]
            trimmed = len(mailbox.trim(self.config.offline_max))
            self.output.counters["trimmed"] += trimmed
            mailbox.tally.trimmed += trimmed

    def group_refused(self) -> None:
        """Storage is unavailable: reject all posts until `storage_back`.

        Posts of the refused group are answered only then: storage may have appended it, and if this shard dies before the rollback, its
        successor delivers it.
        """
        group = self.post_queue.refused()
        self.storage_away = True
        self.connections.handled_again(group.handled)
        self.broadcast_step.refused(group.riders.adoptions)
        self.user_requests.refused(group.riders.notes)
        self._watch(group.riders.due)
        self._undecided = [answer.pending for answer in group.answers]
        refused = self.post_queue.drop_waiting() + self.page_wait.take_posts()
        self._answer([Answer(pending, UNAVAILABLE) for pending in refused])

    def storage_back(self) -> None:
        """Storage is available again and the refused group is rolled back: answer its posts "unavailable"."""
        self.storage_away = False
        undecided, self._undecided = self._undecided, []
        self._answer([Answer(pending, UNAVAILABLE) for pending in undecided])
        self.user_requests.storage_back()

    def _answer(self, answers: Iterable[Answer]) -> None:
        fired: list[str] = []
        failed: list[str] = []
        again: list[tuple[str, int]] = []
        output = self.output.to_edges
        for answer in answers:
            pending = answer.pending
            if pending.timer:
                if answer.status == DEFERRED:
                    again.append((pending.timer, answer.until_ms))
                elif not self.fired_timers.numbered(pending.timer, answer.seq):
                    (failed if answer.status == UNAVAILABLE else fired).append(pending.timer)
                continue
            if answer.status == DUPLICATE:
                self.output.counters["duplicates"] += 1
            posted = Posted(pending.post.ref, answer.status, answer.seq, answer.detail, answer.retry_ms, answer.until_ms)
            output.append((pending.session, posted))
        if fired or failed or again:
            self.fired_timers.done(fired)
            self.fired_timers.failed(failed)
            self.fired_timers.again(again)

    # -- slots --------------------------------------------------------------------------------------------------------

    def release(self, slots: Sequence[int]) -> None:
        """Begin to hand slots over (`engine.core.shard.slot_release`): what comes for them waits at the edges for the next slot map."""
        self.slot_map = self.slot_map.with_owner(slots, NOBODY)
        self.slot_release.begin(slots, self.slot_map.version)

    def adopt(
        self, slot_map: SlotMap, epoch: int, online: Iterable[str], events: Iterable[SessionEvent], now_ms: int, *, told: bool
    ) -> None:
        """Serve the slots that this map has in addition. All that their last owner knew is in memory or storage.

        Args:
            epoch: under which they are served.
            online: keys of the users who were online.
            events: of these users, which their last owner had not written.
            told: that owner may have told that they are suspect.
        """
        self.inbox_counts.epoch = max(self.inbox_counts.epoch, epoch)
        self.connections.presence.assume(online, now_ms, told=told)
        self.output.session_events.extend(events)
        self.slot_map = slot_map

    # -- pages and streams --------------------------------------------------------------------------------------------

    def swept(self, found: Swept) -> None:
        """The sweep of storage has found something. A mailbox that is not in memory is loaded as for every other record.

        Since the sweep has read its page, the user may have come, got messages, and gone again.
        """
        if self.slot_map.owner(found.key) != self.index:
            return  # handed over meanwhile
        if found.key in self.mailboxes:
            self.mailbox_store.swept(found)
        else:
            self.page_wait.add(found.key, "", found)

    def pages_failed(self, keys: Iterable[str]) -> None:
        """The pages could not be read: they are wanted again, and the posts that wait for them are answered "unavailable"."""
        keys = list(keys)
        self._answer([Answer(pending, UNAVAILABLE) for pending in self.page_wait.take_posts(keys)])
        self.page_wait.want_again(keys)

    def pages_loaded(self, pages: Mapping[str, AnyPage | None], now_ms: int) -> None:
        """Pages were read, None for users without one: restore the mailboxes and apply what waited for them.

        Raises:
            RecordFailed: a record that waited could not be applied; the core must not be used any more.
        """
        for key, page in pages.items():
            self.mailbox_store.restore(key, page, now_ms)
            self._apply_waiting(key, page, now_ms)

    def confirmed(self, keys: Iterable[str], now_ms: int) -> None:
        """Storage knows of no other process that has these mailboxes: apply what waited for that. Raises RecordFailed."""
        for key in keys:
            self._apply_waiting(key, None, now_ms, confirmed=True)

    def _apply_waiting(self, key: str, page: AnyPage | None, now_ms: int, *, confirmed: bool = False) -> None:
        mailbox = self.mailboxes.get(key) if confirmed and self.slot_map.owner(key) == self.index else None
        for session, what in self.page_wait.take(key):
            try:
                if isinstance(what, Pending):
                    self._enqueue(what, now_ms)
                elif isinstance(what, Swept):
                    if what.page == page:  # else somebody has used the mailbox since: the new page is due at a time of its own
                        self.mailbox_store.swept(what)
                elif isinstance(what, Attach) and mailbox is not None:
                    self.connections.attach(mailbox, session, what, now_ms)
                elif isinstance(what, JudgeDue):
                    self._find_due(now_ms)
                else:
                    self._handlers[type(what)](session, what, now_ms)
            except Exception as error:
                raise self._failed(self._record_of(what)) from error

    def _record_of(self, waiting: Struct | Pending) -> Struct:
        """The record that an edge or scheduler repeats when this is not answered."""
        if not isinstance(waiting, Pending):
            return waiting
        return self.fired_timers.taken(waiting.timer) if waiting.timer else waiting.post

    def read_done(self, read: StreamRead, entries: Iterable[StoredMessage], now_ms: int) -> None:
        """A range of an offline stream was read: `entries` is what the stream has of it."""
        mailbox = self.mailboxes.get(read.key)
        if mailbox is None:
            return
        mailbox.loading = False
        messages = [message for stored in entries if (message := recalled(stored, self.mailbox_store.log)) is not None]
        mailbox.loaded(read.first, read.last, messages)
        self.mailbox_store.counts_changed(mailbox)
        self.connections.read_done(mailbox, read.first, read.last, now_ms)
        for connection in mailbox.connections.values():
            self.delivery.send(mailbox, connection, now_ms)
        if mailbox.hot_bytes > self.config.hot_bytes_max or not mailbox.connections:
            self.mailbox_store.cool(mailbox)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_lettered(self, letters: Sequence[DeadLetter], now_ms: int) -> None:
        """The dead-letter stream has these messages."""
        self.output.counters["dead_lettered"] += len(letters)
        for letter in letters:
            self.mailbox_store.tallies.of(letter.key).dead_lettered += 1
        self.connections.dead_lettered(letters, now_ms)

    # -- pressure -----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Find what is due: for the judge, quiet hours, suspicions, messages. Adjust admission, evict. Call every `pressure_tick_ms`."""
        self._find_due(now_ms)
        self.broadcast_step.tick(now_ms)
        self.connections.tick(now_ms)
        self.delivery.tick(now_ms)
        self.inbox_counts.tick()
        self._evicting = self.evict(now_ms, self.admission.tick(now_ms)) > 0

    def _find_due(self, now_ms: int) -> None:
        for key in self.mailbox_store.judge.deadlines.tick(now_ms):
            self.page_wait.add(key, "", JudgeDue(key))

    def next_tick_ms(self, now_ms: int) -> int:
        """When `tick` has something to do unless an event comes before: `now_ms` while something is under way, else `TICK_REST_MS` later at
        most."""
        if self._evicting or self.admission.busy or self.mailbox_store.counts_due or self.mailbox_store.judge.deadlines.due:
            return now_ms
        due_ms = (self.mailbox_store.judge.deadlines.next_ms, self.broadcast_step.next_ms, self.connections.presence.next_ms)
        return max(min((now_ms + TICK_REST_MS, *(at_ms for at_ms in due_ms if at_ms is not None))), now_ms)

    def relieve(self, now_ms: int) -> bool:
        """Evict more mailboxes where one call was not enough; returns whether there may be still more. Call after `tick` until it is False.

        An edge's questions bring more mailboxes between two ticks than one call evicts.
        """
        excess_bytes = self.admission.excess_bytes
        return excess_bytes > 0 and self.evict(now_ms, excess_bytes) > 0

    def evict(self, now_ms: int, wanted_bytes: int = 0) -> int:
        """Evict idle mailboxes, others while memory is wanted (`MailboxStore.evict`); returns how many."""
        return self.mailbox_store.evict(self._busy, now_ms, wanted_bytes)

    def _busy(self) -> set[str]:
        """Keys of the mailboxes that something waits for."""
        due = self.mailbox_store.judge.deadlines.due.keys()
        return self.post_queue.busy() | self.user_requests.busy() | self.connections.acked.keys() | due

    def stats(self, now_ms: int) -> dict[str, Any]:
        """Figures for status and metrics, in O(1) of the number of mailboxes."""
        memory = self.mailbox_store.memory
        return {
            **self.output.counters,
            "acknowledged": self.output.latency.count,
            "users": len(self.mailboxes),
            "connections": self.connections.count,
            "suspects": self.connections.presence.suspects,
            "pending": memory.messages + memory.cold,
            "broadcasts": len(self.mailbox_store.log),
            **self.mailbox_store.judge.figures(),
            **self.admission.stats(),
            "lag_ms": now_ms - self.post_queue.oldest_ms if self.post_queue.oldest_ms else 0,
            "posts_waiting": len(self.post_queue),
            "pages_waiting": len(self.page_wait.keys()),
            "storage": "down" if self.storage_away else "ok",
            **self.output.histograms(),
            "figures": {**self.mailbox_store.tallies.rows(), "decisions": self.output.decisions()},
            "exemplars": self.output.exemplars(),
        }
