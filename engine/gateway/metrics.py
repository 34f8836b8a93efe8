"""The body of `GET /metrics`: Prometheus' text format 0.0.4, or OpenMetrics 1.0 for a client that prefers it.

Counting must not cost: an edge handles tens of thousands of messages a second. So `EdgeMetrics` holds plain integers, which the
hot paths add to, and the Prometheus objects are built from them at each scrape. Nothing is counted twice: what an edge counts
comes from its own integers (`engine_edge_*`), everything else from the status the controller gathers (`engine_*`).

With several edges behind one port, a scrape reaches any of them: `engine_edge_*` carry the label `edge`, so their series do not
mix, and what must be complete on every scrape is among the `engine_*` ones.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

PUBLISH_BUCKETS_MS: Final = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Upper bounds of the publish latency: dense around the budget (p50 4 ms, p99 20 ms), then up to the publish timeout."""


_openmetrics: Final[Callable[[CollectorRegistry], bytes]] = openmetrics.generate_latest  # has no types of its own
_WEIGHT: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")


class EdgeMetrics:
    """What one edge has seen since its process started. The owner adds to the attributes; `render` reads them.

    Args:
        edge: the edge's name, such as `edge-0`.
        link_calls: exchanges it has made so far; its links count them.
        carriers: what each of its links travels on, "" while it is not open.
    """

    def __init__(self, edge: str, link_calls: Callable[[], int] = lambda: 0, carriers: Callable[[], Mapping[str, str]] = dict) -> None:
        self.edge = edge
        self._link_calls = link_calls
        self._carriers = carriers
        self.published: Counter[str] = Counter()  # items by status, as in the answers
        self.refused: Counter[int] = Counter()  # requests and upgrades by HTTP status
        self.shed_requests: Counter[str] = Counter()  # publish requests refused unparsed, by the priority of their least important item
        self.connections: Counter[str] = Counter()  # now, by transport
        self.closes: Counter[int] = Counter()  # connections ended, by close code
        self.frames_received = 0  # from WebSocket clients
        self.frames_sent = 0  # to clients of all transports: WebSocket frames, events, poll answers
        self.messages_sent = 0
        self.retries_spared = 0  # messages not sent again, because their acknowledgement had arrived here
        self.acks = 0  # acknowledgements received, on any transport
        self.signals = 0  # counted
        self.signals_dropped = 0  # for want of room
        self.broadcasts = 0  # appended to the log
        self.degraded: dict[str, Callable[[], str]] = {}  # by part of the edge: why it does less than it should, "" when it does not
        self.breakers: Mapping[int, int] = {}  # by shard, see `engine.core.edge.circuit_breaker.BreakerState`
        self._publish_counts = [0] * (len(PUBLISH_BUCKETS_MS) + 1)
        self._publish_sum_ms = 0.0
        self._status: Mapping[str, Any] | None = None
        self._registry = CollectorRegistry()
        self._registry.register(_Gatherer(self))
        ProcessCollector(registry=self._registry)

    def shed(self, priority: str) -> None:
        """A publish request would have waited too long."""
        self.shed_requests[priority] += 1

    def reasons(self) -> dict[str, str]:
        """The parts of this edge that do less than they should, and why; it serves nevertheless."""
        return {part: why for part, reason in self.degraded.items() if (why := reason())}

    def publish_took(self, elapsed_ms: float) -> None:
        """One publish request was answered after this long."""
        self._publish_counts[bisect_left(PUBLISH_BUCKETS_MS, elapsed_ms)] += 1
        self._publish_sum_ms += elapsed_ms

    def render(self, status: Mapping[str, Any] | None, accept: str = "") -> tuple[bytes, str]:
        """The whole text, and its content type.

        Args:
            status: the controller's, None while it does not answer; then its part is missing.
            accept: the client's `Accept` header.
        """
        self._status = status
        if prefers_openmetrics(accept):
            return _openmetrics(self._registry), openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def gather(self) -> Iterator[Metric]:
        """All families, freshly built."""
        yield from self._edge_families()
        if self._status is not None:
            yield from _status_families(self._status)

    def _edge_families(self) -> Iterator[Metric]:
        labels = ("edge",)
        for name, help_text, label, counts in (
            ("engine_edge_published", "Items published through this edge, by what became of them.", "status", self.published),
            ("engine_edge_refused", "Requests and upgrades this edge refused, by HTTP status.", "code", self.refused),
            ("engine_edge_shed", "Publish requests refused unparsed under load, by priority.", "priority", self.shed_requests),
            ("engine_edge_closes", "Connections of this edge that ended, by close code; 0 where there is none.", "code", self.closes),
        ):
            family = CounterMetricFamily(name, help_text, labels=(*labels, label))
            for value, count in sorted(counts.items()):
                family.add_metric((self.edge, str(value)), count)
            yield family
        connections = GaugeMetricFamily("engine_edge_connections", "Open connections of this edge.", labels=(*labels, "transport"))
        for transport in ("websocket", "sse", "poll"):
            connections.add_metric((self.edge, transport), self.connections[transport])
        yield connections
        links = GaugeMetricFamily("engine_edge_links", "Open links of this edge, by what carries them.", labels=(*labels, "carrier"))
        carried = Counter(self._carriers().values())
        for carrier in ("unix", "tcp", "ray"):
            links.add_metric((self.edge, carrier), carried[carrier])
        yield links
        breakers = GaugeMetricFamily(
            "engine_edge_breaker_state",
            "Circuit breaker of this edge for a shard: 0 closed, 1 half-open, 2 open: requests to the shard are refused.",
            labels=(*labels, "shard"),
        )
        for shard, state in sorted(self.breakers.items()):
            breakers.add_metric((self.edge, str(shard)), int(state))
        yield breakers
        for name, help_text, count in (
            ("engine_edge_broadcasts", "Broadcasts this edge has put into the log.", self.broadcasts),
            ("engine_edge_signals", "Signals counted.", self.signals),
            ("engine_edge_signals_dropped", "Signals for whose names there was no room.", self.signals_dropped),
            ("engine_edge_frames_received", "WebSocket frames received from clients.", self.frames_received),
            ("engine_edge_frames_sent", "WebSocket frames, events and poll answers sent to clients.", self.frames_sent),
            ("engine_edge_messages_sent", "Messages sent to clients, repeats included.", self.messages_sent),
            ("engine_edge_acks", "Acknowledgements received, each for one or many messages.", self.acks),
            ("engine_edge_retries_spared", "Messages not sent again, because their acknowledgement had arrived.", self.retries_spared),
            ("engine_edge_link_calls", "Exchanges with shards and schedulers.", self._link_calls()),
        ):
            family = CounterMetricFamily(name, help_text, labels=labels)
            family.add_metric((self.edge,), count)
            yield family
        degraded = GaugeMetricFamily(
            "engine_edge_degraded",
            "1 while a part of this edge does less than it should; the status has the reason.",
            labels=(*labels, "part"),
        )
        reasons = self.reasons()
        for part in self.degraded:
            degraded.add_metric((self.edge, part), part in reasons)
        yield degraded
        publish = HistogramMetricFamily(
            "engine_edge_publish_seconds", "From the last byte of a publish request to its answer.", labels=labels
        )
        publish.add_metric(
            (self.edge,), _buckets(zip((*PUBLISH_BUCKETS_MS, -1), self._publish_counts, strict=True)), self._publish_sum_ms / 1000
        )
        yield publish


