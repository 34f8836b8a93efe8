"""Durable timers in memory, and handing the due ones to the shards that own their users.

Every timer in memory is in exactly one state:

    state     where it is                          leaves it by
    -------   ----------------------------------   -----------------------------------------------------------------------
    WAITING   in the wheel of its shard's lane     due, and the lane has a session and room -> HANDED
                                                   a Cancel or Reschedule arrives, it is not claimed -> FROZEN
                                                   memory is short, it is not claimed -> forgotten, storage has it
    FROZEN    in no wheel                          the request's outcome: forgotten, WAITING at another time, or WAITING as before
    HANDED    with the shard, unconfirmed          FireDone -> forgotten; session lost -> WAITING; FireFailed, or no word for the
                                                   refire time: it has failed -> RETRY, or DEGRADED; FireAgain -> MOVING
    RETRY     in the lane's second wheel           its next retry time -> HANDED
    DEGRADED  in the lane's compensation queue     the next compensation batch -> HANDED
    MOVING    in no wheel                          storage has the new time -> WAITING at that time, or forgotten when that is far
    (any)                                          FireDone -> forgotten
    (claimed)                                      FireAgain -> MOVING

A timer is *claimed* from the moment it is first handed out, for as long as it is in memory, or until its shard says that it had no
effect and is to come again later (`FireAgain`). A claimed timer may have taken
effect, so it can neither be cancelled nor moved any more: that is the line between "cancelled for sure" and 409. Storage knows
how far claims may reach, not which timers they are (`engine.core.scheduler.claim_horizon`): nothing is handed out beyond that, and a
scheduler
that starts takes everything up to there for claimed.

Three levels, so that what fails does not delay what does not: the delay wheel; retries, ordered by next retry time, which starts at
`timer_retry_first_ms` and doubles up to `timer_retry_cap_ms`; and compensation, for a timer that has failed `timer_failures_max`
times, or that failed while its shard's claims were at `timer_degrade_load` of their limit: a batch every `timer_compensate_ms`, oldest
failure first, while the load allows it. A batch of which nothing failed says that the shard is well again: the next one follows it at
once. No level ever gives a timer up.

A lane is what one shard gets. It has wheels of its own: when the shard is away or has enough unconfirmed timers, they
are simply not advanced, and due timers stay in order, cancellable, and out of the other shards' way.

The clock. A timer is an instant: milliseconds since the epoch, by the wall clock of the scheduler's machine. `delay` is turned into
an instant when the request arrives, so it does not shift later. What that means:

    clock steps forward                what became due by the step fires at once, oldest first; so do retries
    clock steps back                   nothing fires early and nothing fires twice: what is due waits until the clock is there again;
                                       what was handed out stays handed out
    engine was down                    what became due meanwhile fires at once, oldest first, paced by the claims of each shard
    daylight saving                    does not concern instants. Who schedules by a local time computes the instant from the zone
                                       (`engine.core.policy.quiet_hours`): a time that a change skips means the moment of the change, one
                                       that
                                       happens twice means the first
    two machines disagree              a scheduler that takes over with a clock behind fires that much later, never early by its clock
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from typing import Final

from engine.config import Config
from engine.core.model.routing import SlotMap
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.timer_wheel import TimerWheel
from engine.core.wire.records import Fire, Timer

WAITING: Final = 0
FROZEN: Final = 1
HANDED: Final = 2
RETRY: Final = 3
DEGRADED: Final = 4
MOVING: Final = 5

LATENESS_BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000)
"""Upper bounds of the lateness histogram; what is later counts in one more bucket."""

_OVERHEAD_BYTES: Final = 1000
"""Of one timer in memory beside its body: record, strings, wheel, dict and set entries; 930 measured with one timer per user."""


class _Entry:
    __slots__ = ("claimed", "failures", "inherited", "shard", "size", "state", "timer")

    def __init__(self, timer: Timer, inherited: bool) -> None:
        self.timer = timer
        self.inherited = inherited  # may have been claimed by an earlier incarnation
        self.claimed = inherited
        self.failures = 0  # since it was last taken over by a session
        self.state = FROZEN
        self.shard = -1  # lane of a timer that is not FROZEN or MOVING
        self.size = len(timer.envelope.body) + _OVERHEAD_BYTES


class _Lane:
    __slots__ = ("compensate_ms", "compensating", "degraded", "handed", "handed_bytes", "incomplete", "retries", "session", "wheel")

    def __init__(self, now_ms: int) -> None:
        self.wheel: TimerWheel[str] = TimerWheel(now_ms)
        self.retries: TimerWheel[str] = TimerWheel(now_ms)
        self.degraded: dict[str, None] = {}  # oldest failure first
        self.compensate_ms = now_ms  # when the next compensation batch may go
        self.compensating: set[str] = set()  # what is left of the last one, unless something of it has failed
        self.session: str | None = None
        self.handed: dict[str, int] = {}  # scheduled id -> when it is handed out again; in that order
        self.handed_bytes = 0
        self.incomplete = False  # some of its timers were left to storage while it had no session


class Firing:
    """The durable timers of one scheduler that are in memory.

    Args:
        horizon: how far timers may be handed out, and which count as claimed by an earlier incarnation.
    """

    def __init__(self, config: Config, slots: SlotMap, horizon: ClaimHorizon) -> None:
        self._config = config
        self._slots = slots
        self._horizon = horizon
        self._entries: dict[str, _Entry] = {}
        self._by_key: dict[str, set[str]] = {}
        self._lanes: dict[int, _Lane] = {}
        self.bytes = 0
        self.fired = 0  # timers confirmed
        self.refired = 0  # handed out again
        self.failed = 0  # hand-outs that failed
        self.compensated = 0  # timers that went to the compensation queue
        self.postponed = 0  # timers that a shard postponed
        self.lateness = [0] * (len(LATENESS_BUCKETS_MS) + 1)  # of each timer when it was first handed out

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, sid: str) -> Timer | None:
        """The timer, when it is in memory."""
        entry = self._entries.get(sid)
        return None if entry is None else entry.timer

    def is_claimed(self, sid: str) -> bool:
        """Whether it is in memory and may have taken effect."""
        entry = self._entries.get(sid)
        return entry is not None and entry.claimed

    def of(self, key: str) -> set[str]:
        """The timers of a mailbox that are in memory."""
        return self._by_key.get(key, set())

    def claimed_of(self, key: str) -> list[str]:
        """Those of them that may have taken effect."""
        return [sid for sid in self.of(key) if self._entries[sid].claimed]

    @property
    def degraded(self) -> int:
        """Timers that wait for a compensation batch now."""
        return sum(len(lane.degraded) for lane in self._lanes.values())

    def is_left_to_storage(self, key: str) -> bool:
        """Whether the owning shard has no session and so many waiting timers that no more are kept in memory."""
        lane = self._lanes.get(self._slots.owner(key))
        return lane is not None and lane.incomplete

    # -- Adding and removing. ------------------------------------------------------------------------------------------
    def add(self, timer: Timer, now_ms: int, *, frozen: bool = False, young: bool = False) -> None:
        """Add a timer that is durable and not in memory; no earlier incarnation can have claimed a young one."""
        entry = _Entry(timer, timer.due_ms <= self._horizon.inherited_ms and not young)
        self._entries[timer.sid] = entry
        self._by_key.setdefault(timer.key, set()).add(timer.sid)
        self.bytes += entry.size
        if not frozen:
            self._arm(entry, now_ms)

    def forget(self, sid: str) -> Timer | None:
        """Drop a timer in whatever state; returns it when it was in memory."""
        entry = self._entries.pop(sid, None)
        if entry is None:
            return None
        self.bytes -= entry.size
        self._leave(entry)
        siblings = self._by_key[entry.timer.key]
        siblings.discard(sid)
        if not siblings:
            del self._by_key[entry.timer.key]
        return entry.timer

    def _leave(self, entry: _Entry) -> None:
        """Remove the timer from the table of its state."""
        if entry.state in (FROZEN, MOVING):
            return
        lane, sid = self._lanes[entry.shard], entry.timer.sid
        if entry.state == WAITING:
            lane.wheel.cancel(sid)
        elif entry.state == RETRY:
            lane.retries.cancel(sid)
        elif entry.state == DEGRADED:
            del lane.degraded[sid]
        else:
            del lane.handed[sid]
            lane.handed_bytes -= entry.size
            if lane.compensating:
                lane.compensating.discard(sid)
                if not lane.compensating:
                    lane.compensate_ms = 0

    def done(self, sid: str) -> Timer | None:
        """The timer took effect; returns it when it was in memory."""
        self.fired += 1
        return self.forget(sid)

    def freeze(self, sid: str) -> None:
        """Keep an unclaimed timer from firing while a request on it is pending; no effect on a claimed one."""
        entry = self._entries.get(sid)
        if entry is not None and entry.state == WAITING and not entry.claimed:
            self._lanes[entry.shard].wheel.cancel(sid)
            entry.state = FROZEN

    def correct(self, timer: Timer, now_ms: int, *, young: bool) -> None:
        """Storage has another due time than memory (a move whose answer was lost): follow it, unless claimed or frozen."""
        entry = self._entries[timer.sid]
        if entry.state == WAITING and not entry.claimed and entry.timer.due_ms != timer.due_ms:
            self.forget(timer.sid)
            self.add(timer, now_ms, young=young)

    def thaw(self, sid: str, now_ms: int) -> None:
        """End `freeze`: the timer fires at its time, at once if that has passed."""
        entry = self._entries.get(sid)
        if entry is not None and entry.state == FROZEN:
            self._arm(entry, now_ms)

    def postpone(self, sid: str) -> Timer | None:
        """A shard postponed a timer: it is not claimed any more, and does not fire until storage has its new time and the caller removes it
        here. Returns None, without an effect, when it was not claimed or not in memory."""
        entry = self._entries.get(sid)
        if entry is None or not entry.claimed:
            return None
        self._leave(entry)
        entry.state = MOVING
        entry.claimed = False
        self.postponed += 1
        return entry.timer

    def _arm(self, entry: _Entry, now_ms: int) -> None:
        entry.state = WAITING
        entry.shard = self._slots.owner(entry.timer.key)
        self._lane(entry.shard, now_ms).wheel.arm(entry.timer.sid, entry.timer.due_ms)

    def _lane(self, shard: int, now_ms: int) -> _Lane:
        lane = self._lanes.get(shard)
        if lane is None:
            lane = self._lanes[shard] = _Lane(now_ms)
        return lane

    # -- Shards. -------------------------------------------------------------------------------------------------------
    def open(self, shard: int, session: str, now_ms: int) -> bool:
        """A shard can be reached; its earlier session has been closed.

        Returns whether timers of it were left to storage and have to be loaded now.
        """
        lane = self._lane(shard, now_ms)
        assert lane.session is None
        lane.session = session
        incomplete, lane.incomplete = lane.incomplete, False
        return incomplete

    def close(self, shard: int, now_ms: int) -> None:
        """A shard's session ended: timers that it has not confirmed wait for the next session."""
        lane = self._lanes[shard]
        lane.session = None
        lane.compensating.clear()
        for sid in list(lane.handed):
            entry = self._entries[sid]
            self._leave(entry)
            entry.failures = 0  # the end of the session was not the timer's failure
            self._arm(entry, now_ms)
            self.refired += 1

    def set_slots(self, slots: SlotMap, now_ms: int) -> bool:
        """Follow a newer slot map. What a former owner has not confirmed goes to the new one at its refire time.

        Returns whether timers were left to storage that may now have an owner who can be reached, and have to be loaded.
        """
        self._slots = slots
        for entry in self._entries.values():
            if entry.state not in (FROZEN, HANDED, MOVING) and slots.owner(entry.timer.key) != entry.shard:
                self._leave(entry)
                self._arm(entry, now_ms)
        incomplete = any(lane.incomplete for lane in self._lanes.values())
        for lane in self._lanes.values():
            lane.incomplete = False
        return incomplete

    # -- Firing. -------------------------------------------------------------------------------------------------------
    def due(self, now_ms: int) -> list[tuple[str, Fire]]:
        """Hand out what is due, oldest first per shard, as (session, record) pairs."""
        out: list[tuple[str, Fire]] = []
        for lane in self._lanes.values():
            if lane.session is None:
                continue
            while lane.handed:
                sid, failed_ms = next(iter(lane.handed.items()))
                if failed_ms > now_ms:
                    break
                self._fail(self._entries[sid], now_ms)
            for wheel, until_ms in ((lane.retries, now_ms), (lane.wheel, min(now_ms, self._horizon.reach_ms))):
                while (room := self._room(lane)) > 0:
                    sids = wheel.advance(until_ms, min(room, self._config.timer_batch))
                    if not sids:
                        break
                    out += [(lane.session, fire) for fire in self._hand(lane, sids, now_ms)]
            if lane.degraded and lane.compensate_ms <= now_ms and not self._is_loaded(lane):
                sids = list(islice(lane.degraded, min(self._room(lane), self._config.timer_batch)))
                for sid in sids:
                    del lane.degraded[sid]
                lane.compensate_ms = now_ms + self._config.timer_compensate_ms
                lane.compensating = set(sids)
                out += [(lane.session, fire) for fire in self._hand(lane, sids, now_ms)]
        return out

    def failed_sids(self, sids: Iterable[str], now_ms: int) -> None:
        """A shard reports that these could not take effect now; timers that are not handed out are ignored."""
        for sid in sids:
            entry = self._entries.get(sid)
            if entry is not None and entry.state == HANDED:
                self._fail(entry, now_ms)

    def _fail(self, entry: _Entry, now_ms: int) -> None:
        config = self._config
        before = self._lanes[entry.shard]
        busy = self._is_loaded(before)
        if entry.timer.sid in before.compensating:
            before.compensating.clear()
        self._leave(entry)
        self.failed += 1
        self.refired += 1
        entry.failures += 1
        entry.shard = self._slots.owner(entry.timer.key)
        lane = self._lane(entry.shard, now_ms)
        if busy or entry.failures >= config.timer_failures_max:
            if not lane.degraded:
                lane.compensate_ms = max(lane.compensate_ms, now_ms + config.timer_compensate_ms)
            entry.state = DEGRADED
            lane.degraded[entry.timer.sid] = None
            self.compensated += 1
        else:
            entry.state = RETRY
            wait_ms = min(config.timer_retry_first_ms << (entry.failures - 1), config.timer_retry_cap_ms)
            lane.retries.arm(entry.timer.sid, now_ms + wait_ms)

    def _is_loaded(self, lane: _Lane) -> bool:
        """Whether the shard has so many unconfirmed timers that those that failed before have to wait."""
        share = self._config.timer_degrade_load
        return len(lane.handed) >= share * self._config.timer_claims_max or lane.handed_bytes >= share * self._config.timer_claims_bytes

    def _room(self, lane: _Lane) -> int:
        """How many more timers the shard may get; a full batch may go once over the byte limit."""
        if lane.handed_bytes >= self._config.timer_claims_bytes:
            return 0
        return self._config.timer_claims_max - len(lane.handed)

    def _hand(self, lane: _Lane, sids: list[str], now_ms: int) -> list[Fire]:
        records: list[Fire] = []
        room_bytes = 0
        for sid in sids:
            entry = self._entries[sid]
            if not entry.claimed:
                entry.claimed = True
                self.lateness[bisect_left(LATENESS_BUCKETS_MS, now_ms - entry.timer.due_ms)] += 1
            entry.state = HANDED
            lane.handed[sid] = now_ms + self._config.timer_refire_ms
            lane.handed_bytes += entry.size
            if room_bytes < entry.size:
                records.append(Fire([]))
                room_bytes = max(self._config.timer_batch_bytes, entry.size)
            records[-1].timers.append(entry.timer)
            room_bytes -= entry.size
        return records

    def next_at(self) -> int | None:
        """When to call `due` next, ms; None when only a session or a confirmation can change anything."""
        first: int | None = None
        for lane in self._lanes.values():
            if lane.session is None:
                continue
            moments = [first]
            if self._room(lane) > 0:
                moments.append(lane.retries.next_at())
                due_ms = lane.wheel.next_at()
                if due_ms is not None and due_ms <= self._horizon.reach_ms:
                    moments.append(due_ms)
            if lane.degraded and not self._is_loaded(lane):
                moments.append(lane.compensate_ms)
            if lane.handed:
                moments.append(next(iter(lane.handed.values())))
            first = min((moment for moment in moments if moment is not None), default=None)
        return first

    def due_at(self) -> int | None:
        """A moment, ms, that is not later than the first due time of what waits for a shard that can be reached."""
        moments = (lane.wheel.next_at() for lane in self._lanes.values() if lane.session is not None)
        return min((moment for moment in moments if moment is not None), default=None)

    # -- Memory. -------------------------------------------------------------------------------------------------------
    def evict_unreachable(self) -> None:
        """Drop the timers of shards without a session from memory; `open` returns when they must be read again."""
        lanes = [lane for lane in self._lanes.values() if lane.session is None and not lane.incomplete and len(lane.wheel)]
        if not lanes:
            return
        for lane in lanes:
            lane.incomplete = True
        self._evict([sid for sid, entry in self._entries.items() if self._is_unreachable(entry)])

    def _is_unreachable(self, entry: _Entry) -> bool:
        return self._can_be_read_again(entry) and self._lanes[entry.shard].incomplete

    def _can_be_read_again(self, entry: _Entry) -> bool:
        # A claim that was inherited is inherited again with the next reading; one of this incarnation is known here only.
        return entry.state == WAITING and (entry.inherited or not entry.claimed)

    def evict_from(self, cut_ms: int) -> None:
        """Leave the timers due at `cut_ms` or later to storage, except those this incarnation has claimed."""
        self._evict([sid for sid, entry in self._entries.items() if self._can_be_read_again(entry) and entry.timer.due_ms >= cut_ms])

    def _evict(self, sids: list[str]) -> None:
        for sid in sids:
            self.forget(sid)
