"""Records that await an answer: publishes, ACKs by HTTP, probes, timer requests.

A call holds the records of one HTTP request, one or many, and one future. Records of all calls are numbered by `ref` from one
counter; an answer names its ref. A record is kept until its answer, so that it can be sent again under the same ref when
a link session begins anew or its slot has moved; shards and schedulers recognise a repeat by the record's id.

Every route has its lanes (`engine.publish.priority_lanes`): they decide when a record is sent, and refuse what would wait too long.

Every shard has a circuit breaker (`engine.core.edge.circuit_breaker`), which is reported how each of its records ends. While it does not
admit, records for that shard are refused. Records for other shards, for schedulers (delayed messages) and broadcasts need nothing of it
and are accepted: a request for users of several shards gets a result for each. A record whose slot moves waits here for the next slot map:
its shard has answered, so what becomes of the record meanwhile is no failure of the shard.

Limits: `publish_inflight_max` records await answers at once, or of one tenant its part of `publish_inflight_bytes_max`, equal among those
who have some, and what one request adds to it, then `Overloaded`; every call ends after `publish_timeout_ms`, with `None` in place of the
answers that did not come. `engine.publish` has the table of who refuses what under load.

A route is the number of the peer that answers, see `engine.gateway.record_router`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from msgspec import Struct

from engine.config import Config
from engine.core.commit.group import NOBODY_CONNECTED
from engine.core.edge.circuit_breaker import BreakerLimits, BreakerState, CircuitBreaker
from engine.core.model.constants import HIGH
from engine.core.model.routing import split_key
from engine.core.wire.records import (
    OVERLOADED,
    SUPPRESSED,
    TIMER_REQUESTS,
    UNAVAILABLE,
    Cancel,
    Explain,
    Inspect,
    Post,
    Posted,
    Rejected,
    Reschedule,
    Schedule,
    TimerAnswer,
    encode,
)
from engine.errors import Overloaded, Unavailable
from engine.publish.priority_lanes import LaneEntry, PriorityLanes, refuse_closed

_OF_A_TENANT: Final = frozenset((Cancel, Inspect, Reschedule))

_ENVELOPE_BYTES: Final = 500
"""Of a message on a link, beside its body: key, id, digest, terms."""

_RETRY_MS_MAX: Final = 5000
"""The longest that a publisher is told to wait while a breaker is open: usually a new session ends that within two seconds."""


def sizes_of(records: Iterable[Any]) -> list[int]:
    """The size of each record on a link; of a message about, without encoding it."""
    sizes = []
    for record in records:
        kind = type(record)
        if kind is Post:
            sizes.append(len(record.envelope.body) + _ENVELOPE_BYTES)
        elif kind is Schedule:
            sizes.append(len(record.timer.envelope.body) + _ENVELOPE_BYTES)
        elif kind is Explain:
            sizes.append(len(record.post.envelope.body) + _ENVELOPE_BYTES)
        else:
            sizes.append(len(encode((record,))))
    return sizes


def tenant_of(record: Any) -> str:
    """The tenant that a record is of."""
    kind = type(record)
    if kind in _OF_A_TENANT:
        return str(record.tenant)
    return split_key(record.timer.key if kind is Schedule else record.key)[0]


class PendingCall:
    """The records of one request and their answers so far; `answers[i]` belongs to `records[i]`, as does `routes[i]`.

    `unanswered` counts the records that await an answer; with none left the call is done.
    """

    __slots__ = ("answers", "base", "deadline_ms", "done", "records", "repeated", "routes", "size", "tenant", "unanswered")

    def __init__(self, tenant: str, base: int, records: Sequence[Struct], size: int, routes: list[int], deadline_ms: int) -> None:
        self.tenant = tenant
        self.base = base
        self.records = records
        self.size = size  # of all records on links
        self.routes = routes
        self.answers: list[Any] = [None] * len(records)
        self.deadline_ms = deadline_ms
        self.repeated = False  # sent more than once: the first sending may have taken effect
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.unanswered = len(records)
        if not records:
            self.ended()

    def ended(self) -> None:
        """Its last record awaits no answer any more."""
        if not self.done.done():  # whoever awaited it may have left
            self.done.set_result(None)


def _refusal(ref: int, record: Struct, status: int, detail: str, retry_ms: float) -> Posted | TimerAnswer | Rejected:
    """The answer to a record that was never sent."""
    kind = type(record)
    if kind is Post:
        return Posted(ref, status, 0, detail, int(retry_ms))
    if kind in TIMER_REQUESTS:
        return TimerAnswer(ref, status, detail=detail, retry_ms=int(retry_ms))
    return Rejected(ref, status, detail, int(retry_ms))


def _is_of_a_moment(answer: Any) -> bool:
    """Whether the shard has stored nothing for it: nobody was connected there."""
    return type(answer) is Posted and answer.status == SUPPRESSED and answer.detail == NOBODY_CONNECTED


class PendingCalls:
    """All calls of one edge.

    Args:
        clock: milliseconds that never step.
        routes_of: returns the routes of records, by the newest slot map.
        lanes: makes the lanes of a route. What they deliver may be lost; `repeat` is called then.
        began: called with every call that begins.
    """

    def __init__(
        self,
        config: Config,
        clock: Callable[[], int],
        routes_of: Callable[[Sequence[Any]], list[int]],
        lanes: Callable[[int], PriorityLanes],
        began: Callable[[], object] = lambda: None,
    ) -> None:
        self._config = config
        self._breaker_limits = BreakerLimits(
            config.breaker_error_ratio,
            config.breaker_window_ms,
            config.breaker_calls_min,
            config.breaker_open_ms,
            config.breaker_probes,
        )
        self._clock = clock
        self._routes_of = routes_of
        self._make_lanes = lanes
        self._began = began
        self._lanes: dict[int, PriorityLanes] = {}
        self._breakers: dict[int, CircuitBreaker] = {}  # by route, of shards
        self._bytes_of: dict[str, int] = {}  # by tenant, of the calls that await answers; counted until the last of a call is there
        self._calls: dict[int, PendingCall] = {}
        self._deadlines: dict[int, PendingCall] = {}  # by their first ref, in order: those that await answers
        self._parked: dict[int, PendingCall] = {}  # by ref, in order, some of `_calls`; their shard has said that their slot is not its own
        self._next = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def begun(self) -> int:
        """Records that were sent so far."""
        return self._next

    @property
    def bytes(self) -> int:
        """The size of the calls that await answers."""
        return sum(self._bytes_of.values())

    @property
    def backlog_ms(self) -> float:
        """How long all that waits for the least busy shard takes, ms."""
        return min((lanes.flow.delay_ms for route, lanes in self._lanes.items() if route >= 0), default=0.0)

    def shards_ms(self, tenant: str) -> float:
        """How long a record of this tenant sent to the least busy shard would wait, ms."""
        if tenant not in self._bytes_of:
            return 0.0  # it has nothing under way
        return min([lanes.delay_ms(tenant) for route, lanes in self._lanes.items() if route >= 0], default=0.0)

    def add_routes(self, routes: Iterable[int]) -> None:
        """Make the lanes of routes that are new."""
        for route in routes:
            self._lanes_of(route)

    def _lanes_of(self, route: int) -> PriorityLanes:
        lanes = self._lanes.get(route)
        if lanes is None:
            lanes = self._lanes[route] = self._make_lanes(route)
            if route >= 0:
                self._breakers[route] = CircuitBreaker(self._breaker_limits, self._clock())
        return lanes

    @property
    def breaker_states(self) -> dict[int, BreakerState]:
        """The state of each shard's breaker."""
        return {route: breaker.state for route, breaker in self._breakers.items()}

    def begin(self, count: int, build: Callable[[int], Sequence[Struct]], priorities: Sequence[int] = (), tenant: str = "") -> PendingCall:
        """Send the `count` records that `build(first ref)` makes, numbered consecutively. Await `PendingCall.done`.

        Args:
            priorities: one per record; when left out, they go out at once, whatever else waits.
            tenant: of the records; when left out, it is found in the first.

        Raises:
            Overloaded: too many records await answers, or some of these would wait too long; nothing was sent.
            Unavailable: no breaker admits any of them; nothing was sent.
        """
        if len(self._calls) + count > self._config.publish_inflight_max:
            raise self._full(f"{len(self._calls)} requests await their answers here, {self._config.publish_inflight_max} are allowed")
        base = self._next
        records = build(base)
        tenant = tenant or tenant_of(records[0]) if records else ""
        own_bytes = self._bytes_of.get(tenant, 0)
        if own_bytes and own_bytes * len(self._bytes_of) >= self._config.publish_inflight_bytes_max:
            allowed = self._config.publish_inflight_bytes_max // len(self._bytes_of)
            raise self._full(f"{own_bytes} bytes of this tenant await their answers here, {allowed} are its part now")
        routes, sizes = self._routes_of(records), sizes_of(records)
        by_route: dict[int, list[LaneEntry]] = {}
        items = zip(range(base, base + count), records, priorities or (HIGH,) * count, sizes, strict=True)
        for route, item in zip(routes, items, strict=True):
            if route in by_route:
                by_route[route].append(item)
            else:
                by_route[route] = [item]
        closed = self._closed(by_route)
        if closed and len(closed) == len(by_route):
            raise Unavailable(*self._avoided(closed))
        if priorities and own_bytes:  # a tenant with nothing under way waits for nothing
            wanted = set(zip(routes, priorities, strict=True))
            refuse_closed([(self._lanes[route], priority) for route, priority in wanted if route not in closed], tenant)
        self._next += count
        call = PendingCall(tenant, base, records, sum(sizes), routes, self._clock() + self._config.publish_timeout_ms)
        if records:
            self._bytes_of[tenant] = own_bytes + call.size
            self._deadlines[base] = call
        self._began()
        if closed:
            self._refuse(call, [item for route in closed for item in by_route.pop(route)], *self._avoided(closed))
        for route, sent in by_route.items():
            for ref, _, _, _ in sent:
                self._calls[ref] = call
            self._lanes[route].send(sent, tenant)
        return call

    def _closed(self, routes: Iterable[int]) -> set[int]:
        """Those of these routes whose breaker lets no record through; makes the lanes of new routes."""
        closed = set()
        for route in routes:
            lanes, breaker = self._lanes_of(route), self._breakers.get(route)
            if breaker is not None and not breaker.admits(lanes.flow.waiting):
                closed.add(route)
        return closed

    def _avoided(self, shards: Iterable[int]) -> tuple[str, int]:
        """Why records for these shards are refused, and when to send them again."""
        now_ms = self._clock()
        retry_ms = max(self._breakers[shard].retry_ms(now_ms) for shard in shards)
        names = ", ".join(f"shard-{shard}" for shard in sorted(shards))
        return f"{names} has not been answering; what its users need of it is refused until it does", min(retry_ms, _RETRY_MS_MAX)

    def _refuse(self, call: PendingCall, items: Sequence[LaneEntry], detail: str, retry_ms: int) -> None:
        """Answer records of a new call that are not sent."""
        for ref, record, _, _ in items:
            call.answers[ref - call.base] = _refusal(ref, record, UNAVAILABLE, detail, retry_ms)
        call.unanswered -= len(items)

    def _full(self, detail: str) -> Overloaded:
        return Overloaded(detail, max((lanes.flow.delay_ms for lanes in self._lanes.values()), default=0.0))

    def answer(self, answers: Iterable[Any], route: int | None = None, *, answered: bool = True) -> None:
        """Store the answers of a batch, each to the record of its `ref`; one that nobody awaits any more is dropped.

        Args:
            route: of the peer that answers. What it says of nothing but its own connections counts no more where the record was sent on.
            answered: by the peers; else these are refusals of records that were never sent.
        """
        calls = self._calls
        over: dict[tuple[int, str], list[int]] = {}
        complete: list[PendingCall] = []
        for answer in answers:
            ref = answer.ref
            call = calls.pop(ref, None)
            if call is None:
                continue
            index = ref - call.base
            if call.repeated and route is not None and call.routes[index] != route and _is_of_a_moment(answer):
                calls[ref] = call
                continue
            self._parked.pop(ref, None)
            call.answers[index] = answer
            call.unanswered -= 1
            if not call.unanswered:
                complete.append(call)
                del self._deadlines[call.base]  # behind one that waits, it would stay for publish_timeout_ms
            of_route = call.routes[index], call.tenant
            refs = over.get(of_route)
            if refs is None:
                over[of_route] = [ref]
            else:
                refs.append(ref)
        self._end(over, complete, answered=answered)

    def _end(self, over: Mapping[tuple[int, str], Sequence[int]], complete: Iterable[PendingCall], *, answered: bool) -> None:
        """Records await no answer any more: `over` by route and tenant. With the last one of a call, its bytes are free."""
        for (route, tenant), refs in over.items():
            self._lanes[route].over(refs, tenant, answered=answered)
            if answered and route >= 0:
                self._breakers[route].succeeded(len(refs))
        for call in complete:
            call.ended()
            if (left := self._bytes_of[call.tenant] - call.size) > 0:
                self._bytes_of[call.tenant] = left
            else:
                del self._bytes_of[call.tenant]

    def repeat(self, route: int) -> None:
        """A new session with `route` began: send again what it has not answered, each record on its route by the newest slot map.

        That is at most what the lanes let out, `PriorityLanes`' window of bytes.
        """
        sent = [
            (ref, call) for ref, call in self._calls.items() if call.routes[ref - call.base] == route and not self._lanes[route].has(ref)
        ]
        if route in self._breakers:
            self._breakers[route].lost(sum(call.repeated for ref, call in sent if ref not in self._parked), self._clock())
        for ref, call in sent:
            self._resend(ref, call)

    def remove_route(self, route: int) -> None:
        """There is no such peer any more: what it was sent, or waits for it, goes where the newest slot map says."""
        for ref, call in [(ref, call) for ref, call in self._calls.items() if call.routes[ref - call.base] == route]:
            self._resend(ref, call)
        self._lanes.pop(route, None)
        self._breakers.pop(route, None)

    def session_works(self, route: int) -> None:
        """The peer has answered in a new session."""
        if route in self._breakers:
            self._breakers[route].session_works(self._clock())

    def moved(self, ref: int, route: int, *, known: bool) -> None:
        """`route` does not own the slot of this record: send it elsewhere, or park it. `known`: our map is as new as the peer's."""
        call = self._calls.get(ref)
        if call is None or call.routes[ref - call.base] != route:
            return
        if known and self._routes_of([call.records[ref - call.base]]) != [route]:
            self._resend(ref, call)
        else:
            self._parked[ref] = call

    def send_parked(self) -> None:
        """Send again the records that wait for a newer slot map."""
        for ref, call in list(self._parked.items()):
            self._resend(ref, call)

    def _resend(self, ref: int, call: PendingCall) -> None:
        self._parked.pop(ref, None)
        index = ref - call.base
        record = call.records[index]
        call.repeated = True
        before, (call.routes[index],) = call.routes[index], self._routes_of([record])
        if call.routes[index] == before:
            self._lanes[before].again(ref, record)
        else:
            self._lanes[before].over([ref], call.tenant, answered=False)
            (size,) = sizes_of([record])
            self._lanes_of(call.routes[index]).adopt(ref, record, size, call.tenant)

    def expire(self, now_ms: int) -> None:
        """Complete the calls whose time is over, refuse records that were never sent in time, and measure the routes."""
        for lanes in self._lanes.values():
            lanes.look(now_ms)
            if overdue := lanes.overdue(now_ms):
                detail, delay_ms = "the backlog takes too long for this priority", lanes.flow.delay_ms
                self.answer([_refusal(ref, record, OVERLOADED, detail, delay_ms) for ref, record in overdue], answered=False)
        for call in list(takewhile(lambda call: call.deadline_ms <= now_ms, self._deadlines.values())):
            self._expire(call)
        for breaker in self._breakers.values():
            breaker.look(now_ms)

    def _expire(self, call: PendingCall) -> None:
        """End what is left of a call."""
        del self._deadlines[call.base]
        began_ms = call.deadline_ms - self._config.publish_timeout_ms
        over: dict[tuple[int, str], list[int]] = {}
        for ref, route in enumerate(call.routes, call.base):
            if self._calls.pop(ref, None) is None:
                continue
            parked = self._parked.pop(ref, None) is not None
            if route >= 0 and not parked and not self._lanes[route].has(ref):
                self._breakers[route].failed(began_ms)
            over.setdefault((route, call.tenant), []).append(ref)
        call.unanswered = 0
        self._end(over, [call], answered=False)
