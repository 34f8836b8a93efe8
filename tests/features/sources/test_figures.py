"""What is reported of sources."""

from __future__ import annotations

from engine.features.sources.figures import line
from engine.gateway.metrics import EdgeMetrics
from tests.support.scrapes import STATUS, rendered, values


def test_an_ingester_has_the_numbers_of_its_source() -> None:
    row = {"index": 1, "alive": True, "source": "orders", "accepted": 9, "dead": 2, "waiting": 5, "lag_ms": 1500, "dead_rows": 1}
    starting = {"index": 0, "alive": True, "source": "", "accepted": 0}
    text = rendered(EdgeMetrics("edge-0"), {**STATUS, "ingesters": [starting, row]})
    assert values(text, "engine_source_rows_total") == {("orders",): 9}
    assert values(text, "engine_source_refused_rows_total") == {("orders",): 2}
    assert values(text, "engine_source_waiting_rows") == {("orders",): 5}
    assert values(text, "engine_source_lag_seconds") == {("orders",): 1.5}
    assert values(text, "engine_source_dead_rows") == {("orders",): 1}


def test_a_source_has_a_line_once_its_ingester_knows_its_name() -> None:
    row = {"source": "orders", "state": "ok", "waiting": 5, "lag_ms": 1500, "dead_rows": 1}
    assert line(row) == ("source orders", "5 rows wait, the oldest 1.5 s, 1 dead", False)
    assert line({**row, "state": "source orders: away"}) == ("source orders", "away, 5 rows wait, the oldest 1.5 s, 1 dead", False)
    assert line({"source": "", "state": "ok"}) is None
    assert line({"alive": False}) is None
