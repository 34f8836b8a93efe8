"""Timer storage in memory, for the core's tests: the contract of `StoreWork` in the plainest way."""

from __future__ import annotations

from msgspec.structs import replace

from engine.core.model.routing import partition_of_timer, split_key
from engine.core.scheduler.scheduler_events import StoreDone, StoreRequest, StoreWork, TimersRead, WriteTimers
from engine.core.wire import records as wire


class TimerStorage:
    def __init__(self) -> None:
        self.timers: dict[str, wire.Timer] = {}
        self.fired: set[str] = set()
        self.cancelled: set[str] = set()
        self.full = False  # refuses to move what is to come again
        self.ids: dict[tuple[str, str], wire.Timer] = {}
        self.claimed_ms = 0
        self.young: set[str] = set()

    def take_over(self) -> int:
        """How far all partitions are claimed, ms."""
        self.young.clear()
        return self.claimed_ms

    def apply(self, turn: WriteTimers) -> list[StoreDone]:
        self.claimed_ms = max(turn.claim_ms, self.claimed_ms)
        return [self._apply(part) for part in turn.work]

    def _apply(self, part: StoreWork) -> StoreDone:
        for sid, key in part.fired.items():
            assert partition_of_timer(sid) == part.partition
            timer = self.timers.pop(sid, None)
            if timer is not None:
                assert key in ("", timer.key)
                self.fired.add(sid)
        moved = {} if self.full else {sid: sid in self.timers for sid in part.moved}
        for sid, (due_ms, key) in part.moved.items():
            if moved.get(sid):
                assert key == self.timers[sid].key
                self.timers[sid] = replace(self.timers[sid], due_ms=due_ms)
                self.young.add(sid)
        answers = [self._answer(item, part.claimed_ms) for item in part.requests]
        ours = sorted((timer.due_ms, timer.sid) for timer in self.timers.values() if partition_of_timer(timer.sid) == part.partition)
        read = None
        if part.page is not None:
            page = part.page
            found = [position for position in ours if position > page.after and position[0] <= page.until_ms]
            taken = found[: page.limit]
            reached = taken[-1] if len(found) > page.limit else None
            read = TimersRead([replace(self.timers[sid]) for _, sid in taken], reached)
        returned = [timer for answer in answers for timer in answer.timers] + (read.timers if read else [])
        young = [timer.sid for timer in returned if timer.sid in self.young] + list(part.moved)
        return StoreDone(part.partition, answers, read, len(ours), [], moved, young)

    def is_claimed(self, timer: wire.Timer, claimed_ms: int) -> bool:
        return timer.due_ms <= claimed_ms and timer.sid not in self.young

    def _answer(self, item: StoreRequest, claimed_ms: int) -> wire.TimerAnswer:
        request = item.request
        if isinstance(request, wire.Schedule):
            return self._schedule(request)
        if isinstance(request, wire.ListTimers):
            after = request.after_ms, request.after_sid
            found = sorted((timer.due_ms, timer.sid) for timer in self._of(request) if (timer.due_ms, timer.sid) > after)
            listed = [replace(self.timers[sid]) for _, sid in found[: request.limit]]
            return wire.TimerAnswer(request.ref, wire.OK, listed, "truncated" if len(found) > request.limit else "")
        if isinstance(request, wire.CancelAll):
            chosen = [timer.sid for timer in self._of(request) if not self.is_claimed(timer, claimed_ms) and timer.sid not in item.spared]
            for sid in chosen:
                del self.timers[sid]
            self.cancelled.update(chosen)
            return wire.TimerAnswer(request.ref, wire.OK, count=len(chosen))
        timer = self.timers.get(request.sid)
        if timer is None:
            if request.sid in self.fired:
                return wire.TimerAnswer(request.ref, wire.ALREADY_FIRED)
            again = isinstance(request, wire.Cancel) and request.sid in self.cancelled
            return wire.TimerAnswer(request.ref, wire.OK if again else wire.NOT_FOUND)
        if split_key(timer.key)[0] != request.tenant:
            return wire.TimerAnswer(request.ref, wire.NOT_FOUND)
        if self.is_claimed(timer, claimed_ms):
            return wire.TimerAnswer(request.ref, wire.ALREADY_FIRED)
        if isinstance(request, wire.Cancel):
            del self.timers[request.sid]
            self.cancelled.add(request.sid)
        elif isinstance(request, wire.Reschedule):
            timer = self.timers[request.sid] = replace(timer, due_ms=request.due_ms)
            self.young.add(timer.sid)
        else:
            assert isinstance(request, wire.Inspect)
        return wire.TimerAnswer(request.ref, wire.OK, [replace(timer)])

    def _of(self, request: wire.ListTimers | wire.CancelAll) -> list[wire.Timer]:
        return [timer for timer in self.timers.values() if timer.key == request.key and request.collapse in ("", timer.envelope.collapse)]

    def _schedule(self, request: wire.Schedule) -> wire.TimerAnswer:
        timer = request.timer
        if request.idempotent:
            first = self.ids.setdefault((timer.key, timer.envelope.id), timer)
            if first.envelope.digest != timer.envelope.digest:
                return wire.TimerAnswer(request.ref, wire.CONFLICT)
            if first.sid != timer.sid:
                known = self.timers.get(first.sid)
                return wire.TimerAnswer(request.ref, wire.DUPLICATE, [replace(known)] if known else [], first.sid)
        if timer.sid not in self.timers and timer.sid not in self.fired and timer.sid not in self.cancelled:
            self.timers[timer.sid] = timer
            self.young.add(timer.sid)
            return wire.TimerAnswer(request.ref, wire.SCHEDULED, [timer])
        kept = self.timers.get(timer.sid)
        return (
            wire.TimerAnswer(request.ref, wire.SCHEDULED, [replace(kept)], "")
            if kept
            else wire.TimerAnswer(request.ref, wire.SCHEDULED, [], wire.GONE)
        )
