"""Publish requests wait here for their turn to be parsed: by priority, few per turn of the event loop, and none that would wait too long.

Parsing is most of what an edge does for a publisher, and it blocks the event loop. So requests take turns: one of them, or as many small
ones as cost no more, and then the loop serves every socket; a request of high priority that arrives meanwhile is parsed at once. The others
wait as unparsed bytes, in one lane per priority. A request has the priority of its least important item, so that one high item gives no
advantage to a thousand low ones.

Refusing must be cheaper than accepting. Whether a request would wait too long follows from three delays, none of which needs it parsed:
of the requests before it here, of the event loop itself, and of the shards (`engine.publish.priority_lanes`); its priority is found by a
search in its bytes. A lane that more important requests keep passing shows in the age of its oldest request; one that has waited for the
whole target is refused. `engine.publish` has the table of who refuses what under load.

Tenants share the edge fairly: their requests take turns by bytes (`engine.publish.fair_lane`), and a tenant is refused by the delay of its
own requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import takewhile
from typing import Final, NamedTuple

from engine.config import Config
from engine.core.edge.backlog import Backlog
from engine.core.model.constants import HIGH, LOW, NORMAL, PRIORITIES
from engine.errors import Overloaded
from engine.publish import media_types
from engine.publish.fair_lane import FairLane
from engine.publish.media_types import Content
from engine.publish.priority_lanes import SHARES

_ITEM_BYTES: Final = 1000
"""Of `publish_rate_initial_per_s`, until the rate is measured."""

_TURN_BYTES: Final = 32 << 10
"""Of the requests that one turn of the event loop parses, about a millisecond; a larger one has a turn to itself."""

_REQUEST_BYTES: Final = 1024
"""What a request counts as at least: parsing one of a single item costs as much as some more of a longer one."""

_LAG_FADES: Final = 0.5
_LAG_CALM_MS: Final = 10  # a fiftieth of the usual `publish_delay_target_ms`


class _Request(NamedTuple):
    """A request that waits: whose it is, its bytes, and since when."""

    tenant: str
    size: int
    since_ms: int


class RequestQueue:
    """The publish requests of one edge that wait to be parsed.

    Args:
        clock: milliseconds that never step.
        shards_ms: returns how long a record of a tenant sent to the least busy shard waits now.
        refused: counts the refused requests by priority.
    """

    def __init__(self, config: Config, clock: Callable[[], int], shards_ms: Callable[[str], float], refused: Callable[[str], None]) -> None:
        self._target_ms = config.publish_delay_target_ms
        self._clock = clock
        self._shards_ms = shards_ms
        self._refused = refused
        self._flow = Backlog(config.publish_rate_initial_per_s * _ITEM_BYTES / 1000, clock())
        self._lanes: tuple[FairLane[asyncio.Future[None], _Request], ...] = tuple(FairLane() for _ in PRIORITIES)
        self._bytes_of: dict[str, int] = {}  # by tenant, of the requests that wait
        self._turn_left = _TURN_BYTES  # that may still be parsed in this turn of the loop
        self._turn_ends = False  # it will be noticed
        self._late_ms = 0
        self._lag_ms = 0.0

    @property
    def queued_ms(self) -> float:
        """How long all that waits here takes, and how late the event loop is."""
        return self._flow.delay_ms + self._lag_ms

    def delay_ms(self, tenant: str) -> float:
        """How long a request of this tenant that arrives now would wait, in addition to its own handling."""
        delay_ms = self._lag_ms + self._shards_ms(tenant)
        own = self._bytes_of.get(tenant)
        if own:
            delay_ms += min(self._flow.waiting, own * len(self._bytes_of)) / self._flow.rate_per_ms
        return delay_ms

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return sum(map(len, self._lanes))

    @property
    def calm(self) -> bool:
        """Whether nothing waits and the event loop is on time, so that nothing is to be measured."""
        return not self._bytes_of and self._lag_ms <= _LAG_CALM_MS

    def check_unread(self, tenant: str) -> None:
        """Refuse a request of this tenant that would be refused at any priority: raises Overloaded, and counts it."""
        self._check(HIGH, tenant, self.delay_ms(tenant))

    def takes_unread(self, tenant: str) -> bool:
        """Would `check_unread` not refuse it now? Counts nothing."""
        return self._too_late_ms(HIGH, tenant, self.delay_ms(tenant)) is None

    def enter(self, body: bytes, content: Content, tenant: str) -> asyncio.Future[None] | None:
        """None when it is this request's turn to be parsed, else what is done when it is; what follows must not await before it is.

        Raises:
            Overloaded: it would wait too long; the future has this exception when it has waited too long.
        """
        delay_ms = self.delay_ms(tenant)
        if self._turn_left <= 0 or delay_ms >= SHARES[LOW] * self._target_ms:
            self._check(HIGH, tenant, delay_ms)  # without a look into the body
            priority = media_types.least_priority(body, content)
            self._check(priority, tenant, delay_ms)
            if priority != HIGH and self._turn_left <= 0:
                return self._wait(self._lanes[priority], _Request(tenant, max(len(body), 1), self._clock()))
        self._flow.served(max(len(body), 1))
        self._take_turn(len(body))
        return None

    def enter_step(self, size: int, tenant: str) -> asyncio.Future[None] | None:
        """As `enter`, for a step of other work of a tenant, which takes as long as parsing `size` bytes. Its priority is normal.

        Raises:
            Overloaded: likewise.
        """
        self._check(NORMAL, tenant, self.delay_ms(tenant))
        if self._turn_left <= 0:
            return self._wait(self._lanes[NORMAL], _Request(tenant, size, self._clock()))
        self._flow.served(size)
        self._take_turn(size)
        return None

    def _check(self, priority: int, tenant: str, delay_ms: float) -> None:
        late_ms = self._too_late_ms(priority, tenant, delay_ms)
        if late_ms is not None:
            raise self._refusal(priority, late_ms)

    def _too_late_ms(self, priority: int, tenant: str, delay_ms: float) -> float | None:
        """How long a request would wait, if that is too long."""
        oldest = self._lanes[priority].first_of(tenant)
        if oldest is not None:
            delay_ms = max(delay_ms, self._clock() - oldest.since_ms)
        return delay_ms if delay_ms >= SHARES[priority] * self._target_ms else None

    def _refusal(self, priority: int, delay_ms: float) -> Overloaded:
        self._refused(PRIORITIES[priority])
        return Overloaded(f"the backlog of this tenant takes {delay_ms:.0f} ms, too long for {PRIORITIES[priority]} priority", delay_ms)

    def _wait(self, lane: FairLane[asyncio.Future[None], _Request], request: _Request) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.append(request.tenant, turn, request, request.size)
        self._bytes_of[request.tenant] = self._bytes_of.get(request.tenant, 0) + request.size
        self._flow.enter(request.size)
        return turn

    def _left(self, request: _Request) -> None:
        """A request does not wait any more."""
        left = self._bytes_of[request.tenant] - request.size
        if left:
            self._bytes_of[request.tenant] = left
        else:
            del self._bytes_of[request.tenant]

    def _take_turn(self, size: int) -> None:
        self._turn_left -= max(size, _REQUEST_BYTES)
        if not self._turn_ends:
            self._turn_ends = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """A turn of the loop has passed: let the next requests be parsed."""
        self._turn_ends = False
        self._turn_left = _TURN_BYTES
        for lane in self._lanes if self._bytes_of else ():
            while lane and self._turn_left > 0:
                turn, request = lane.pop_next()
                self._left(request)
                if turn.done():  # its client has left
                    self._flow.leave(request.size, served=False)
                    continue
                self._flow.leave(request.size)
                turn.set_result(None)
                self._take_turn(request.size)

    def tick(self, now_ms: int, late_ms: int) -> None:
        """Measure, and refuse what has waited too long. `late_ms`: how late this call is, a measure of the loop's lag.

        An event loop that has more to do than it can is late every time. One that was held up once, by a pause of the process or of the
        machine, is late once, which says nothing of the next request: so the lag is the smaller of two calls in a row.
        """
        self._lag_ms = max(min(late_ms, self._late_ms), self._lag_ms * _LAG_FADES)
        self._late_ms = late_ms
        self._flow.look(now_ms)
        for priority, lane in enumerate(self._lanes) if self._bytes_of else ():
            overdue = [
                entry
                for of_tenant in lane.in_order()
                for entry in takewhile(lambda entry: now_ms - entry[1].since_ms >= self._target_ms, of_tenant)
            ]
            for turn, request in overdue:
                lane.pop(turn)
                self._left(request)
                self._flow.leave(request.size, served=False)
                if not turn.done():
                    turn.set_exception(self._refusal(priority, now_ms - request.since_ms))
