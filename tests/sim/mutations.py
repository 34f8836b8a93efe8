"""The engine, broken on purpose: each mutation takes out one of the things that keep its promises.

A mutation patches a function or a script for the time of a `with`. A mutation's function returns that context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha1
from itertools import count
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from engine.actors import controller, reconciler, scheduler
from engine.actors.carrier import ActorPeer
from engine.actors.controller import Controller
from engine.actors.fleet import Fleet
from engine.actors.incarnation import Incarnation
from engine.actors.link import LinkCaller
from engine.actors.reconciler import Reconciler
from engine.actors.scheduler import Scheduler, Term
from engine.actors.shard import Shard
from engine.actors.shard_tasks.checkpoints import Checkpoints
from engine.config import Config
from engine.core.commit import broadcast_step, user_step
from engine.core.commit import group as commit
from engine.core.commit.broadcast_step import BroadcastStep
from engine.core.commit.judge import Answer, Judge, Pending
from engine.core.controller.health import HealthWatch
from engine.core.inbox.inbox import Inbox
from engine.core.journal import journal_records
from engine.core.journal.journal_records import Handled, Marked, Profiled, Spill, StoredMessage
from engine.core.mailbox import conflation
from engine.core.mailbox import send as mailbox_send
from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.conflation import Conflation
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.message import SharedBody, timer_effect_id
from engine.core.model.routing import SlotMap, timer_id
from engine.core.policy.profile import NO_PROFILE
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.firing import Firing
from engine.core.scheduler.scheduler import SchedulerCore
from engine.core.scheduler.timer_wheel import TimerWheel
from engine.core.shard import delivery, mailbox_store
from engine.core.shard.admission import Admission
from engine.core.shard.connections import Connections
from engine.core.shard.delivery import Delivery
from engine.core.shard.fired_timers import FiredTimers
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.shard import ShardCore
from engine.core.shard.slot_release import SlotRelease
from engine.core.wire import link
from engine.core.wire.link import Caller
from engine.core.wire.records import OVERLOADED, UNAVAILABLE, GapRange
from engine.errors import StorageUnavailable
from engine.features.policy.core import changed_profiles
from engine.features.policy.core.policy_step import PolicyJudge
from engine.features.windows.core import aggregation
from engine.features.windows.core.aggregation_window import WindowItem, Windows
from engine.features.windows.core.window_closer import WindowCloser
from engine.gateway.gateway import Gateway
from engine.gateway.shard_client import ShardClient
from engine.publish import results
from engine.store import journal, pages, timer_store
from engine.store.broadcast_stream import BroadcastLog
from engine.store.journal import Journal
from engine.store.keys import journal_head_key, slot_epoch_key
from engine.store.loss_detector import SlotWrites
from engine.store.lua import Script
from engine.store.slot_map import require_slot_map
from engine.store.timer_store import TimerStore

MUTATIONS: Final[dict[str, Callable[[], Any]]] = {}


def mutation(make: Callable[[], Any]) -> Callable[[], Any]:
    MUTATIONS[make.__name__] = make
    return make


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def rewritten(script: Script, *pairs: tuple[bytes, bytes]) -> Iterator[None]:
    """The script with parts of its text replaced; each must be there once."""
    text, sha = script._text, script._sha
    for old, new in pairs:
        assert script._text.count(old) == 1, f"{script.name} does not hold {old!r} once"
        script._text = script._text.replace(old, new)
    script._sha = sha1(script._text, usedforsecurity=False).hexdigest()
    try:
        yield
    finally:
        script._text, script._sha = text, sha


# -- Fencing (invariant 4). --------------------------------------------------------------------------------------------
@mutation
def the_journal_takes_writes_of_an_old_epoch() -> Any:
    return rewritten(journal._APPEND, (b"elseif head ~= expected then", b"elseif false then"))


@mutation
def pages_take_writes_of_an_old_epoch() -> Any:
    return rewritten(pages._CHECKPOINT, (b"if epoch ~= own then", b"if false then"))


@mutation
def timers_take_writes_of_an_old_epoch() -> Any:
    return rewritten(timer_store._TURN, (b"if epoch ~= own then", b"if false then"))


# -- Schedulers whose number changes. ----------------------------------------------------------------------------------
@mutation
def a_scheduler_keeps_its_partitions_when_the_slot_map_moves_them() -> Any:
    async def follow(self: Scheduler, term: Term) -> None:
        await asyncio.Event().wait()

    return patched(Scheduler, "_follow_slots", follow)


def _with_a_flaw(flaw: Callable[[Term], None]) -> Any:
    """Of the terms that begin because partitions moved; those after a crash are as they should be."""
    original = Scheduler._take_over

    async def take_over(self: Scheduler, deadline_ms: float) -> Term:
        term = await original(self, deadline_ms)
        if hasattr(self, "_term"):
            flaw(term)
        return term

    return patched(Scheduler, "_take_over", take_over)


@mutation
def who_gets_partitions_does_not_know_how_far_their_timers_were_claimed() -> Any:
    return _with_a_flaw(lambda term: setattr(term.core._horizon, "inherited_ms", 0))


@mutation
def who_gets_partitions_does_not_read_their_timers() -> Any:
    def flaw(term: Term) -> None:
        frontiers = term.core._loading._frontiers
        frontiers.update(dict.fromkeys(frontiers, (term._now_ms() + 100_000, "")))

    return _with_a_flaw(flaw)


# -- Several stores. ---------------------------------------------------------------------------------------------------
@mutation
def a_scheduler_keeps_its_timers_in_the_first_store() -> Any:
    def first_only(connect: Any, config: Config, _index: int) -> Any:
        return connect(config), connect(config)

    return patched(scheduler, "own_and_first", first_only)


@mutation
def a_shard_takes_the_outage_of_the_first_store_for_its_own() -> Any:
    original = Shard._commit

    async def commit(self: Shard, group: Any, deadline_ms: int) -> None:
        append = self._journal.append

        async def append_where_both_answer(current: Any) -> Any:
            await require_slot_map(self._first)
            return await append(current)

        with patched(self._journal, "append", append_where_both_answer):
            await original(self, group, deadline_ms)

    return patched(Shard, "_commit", commit)


# -- What tenants have in storage. -------------------------------------------------------------------------------------
@mutation
def a_repeated_turn_counts_its_timers_again() -> Any:
    present = b"    note_young(sid, present_due or 0)\n"
    return rewritten(timer_store._TURN, (present, present + b"    more_bytes['t'] = (more_bytes['t'] or 0) + #packed\n"))


@mutation
def timers_that_fired_still_count() -> Any:
    return rewritten(timer_store._TURN, (b"          more_bytes[tenant] = (more_bytes[tenant] or 0) - #packed - timer_bytes\n", b""))


@mutation
def a_user_with_timers_is_counted_again_with_the_page() -> Any:
    return rewritten(pages._CHECKPOINT, (b"count_user(name, 1 - redis.call('SREM', unpaged_key, name))", b"count_user(name, 1)"))


# -- The order of commit, answer and delivery (invariants 1 and 2). ----------------------------------------------------
@mutation
def publishers_are_answered_before_the_commit() -> Any:
    original = ShardCore.take_group

    def take_group(self: ShardCore, now_ms: int) -> Any:
        group = original(self, now_ms)
        if group is not None:
            self._answer(group.answers)
            group.answers = []
        return group

    return patched(ShardCore, "take_group", take_group)


@mutation
def clients_are_sent_messages_before_the_commit() -> Any:
    async def commit_early(self: Shard, group: Any, deadline_ms: int) -> None:
        self._core.group_committed(self._now_ms())
        self._flush()
        await self._retry_storage(lambda: self._journal.append(group))

    return patched(Shard, "_commit", commit_early)


@mutation
def a_refused_group_is_not_rolled_back() -> Any:
    async def rollback(self: Journal, group: Any) -> None:
        for slot in group.payloads:
            writes = self.loss_detector.slots[slot]
            writes.head = f"{writes.epoch}-{group.number}"

    return patched(Journal, "rollback", rollback)


@mutation
def a_refused_group_is_answered_before_its_rollback() -> Any:
    original = ShardCore.group_refused

    def group_refused(self: ShardCore) -> None:
        original(self)
        self._answer([Answer(pending, UNAVAILABLE) for pending in self._undecided])
        self._undecided = []

    return patched(ShardCore, "group_refused", group_refused)


@mutation
def a_late_copy_of_a_rolled_back_group_applies() -> Any:
    return rewritten(
        journal._APPEND,
        (b"tonumber(last) >= tonumber(number)", b"tonumber(last) > tonumber(number)"),
        (b"elseif head ~= expected then", b"elseif false then"),
    )


# -- Checkpoints and replay (invariants 3 and 5). ----------------------------------------------------------------------
@mutation
def the_journal_is_trimmed_one_group_too_far() -> Any:
    original = Journal.covered

    async def covered(self: Journal, through: int | None, *args: Any) -> None:
        await original(self, None if through is None else through + 1, *args)

    return patched(Journal, "covered", covered)


@mutation
def a_checkpoint_forgets_the_pages() -> Any:
    return rewritten(pages._CHECKPOINT, (b"redis.call('HSET', KEYS[3], name, page)", b"redis.call('HGET', KEYS[3], name)"))


@mutation
def a_checkpoint_forgets_the_spilled_messages() -> Any:
    def spill_of(mailbox: Mailbox, forget_at_ms: int, *, whole: bool) -> Spill:
        spill = journal_records.spill_of(mailbox, forget_at_ms, whole=whole)
        spill.entries = []
        return spill

    return patched(mailbox_store, "spill_of", spill_of)


@mutation
def a_failed_checkpoint_counts_as_written() -> Any:
    return patched(MailboxStore, "checkpoint_failed", MailboxStore.checkpoint_done)


@mutation
def streams_are_trimmed_above_what_is_handled() -> Any:
    def spill_of(mailbox: Mailbox, forget_at_ms: int, *, whole: bool) -> Spill:
        spill = journal_records.spill_of(mailbox, forget_at_ms, whole=whole)
        spill.trim_below += 1
        return spill

    return patched(mailbox_store, "spill_of", spill_of)


@mutation
def a_number_is_given_again_after_a_restart() -> Any:
    def restore(key: str, page: Any, now_ms: int, *limits: Any) -> Mailbox:
        mailbox = journal_records.restore(key, page, now_ms, *limits)
        if page is not None and mailbox.head and mailbox.cold is None:
            mailbox.head = mailbox.spilled = max(mailbox.head - 1, mailbox.floor - 1, 0)
            mailbox.floor = min(mailbox.floor, mailbox.head)
            mailbox.acked = {seq for seq in mailbox.acked if seq <= mailbox.head}
        return mailbox

    return patched(mailbox_store, "restore", restore)


def replaying_all_but(kind: type) -> Any:
    original = MailboxStore.replay

    def replay(self: MailboxStore, slot: int, pages: Any, records: Any, now_ms: int) -> None:
        original(self, slot, pages, [record for record in records if not isinstance(record, kind)], now_ms)

    return patched(MailboxStore, "replay", replay)


@mutation
def replay_forgets_acknowledgements() -> Any:
    return replaying_all_but(Handled)


@mutation
def replay_forgets_ids() -> Any:
    original = Mailbox.remember

    def remember(self: Mailbox, id: str, seq: int, digest: bytes, recent_max: int) -> None:
        if not id.startswith("timer:"):
            original(self, id, seq, digest, recent_max)

    return both(
        patched(Mailbox, "remember", remember),
        rewritten(journal._APPEND, (b"if #known > 0 then", b"if false then")),
    )


@contextmanager
def both(*changes: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


@mutation
def cold_numbers_below_a_read_are_forgotten() -> Any:
    original = Mailbox.loaded

    def loaded(self: Mailbox, first: int, last: int, messages: Any) -> int:
        added = original(self, first, last, messages)
        self._warm(last)
        return added

    return patched(Mailbox, "loaded", loaded)


# -- Delivery (PROTOCOL). ----------------------------------------------------------------------------------------------
@mutation
def a_retry_timer_is_lost() -> Any:
    return patched(Delivery, "arms", lambda self, now_ms: self.unarmed.clear() or [])


@mutation
def an_acknowledgement_is_forgotten() -> Any:
    original = ShardCore.handle

    def handle(self: ShardCore, session: str, records: Any, now_ms: int) -> None:
        original(self, session, [record for record in records if type(record).__name__ != "Ack" or record.seq % 5], now_ms)

    return patched(ShardCore, "handle", handle)


@mutation
def an_early_copy_settles_the_gaps_below_it() -> Any:
    original = Mailbox.settle

    def settle(self: Mailbox, seqs: Any, by: Attachment | None, *rest: Any) -> Any:
        if by is None:
            return original(self, seqs, by, *rest)
        sent, since_ms = by.sent, by.since_ms
        by.sent, by.since_ms = max(by.sent, *seqs, 0), 0
        for seq in self.hot.keys() & set(seqs):
            self.hot[seq].attempts = 0
        try:
            return original(self, seqs, by, *rest)
        finally:
            by.sent, by.since_ms = sent, since_ms

    return patched(Mailbox, "settle", settle)


@mutation
def gaps_are_not_announced() -> Any:
    original = Delivery.send

    def send(self: Delivery, *args: Any) -> None:
        original(self, *args)
        self._to_edges[:] = [entry for entry in self._to_edges if type(entry[1]) is not GapRange]

    return patched(Delivery, "send", send)


@mutation
def the_window_is_one_too_large() -> Any:
    def wider(mailbox: Mailbox, connection: Attachment, now_ms: int, config: Config, **options: Any) -> Any:
        return mailbox_send.send(mailbox, connection, now_ms, replace(config, window=config.window + 1), **options)

    return patched(delivery, "send", wider)


@mutation
def tries_are_not_counted() -> Any:
    original = Attachment.overdue

    def overdue(self: Attachment, *args: Any) -> Any:
        again = original(self, *args)
        for seq in list(self.flight):
            self.flight[seq] = (self.flight[seq][0], 1)
        return again

    return patched(Attachment, "overdue", overdue)


# -- Links. ------------------------------------------------------------------------------------------------------------
@mutation
def a_link_applies_what_arrives_out_of_order() -> Any:
    def accept(self: Any, number: int, data: bytes) -> list[bytes]:
        self.next = max(self.next, number + 1)
        return [data]

    return patched(link._InOrder, "accept", accept)


@mutation
def a_new_link_session_does_not_announce_connections_again() -> Any:
    return patched(Gateway, "shard_reset", lambda self, index: self.pending_calls.repeat(index))


# -- Timers (invariant 6). ---------------------------------------------------------------------------------------------
@mutation
def a_timer_is_removed_before_it_is_confirmed() -> Any:
    original = Firing._hand

    def hand(self: Firing, lane: Any, sids: list[str], now_ms: int) -> Any:
        records = original(self, lane, sids, now_ms)
        self.handed_early = [*getattr(self, "handed_early", []), *sids]  # type: ignore[attr-defined]
        return records

    fire = SchedulerCore._fire

    def fire_and_forget(self: SchedulerCore, now_ms: int) -> None:
        fire(self, now_ms)
        self._fire_done(getattr(self._firing, "handed_early", []), now_ms)
        self._firing.handed_early = []  # type: ignore[attr-defined]

    return both(patched(Firing, "_hand", hand), patched(SchedulerCore, "_fire", fire_and_forget))


@mutation
def a_timer_fires_early() -> Any:
    original = TimerWheel.advance

    def advance(self: Any, now_ms: int, limit: int | None = None) -> Any:
        return original(self, now_ms + 20, limit)

    return patched(TimerWheel, "advance", advance)


@mutation
def a_timer_s_effect_is_not_remembered() -> Any:
    times = count()
    return patched(commit, "timer_effect_id", lambda sid: f"{timer_effect_id(sid)}-{next(times)}")


@mutation
def a_cancel_is_confirmed_after_the_timer_was_handed_out() -> Any:
    return patched(Firing, "is_claimed", lambda self, sid: False)


@mutation
def a_due_timer_is_not_handed_out_again() -> Any:
    original = Firing.close

    def close(self: Firing, shard: int, now_ms: int) -> None:
        for sid in list(self._lanes[shard].handed):
            self.forget(sid)
        original(self, shard, now_ms)

    return both(patched(Firing, "close", close), patched(Firing, "_fail", lambda self, entry, now_ms: self.forget(entry.timer.sid)))


@mutation
def a_successor_does_not_know_how_far_timers_were_claimed() -> Any:
    original = ClaimHorizon.__init__

    def unknowing(self: ClaimHorizon, config: Any, _furthest_ms: int, _reach_ms: int, started_ms: int) -> None:
        original(self, config, 0, 0, started_ms)

    return patched(ClaimHorizon, "__init__", unknowing)


@mutation
def timers_are_handed_out_before_they_are_claimed() -> Any:
    original = ClaimHorizon.__init__

    class Boundless(ClaimHorizon):
        reach_ms = property(lambda _self: 1 << 60, lambda _self, _reach_ms: None)  # type: ignore[assignment]

    def boundless(self: ClaimHorizon, *args: Any) -> None:
        self.__class__ = Boundless
        original(self, *args)

    return patched(ClaimHorizon, "__init__", boundless)


# -- Aggregation windows. ----------------------------------------------------------------------------------------------
@mutation
def a_retry_counts_again_in_its_window() -> Any:
    remember = Mailbox.remember

    def forget(self: Mailbox, id: str, seq: int, digest: bytes, recent_max: int) -> None:
        if seq:
            remember(self, id, seq, digest, recent_max)

    return both(
        patched(aggregation, "mark_of", lambda item: b"%d" % id(item)),
        patched(Mailbox, "remember", forget),
        rewritten(journal._APPEND, (b"if #known > 0 then", b"if false then")),
    )


@mutation
def a_window_tells_one_message_too_few() -> Any:
    original = aggregation._counted

    def counted(opened: Any, item: WindowItem) -> Any:
        after = original(opened, item)
        return replace(after, count=max(after.count - 1, 2))

    return patched(aggregation, "_counted", counted)


@mutation
def replay_counts_again_what_a_page_has() -> Any:
    original = aggregation.apply

    def apply(windows: Windows, record: Any) -> bool:
        windows.applied = min(windows.applied, record.number - 1)
        return original(windows, record)

    return patched(aggregation, "apply", apply)


@mutation
def a_page_forgets_the_windows() -> Any:
    original = journal_records.page_of

    def page_of(mailbox: Mailbox, recent_max: int) -> Any:
        page = original(mailbox, recent_max)
        page.windows = None
        return page

    return patched(journal_records, "page_of", page_of)


@mutation
def a_window_whose_mailbox_left_memory_stays_open() -> Any:
    original = WindowCloser.tick

    def tick(self: WindowCloser, now_ms: int) -> list[str]:
        original(self, now_ms)
        return []

    return patched(WindowCloser, "tick", tick)


@mutation
def a_mailbox_leaves_memory_while_something_waits_for_it() -> Any:
    return patched(ShardCore, "_busy", lambda self: set())


# -- Broadcasts. -------------------------------------------------------------------------------------------------------
def restored_without(**members: Any) -> Any:
    def restore(key: str, page: Any, now_ms: int, *limits: Any) -> Mailbox:
        mailbox = journal_records.restore(key, page, now_ms, *limits)
        for name, value in members.items():
            setattr(mailbox, name, None if value is None else type(value)(value))
        return mailbox

    return patched(mailbox_store, "restore", restore)


@mutation
def a_restart_begins_the_broadcast_log_again() -> Any:
    return restored_without(log_pos=0)


@mutation
def a_restart_ends_subscriptions() -> Any:
    return restored_without(topics={})


@mutation
def who_was_slow_gets_no_more_broadcasts() -> Any:
    return both(patched(BroadcastStep, "settled", lambda self, mailbox: None), patched(broadcast_step, "_FULL_MS_MAX", 1 << 40))


@mutation
def lost_broadcasts_are_not_announced() -> Any:
    return patched(broadcast_step, "_lost", lambda *_: [])


@mutation
def a_restart_does_not_know_what_has_left_the_broadcast_log() -> Any:
    async def lost(_self: BroadcastLog) -> Any:
        return {}, 0

    return patched(BroadcastLog, "lost", lost)


@mutation
def a_topic_reaches_everybody() -> Any:
    return both(patched(BroadcastStep, "_due", _due_of_all_topics), patched(BroadcastStep, "read", _everybody_is_behind))


def _everybody_is_behind(self: BroadcastStep, broadcasts: Any) -> None:
    if self._log.add(broadcasts):
        self.urgent.update({key: mailbox for tenant in self._tenants.values() for key, mailbox in tenant.items()})


def _due_of_all_topics(self: BroadcastStep, mailbox: Mailbox, now_ms: int, count_max: int) -> Any:
    channels = [self._log.after("t", topic, mailbox.log_pos) for topic in ("", "news")]
    found = sorted((entry for channel in channels for entry in channel), key=lambda entry: entry.pos)
    return [entry for entry in found if entry.expires_ms > now_ms][:count_max]


# -- Load beyond capacity. ---------------------------------------------------------------------------------------------
@mutation
def what_is_refused_is_taken_all_the_same() -> Any:
    original = Admission.refuse

    def refuse(self: Admission, pending: Pending) -> Any:
        answer = original(self, pending)
        if pending.post.key in self._mailbox_store.mailboxes and answer.status == OVERLOADED:
            self._post_queue.add(Pending("", pending.post), 1)
        return answer

    return patched(Admission, "refuse", refuse)


@mutation
def a_repeat_of_the_edge_is_refused_as_if_it_came_first() -> Any:
    original = results._result
    return patched(results, "_result", lambda *args, repeated: original(*args, repeated=False))


@mutation
def a_message_forgets_how_many_it_stands_for() -> Any:
    def decide(*args: Any) -> Conflation:
        verdict = conflation.decide(*args)
        return replace(verdict, count=min(verdict.count, 2))

    return patched(commit, "decide", decide)


@mutation
def what_was_held_under_pressure_is_never_sent() -> Any:
    return patched(Delivery, "release", lambda self, *args: self.held.clear())


# -- Limits (invariant 8). ---------------------------------------------------------------------------------------------
@mutation
def posts_wait_without_a_limit() -> Any:
    return patched(Admission, "takes", lambda self, priority: True)


@mutation
def what_is_delivered_does_not_count() -> Any:
    return patched(PolicyJudge, "count", lambda *_: None)


@mutation
def a_page_forgets_what_counted() -> Any:
    return restored_without(user_state=None)


# -- Quiet hours. ------------------------------------------------------------------------------------------------------
@mutation
def what_is_put_off_is_not_scheduled() -> Any:
    async def schedule(self: ShardClient, drafts: Any, call: Any, made: list[Any]) -> None:
        for draft, result in zip(drafts, made, strict=True):
            if result.status == results.PUT_OFF:
                result.status, result.scheduled_id, result.scheduled_at = (
                    "scheduled",
                    timer_id(draft.key, draft.envelope.id),
                    draft.expires_ms,
                )

    return patched(ShardClient, "_schedule_deferred", schedule)


@mutation
def a_profile_is_not_replayed() -> Any:
    return replaying_all_but(Profiled)


@mutation
def a_change_of_preferences_forgets_those_before() -> Any:
    original = changed_profiles.patched
    return patched(changed_profiles, "patched", lambda _profile, patch: original(NO_PROFILE, patch))


@mutation
def what_is_turned_off_is_delivered_after_a_restart() -> Any:
    original = user_step.apply_note

    def apply_note(mailbox: Mailbox, record: Any, decisions_max: int) -> None:
        if isinstance(record, Profiled) and record.profile is not None:
            record.profile = replace(record.profile, categories={})
        original(mailbox, record, decisions_max)

    return patched(mailbox_store, "apply_note", apply_note)


@mutation
def what_is_for_the_inbox_only_is_sent_after_a_restart() -> Any:
    original = mailbox_store.apply_stored

    def apply_stored(mailbox: Mailbox, stored: StoredMessage, config: Config, judge: Judge) -> Any:
        return original(mailbox, replace(stored, inbox_only=False), config, judge)

    return patched(mailbox_store, "apply_stored", apply_stored)


@mutation
def a_timer_that_is_to_come_again_counts_as_done() -> Any:
    return patched(FiredTimers, "again", lambda self, moves: self.done([sid for sid, _ in moves]))


# -- Refusals. ---------------------------------------------------------------------------------------------------------
@mutation
def a_refusal_is_confirmed_before_the_dead_letters_have_it() -> Any:
    original = Connections.nack

    def nack(self: Connections, session: str, record: Any, now_ms: int) -> None:
        original(self, session, record, now_ms)
        self.confirm_nacks((session, record.conn), record.ids)

    return patched(Connections, "nack", nack)


# -- Partitions. -------------------------------------------------------------------------------------------------------
@mutation
def a_controller_that_is_cut_off_replaces_the_others() -> Any:
    return patched(HealthWatch, "excuse", lambda self, now_ms: None)


@mutation
def a_controller_that_was_replaced_goes_on() -> Any:
    async def nobody_s(_client: Any) -> int:
        return 0

    return patched(controller, "controller_epoch", nobody_s)


@mutation
def a_shard_without_writes_does_not_notice_its_successor() -> Any:
    async def look(self: Checkpoints) -> None: ...

    return patched(Checkpoints, "_look", look)


@mutation
def an_edge_does_not_notice_its_successor() -> Any:
    async def watch(self: Incarnation, period_ms: int) -> None:
        await asyncio.sleep(1 << 30)

    return patched(Incarnation, "watch", watch)


@mutation
def a_link_waits_for_its_port_instead_of_calling_through_ray() -> Any:
    original = ActorPeer._over_tcp

    async def over_tcp(self: ActorPeer) -> Any:
        connection = await original(self)
        if connection is None and self._address.port:
            raise ConnectionError("the port is not reached")
        return connection

    return patched(ActorPeer, "_over_tcp", over_tcp)


@mutation
def a_link_that_fell_back_to_ray_stays_there() -> Any:
    async def improved(self: ActorPeer) -> bool:
        return False

    return patched(ActorPeer, "improved", improved)


@mutation
def an_edge_trusts_a_session_that_its_shard_has_ended() -> Any:
    original = Caller.reply

    def reply(self: Caller, seq: int, data: bytes, now_ms: float) -> list[bytes]:
        batches = original(self, seq, data, now_ms)
        if self.over and self.session.startswith("edge") and self._replies.next:
            self.over = False
            self._inflight.pop(seq, None)
        return batches

    return patched(Caller, "reply", reply)


@mutation
def what_was_under_way_when_a_link_broke_is_sent_again_on_the_next_session() -> Any:
    calls, reply, end, pump = Caller.calls, Caller.reply, LinkCaller._end, LinkCaller._pump
    under_way: dict[str, dict[int, bytes]] = {}

    def calling(self: Caller, now_ms: float) -> Any:
        made = calls(self, now_ms)
        under_way.setdefault(self.session, {}).update(made)
        return made

    def replied(self: Caller, seq: int, data: bytes, now_ms: float) -> list[bytes]:
        under_way.get(self.session, {}).pop(seq, None)
        return reply(self, seq, data, now_ms)

    def ended(self: LinkCaller, caller: Caller) -> None:
        self.lost = list(under_way.pop(caller.session, {}).values())  # type: ignore[attr-defined]
        end(self, caller)

    def pumped(self: LinkCaller) -> None:
        if self._caller is not None and self.__dict__.get("lost"):
            for batch in self.__dict__.pop("lost"):
                self._caller.outbox.push(msgspec.msgpack.decode(batch), 0.0)
        pump(self)

    return both(
        patched(Caller, "calls", calling),
        patched(Caller, "reply", replied),
        patched(LinkCaller, "_end", ended),
        patched(LinkCaller, "_pump", pumped),
    )


# -- Slots that move. --------------------------------------------------------------------------------------------------
@mutation
def slots_go_while_something_of_them_is_under_way() -> Any:
    return patched(SlotRelease, "waits", lambda self: False)


@mutation
def a_slot_goes_without_its_last_pages() -> Any:
    original = SlotRelease.take_checkpoint

    def take_checkpoint(self: SlotRelease) -> Any:
        checkpoint = original(self)  # it trims the journals
        if checkpoint is not None:
            checkpoint.waiting.clear()
        return checkpoint

    return patched(SlotRelease, "take_checkpoint", take_checkpoint)


@mutation
def edges_do_not_hear_that_a_slot_goes() -> Any:
    original = Connections.release

    def release(self: Connections, *args: Any) -> None:
        before = len(self._output.to_edges)
        original(self, *args)
        del self._output.to_edges[before:]

    return patched(Connections, "release", release)


# -- Shards that come and go. ------------------------------------------------------------------------------------------
@mutation
def a_shard_leaves_before_its_slots_have() -> Any:
    return patched(reconciler, "even_moves", lambda slots, shards: [])


@mutation
def who_gets_slots_serves_them_under_their_last_epoch() -> Any:
    original = Journal.take_over

    async def take_over(self: Journal, slots: Any) -> int:
        if not self.epoch:
            return await original(self, slots)
        for slot in slots:
            pipeline = self._client.pipeline(transaction=False)
            pipeline.mget(slot_epoch_key(slot), journal_head_key(slot))
            ((epoch, head),) = await pipeline.execute()
            self.loss_detector.slots[slot] = SlotWrites(int(epoch), head.decode())
        return self.epoch

    return patched(Journal, "take_over", take_over)


def followers_read_late() -> Any:
    """Shards learn of broadcasts as late as over a slow connection of the follower's. That breaks nothing by itself."""
    original = BroadcastLog.read

    async def read(self: BroadcastLog, after: int, *, wait: bool) -> Any:
        if wait:
            await asyncio.sleep(0.3)
        return await original(self, after, wait=wait)

    return patched(BroadcastLog, "read", read)


