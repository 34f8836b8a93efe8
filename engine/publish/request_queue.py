"""Publish requests wait here for their turn to be parsed: by priority, one per turn of the event loop, and none that would wait too long.

Parsing is most of what an edge does for a publisher, and it blocks the event loop. So requests take turns: between two of them the loop
serves every socket, and a request of high priority that arrives meanwhile is parsed at once. The others wait as unparsed bytes, in one
lane per priority. A request has the priority of its least important item, so that one high item gives no advantage to a thousand low ones.

Refusing must be cheaper than accepting. Whether a request would wait too long follows from three delays, none of which needs it parsed:
of the requests before it here, of the event loop itself, and of the shards (`engine.publish.priority_lanes`); its priority is found by a
search in its bytes. A lane that more important requests keep passing shows in the age of its oldest request; one that has waited for the
whole target is refused. `engine.publish` has the table of who refuses what under load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from engine.config import Config
from engine.core.edge.backlog import Backlog
from engine.core.model.constants import HIGH, LOW, PRIORITIES
from engine.errors import Overloaded
from engine.publish import media_types
from engine.publish.media_types import Content
from engine.publish.priority_lanes import SHARES

_ITEM_BYTES: Final = 1000
"""Of `publish_rate_initial_per_s`, until the rate is measured."""

_LAG_FADES: Final = 0.5


class RequestQueue:
    """The publish requests of one edge that wait to be parsed.

    Args:
        config: the engine's settings.
        clock: milliseconds that never step.
        shards_ms: returns how long a record sent to the least busy shard waits now.
        refused: counts the refused requests by priority.
    """

    def __init__(self, config: Config, clock: Callable[[], int], shards_ms: Callable[[], float], refused: Callable[[str], None]) -> None:
        self._target_ms = config.publish_delay_target_ms
        self._clock = clock
        self._shards_ms = shards_ms
        self._refused = refused
        self._flow = Backlog(config.publish_rate_initial_per_s * _ITEM_BYTES / 1000, clock())
        self._lanes: tuple[deque[tuple[asyncio.Future[None], int, int]], ...] = tuple(deque() for _ in PRIORITIES)
        self._turn_taken = False
        self._lag_ms = 0.0

    @property
    def delay_ms(self) -> float:
        """How long a request that arrives now would wait, in addition to its own handling."""
        return self._flow.delay_ms + self._lag_ms + self._shards_ms()

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return sum(map(len, self._lanes))

    def check_unread(self) -> None:
        """Raise Overloaded when a request would be refused at any priority."""
        self._check(HIGH)

    async def enter(self, body: bytes, content: Content) -> None:
        """Return when it is this request's turn to be parsed; what follows must not await before it is.

        Raises:
            Overloaded: it would wait too long.
        """
        size = len(body)
        if self._turn_taken or self.delay_ms >= SHARES[LOW] * self._target_ms:
            priority = media_types.least_priority(body, content)
            self._check(priority)
            if priority != HIGH and self._turn_taken:
                await self._wait(self._lanes[priority], size)
                return
        self._flow.enter(size)
        self._flow.leave(size)
        self._take_turn()

    def _check(self, priority: int) -> None:
        delay_ms = self.delay_ms
        lane = self._lanes[priority]
        if lane:
            delay_ms = max(delay_ms, self._clock() - lane[0][2])
        if delay_ms >= SHARES[priority] * self._target_ms:
            raise self._refusal(priority, delay_ms)

    def _refusal(self, priority: int, delay_ms: float) -> Overloaded:
        self._refused(PRIORITIES[priority])
        return Overloaded(f"the backlog takes {delay_ms:.0f} ms, too long for {PRIORITIES[priority]} priority", delay_ms)

    async def _wait(self, lane: deque[tuple[asyncio.Future[None], int, int]], size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.append((turn, size, self._clock()))
        self._flow.enter(size)
        await turn

    def _take_turn(self) -> None:
        if not self._turn_taken:
            self._turn_taken = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """A turn of the loop has passed: let the next request be parsed."""
        self._turn_taken = False
        for lane in self._lanes:
            while lane:
                turn, size, _ = lane.popleft()
                if turn.done():  # its client has left
                    self._flow.drop(size)
                    continue
                self._flow.leave(size)
                turn.set_result(None)
                self._take_turn()
                return

    def tick(self, now_ms: int, late_ms: int) -> None:
        """Measure, and refuse what has waited too long. `late_ms`: how late this call is, a measure of the loop's lag."""
        self._lag_ms = max(late_ms, self._lag_ms * _LAG_FADES)
        self._flow.look(now_ms)
        for priority, lane in enumerate(self._lanes):
            while lane and now_ms - lane[0][2] >= self._target_ms:
                turn, size, since_ms = lane.popleft()
                self._flow.drop(size)
                if not turn.done():
                    turn.set_exception(self._refusal(priority, now_ms - since_ms))
