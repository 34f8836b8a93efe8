"""What an edge counts. Counting must not cost: an edge handles tens of thousands of messages a second.

So `EdgeMetrics` holds plain integers, which the hot paths add to. `figures` are in the edge's `stats()`, so that the controller has those
of all edges, and any edge serves them at `GET /metrics` (`engine.api.exposition`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from engine.core.model.bounded_names import BoundedNames
from engine.core.model.trace_context import sampled_trace_id
from engine.core.wire.records import TRANSPORTS

PUBLISH_BUCKETS_MS: Final = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Upper bounds of the publish latency: dense around the budget (p50 4 ms, p99 20 ms), then up to the publish timeout."""

_CARRIERS: Final = ("unix", "tcp", "ray")

_OWN_CODES: Final = range(4400, 4430)
"""Close codes of the engine among those that a client may make up."""


Figures = dict[str, list[tuple[str | int, ...]]]
"""By what is counted: labels, and a number behind them."""


class EdgeMetrics:
    """What one edge has seen since its process started. The owner adds to the attributes.

    Args:
        edge: the edge's name, such as `edge-0`.
        link_calls: exchanges it has made so far; its links count them.
        carriers: what each of its links travels on, "" while it is not open.
    """

    def __init__(self, edge: str, link_calls: Callable[[], int] = lambda: 0, carriers: Callable[[], Mapping[str, str]] = dict) -> None:
        self.edge = edge
        self._link_calls = link_calls
        self._carriers = carriers
        self._tenants = BoundedNames()
        self._published: dict[str, Counter[str]] = {}  # by tenant, by status
        self._cancelled: Counter[str] = Counter()  # by tenant
        self.refused: Counter[int] = Counter()  # requests and upgrades by HTTP status
        self.shed_requests: Counter[str] = Counter()  # publish requests refused unparsed, by the priority of their least important item
        self.connections: Counter[str] = Counter()  # now, by transport
        self.closes: Counter[int] = Counter()  # connections ended, by close code
        self.frames_received = 0  # from WebSocket clients
        self.frames_sent = 0  # to clients of all transports: WebSocket frames, events, poll answers
        self.messages_sent = 0
        self.retries_spared = 0  # messages not sent again, because their acknowledgement had arrived here
        self.acks = 0  # acknowledgements received, on any transport
        self.broadcasts = 0  # appended to the log
        self.degraded: dict[str, Callable[[], str]] = {}  # by part of the edge: why it does less than it should, "" when it does not
        self.of_features: list[Callable[[], Figures]] = []
        self.breakers: Mapping[int, int] = {}  # by shard, see `engine.core.edge.circuit_breaker.BreakerState`
        self._publish_counts = [0] * (len(PUBLISH_BUCKETS_MS) + 1)
        self._publish_seen: list[tuple[str, int, int, bytes] | None] = [None] * (len(PUBLISH_BUCKETS_MS) + 1)
        self._publish_sum_ms = 0

    def closed(self, code: int) -> None:
        """A connection ended. A client may send 3000 to 4999: what it made up counts as 3000 or 4000, or it would make 2000 series."""
        self.closes[code if code < 3000 or code in _OWN_CODES else code // 1000 * 1000] += 1

    def shed(self, priority: str) -> None:
        """A publish request would have waited too long."""
        self.shed_requests[priority] += 1

    def reasons(self) -> dict[str, str]:
        """The parts of this edge that do less than they should, and why; it serves nevertheless."""
        return {part: why for part, reason in self.degraded.items() if (why := reason())}

    def published(self, tenant: str, statuses: Iterable[str]) -> None:
        """Items of a tenant were answered with these statuses."""
        name = self._tenants.of(tenant)
        counts = self._published.get(name)
        if counts is None:
            counts = self._published[name] = Counter()
        for status in statuses:
            counts[status] += 1

    @property
    def published_count(self) -> int:
        """Items published, of all tenants."""
        return sum(counts.total() for counts in self._published.values())

    def publish_took(self, elapsed_ms: int, id: str = "", now_ms: int = 0, begin: bytes = b"") -> None:
        """One publish request was answered after this long.

        Args:
            id: of a message of it, as an exemplar of its time; "" for none.
            now_ms: since the epoch.
            begin: the first `TRACE_BYTES` of that message, which say its trace.
        """
        bucket = bisect_left(PUBLISH_BUCKETS_MS, elapsed_ms)
        self._publish_counts[bucket] += 1
        self._publish_sum_ms += elapsed_ms
        if id:
            self._publish_seen[bucket] = id, elapsed_ms, now_ms, begin

    def cancelled(self, tenant: str, count: int = 1) -> None:
        """Scheduled notifications of a tenant were cancelled."""
        self._cancelled[self._tenants.of(tenant)] += count

    def figures(self) -> Figures:
        """By what is counted: labels, and a number behind them (`engine.api.exposition.catalogue`)."""
        carried, reasons = Counter(self._carriers().values()), self.reasons()
        numbers = {
            "broadcasts": self.broadcasts,
            "frames_received": self.frames_received,
            "frames_sent": self.frames_sent,
            "messages_sent": self.messages_sent,
            "acks": self.acks,
            "retries_spared": self.retries_spared,
            "link_calls": self._link_calls(),
        }
        return {
            **{name: [(count,)] for name, count in numbers.items()},
            "published": [(tenant, status, count) for tenant, counts in self._published.items() for status, count in counts.items()],
            "cancelled": list(self._cancelled.items()),
            "refused": _by_number(self.refused),
            "shed": list(self.shed_requests.items()),
            "closes": _by_number(self.closes),
            "connections": list(self.connections_now().items()),
            "links": [(carrier, carried[carrier]) for carrier in _CARRIERS],
            "breakers": _by_number(self.breakers),
            "degraded": [(part, int(part in reasons)) for part in self.degraded],
            **{name: rows for figures in self.of_features for name, rows in figures().items()},
        }

    def connections_now(self) -> dict[str, int]:
        """Open connections by transport."""
        return {name: self.connections[name] for name in dict.fromkeys(TRANSPORTS)}

    def latencies(self) -> dict[str, Any]:
        """The publish latency, in the form of the histograms of shards (`engine.core.shard.output`)."""
        buckets = [[bound, count] for bound, count in zip((*PUBLISH_BUCKETS_MS, -1), self._publish_counts, strict=True)]
        seen = [(bucket, *found[:3], sampled_trace_id(found[3])) for bucket, found in enumerate(self._publish_seen) if found is not None]
        return {"publish_latency": buckets, "publish_latency_sum_ms": self._publish_sum_ms, "exemplars": {"publish_latency": seen}}


def _by_number(counts: Mapping[int, int]) -> list[tuple[str | int, ...]]:
    return [(str(number), int(count)) for number, count in counts.items()]