@mutation
def a_shard_that_gets_slots_sets_their_cursors_back() -> Any:
    def pass_log(self: BroadcastStep, mailbox: Mailbox, pos: int) -> None:
        mailbox.log_pos = min(pos, self._log.head)

    return both(followers_read_late(), patched(BroadcastStep, "_pass_log", pass_log))


@mutation
def what_was_wanted_without_an_answer_is_forgotten() -> Any:
    async def read(self: Reconciler) -> None:
        pass

    return patched(Reconciler, "_read_wanted", read)


@mutation
def a_shard_that_is_to_leave_is_kept_for_ever() -> Any:
    async def end_surplus(self: Reconciler, role: str, slots: SlotMap, have: int) -> None:
        pass

    return patched(Reconciler, "_end_surplus", end_surplus)


# -- Inboxes. ----------------------------------------------------------------------------------------------------------
@mutation
def what_is_acknowledged_before_a_checkpoint_does_not_stay() -> Any:
    return patched(Inbox, "keep", lambda self, message: 0)


@mutation
def a_mark_is_not_replayed() -> Any:
    return replaying_all_but(Marked)


@mutation
def counts_of_broadcasts_are_not_sent() -> Any:
    original = MailboxStore.counts_changed

    def counts_changed(self: MailboxStore, mailbox: Mailbox) -> None:
        if mailbox.head not in mailbox.hot or not isinstance(mailbox.hot[mailbox.head].envelope.body, SharedBody):
            original(self, mailbox)

    return patched(MailboxStore, "counts_changed", counts_changed)


