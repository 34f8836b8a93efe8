"""Records that await an answer: publishes, ACKs by HTTP, probes, timer requests.

A call is what one HTTP request asks: one or many records, one future. Records of all calls are numbered by `ref` from one
counter; an answer names its ref. A record is kept until its answer, so that it can be sent again under the same ref when
a link session begins anew or its slot has moved; shards and schedulers recognise a repeat by the record's id.

Limits: `records_max` records await answers at once, then `Overloaded`; every call ends after `timeout_ms`, with `None` in
place of the answers that did not come.

A route says who answers: shard i is route i, scheduler j is route ~j (that is -1 - j).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from engine.errors import Overloaded


class Call:
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

    def answer(self, ref: int, answer: Any) -> None:
        """Take one answer; the last one completes the call."""
        self.answers[ref - self.base] = answer
        self._left -= 1
        if not self._left:
            self.finish()

    def finish(self) -> None:
        """Complete the call with what has come."""
        if not self.done.done():
            self.done.set_result(None)


class Calls:
    """All calls of one edge.

    Args:
        records_max: records awaiting an answer at once.
        timeout_ms: of every call.
        clock: milliseconds that never step.
        route: who answers a record, now.
        send: hand a record to a route; may drop it, `repeat` follows then.
    """

    def __init__(
        self,
        records_max: int,
        timeout_ms: int,
        clock: Callable[[], int],
        route: Callable[[Any], int],
        send: Callable[[int, Struct], None],
    ) -> None:
        self._records_max = records_max
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._route = route
        self._send = send
        self._calls: dict[int, Call] = {}
        self._deadlines: deque[Call] = deque()
        self._parked: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, count: int, build: Callable[[int], Sequence[Struct]]) -> Call:
        """Send the `count` records that `build(first ref)` makes, numbered consecutively. Await `Call.done`.

        Raises:
            Overloaded: too many records await answers; nothing was sent.
        """
        if len(self._calls) + count > self._records_max:
            raise Overloaded(f"{len(self._calls)} requests await their answers here, {self._records_max} are allowed")
        base = self._next
        self._next += count
        records = build(base)
        call = Call(base, records, [self._route(record) for record in records], self._clock() + self._timeout_ms)
        self._calls.update(dict.fromkeys(range(base, base + count), call))
        self._deadlines.append(call)
        send = self._send
        for route, record in zip(call.routes, records, strict=True):
            send(route, record)
        return call

    def answer(self, ref: int, answer: Any) -> None:
        """An answer arrived; one that nobody awaits any more is dropped."""
        call = self._calls.pop(ref, None)
        if call is not None:
            call.answer(ref, answer)

    def repeat(self, route: int) -> None:
        """A new session with `route` began: send again what it has not answered, to whom it belongs now."""
        for ref, call in list(self._calls.items()):
            if call.routes[ref - call.base] == route:
                self._resend(ref, call)

    def moved(self, ref: int, route: int, *, known: bool) -> None:
        """`route` does not own the slot of this record. `known`: our map is as new as the one it speaks of."""
        call = self._calls.get(ref)
        if call is None or call.routes[ref - call.base] != route:
            return
        if known and self._route(call.records[ref - call.base]) != route:
            self._resend(ref, call)
        else:
            self._parked.append(ref)

    def unpark(self) -> None:
        """Send again what waits for a newer map."""
        parked, self._parked = self._parked, []
        for ref in parked:
            call = self._calls.get(ref)
            if call is not None:
                self._resend(ref, call)

    def _resend(self, ref: int, call: Call) -> None:
        index = ref - call.base
        record = call.records[index]
        call.repeated = True
        call.routes[index] = self._route(record)
        self._send(call.routes[index], record)

    def expire(self, now_ms: int) -> None:
        """Complete the calls whose time is over."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0].done.done() or deadlines[0].deadline_ms <= now_ms):
            call = deadlines.popleft()
            if not call.done.done():
                for ref in range(call.base, call.base + len(call.records)):
                    self._calls.pop(ref, None)
                call.finish()
