"""Records that await an answer: publishes, ACKs by HTTP, probes, timer requests.

A call holds the records of one HTTP request, one or many, and one future. Records of all calls are numbered by `ref` from one
counter; an answer names its ref. A record is kept until its answer, so that it can be sent again under the same ref when
a link session begins anew or its slot has moved; shards and schedulers recognise a repeat by the record's id.

Every route has its lanes (`engine.publish.priority_lanes`): they decide when a record is sent, and refuse what would wait too long.

Limits: `records_max` records await answers at once, then `Overloaded`; every call ends after `timeout_ms`, with `None` in
place of the answers that did not come. `engine.publish` has the table of who refuses what under load.

A route is the number of the peer that answers, see `engine.gateway.record_router`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from engine.core.model.constants import HIGH
from engine.core.wire.records import OVERLOADED, Posted, Schedule, TimerAnswer
from engine.errors import Overloaded
from engine.publish.priority_lanes import PriorityLanes, refuse_closed


class PendingCall:
    """The records of one request and their answers so far; `answers[i]` belongs to `records[i]`."""

    __slots__ = ("_left", "answers", "base", "deadline_ms", "done", "records", "repeated", "routes")

    def __init__(self, base: int, records: Sequence[Struct], routes: list[int], deadline_ms: int) -> None:
        self.base = base
        self.records = records
        self.routes = routes
        self.answers: list[Any] = [None] * len(records)
        self.deadline_ms = deadline_ms
        self.repeated = False  # sent more than once: the first sending may have taken effect
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = len(records)
        if not records:
            self.finish()

    def answer(self, ref: int, answer: Any) -> None:
        """Store one answer; the last one completes the call."""
        self.answers[ref - self.base] = answer
        self._left -= 1
        if not self._left:
            self.finish()

    def finish(self) -> None:
        """Complete the call with the answers so far."""
        if not self.done.done():
            self.done.set_result(None)


def _refusal(ref: int, record: Struct, backlog_ms: float) -> Posted | TimerAnswer:
    """The answer to a record that was never sent."""
    detail = "the backlog takes too long for this priority"
    return TimerAnswer(ref, OVERLOADED, detail=detail) if type(record) is Schedule else Posted(ref, OVERLOADED, 0, detail, int(backlog_ms))


class PendingCalls:
    """All calls of one edge.

    Args:
        records_max: records awaiting an answer at once.
        timeout_ms: of every call.
        clock: milliseconds that never step.
        route: returns the route of a record, by the newest slot map.
        lanes: makes the lanes of a route. What they deliver may be lost; `repeat` is called then.
    """

    def __init__(
        self,
        records_max: int,
        timeout_ms: int,
        clock: Callable[[], int],
        route: Callable[[Any], int],
        lanes: Callable[[int], PriorityLanes],
    ) -> None:
        self._records_max = records_max
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._route = route
        self._make_lanes = lanes
        self._lanes: dict[int, PriorityLanes] = {}
        self._calls: dict[int, PendingCall] = {}
        self._deadlines: deque[PendingCall] = deque()
        self._parked: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def shards_ms(self) -> float:
        """How long a record sent to the least busy shard would wait, ms."""
        return min((lanes.flow.delay_ms for route, lanes in self._lanes.items() if route >= 0), default=0.0)

    def add_routes(self, routes: Iterable[int]) -> None:
        """Make the lanes of routes that are new."""
        for route in routes:
            self._lanes_of(route)

    def _lanes_of(self, route: int) -> PriorityLanes:
        lanes = self._lanes.get(route)
        if lanes is None:
            lanes = self._lanes[route] = self._make_lanes(route)
        return lanes

    def begin(self, count: int, build: Callable[[int], Sequence[Struct]], priorities: Sequence[int] = ()) -> PendingCall:
        """Send the `count` records that `build(first ref)` makes, numbered consecutively. Await `PendingCall.done`.

        Args:
            priorities: one per record; when left out, they go out at once, whatever else waits.

        Raises:
            Overloaded: too many records await answers, or some of these would wait too long; nothing was sent.
        """
        if len(self._calls) + count > self._records_max:
            backlog_ms = max((lanes.flow.delay_ms for lanes in self._lanes.values()), default=0.0)
            raise Overloaded(f"{len(self._calls)} requests await their answers here, {self._records_max} are allowed", backlog_ms)
        base = self._next
        records = build(base)
        routes = [self._route(record) for record in records]
        if priorities:
            refuse_closed((self._lanes_of(route), priority) for route, priority in set(zip(routes, priorities, strict=True)))
        else:
            priorities = (HIGH,) * count
        self._next += count
        call = PendingCall(base, records, routes, self._clock() + self._timeout_ms)
        self._calls.update(dict.fromkeys(range(base, base + count), call))
        self._deadlines.append(call)
        self.add_routes(set(routes))
        lanes = self._lanes
        for ref, (route, record, priority) in enumerate(zip(routes, records, priorities, strict=True), base):
            lanes[route].send(ref, record, priority)
        return call

    def answer(self, ref: int, answer: Any) -> None:
        """Store the answer to a record; one that nobody awaits any more is dropped."""
        call = self._calls.pop(ref, None)
        if call is not None:
            self._lanes[call.routes[ref - call.base]].over(ref, answered=True)
            call.answer(ref, answer)

    def repeat(self, route: int) -> None:
        """A new session with `route` began: send again what it has not answered, each record on its route by the newest slot map."""
        for ref, call in list(self._calls.items()):
            if call.routes[ref - call.base] == route and not self._lanes[route].has(ref):
                self._resend(ref, call)

    def moved(self, ref: int, route: int, *, known: bool) -> None:
        """`route` does not own the slot of this record: send it elsewhere, or park it. `known`: our map is as new as the peer's."""
        call = self._calls.get(ref)
        if call is None or call.routes[ref - call.base] != route:
            return
        if known and self._route(call.records[ref - call.base]) != route:
            self._resend(ref, call)
        else:
            self._parked.append(ref)

    def send_parked(self) -> None:
        """Send again the records that wait for a newer slot map."""
        parked, self._parked = self._parked, []
        for ref in parked:
            call = self._calls.get(ref)
            if call is not None:
                self._resend(ref, call)

    def _resend(self, ref: int, call: PendingCall) -> None:
        index = ref - call.base
        record = call.records[index]
        call.repeated = True
        before, call.routes[index] = call.routes[index], self._route(record)
        if call.routes[index] == before:
            self._lanes[before].again(ref, record)
        else:
            self._lanes[before].over(ref, answered=False)
            self._lanes_of(call.routes[index]).adopt(record)

    def expire(self, now_ms: int) -> None:
        """Complete the calls whose time is over, refuse records that were never sent in time, and measure the routes."""
        for lanes in self._lanes.values():
            lanes.look(now_ms)
            for ref, record in lanes.overdue(now_ms):
                call = self._calls.pop(ref)
                lanes.over(ref, answered=False)
                call.answer(ref, _refusal(ref, record, lanes.flow.delay_ms))
        deadlines = self._deadlines
        while deadlines and (deadlines[0].done.done() or deadlines[0].deadline_ms <= now_ms):
            call = deadlines.popleft()
            if not call.done.done():
                for ref, route in enumerate(call.routes, call.base):
                    if self._calls.pop(ref, None) is not None:
                        self._lanes[route].over(ref, answered=False)
                call.finish()