def prefers_openmetrics(accept: str) -> bool:
    """Does an `Accept` header (RFC 9110, section 12.5.1) name OpenMetrics 1.0 with a weight not below that of plain text?"""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for offer in accept.split(","):
        media_type, *parameters = (part.strip() for part in offer.lower().split(";"))
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        if media_type in weights and (media_type == "text/plain" or values.get("version", "1.0.0") == "1.0.0"):
            weights[media_type] = max(weights[media_type], _weight(values.get("q", "1")))
    return 0 < weights["application/openmetrics-text"] >= weights["text/plain"]


def _weight(text: str) -> float:
    return float(text) if _WEIGHT.fullmatch(text) else 0.0


class _Gatherer(Collector):
    """Collects from an `EdgeMetrics` at each scrape. Describes nothing, so that registering it reads nothing."""

    def __init__(self, metrics: EdgeMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.gather()

    def describe(self) -> Iterable[Metric]:
        return ()


class _Figure(NamedTuple):
    """One number of an actor's row: how it is called there, and here."""

    field: str
    name: str
    help: str
    counter: bool = False
    factor: float = 1.0


_SHARD: Final = (
    _Figure("users", "engine_mailboxes", "Mailboxes in memory."),
    _Figure("connections", "engine_attached_connections", "Connections attached to this shard."),
    _Figure("pending", "engine_pending_messages", "Messages that await their acknowledgement."),
    _Figure("lag_ms", "engine_journal_lag_seconds", "Age of the oldest message that awaits its commit.", factor=1e-3),
    _Figure("epoch", "engine_shard_epoch", "Fencing epoch; it grows whenever the shard is taken over."),
    _Figure("pressure", "engine_pressure_level", "How hard the shard is pressed: 0 calm, 3 only high priority is taken."),
    _Figure("memory_bytes", "engine_shard_memory_bytes", "What mailboxes and waiting posts take in memory."),
    _Figure("held", "engine_held_mailboxes", "Mailboxes whose next message is of low priority and waits for the pressure to end."),
    _Figure("refused_high", "engine_refused_high", "High-priority posts refused at a limit.", counter=True),
    _Figure("refused_normal", "engine_refused_normal", "Normal-priority posts refused under pressure.", counter=True),
    _Figure("refused_low", "engine_refused_low", "Low-priority posts refused under pressure.", counter=True),
    _Figure("refused_questions", "engine_refused_questions", "Questions about users refused under pressure.", counter=True),
    _Figure("conflated", "engine_conflated", "Messages that a newer one of their collapse key stands for.", counter=True),
    _Figure("windows", "engine_windows_open", "Aggregation windows that are open."),
    _Figure("merged", "engine_merged", "Messages that count in an aggregation window instead of being delivered.", counter=True),
    _Figure("windows_closed", "engine_windows_closed", "Aggregation windows that were over.", counter=True),
    _Figure("suppressed", "engine_suppressed", "Messages that a wish of the user or a limit kept back for good.", counter=True),
    _Figure("deferred", "engine_deferred", "Messages, timers and windows that quiet hours put off.", counter=True),
    _Figure("digested", "engine_digested", "Messages that count in a user's digest.", counter=True),
    _Figure("low_spilled", "engine_low_spilled", "Low-priority messages that left memory for the offline streams.", counter=True),
    _Figure("published", "engine_published", "Messages journalled.", counter=True),
    _Figure("duplicates", "engine_duplicates", "Publishes answered with an earlier result.", counter=True),
    _Figure("delivered", "engine_delivered", "First sends of messages to connections.", counter=True),
    _Figure("acknowledged", "engine_acknowledged", "Messages acknowledged by their users.", counter=True),
    _Figure("suspects", "engine_suspect_users", "Users whose last connection ended abnormally, and whose clients may come back."),
    _Figure("retried", "engine_retried", "Messages sent again for want of an acknowledgement.", counter=True),
    _Figure("stalled", "engine_stalled", "Connections on which a message used up its tries.", counter=True),
    _Figure("expired", "engine_expired", "Messages whose time to live ended first.", counter=True),
    _Figure("trimmed", "engine_trimmed", "Messages dropped by the per-user limit, announced as gaps.", counter=True),
    _Figure("dead_lettered", "engine_dead_lettered", "Messages that went to the dead-letter stream.", counter=True),
    _Figure("broadcasts", "engine_broadcast_log_entries", "Broadcasts in the log, as this shard mirrors it."),
    _Figure("adopted", "engine_broadcasts_adopted", "Broadcasts numbered and journalled, once per mailbox.", counter=True),
    _Figure("commits", "engine_commits", "Group commits to the journal.", counter=True),
    _Figure("quarantined", "engine_quarantined_records", "Stored records that could not be read.", counter=True),
)
_SCHEDULER: Final = (
    _Figure("armed", "engine_timers_armed", "Durable timers in storage."),
    _Figure("volatile", "engine_timers_volatile", "Retry and window timers in memory."),
    _Figure("lag_ms", "engine_timer_lag_seconds", "How long the oldest due timer has waited.", factor=1e-3),
    _Figure("fired", "engine_timers_fired", "Durable timers handed to their shard.", counter=True),
    _Figure("refired", "engine_timers_refired", "Durable timers handed out again for want of a confirmation.", counter=True),
    _Figure("failed", "engine_timer_failures", "Hand-outs of durable timers that failed.", counter=True),
    _Figure(
        "compensated", "engine_timers_compensated", "Durable timers that failed too often and went to the compensation batch.", counter=True
    ),
    _Figure("postponed", "engine_timers_postponed", "Durable timers whose shard wanted them again later.", counter=True),
    _Figure("degraded", "engine_timers_degraded", "Durable timers that wait for a compensation batch."),
    _Figure("quarantined", "engine_quarantined_timers", "Stored timers that could not be read.", counter=True),
)
_PROCESS: Final = (
    _Figure("alive", "engine_up", "1 while the actor answers."),
    _Figure("ready", "engine_ready", "1 while the actor has started and serves."),
    _Figure("cpu_pct", "engine_cpu_ratio", "Share of one core the actor's process uses.", factor=0.01),
    _Figure("rss_bytes", "engine_resident_memory_bytes", "Resident memory of the actor's process."),
    _Figure("restarts", "engine_restarts", "Times the actor's process was replaced.", counter=True),
)
_ROLES: Final = (("shard", "shards"), ("scheduler", "schedulers"), ("edge", "edges"))


def _status_families(status: Mapping[str, Any]) -> Iterator[Metric]:
    """The engine-wide families. A figure that an actor does not report (it is starting, or away) is left out."""
    yield InfoMetricFamily("engine", "The version.", value={"version": str(status.get("version", ""))})
    rows = {role: [row for row in status.get(field) or () if isinstance(row, Mapping)] for role, field in _ROLES}
    everyone = [((role, str(row.get("index", ""))), row) for role in rows for row in rows[role]]
    for figure in _PROCESS:
        yield _family(figure, ("role", "index"), everyone)
    for role, figures in (("shard", _SHARD), ("scheduler", _SCHEDULER)):
        numbered = [((str(row.get("index", "")),), row) for row in rows[role]]
        for figure in figures:
            yield _family(figure, (role,), numbered)
    storage = GaugeMetricFamily("engine_storage_up", "1 while durable storage answers this actor.", labels=("role", "index"))
    connections = GaugeMetricFamily("engine_connections", "Open connections of every edge.", labels=("edge", "transport"))
    for labels, row in everyone:
        if "storage" in row:
            storage.add_metric(labels, row["storage"] == "ok")
        if labels[0] == "edge" and isinstance(row.get("connections"), Mapping):
            for transport, count in row["connections"].items():
                connections.add_metric((f"edge-{labels[1]}", str(transport)), count)  # its name, as in `engine_edge_*`
    yield storage
    yield connections
    yield from _latencies(status, rows)
    yield from _snapshots((status.get("redis") or {}).get("snapshots") or {})
    yield from _scaling_families(status.get("scaling") or {})


def _scaling_families(scaling: Mapping[str, Any]) -> Iterator[Metric]:
    """How many actors are wanted, and how far the engine is from it."""
    for name, help_text, field in (
        ("engine_actors_wanted", "Actors that are wanted, by an operator, the settings or the autoscaler.", "wanted"),
        ("engine_actors", "Actors that work: shards and schedulers of the slot map, edges that serve.", "have"),
    ):
        counts = scaling.get(field) or {}
        family = GaugeMetricFamily(name, help_text, labels=("role",))
        for role, counted in _ROLES:
            if counted in counts:
                family.add_metric((role,), counts[counted])
        yield family
    if "slots_left" in scaling:
        yield GaugeMetricFamily("engine_slots_left", "Slots that are still to be moved to other shards.", scaling["slots_left"])
        yield CounterMetricFamily("engine_slots_moved", "Slots moved since the controller started.", scaling["slots_moved"])
    decisions = GaugeMetricFamily(
        "engine_autoscaler_wanted", "The autoscaler's last decision, carried out or not, by role and action.", labels=("role", "action")
    )
    newest = {decision["role"]: decision for decision in reversed(scaling.get("decisions") or ())}
    for role, decision in sorted(newest.items()):
        decisions.add_metric((role.removesuffix("s"), decision["action"]), decision["wanted"])
    yield decisions


def _snapshots(snapshots: Mapping[str, Any]) -> Iterator[Metric]:
    """Of the engine's own Redis, where they are taken by schedule."""
    if "age_s" in snapshots:
        yield GaugeMetricFamily("engine_snapshot_age_seconds", "Since the last snapshot of the engine's own Redis.", snapshots["age_s"])
    if "failures" in snapshots:
        yield CounterMetricFamily(
            "engine_snapshot_failures", "Scheduled snapshots of the engine's own Redis that failed.", snapshots["failures"]
        )


def _latencies(status: Mapping[str, Any], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Metric]:
    for name, help_text, role, field in (
        ("engine_delivery_seconds", "From acceptance to the acknowledgement, per message; includes a user's absence.", "shard", "latency"),
        ("engine_first_send_seconds", "From acceptance to the first send, on connections open at the time.", "shard", "send_latency"),
        ("engine_ack_seconds", "From the first send on a connection to its acknowledgement, per message.", "shard", "ack_latency"),
        ("engine_timer_lateness_seconds", "From due to handed out, per durable timer.", "scheduler", "lateness"),
    ):
        family = HistogramMetricFamily(name, help_text, labels=(role,))
        for row in rows[role]:
            if row.get(field) and f"{field}_sum_ms" in row:
                family.add_metric((str(row.get("index", "")),), _buckets(row[field]), row[f"{field}_sum_ms"] / 1000)
        yield family
    recent = GaugeMetricFamily(
        "engine_delivery_recent_seconds", "Quantiles from acceptance to the acknowledgement over the recent past.", labels=("quantile",)
    )
    totals = status.get("totals") or {}
    for quantile, field in (("0.5", "p50_ms"), ("0.95", "p95_ms"), ("0.99", "p99_ms")):
        value = totals.get(field)
        if isinstance(value, int | float):
            recent.add_metric((quantile,), value / 1000)
    yield recent


def _family(figure: _Figure, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Mapping[str, Any]]]) -> Metric:
    kind = CounterMetricFamily if figure.counter else GaugeMetricFamily
    family = kind(figure.name, figure.help, labels=labels)
    for values, row in rows:
        value = row.get(figure.field)
        if isinstance(value, int | float):  # booleans too: they are 0 and 1
            family.add_metric(values, value * figure.factor)
    return family


def _buckets(counts: Iterable[Sequence[int]]) -> list[tuple[str, float]]:
    """Cumulative buckets in seconds from [upper bound in ms, count] pairs in rising order; a bound below 0 means none."""
    total = 0
    made: list[tuple[str, float]] = []
    for upper_ms, count in counts:
        total += count
        if upper_ms >= 0:
            made.append((str(upper_ms / 1000), total))
    return [*made, ("+Inf", total)]