# -- Upgrades. ---------------------------------------------------------------------------------------------------------
@mutation
def the_successor_of_a_controller_forgets_an_upgrade() -> Any:
    original = Controller._numbers

    async def numbers(self: Controller) -> Any:
        slots, wanted = await original(self)
        return slots, replace(wanted, replacing={}, at_ms=wanted.at_ms + 1)

    return patched(Controller, "_numbers", numbers)


@mutation
def a_turn_that_got_no_answer_may_apply_after_the_next() -> Any:
    async def renew(self: TimerStore) -> None:
        pass

    return patched(TimerStore, "_renew_epoch", renew)


@mutation
def an_upgrade_names_the_processes_of_the_last_round() -> Any:
    async def upgrade(self: Controller, by: str = "") -> None:
        if not self._fleet.ready():
            raise StorageUnavailable("not all actors are ready")
        await self._want(by, replacing=self._replacements.everyone(), stopped="")

    return patched(Controller, "upgrade", upgrade)


@mutation
def a_process_is_told_to_end_again_and_again() -> Any:
    return patched(Fleet, "told_to_end", lambda self, key: False)


@mutation
def a_shard_is_never_emptied_for_its_successor() -> Any:
    return patched(Reconciler, "_moves_away", lambda self, slots, kept, going: [])
