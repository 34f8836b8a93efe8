"""What is reported of the history."""

from __future__ import annotations

from engine.features.history.figures import line
from engine.gateway.metrics import EdgeMetrics
from tests.support.scrapes import STATUS, rendered, values


def test_the_archivist_reports_whether_its_database_answers() -> None:
    for database, up in (("ok", 1), ("connection refused", 0)):
        row = {"index": 0, "alive": True, "archived": 9, "waiting": 5, "lag_ms": 1500, "database": database}
        text = rendered(EdgeMetrics("edge-0"), {**STATUS, "archivists": [row]})
        assert values(text, "engine_history_up") == {("0",): up}
        assert values(text, "engine_history_rows_total") == {("0",): 9}
        assert values(text, "engine_history_lag_seconds") == {("0",): 1.5}


def test_the_archivist_has_a_line_while_it_cannot_write() -> None:
    assert line({"waiting": 5, "database": "connection refused"}) == ("history", "5 outcomes wait: connection refused", True)
    assert line({"waiting": 5, "database": "ok"}) is None
    assert line({"alive": False}) is None
