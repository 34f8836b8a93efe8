"""What is reported of the events of Ray."""

from __future__ import annotations

from engine.features.ray_events.figures import line
from engine.gateway.metrics import EdgeMetrics
from tests.support.scrapes import STATUS, rendered, values


def test_the_watcher_reports_its_events_and_jobs() -> None:
    row = {"index": 0, "alive": True, "state": "ok", "told": 9, "refused": 2, "running_jobs": 3, "waiting": 1}
    text = rendered(EdgeMetrics("edge-0"), {**STATUS, "watchers": [row]})
    assert values(text, "engine_ray_events_told_total") == {("0",): 9}
    assert values(text, "engine_ray_events_refused_total") == {("0",): 2}
    assert values(text, "engine_ray_jobs") == {("0",): 3}
    assert values(text, "engine_ray_events_waiting") == {("0",): 1}


def test_the_watcher_has_a_line_while_a_part_does_not_answer() -> None:
    assert line({"state": "jobs: no answer"}) == ("ray events", "jobs: no answer", True)
    assert line({"state": "ok"}) is None
    assert line({"alive": False}) is None
