"""The scheduler's decisions: volatile timers for shards, durable timers for publishers. Pure: `handle(event, now_ms) -> effects`.

Volatile timers (`Arm` -> `Due`) belong to a shard's link session, one per key. They are held in the wheel of that session and dropped
with it; the shard arms them again in its next session. There is at most one per mailbox, so the shard's own limits bound them.

Durable timers are held in storage; the near ones are in memory too (`engine.core.scheduler.read_ahead`) and fire from there
(`engine.core.scheduler.firing`).

Requests. The requests of edges (`Schedule`, `Inspect`, `Reschedule`, `Cancel`, `CancelAll`, `ListTimers`) wait in one queue and go to
storage in batches, one batch at a time. Storage applies a partition's requests in order, and each is answered when it is durable:

    Schedule     SCHEDULED; DUPLICATE or CONFLICT when the caller's id is taken; OVERLOADED when the user has too many timers
    Cancel       OK: cancelled for sure, its effect will not happen; also when it was cancelled before. ALREADY_FIRED. NOT_FOUND
    CancelAll    OK with the number cancelled. Timers that may have taken effect are not cancelled; after a lost answer, the
                 number is that of the last attempt
    Reschedule   OK: fires at the new time only. ALREADY_FIRED. NOT_FOUND
    any          UNAVAILABLE: storage did not answer within `commit_retry_ms`; OVERLOADED: `timer_requests_max` wait already;
                 `Moved`: by the slot map of that version the partition is another scheduler's

The race of a Cancel, CancelAll or Reschedule with the firing is decided when the request arrives here: if the timer has been
handed to a shard it is claimed, and the answer is 409; else it is frozen (`engine.core.scheduler.request_holds`) and cannot fire, and
the request takes effect. A request abandoned as UNAVAILABLE may or may not have been applied: the timer is read from storage again before
it may fire; otherwise a successor could find another due time in storage than the one at which the timer was handed out.

Firing, in two phases: `Fire` to the shard (claimed); then `FireDone` from it and removal from storage, leaving a tombstone that
distinguishes 409 from 404. A hand-out can fail, see the three levels of `engine.core.scheduler.firing`. The shard makes the effect happen
once, under the scheduled id; the scheduler may hand a timer out any number of times.

Or the shard answers `FireAgain`: the policy deferred the effect, and the timer must be handed out again at another time. From then on the
timer is not claimed, so it can be cancelled and moved like any other, also while its new time is being written: storage applies moves
before requests. The shard handles a copy that is still in transit (`engine.core.shard.fired_timers`).

What a crash, or a lost answer, does at each point:

    before the request is stored       nothing happened; no answer was given, the edge sends the request again or answers 503
    stored, not answered               the edge repeats it: the same scheduled id is stored once, and answered the same
    stored, answered, not due          read from storage by the next incarnation
    handed out, shard has not acted    handed out again: after `timer_refire_ms`, when the shard's session is lost, or by the
                                       next incarnation; until then it counts as claimed (`engine.core.scheduler.claim_horizon`)
    shard has acted, no FireDone       the same; the shard finds the scheduled id in its journal and only confirms
    FireDone, not removed              removal is retried until storage confirms it; after a crash the timer is handed out
                                       once more and confirmed as above
    removed, answer lost               removal is retried; it is idempotent
    storage unavailable                requests: UNAVAILABLE; timers fire up to the claimed bound, then wait (they could not be
                                       journalled either); removals wait; reading ahead waits
    shard cannot act now               it answers `FireFailed`; handed out again, see `engine.core.scheduler.firing`
    FireAgain lost, or not stored      handed out again at its old time, as above: the shard applies the policy again
    moved, answer lost                 the move is retried; after a crash the timer is read at its new time. A move of a timer that was
                                       cancelled or removed meanwhile changes nothing
    an old incarnation still runs      its writes carry an older epoch and are rejected; its hand-outs take effect once at the shards, and
                                       all of them count as claimed here: it cannot claim more (`engine.core.scheduler.claim_horizon`)
    partitions move                    the next owner does as after a crash. The one before it first finishes what waits for storage and
                                       answers it (`Retired`); what it is asked from then on has no answer: its sessions end
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import Final

import msgspec

from engine.config import Config
from engine.core.model.routing import SlotMap, partition_of, partition_of_timer, partitions_of, split_key
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.firing import LATENESS_BUCKETS_MS, Firing
from engine.core.scheduler.pending_removals import PendingRemovals
from engine.core.scheduler.read_ahead import ReadAhead
from engine.core.scheduler.request_holds import RequestHolds, Waiting
from engine.core.scheduler.scheduler_events import (
    Closed,
    Effect,
    Event,
    Opened,
    Quarantined,
    Received,
    Request,
    Retired,
    Send,
    SlotsRead,
    StoreDone,
    StoreRequest,
    Ticked,
    TimersNotWritten,
    TimersWritten,
    Turn,
    WriteTimers,
    partition_for,
    shard_of,
)
from engine.core.scheduler.timer_wheel import NEVER, TimerWheel
from engine.core.wire.records import (
    ALREADY_FIRED,
    DUPLICATE,
    NOT_FOUND,
    OK,
    OVERLOADED,
    SCHEDULED,
    UNAVAILABLE,
    Arm,
    Cancel,
    CancelAll,
    Due,
    FireAgain,
    FireDone,
    FireFailed,
    Inspect,
    ListTimers,
    Moved,
    Reschedule,
    Schedule,
    Timer,
    TimerAnswer,
)
from engine.errors import CorruptRecord

_OF_SHARDS: Final = frozenset((Arm, FireDone, FireFailed, FireAgain))

_STORE_RETRY_MS: Final = (50, 100, 200, 400, 800)
"""Backoff between attempts while storage fails, ms; the last value repeats. Short first: a failover takes less than a second."""

_NOT_WRITTEN: Final = "storage does not answer; it may have been accepted: repeat it under the same id"


class SchedulerCore:
    """One scheduler: the partitions that the slot map gives it, and volatile timers for every shard.

    Args:
        slots: the initial slot map; one that gives it other partitions is for another core.
        now_ms: start of this incarnation, after it has fenced off earlier ones, ms since the epoch.
        horizon: of its claims, as of that time.
    """

    def __init__(self, config: Config, index: int, slots: SlotMap, now_ms: int, horizon: ClaimHorizon) -> None:
        self._config = config
        self._slots = slots
        self.partitions = partitions = partitions_of(index, slots.schedulers, slots.stores)
        self._horizon = horizon
        self._firing = Firing(config, slots, horizon)
        self._loading = ReadAhead(config, partitions, self._firing, now_ms)
        self._sessions: dict[str, TimerWheel[str] | None] = {}  # wheel of volatile timers per shard session; None for an edge
        self._volatile_ms = NEVER  # lower bound of their due times
        self._queue: deque[Waiting] = deque()
        self._batch: list[Waiting] | None = None  # sent to storage, unanswered
        self._claim_ms = 0  # how far that turn claims, 0: no further
        self._deciding = RequestHolds(self._firing)
        self._settling = PendingRemovals(config)
        self._failures = 0  # consecutive failures of storage
        self._store_after_ms = now_ms
        self._store_ms = now_ms  # when storage has work, as of the last event
        self._stored: dict[int, int] = {}  # timers per partition, as of the last answer of storage
        self._effects: list[Effect] = []
        self._due_sent = 0
        self._retired = False

    # -- State. --------------------------------------------------------------------------------------------------------
    @property
    def caught_up(self) -> bool:
        """Whether every timer that was due at the start has been read."""
        return self._loading.caught_up

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written to storage."""
        return not self._queue and self._batch is None and not self._settling

    @property
    def slots_version(self) -> int:
        """Version of the slot map in use."""
        return self._slots.version

    def stats(self) -> dict[str, int | str | list[list[int]]]:
        """Counters and gauges for `engine status` and the metrics."""
        return {
            "slots_version": self._slots.version,
            "armed": sum(self._stored.values()),
            "loaded": len(self._firing),
            "volatile": sum(len(wheel) for wheel in self._sessions.values() if wheel is not None),
            "fired": self._firing.fired,
            "refired": self._firing.refired,
            "failed": self._firing.failed,
            "degraded": self._firing.degraded,
            "compensated": self._firing.compensated,
            "postponed": self._firing.postponed,
            "due_sent": self._due_sent,
            "requests_waiting": len(self._queue) + len(self._batch or ()),
            "removals_waiting": len(self._settling),
            "storage": "down" if self._failures else "ok",
            "lateness": [[upper_ms, count] for upper_ms, count in zip((*LATENESS_BUCKETS_MS, -1), self._firing.lateness, strict=True)],
            "lateness_sum_ms": self._firing.lateness_sum_ms,
        }

    def lag_ms(self, now_ms: int) -> int:
        """How long the oldest due timer that can be handed out has waited, ms."""
        return max(now_ms - self._firing.due_ms, 0)

    def next_at(self) -> int:
        """The latest time to call `handle` with `Ticked`, ms; NEVER when only another event can change anything."""
        first = NEVER if self._retired else min(self._volatile_ms, self._firing.next_ms)
        if self._batch is None:
            first = min(first, self._store_ms)
            if self._queue:
                first = min(first, self._queue[0].received_ms + self._config.commit_retry_ms)
        return first

    def _storage_work_ms(self) -> int:
        """When there is work for storage, ms; NEVER when only an event can bring some."""
        if self._queue or (self._retired and self._settling):
            return self._store_after_ms
        if self._retired:
            return NEVER
        first = min(self._loading.next_at(), self._settling.next_at(), self._horizon.asks_at(self._firing.due_ms))
        return max(first, self._store_after_ms)

    # -- Events. -------------------------------------------------------------------------------------------------------
    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle one event; returns the effects to perform, in order.

        Raises:
            CorruptRecord: `Received` holds a record this session may not send; none of its records was applied.
        """
        match event:
            case Received(session, records):
                self._received(session, records, now_ms)
            case TimersWritten(done, reach_ms):
                self._firing.reach(reach_ms)
                self._store_succeeded(done, reach_ms, now_ms)
            case TimersNotWritten():
                self._store_failed(now_ms)
            case Opened(session):
                self._opened(session, now_ms)
            case Closed(session):
                self._closed(session, now_ms)
            case SlotsRead(slots):
                self._slots_read(slots, now_ms)
            case Retired():
                self._retired = True
            case Ticked():
                pass
        if self._queue:
            self._give_up(now_ms)
        if not self._retired and min(self._volatile_ms, self._firing.next_ms) <= now_ms:
            self._fire(now_ms)
        if self._batch is None:
            self._begin_store(now_ms)
        effects, self._effects = self._effects, []
        return effects

    def _opened(self, session: str, now_ms: int) -> None:
        shard = shard_of(session)
        if shard is None:
            self._sessions[session] = None
            return
        self._sessions[session] = TimerWheel(now_ms)
        if self._firing.open(shard, session, now_ms):
            self._loading.rewind()

    def _closed(self, session: str, now_ms: int) -> None:
        if self._sessions.pop(session, None) is not None:
            shard = shard_of(session)
            assert shard is not None
            self._firing.close(shard, now_ms)

    def _slots_read(self, slots: SlotMap, now_ms: int) -> None:
        if slots.version > self._slots.version:
            self._slots = slots
            if self._firing.set_slots(slots, now_ms):
                self._loading.rewind()

    def _received(self, session: str, records: Sequence[Request | Arm | FireDone | FireFailed | FireAgain], now_ms: int) -> None:
        wheel = self._sessions[session]
        if wheel is None:
            if not _OF_SHARDS.isdisjoint(map(type, records)):
                raise CorruptRecord(f"{session} is no shard, and speaks as one")
            for record in records:
                self._requested(session, record, now_ms)  # type: ignore[arg-type]  # as was just seen
            return
        for record in records:
            if isinstance(record, Arm):
                wheel.arm(record.key, record.at_ms)
                self._volatile_ms = min(self._volatile_ms, record.at_ms)
            elif isinstance(record, FireDone):
                self._fire_done(record.sids, now_ms)
            elif isinstance(record, FireFailed):
                self._firing.failed_sids(record.sids, now_ms)
            elif isinstance(record, FireAgain):
                self._fire_again(shard_of(session), record.moves, now_ms)
            else:
                self._requested(session, record, now_ms)

    def _fire_done(self, sids: Sequence[str], now_ms: int) -> None:
        for sid in sids:
            partition = partition_of_timer(sid)
            if partition is not None and partition in self.partitions and self._settling.key_of_fired(sid) is None:
                timer = self._firing.done(sid)
                self._settling.fired(sid, partition, "" if timer is None else timer.key, now_ms)

    def _fire_again(self, shard: int | None, moves: Sequence[tuple[str, int]], now_ms: int) -> None:
        for sid, at_ms in moves:
            timer = self._firing.postpone(sid, shard)
            if timer is not None:
                self._settling.again(sid, partition_of(timer.key), at_ms, timer.key, now_ms)

    def _fire(self, now_ms: int) -> None:
        """Send shards the volatile timers and the durable ones that are due."""
        size = self._config.timer_batch
        self._volatile_ms = NEVER
        for session, wheel in self._sessions.items():
            if wheel:
                keys = wheel.advance(now_ms)
                self._due_sent += len(keys)
                self._effects += [Send(session, Due(keys[at : at + size])) for at in range(0, len(keys), size)]
                self._volatile_ms = min(self._volatile_ms, wheel.next_at())
        self._effects += self._firing.due(now_ms)
        if self._firing.take_reloads():
            self._loading.rewind()

    # -- Requests. -----------------------------------------------------------------------------------------------------
    def _requested(self, session: str, request: Request, now_ms: int) -> None:
        if self._retired:
            return  # the edge repeats it in its next session
        partition = partition_for(request)
        if partition is None:
            self._answer(session, TimerAnswer(request.ref, NOT_FOUND))
        elif partition not in self.partitions:
            self._answer(session, Moved(request.ref, -1, self._slots.version))
        elif not isinstance(request, Schedule) and (settled := self._settled(request)) is not None:
            self._answer(session, TimerAnswer(request.ref, settled))
        elif len(self._queue) >= self._config.timer_requests_max:
            self._answer(session, TimerAnswer(request.ref, OVERLOADED, detail="too many requests are waiting for storage"))
        else:
            spared = self._spared(request.key) if isinstance(request, CancelAll) else ()
            self._queue.append(Waiting(session, request, partition, now_ms, spared))
            self._deciding.begin(request)

    def _spared(self, key: str) -> list[str]:
        """Timers of a mailbox that, by the state in memory, may have taken effect: a CancelAll comes too late for them."""
        return self._firing.claimed_of(key) + self._settling.fired_of(key)

    def _settled(self, request: Inspect | Reschedule | Cancel | CancelAll | ListTimers) -> int | None:
        """The answer when memory alone decides it; None when storage must."""
        if isinstance(request, (ListTimers, CancelAll)):
            return None
        timer = self._firing.get(request.sid)
        key = self._settling.key_of_fired(request.sid) if timer is None else timer.key
        if key and split_key(key)[0] != request.tenant:
            return NOT_FOUND
        return ALREADY_FIRED if self._is_fired(request.sid) else None

    def _answer(self, session: str, answer: TimerAnswer | Moved) -> None:
        if session in self._sessions:
            self._effects.append(Send(session, answer))

    def _give_up(self, now_ms: int) -> None:
        """Answer requests that have waited too long for storage."""
        oldest_ms = now_ms - self._config.commit_retry_ms
        while self._queue and self._queue[0].received_ms <= oldest_ms:
            waiting = self._queue.popleft()
            if waiting.tried and isinstance(waiting.request, Schedule | Cancel | CancelAll | Reschedule):
                # It may have changed a range that counts as read, so that range is read again.
                self._loading.rewind(waiting.partition)
                self._deciding.forget(waiting.request, now_ms)
            else:
                self._deciding.end(waiting.request, now_ms)
            self._answer(waiting.session, TimerAnswer(waiting.request.ref, UNAVAILABLE, detail=_NOT_WRITTEN))

    # -- Storage. ------------------------------------------------------------------------------------------------------
    def _begin_store(self, now_ms: int) -> None:
        """Send all waiting work to storage, when there is some."""
        self._store_ms = self._storage_work_ms()
        if self._store_ms > now_ms and not (self._loading.paused and self._store_after_ms <= now_ms):
            return
        pages = {} if self._retired else self._loading.pages(now_ms)
        if self._loading.paused:
            self._store_ms = self._storage_work_ms()
            if self._store_ms > now_ms:
                return  # there is no more to do than to read, and no room for it
        due_ms = NEVER if self._retired else self._firing.due_ms
        work = Turn(self._horizon.inherited_ms)
        self._settling.give(work)
        self._batch = self._take_batch()
        for waiting in self._batch:
            request = waiting.request
            if isinstance(request, Schedule) and not self._retired:  # one due soon is claimed in the step that stores it
                due_ms = min(due_ms, request.timer.due_ms)
            work[waiting.partition].requests.append(StoreRequest(request, waiting.spared))
            waiting.tried = True
        for partition, page in pages.items():
            work[partition].page = page
        self._claim_ms = self._horizon.to_claim(due_ms, now_ms)
        self._effects.append(WriteTimers(list(work.values()), self._claim_ms))

    def _take_batch(self) -> list[Waiting]:
        batch: list[Waiting] = []
        room_bytes = self._config.commit_bytes_max
        while self._queue and len(batch) < self._config.commit_records_max and room_bytes > 0:
            waiting = self._queue.popleft()
            batch.append(waiting)
            if isinstance(waiting.request, Schedule):
                room_bytes -= len(waiting.request.timer.envelope.body)
            elif isinstance(waiting.request, ListTimers):
                room_bytes -= self._config.list_timers_bytes
        return batch

    def _store_failed(self, now_ms: int) -> None:
        assert self._batch is not None
        self._queue.extendleft(reversed(self._batch))
        self._batch = None
        self._loading.abandon()
        self._store_after_ms = now_ms + _STORE_RETRY_MS[min(self._failures, len(_STORE_RETRY_MS) - 1)]
        self._failures += 1

    def _store_succeeded(self, done: list[StoreDone], reach_ms: int, now_ms: int) -> None:
        assert self._batch is not None
        batch, self._batch = self._batch, None
        self._failures = 0
        young = {sid for part in done for sid in part.young}
        for part in done:
            for sid, at_ms in self._settling.stored_moves(part) if part.moved else ():
                self._come_again(part.partition, sid, at_ms, young, now_ms)
        answers = {part.partition: iter(part.answers) for part in done}
        for waiting in batch:
            self._answered(waiting, next(answers[waiting.partition]), young, now_ms)
        if self._settling.stored_fired(now_ms) or reach_ms < self._claim_ms:
            self._store_after_ms = now_ms + _STORE_RETRY_MS[0]  # storage lacks the memory to move timers, or to claim them
        for part in done:
            self._stored[part.partition] = part.stored
            if part.quarantined:
                self._effects.append(Quarantined(part.quarantined))
                for sid in part.quarantined:
                    self._firing.forget(sid)
            if part.page is not None:
                part.page.timers = [timer for timer in part.page.timers if self._settling.key_of_fired(timer.sid) is None]
                self._loading.loaded(part.partition, part.page, now_ms, self._deciding, young)

    def _come_again(self, partition: int, sid: str, at_ms: int | None, young: Container[str], now_ms: int) -> None:
        """Apply a stored move to memory. `at_ms` is the new due time; None when storage does not have the timer."""
        timer = self._firing.forget(sid)
        if at_ms is not None and timer is not None:
            self._admit(partition, msgspec.structs.replace(timer, due_ms=at_ms), young, now_ms)

    def _answered(self, waiting: Waiting, answer: TimerAnswer, young: Container[str], now_ms: int) -> None:
        """Update memory to the answer of storage, then pass the answer on."""
        request = waiting.request
        match request:
            case Schedule() if answer.status in (SCHEDULED, DUPLICATE):
                for timer in answer.timers:
                    self._admit(waiting.partition, timer, young, now_ms)
                if answer.timers and answer.timers[0] is request.timer:
                    answer.timers = []  # the requester has it
            case Cancel() | Reschedule() if answer.status in (OK, NOT_FOUND):
                known = self._firing.get(request.sid)
                if known is not None and split_key(known.key)[0] == request.tenant and not self._firing.is_claimed(request.sid):
                    self._firing.forget(request.sid)
                    self._settling.stay(request.sid)
                if isinstance(request, Reschedule) and answer.status == OK:
                    self._admit(waiting.partition, answer.timers[0], young, now_ms)
            case CancelAll() if answer.status == OK:
                spared = waiting.spared  # storage kept them: a shard may have deferred them since
                for sid in self._firing.of(request.key).difference(spared):
                    known = self._firing.get(sid)
                    if known is None or request.collapse not in ("", known.envelope.collapse):
                        continue
                    if not self._firing.is_claimed(sid) and not self._settling.is_moving(sid):
                        self._firing.forget(sid)
            case ListTimers():
                shown = [timer for timer in answer.timers if not self._is_fired(timer.sid)]
                answer.timers = shown or (answer.timers[-1:] if answer.detail else [])  # the next page begins behind the last one
            case _:
                pass
        self._deciding.end(request, now_ms)
        self._answer(waiting.session, answer)

    def _is_fired(self, sid: str) -> bool:
        return self._settling.key_of_fired(sid) is not None or self._firing.is_claimed(sid)

    def _admit(self, partition: int, timer: Timer, young: Container[str], now_ms: int) -> None:
        if self._settling.key_of_fired(timer.sid) is None:
            self._loading.admit(partition, timer, now_ms, frozen=timer in self._deciding, young=timer.sid in young)
