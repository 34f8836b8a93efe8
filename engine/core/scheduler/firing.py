"""In-memory state machine of the durable timers: holds the near ones and sends the due ones to the shards that own their users.

Every timer in memory is in exactly one state:

    state     where it is                          leaves it by
    -------   ----------------------------------   -----------------------------------------------------------------------
    WAITING   in the wheel of its shard's lane     due, and the lane has a session and room -> HANDED
                                                   a Cancel or Reschedule arrives, it is not claimed -> FROZEN
                                                   memory is short, it is not claimed -> evicted; storage keeps it
    FROZEN    in no wheel                          the request's outcome: removed, WAITING at another time, or WAITING as before
    HANDED    sent to the shard, unconfirmed       FireDone -> removed; session lost -> WAITING; FireFailed, or no reply within the
                                                   refire time: a failure -> RETRY, or DEGRADED; FireAgain -> MOVING
    RETRY     in the lane's second wheel           its next retry time -> HANDED
    DEGRADED  in the lane's compensation queue     the next compensation batch -> HANDED
    MOVING    in no wheel                          storage has the new time -> WAITING at that time, or evicted when that is far
    (any)                                          FireDone -> removed
    (claimed)                                      FireAgain -> MOVING

A timer is *claimed* from its first hand-out until it leaves memory or its shard replies that it had no effect and must fire again later
(`FireAgain`). A claimed timer may have taken effect, so it can no longer be cancelled or moved: a request on it is answered with 409, and
a request on an unclaimed timer cancels it for sure. Storage holds only the upper bound of the claims, not the set of claimed timers
(`engine.core.scheduler.claim_horizon`): no timer due after that bound is handed out, and a scheduler that starts treats every timer up to
the bound as claimed.

Three levels keep failing timers from delaying the others: the delay wheel; retries, ordered by next retry time, with a backoff that
starts at `timer_retry_first_ms` and doubles up to `timer_retry_cap_ms`; and compensation, for a timer that has failed
`timer_failures_max` times, or that failed while its shard's claims were at `timer_degrade_load` of their limit: one batch every
`timer_compensate_ms`, oldest failure first, while the load allows it. After a batch without a failure the shard counts as recovered, and
the next batch follows at once. No level drops a timer.

A lane is the queue of one shard. It has wheels of its own: while the shard has no session, or too many unconfirmed timers, its wheels are
not advanced; its due timers stay ordered and cancellable, and do not block other shards. Nor do they fill the memory: where failed timers
take half of it, shards with failed ones get no others until a half of these has taken effect. What waits for such a shard, or for one
without a session, is left to storage when memory is short, and read again when it can be handed out.

The clock. A timer is an instant: milliseconds since the epoch, by the wall clock of the scheduler's machine. `delay` is converted to
an instant when the request arrives, so it does not shift later. Consequences:

    clock steps forward                what became due by the step fires at once, oldest first; so do retries
    clock steps back                   nothing fires early and nothing fires twice: what is due waits until the clock is there again;
                                       what was handed out stays handed out
    engine was down                    what became due meanwhile fires at once, oldest first, paced by the claims of each shard
    daylight saving                    does not affect instants. A caller that schedules by local time computes the instant from the zone
                                       as quiet hours do: a skipped local time maps to the moment of the change, an ambiguous one to
                                       its first occurrence
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
from engine.core.scheduler.scheduler_events import Send
from engine.core.scheduler.timer_wheel import NEVER, TimerWheel
from engine.core.wire.records import Fire, Timer

WAITING: Final = 0
FROZEN: Final = 1
HANDED: Final = 2
RETRY: Final = 3
DEGRADED: Final = 4
MOVING: Final = 5

LATENESS_BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000)
"""Upper bounds of the lateness histogram, ms; one further bucket counts everything later."""

_OVERHEAD_BYTES: Final = 1000
"""Bytes per timer in memory without its body: record, strings, wheel, dict and set entries; 930 measured with one timer per user."""


_FAILED_SHARE: Final = 0.5
"""Share of the memory limits that failed timers may take. Claimed ones cannot be left to storage."""


class _Entry:
    __slots__ = ("claimed", "failures", "inherited", "shard", "size", "state", "timer")

    def __init__(self, timer: Timer, inherited: bool) -> None:
        self.timer = timer
        self.inherited = inherited  # may have been claimed by an earlier incarnation
        self.claimed = inherited
        self.failures = 0  # failed hand-outs since a session last took it over
        self.state = FROZEN
        self.shard = -1  # lane of a timer that is not FROZEN or MOVING
        self.size = len(timer.envelope.body) + _OVERHEAD_BYTES


class _Lane:
    __slots__ = ("compensate_ms", "compensating", "degraded", "full", "handed", "handed_bytes", "incomplete", "retries", "session", "wheel")

    def __init__(self, now_ms: int) -> None:
        self.wheel: TimerWheel[str] = TimerWheel(now_ms)
        self.retries: TimerWheel[str] = TimerWheel(now_ms)
        self.degraded: dict[str, None] = {}  # oldest failure first
        self.compensate_ms = now_ms  # earliest time of the next compensation batch
        self.compensating: set[str] = set()  # unconfirmed timers of the last batch; cleared when one of them fails
        self.session: str | None = None
        self.handed: dict[str, int] = {}  # scheduled id -> refire time, ms; ascending
        self.handed_bytes = 0
        self.full = False  # had no room for another timer when it was last looked at
        self.incomplete = False  # some of its timers were evicted while it had no session


class Firing:
    """The durable timers of one scheduler that are in memory.

    Args:
        horizon: the latest due time that may be handed out, and the timers that count as claimed by an earlier incarnation.

    Attributes:
        next_ms: the next time to call `due`, or earlier; NEVER when only a session or a confirmation can change anything.
        due_ms: a lower bound of the due times of timers that wait for a shard with a session; NEVER without one.
    """

    def __init__(self, config: Config, slots: SlotMap, horizon: ClaimHorizon) -> None:
        self._config = config
        self._slots = slots
        self._horizon = horizon
        self._entries: dict[str, _Entry] = {}
        self._by_key: dict[str, set[str]] = {}
        self._lanes: dict[int, _Lane] = {}
        self._incomplete = False  # a lane is
        self._failed_now = 0  # timers in RETRY and DEGRADED
        self._failed_bytes = 0
        self._crowded = False  # they take so much memory that lanes with degraded timers get no others
        self._reloads = False  # timers that were left to storage are to be read
        self.next_ms = self.due_ms = NEVER
        self.bytes = 0
        self.fired = 0  # timers confirmed
        self.refired = 0  # handed out again
        self.failed = 0  # hand-outs that failed
        self.compensated = 0  # timers moved to the compensation queue
        self.postponed = 0  # timers that a shard postponed
        self.lateness = [0] * (len(LATENESS_BUCKETS_MS) + 1)  # histogram over the first hand-out of each timer
        self.lateness_sum_ms = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, sid: str) -> Timer | None:
        """Return the timer; None when it is not in memory."""
        entry = self._entries.get(sid)
        return None if entry is None else entry.timer

    def is_claimed(self, sid: str) -> bool:
        """Whether the timer is in memory and may have taken effect."""
        entry = self._entries.get(sid)
        return entry is not None and entry.claimed

    def of(self, key: str) -> set[str]:
        """Return the scheduled ids of the mailbox's timers in memory."""
        return self._by_key.get(key, set())

    def claimed_of(self, key: str) -> list[str]:
        """Return the scheduled ids of the mailbox's timers in memory that may have taken effect."""
        return [sid for sid in self.of(key) if self._entries[sid].claimed]

    @property
    def degraded(self) -> int:
        """Number of timers now waiting for a compensation batch."""
        return sum(len(lane.degraded) for lane in self._lanes.values())

    def is_left_to_storage(self, key: str) -> bool:
        """Whether the timers of the owning shard, which gets none now, were evicted and further ones are not kept in memory."""
        if not self._incomplete:
            return False
        lane = self._lanes.get(self._slots.owner(key))
        return lane is not None and lane.incomplete

    # -- Adding and removing. ------------------------------------------------------------------------------------------
    def add(self, timer: Timer, now_ms: int, *, frozen: bool = False, young: bool = False) -> None:
        """Add a durable timer that is not in memory. `young`: no earlier incarnation can have claimed it."""
        entry = _Entry(timer, timer.due_ms <= self._horizon.inherited_ms and not young)
        self._entries[timer.sid] = entry
        siblings = self._by_key.get(timer.key)
        if siblings is None:
            self._by_key[timer.key] = {timer.sid}
        else:
            siblings.add(timer.sid)
        self.bytes += entry.size
        if not frozen:
            self._arm(entry, now_ms)

    def forget(self, sid: str) -> Timer | None:
        """Remove a timer from memory in any state. Returns it; None when it was not in memory."""
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
            self._count_failed(entry, -1)
        elif entry.state == DEGRADED:
            del lane.degraded[sid]
            self._count_failed(entry, -1)
        else:
            del lane.handed[sid]
            lane.handed_bytes -= entry.size
            if lane.full or lane.degraded:
                self.next_ms = 0  # there is room now, or less load
            if lane.compensating:
                lane.compensating.discard(sid)
                if not lane.compensating:
                    lane.compensate_ms = 0

    def _count_failed(self, entry: _Entry, number: int) -> None:
        self._failed_now += number
        self._failed_bytes += number * entry.size

    def done(self, sid: str) -> Timer | None:
        """Remove a timer that took effect. Returns it; None when it was not in memory."""
        self.fired += 1
        return self.forget(sid)

    def freeze(self, sid: str) -> None:
        """Keep an unclaimed timer from firing while a request on it is pending; no effect on a claimed one."""
        entry = self._entries.get(sid)
        if entry is not None and entry.state == WAITING and not entry.claimed:
            self._lanes[entry.shard].wheel.cancel(sid)
            entry.state = FROZEN

    def correct(self, timer: Timer, now_ms: int, *, young: bool) -> None:
        """Adopt the due time in storage when it differs (the answer to a move was lost), unless the timer is claimed or frozen."""
        entry = self._entries[timer.sid]
        if entry.state == WAITING and not entry.claimed and entry.timer.due_ms != timer.due_ms:
            self.forget(timer.sid)
            self.add(timer, now_ms, young=young)

    def thaw(self, sid: str, now_ms: int) -> None:
        """Undo `freeze`: the timer fires at its due time, or at once if that has passed."""
        entry = self._entries.get(sid)
        if entry is not None and entry.state == FROZEN:
            self._arm(entry, now_ms)

    def postpone(self, sid: str, shard: int | None) -> Timer | None:
        """Release the claim on a timer that this shard postponed; it does not fire until storage has its new time and the caller removes
        it here. Returns the timer; None, without an effect, when it was not claimed or not in memory, or is handed to another shard, which
        may be about to make it take effect: its slot was given away."""
        entry = self._entries.get(sid)
        if entry is None or not entry.claimed or (entry.state == HANDED and entry.shard != shard):
            return None
        self._leave(entry)
        entry.state = MOVING
        entry.claimed = False
        self.postponed += 1
        return entry.timer

    def _arm(self, entry: _Entry, now_ms: int) -> None:
        entry.state = WAITING
        entry.shard = self._slots.owner(entry.timer.key)
        lane, due_ms = self._lanes.get(entry.shard) or self._lane(entry.shard, now_ms), entry.timer.due_ms
        lane.wheel.arm(entry.timer.sid, due_ms)
        if lane.session is not None:
            self.due_ms = min(self.due_ms, due_ms)
            if due_ms < self.next_ms:
                self.next_ms = lane.wheel.next_at()

    def _lane(self, shard: int, now_ms: int) -> _Lane:
        lane = self._lanes.get(shard)
        if lane is None:
            lane = self._lanes[shard] = _Lane(now_ms)
        return lane

    # -- Shards. -------------------------------------------------------------------------------------------------------
    def open(self, shard: int, session: str, now_ms: int) -> bool:
        """Register a session of a shard; the caller has closed its earlier session.

        Returns whether timers of the shard were evicted and have to be loaded now.
        """
        lane = self._lane(shard, now_ms)
        assert lane.session is None
        lane.session = session
        self.next_ms = 0
        incomplete, lane.incomplete = lane.incomplete, False
        self._incomplete = any(each.incomplete for each in self._lanes.values())
        return incomplete

    def close(self, shard: int, now_ms: int) -> None:
        """End the session of a shard: its unconfirmed timers wait for the next session."""
        lane = self._lanes[shard]
        lane.session = None
        self.next_ms = 0
        lane.compensating.clear()
        for sid in list(lane.handed):
            entry = self._entries[sid]
            self._leave(entry)
            entry.failures = 0  # a lost session is no failure of the timer
            self._arm(entry, now_ms)
            self.refired += 1

    def set_slots(self, slots: SlotMap, now_ms: int) -> bool:
        """Apply a newer slot map. Timers that a former owner has not confirmed go to the new owner at their refire time.

        Returns whether evicted timers may now have an owner with a session, and have to be loaded.
        """
        self._slots = slots
        self.next_ms = 0
        for entry in self._entries.values():
            if entry.state not in (FROZEN, HANDED, MOVING) and slots.owner(entry.timer.key) != entry.shard:
                self._leave(entry)
                self._arm(entry, now_ms)
        incomplete, self._incomplete = self._incomplete, False
        for lane in self._lanes.values():
            lane.incomplete = False
        return incomplete

    # -- Firing. -------------------------------------------------------------------------------------------------------
    def reach(self, reach_ms: int) -> None:
        """Storage has confirmed the claims of timers due until then."""
        if reach_ms != self._horizon.reach_ms:
            self._horizon.reach_ms = reach_ms
            self.next_ms = 0

    def due(self, now_ms: int) -> list[Send]:
        """Hand out the due timers, oldest first per shard, and look ahead."""
        out: list[Send] = []
        self.next_ms = self.due_ms = NEVER
        share = _FAILED_SHARE / 2 if self._crowded else _FAILED_SHARE
        config = self._config
        self._crowded = self._failed_now >= share * config.timer_memory_max or self._failed_bytes >= share * config.timer_memory_bytes
        for lane in list(self._lanes.values()):  # a timer that failed may be of another shard by now, the first one of it
            if lane.session is None:
                continue
            while lane.handed:
                sid, failed_ms = next(iter(lane.handed.items()))
                if failed_ms > now_ms:
                    break
                self._fail(self._entries[sid], now_ms)
            retry_ms = self._hand_due(lane, lane.retries, now_ms, now_ms, out)
            due_ms = NEVER
            if not self._is_held_back(lane):
                if lane.incomplete:
                    lane.incomplete, self._reloads = False, True
                    self._incomplete = any(each.incomplete for each in self._lanes.values())
                due_ms = self._hand_due(lane, lane.wheel, min(now_ms, self._horizon.reach_ms), now_ms, out)
            if lane.degraded and lane.compensate_ms <= now_ms and not self._is_loaded(lane):
                sids = list(islice(lane.degraded, min(self._room(lane), config.timer_batch)))
                for sid in sids:
                    del lane.degraded[sid]
                lane.compensate_ms = now_ms + config.timer_compensate_ms
                lane.compensating = set(sids)
                out += self._hand(lane, sids, now_ms)
            self._look_ahead(lane, due_ms, retry_ms)
        return out

    def take_reloads(self) -> bool:
        """Whether timers that were left to storage can be handed out now, and have to be loaded. Reset by this call."""
        reloads, self._reloads = self._reloads, False
        return reloads

    def _is_held_back(self, lane: _Lane) -> bool:
        """Whether the shard refuses so many timers that it gets no others."""
        return self._crowded and bool(lane.degraded)

    def _hand_due(self, lane: _Lane, wheel: TimerWheel[str], until_ms: int, now_ms: int, out: list[Send]) -> int:
        """Hand out what is due in a wheel, as far as there is room. Returns a lower bound of the first due time that is left."""
        while (next_ms := wheel.next_at()) <= until_ms and (room := self._room(lane)) > 0:
            out += self._hand(lane, wheel.advance(until_ms, min(room, self._config.timer_batch)), now_ms)
        return next_ms

    def failed_sids(self, sids: Iterable[str], now_ms: int) -> None:
        """Count a failure for each timer that a shard could not make take effect; ignores timers that are not handed out."""
        for sid in sids:
            entry = self._entries.get(sid)
            if entry is not None and entry.state == HANDED:
                self._fail(entry, now_ms)

    def _fail(self, entry: _Entry, now_ms: int) -> None:
        config = self._config
        self.next_ms = 0
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
        self._count_failed(entry, 1)

    def _is_loaded(self, lane: _Lane) -> bool:
        """Whether the unconfirmed timers of the shard reach the load at which failed timers have to wait."""
        share = self._config.timer_degrade_load
        return len(lane.handed) >= share * self._config.timer_claims_max or lane.handed_bytes >= share * self._config.timer_claims_bytes

    def _room(self, lane: _Lane) -> int:
        """How many more timers may be handed to the shard; one full batch may exceed the byte limit."""
        if lane.handed_bytes >= self._config.timer_claims_bytes:
            return 0
        return self._config.timer_claims_max - len(lane.handed)

    def _hand(self, lane: _Lane, sids: list[str], now_ms: int) -> list[Send]:
        assert lane.session is not None
        sends: list[Send] = []
        timers: list[Timer] = []
        room_bytes = 0
        for sid in sids:
            entry = self._entries[sid]
            if entry.state != WAITING:
                self._count_failed(entry, -1)
            if not entry.claimed:
                entry.claimed = True
                late_ms = max(now_ms - entry.timer.due_ms, 0)
                self.lateness[bisect_left(LATENESS_BUCKETS_MS, late_ms)] += 1
                self.lateness_sum_ms += late_ms
            entry.state = HANDED
            lane.handed[sid] = now_ms + self._config.timer_refire_ms
            lane.handed_bytes += entry.size
            if room_bytes < entry.size:
                timers = []
                sends.append(Send(lane.session, Fire(timers)))
                room_bytes = max(self._config.timer_batch_bytes, entry.size)
            timers.append(entry.timer)
            room_bytes -= entry.size
        return sends

    def _look_ahead(self, lane: _Lane, due_ms: int, retry_ms: int) -> None:
        """Advance `next_ms` and `due_ms` to what waits in a lane with a session, whose wheels have something at these times."""
        lane.full = self._room(lane) <= 0
        next_ms = NEVER
        if not lane.full:
            next_ms = retry_ms if due_ms > self._horizon.reach_ms else min(due_ms, retry_ms)
        if lane.degraded and not self._is_loaded(lane):
            next_ms = min(next_ms, lane.compensate_ms)
        if lane.handed:
            next_ms = min(next_ms, next(iter(lane.handed.values())))
        self.next_ms, self.due_ms = min(self.next_ms, next_ms), min(self.due_ms, due_ms)

    # -- Memory. -------------------------------------------------------------------------------------------------------
    def evict_unreachable(self) -> None:
        """Evict the waiting timers of shards without a session, or that are held back; `open` and `take_reloads` report when they must be
        read again."""
        idle = (lane for lane in self._lanes.values() if lane.session is None or self._is_held_back(lane))
        lanes = [lane for lane in idle if not lane.incomplete and len(lane.wheel)]
        if not lanes:
            return
        self._incomplete = True
        for lane in lanes:
            lane.incomplete = True
        self._evict([sid for sid, entry in self._entries.items() if self._is_unreachable(entry)])

    def _is_unreachable(self, entry: _Entry) -> bool:
        return self._can_be_read_again(entry) and self._lanes[entry.shard].incomplete

    def _can_be_read_again(self, entry: _Entry) -> bool:
        # Reading the timer again restores an inherited claim; a claim of this incarnation exists only in this memory.
        return entry.state == WAITING and (entry.inherited or not entry.claimed)

    def evict_from(self, cut_ms: int) -> None:
        """Evict the timers due at `cut_ms` or later, except those this incarnation has claimed."""
        self._evict([sid for sid, entry in self._entries.items() if self._can_be_read_again(entry) and entry.timer.due_ms >= cut_ms])

    def _evict(self, sids: list[str]) -> None:
        for sid in sids:
            self.forget(sid)
