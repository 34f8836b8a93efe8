"""When an edge sends a record to a shard or scheduler: one queue per priority in front of every route.

High leaves at once. Normal and low leave while fewer than a window of them are unanswered on the route, normal first; the others wait
here, where high can still overtake them, and not in the link, which keeps order. Nothing leaves while `window_bytes` are unanswered on the
route: one request for a thousand users is one body here and a thousand on the link, whose queue is bounded. So what a new session of the
link repeats, which is what was sent and not answered, is bounded too. Before anything of a request is sent, every route it
concerns is checked for each of its priorities: it is closed to low when a new record would wait for half of `delay_target_ms`, to normal
at 80 % of it, to high at all of it. So a burst is absorbed, and load beyond capacity is refused with the time the backlog takes
(`engine.publish` has the table of who refuses what under load).

Tenants share a route fairly. What waits is taken in turns (`engine.publish.fair_lane`), so a tenant's new record waits for what its tenant
has on the route, as often as there are tenants with records there. The route is closed to a tenant by that delay, not by the whole
backlog: one that fills the route is refused, while the others are served as if it sent its share.

States of a record: waiting (in a lane) -> sent -> over (answered, or its call has ended); or waiting -> refused, after the whole target:
a record that was never sent was not accepted. A route that does not answer fills its own lanes and closes; other routes are unaffected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from msgspec import Struct

from engine.core.edge.backlog import Backlog, ConcurrencyLimit
from engine.core.model.constants import HIGH, PRIORITIES
from engine.errors import Overloaded
from engine.publish.fair_lane import FairLane

SHARES: Final = (1.0, 0.8, 0.5)
"""Shares of the delay target at which a route closes to high, normal and low."""


LaneEntry = tuple[int, Struct, int, int]
"""A record to send: its ref, the record, its priority, and its size on the link."""


class _Waiting(NamedTuple):
    """A record in a lane, since when, and its size on the link."""

    record: Struct
    since_ms: int
    size: int


class PriorityLanes:
    """The lanes of one route. The owner reports every record with `send` and `over`, and asks `closed_ms` before a request.

    Both take the records of one call together: a request for 250 users costs one look at everything that is not a record's own.

    Args:
        window_floor: the smallest window of unanswered records below high, see `engine.core.edge.backlog`.
        window_bytes: while so many bytes are unanswered, nothing is sent; exceeded by one record at most.
        bearable_ms: while high ones take longer than this, and than is to be expected, the window shrinks.
        rate_per_ms: records answered per millisecond, until it is measured.
        delay_target_ms: the longest a record may wait.
        deliver: puts records on the link, in order.
        clock: milliseconds that never step.
    """

    def __init__(
        self,
        window_floor: int,
        window_bytes: int,
        bearable_ms: int,
        rate_per_ms: float,
        delay_target_ms: int,
        deliver: Callable[[Sequence[Struct]], None],
        clock: Callable[[], int],
    ) -> None:
        self._target_ms = delay_target_ms
        self._deliver = deliver
        self._clock = clock
        self._waiting: tuple[FairLane[int, _Waiting], ...] = tuple(FairLane() for _ in PRIORITIES)
        self._of_tenant: dict[str, int] = {}  # records that wait or are unanswered
        self._window_bytes = window_bytes
        self._unanswered: dict[int, int] = {}  # the size of each record that was sent
        self._high_unanswered: set[int] = set()  # those of high priority
        self._window = ConcurrencyLimit(window_floor, bearable_ms, clock())
        self._timed = self._high_timed = -1  # one record of any priority, and one of high priority, whose time is taken
        self._timed_ms = self._high_timed_ms = 0  # when it was sent
        self.flow = Backlog(rate_per_ms, clock())
        self.queued = 0
        self.bytes_sent = 0  # and unanswered

    def delay_ms(self, tenant: str) -> float:
        """How long a new record of this tenant would wait: for the whole backlog, or for its own part of it in turns with the others'."""
        own = self._of_tenant.get(tenant)
        return min(self.flow.waiting, own * len(self._of_tenant)) / self.flow.rate_per_ms if own else 0.0

    def closed_ms(self, priority: int, tenant: str) -> float:
        """0 when the route takes records of this priority and tenant, else how long its backlog takes, or its oldest has waited."""
        if tenant not in self._of_tenant:
            return 0.0
        delay_ms = self.delay_ms(tenant)
        oldest = self._waiting[priority].first_of(tenant)
        if oldest is not None:
            delay_ms = max(delay_ms, self._clock() - oldest.since_ms)
        return delay_ms if delay_ms >= SHARES[priority] * self._target_ms else 0.0

    def send(self, items: Sequence[LaneEntry], tenant: str) -> None:
        """Send records of one tenant, each now or when its turn comes."""
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + len(items)
        self.flow.enter(len(items))
        room, room_bytes = self._room()
        sent: list[LaneEntry] = []
        for item in items:
            ref, record, priority, size = item
            if room_bytes > 0 and (not self._waiting[HIGH] if priority == HIGH else not self.queued and room > 0):
                sent.append(item)
                room_bytes -= size
                room -= priority != HIGH
            else:
                self._waiting[priority].append(tenant, ref, _Waiting(record, self._clock(), size))
                self.queued += 1
        if sent:
            self._send(sent)

    def _room(self) -> tuple[int, int]:
        """How many more records of normal or low priority may be unanswered, and how many bytes of any."""
        below_high = len(self._unanswered) - len(self._high_unanswered)
        return self._window.size - below_high, self._window_bytes - self.bytes_sent

    def _send(self, items: Sequence[LaneEntry]) -> None:
        """Put records on the link."""
        records = []
        for ref, record, priority, size in items:
            records.append(record)
            self._unanswered[ref] = size
            self.bytes_sent += size
            if priority == HIGH:
                self._high_unanswered.add(ref)
                if self._high_timed < 0:
                    self._high_timed, self._high_timed_ms = ref, self._clock()
        if self._timed < 0:
            self._timed, self._timed_ms = items[0][0], self._clock()
        self._deliver(records)

    def has(self, ref: int) -> bool:
        """Whether this record waits for its turn."""
        return bool(self.queued) and any(ref in lane for lane in self._waiting)

    def over(self, refs: Sequence[int], tenant: str, *, answered: bool) -> None:
        """Records of one tenant were answered, or nobody awaits them any more. Waiting ones take their place."""
        if (left := self._of_tenant[tenant] - len(refs)) > 0:
            self._of_tenant[tenant] = left
        else:
            del self._of_tenant[tenant]
        self.flow.leave(len(refs), served=answered)
        unanswered = self._unanswered
        for ref in refs:
            size = unanswered.pop(ref, None)
            if size is None:
                self._withdraw(ref)
            else:
                self.bytes_sent -= size
        if self._high_unanswered:
            self._high_unanswered.difference_update(refs)
        for ref in {self._timed, self._high_timed}.intersection(refs):
            self._time(ref, answered=answered)
        if self.queued:
            self._send_waiting()

    def _withdraw(self, ref: int) -> None:
        """Take a waiting record out of its lane."""
        for lane in self._waiting:
            if lane.pop(ref) is not None:
                self.queued -= 1

    def _send_waiting(self) -> None:
        """Send what the windows have room for, the most important first."""
        room, room_bytes = self._room()
        sent: list[LaneEntry] = []
        while self.queued and room_bytes > 0:
            priority = next(priority for priority, lane in enumerate(self._waiting) if lane)
            if priority != HIGH and room <= 0:
                break
            ref, waiting = self._waiting[priority].pop_next()
            self.queued -= 1
            sent.append((ref, waiting.record, priority, waiting.size))
            room_bytes -= waiting.size
            room -= priority != HIGH
        if sent:
            self._send(sent)

    def _time(self, ref: int, *, answered: bool) -> None:
        """A record that may be timed has ended, or is sent again: measure how long it took, if it was answered.

        The answer to one that was sent again may be to either sending, so it measures nothing (Karn's algorithm).
        """
        now_ms = self._clock()
        if ref == self._timed:
            self._timed = -1
            if answered:
                self._window.took(now_ms - self._timed_ms, now_ms)
        if ref == self._high_timed:
            self._high_timed = -1
            if answered:
                self._window.urgent_took(now_ms - self._high_timed_ms)

    def again(self, ref: int, record: Struct) -> None:
        """Send an unanswered record once more."""
        self._time(ref, answered=False)
        self._deliver([record])

    def adopt(self, ref: int, record: Struct, size: int, tenant: str) -> None:
        """Send a record that was sent on another route before: at once, or as soon as there is room for its bytes."""
        if self.bytes_sent >= self._window_bytes:
            self.send([(ref, record, HIGH, size)], tenant)
            return
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + 1
        self.flow.enter(1)
        self._unanswered[ref] = size
        self.bytes_sent += size
        self._deliver([record])

    def overdue(self, now_ms: int) -> list[tuple[int, Struct]]:
        """Records that have waited for the whole target without being sent; the caller takes each out with `over`."""
        if not self.queued:
            return []
        due_since_ms = now_ms - self._target_ms
        return [
            (ref, waiting.record)
            for lane in self._waiting
            for of_tenant in lane.in_order()
            for ref, waiting in takewhile(lambda entry: entry[1].since_ms <= due_since_ms, of_tenant)
        ]

    def look(self, now_ms: int) -> None:
        """Measure. To be called some ten times a second."""
        self.flow.look(now_ms)
        self._window.look(self.flow.rate_per_ms)


def refuse_closed(wanted: Iterable[tuple[PriorityLanes, int]], tenant: str) -> None:
    """Check the routes of a tenant's request, with the priorities it has for each.

    Raises:
        Overloaded: at least one of them is closed to one of its priorities.
    """
    longest_ms, name = 0.0, ""
    for lanes, priority in wanted:
        closed_ms = lanes.closed_ms(priority, tenant)
        if closed_ms > longest_ms:
            longest_ms, name = closed_ms, PRIORITIES[priority]
    if longest_ms:
        raise Overloaded(f"the backlog of this tenant takes {longest_ms:.0f} ms, too long for {name} priority", longest_ms)
