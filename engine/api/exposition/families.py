"""The metrics of the kernel and of features with their values, built anew for each scrape from the controller's status.

A number that an actor does not report, because it is starting or of another version, is left out, and so is every number of an actor that
does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.samples import Exemplar

from engine.api.exposition import catalogue
from engine.api.exposition.catalogue import Family, FeatureMetrics, Figure
from engine.gateway.metrics import EdgeMetrics

Row = Mapping[str, Any]
Rows = list[tuple[Sequence[str], Row]]
"""Rows of actors that answer, with the labels that name the actor."""

EXEMPLAR_CHARS_MAX: Final = 128
"""Of names and values of an exemplar's labels together (OpenMetrics 1.0, "Exemplars")."""


_FAMILIES: Final[Mapping[str, Callable[..., Any]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "info": InfoMetricFamily,
}


def families(status: Row | None, own: str, now: Row, of_features: Iterable[FeatureMetrics]) -> Iterator[Metric]:
    """All metrics that have a value, each made when it is its turn.

    Args:
        status: the controller's, None while it does not answer.
        own: name of the edge that serves them.
        now: what it has counted (`own_row`).
        of_features: the metrics of the features of this edge.
    """
    made = _Families()
    controller = {"index": 0, "alive": False} if status is None else {**(status.get("controller") or {}), "index": 0, "alive": True}
    status = {} if status is None else status
    roles = _rows_by_role(status)
    rows: dict[str, list[Row]] = {**roles, "controller": [controller]}
    for role, members in rows.items():
        for row in members:
            made.add(catalogue.UP, (role, _index(row)), bool(row.get("alive")))
    answering = {role: [row for row in members if row.get("alive")] for role, members in rows.items()}
    everyone: Rows = [((role, _index(row)), row) for role, members in answering.items() for row in members]
    shards, schedulers = _named(answering, "shard"), _named(answering, "scheduler")
    edges: Rows = [((f"edge-{_index(row)}",), row) for row in answering.get("edge", ())]
    _set_own(edges, own, now)
    if status:
        _engine_wide(made, status, roles)
    yield from made.all()
    for add, figures, rows_of in (
        (_number, catalogue.PROCESS, everyone),
        (_number, catalogue.SHARD, shards),
        (_latency, catalogue.SHARD_LATENCIES, shards),
        (_labelled, catalogue.TENANT, shards),
        (_number, catalogue.SCHEDULER, schedulers),
        (_latency, catalogue.SCHEDULER_LATENCIES, schedulers),
        (_number, catalogue.EDGE, edges),
        (_labelled, catalogue.EDGE_LABELLED, edges),
        (_latency, catalogue.EDGE_LATENCIES, edges),
        *(
            (_labelled, feature.figures, edges)
            if feature.role == "edge"
            else (_number, feature.figures, _rows_of(feature, answering, everyone))
            for feature in of_features
        ),
    ):
        for figure in figures:
            one = _Families()
            add(one, figure, rows_of)
            yield from one.all()


def _rows_of(feature: FeatureMetrics, answering: Mapping[str, Iterable[Row]], everyone: Rows) -> Rows:
    """Those that have the numbers of a feature, which is not an edge's."""
    return _named(answering, feature.role, feature.named_by) if feature.role else everyone


def own_row(metrics: EdgeMetrics) -> Row:
    """What an edge has counted, as in its row of the status."""
    return {"figures": metrics.figures(), **metrics.latencies()}


def _rows_by_role(status: Row) -> dict[str, list[Row]]:
    """The rows of actors in a status, of each role that it lists."""
    listed = {field.removesuffix("s"): rows for field, rows in status.items() if isinstance(rows, list)}
    return {role: [row for row in rows if isinstance(row, Mapping)] for role, rows in listed.items()}


def _named(rows: Mapping[str, Iterable[Row]], role: str, member: str = "index") -> Rows:
    return [((str(row[member]),), row) for row in rows.get(role, ()) if row.get(member, "") != ""]


def _index(row: Row) -> str:
    return str(row.get("index", ""))


def _set_own(edges: Rows, own: str, now: Row) -> None:
    """Put the numbers of this edge as they are now in place of those that it reported."""
    for place, (labels, row) in enumerate(edges):
        if labels == (own,):
            edges[place] = labels, {**row, **now}
            return
    edges.append(((own,), now))


class _Families:
    """The metrics under construction, by name."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def of(self, family: Family) -> Any:
        """This one, made when it is needed first."""
        made = self._made.get(family.name)
        if made is None:
            made = self._made[family.name] = _FAMILIES[family.kind](family.name, family.help, labels=family.labels)
        return made

    def add(self, family: Family, labels: Sequence[str], value: float) -> None:
        """A value of a counter or gauge."""
        self.of(family).add_metric(labels, value)

    def all(self) -> Iterator[Metric]:
        """In the order in which they were made."""
        return iter(self._made.values())


def _number(made: _Families, figure: Figure, rows: Rows) -> None:
    for labels, row in rows:
        value = row.get(figure.field)
        if isinstance(value, str):  # "ok", or why it is not
            value = value == "ok"
        if isinstance(value, int | float):  # booleans too: they are 0 and 1
            made.add(figure.family, labels, value * figure.factor)


def _labelled(made: _Families, figure: Figure, rows: Rows) -> None:
    for labels, row in rows:
        for *others, value in (row.get("figures") or {}).get(figure.field, ()):
            made.add(figure.family, [*labels, *others], value * figure.factor)


def _latency(made: _Families, figure: Figure, rows: Rows) -> None:
    field = figure.field
    for labels, row in rows:
        if row.get(field) and f"{field}_sum_ms" in row:
            exemplars = {bucket: _exemplar(*seen) for bucket, *seen in (row.get("exemplars") or {}).get(field, ())}
            made.of(figure.family).add_metric(labels, _buckets(row[field], exemplars), row[f"{field}_sum_ms"] / 1000)


def _exemplar(id: str, ms: int, at_ms: int, trace_id: str = "") -> Exemplar | None:
    """The id belongs to a publisher, and may be longer than an exemplar; a part of it would name nothing."""
    named = {"trace_id": trace_id} if trace_id else {}
    labels = {**named, "message_id": id}
    if sum(map(len, (*labels, *labels.values()))) > EXEMPLAR_CHARS_MAX:
        labels = named
    return Exemplar(labels, ms / 1000, at_ms / 1000) if labels else None


def _buckets(counts: Iterable[Sequence[int]], exemplars: Mapping[int, Exemplar | None]) -> list[tuple[str, float, Exemplar | None]]:
    """Cumulative buckets in seconds from [upper bound in ms, number] pairs in rising order; a bound below 0 means none."""
    total = 0
    made: list[tuple[str, float, Exemplar | None]] = []
    last: Exemplar | None = None
    for bucket, (upper_ms, count) in enumerate(counts):
        total += count
        last = exemplars.get(bucket)
        if upper_ms >= 0:
            made.append((str(upper_ms / 1000), total, last))
    return [*made, ("+Inf", total, last)]


def _engine_wide(made: _Families, status: Row, roles: Iterable[str]) -> None:
    made.of(catalogue.INFO).add_metric((), {"version": str(status.get("version", ""))})
    totals = status.get("totals") or {}
    for quantile, field in (("0.5", "p50_ms"), ("0.95", "p95_ms"), ("0.99", "p99_ms")):
        value = totals.get(field)
        if isinstance(value, int | float):
            made.add(catalogue.RECENT, (quantile,), value / 1000)
    _redis(made, status.get("redis") or {})
    _scaling(made, status.get("scaling") or {}, roles)


def _redis(made: _Families, redis: Row) -> None:
    if "alive" in redis:
        made.add(catalogue.REDIS_UP, (), bool(redis["alive"]))
    for number, store in enumerate(redis.get("stores") or [redis]):
        for family, field in ((catalogue.REDIS_MEMORY, "used_memory_bytes"), (catalogue.REDIS_MEMORY_MAX, "memory_bytes_max")):
            if store.get("alive") and field in store:
                made.add(family, (str(number),), store[field])
    snapshots = redis.get("snapshots") or {}  # of the engine's own Redis, where they are taken by schedule
    if "age_s" in snapshots:
        made.add(catalogue.SNAPSHOT_AGE, (), snapshots["age_s"])
    if "failures" in snapshots:
        made.add(catalogue.SNAPSHOT_FAILURES, (), snapshots["failures"])


def _scaling(made: _Families, scaling: Row, roles: Iterable[str]) -> None:
    """How many actors are wanted, and how far the engine is from it."""
    for family, field in ((catalogue.WANTED, "wanted"), (catalogue.HAVE, "have")):
        for counted, number in (scaling.get(field) or {}).items():
            made.add(family, (counted.removesuffix("s"),), number)
    for role in roles:
        made.add(catalogue.WAITING, (role,), sum(entry["actor"].startswith(f"{role}-") for entry in scaling.get("waiting") or ()))
    if "slots_left" in scaling:
        made.add(catalogue.SLOTS_LEFT, (), scaling["slots_left"])
        made.add(catalogue.SLOTS_MOVED, (), scaling["slots_moved"])
    newest = {decision["role"]: decision for decision in reversed(scaling.get("decisions") or ())}
    for role, decision in sorted(newest.items()):
        made.add(catalogue.DECIDED, (role.removesuffix("s"), decision["action"]), decision["wanted"])
