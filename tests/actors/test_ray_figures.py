"""The engine's totals among Ray's metrics."""

from __future__ import annotations

from typing import Any

import pytest
from ray.util import metrics

from engine.actors.ray_figures import COUNTERS, GAUGES, PERIOD_MS, RayFigures


class Shown:
    """What Ray's metrics have."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.broken = False
        self.calls = 0

    def metric(self, name: str, _description: str, tag_keys: tuple[str, ...]) -> Any:
        shown = self
        assert tag_keys == ("engine",)

        class Metric:
            def set(self, value: float, tags: dict[str, str]) -> None:
                shown.calls += 1
                if shown.broken:
                    raise RuntimeError("no exporter")
                shown.values[f"{tags['engine']} {name}"] = value

            def inc(self, value: float, tags: dict[str, str]) -> None:
                self.set(shown.values.get(f"{tags['engine']} {name}", 0) + value, tags)

        return Metric()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    made = Shown()
    monkeypatch.setattr(metrics, "Gauge", made.metric)
    monkeypatch.setattr(metrics, "Counter", made.metric)
    return made


def row(index: int, started_ms: int, **figures: int) -> dict[str, Any]:
    return {"role": "shard", "index": index, "started_ms": started_ms, **figures}


def test_gauges_are_sums_and_counters_grow_by_what_was_added(shown: Shown) -> None:
    figures = RayFigures("one")
    figures.report([row(0, 1, connections=2, published=10), row(1, 1, connections=3, published=5), {"role": "edge", "connections": 9}], 0)
    assert shown.values["one engine_connections"] == 5
    assert shown.values["one engine_published"] == 15
    figures.report([row(0, 1, connections=1, published=12), row(1, 1, connections=0, published=5)], PERIOD_MS)
    assert (shown.values["one engine_connections"], shown.values["one engine_published"]) == (1, 17)


def test_a_shard_that_starts_anew_counts_from_its_start(shown: Shown) -> None:
    figures = RayFigures("one")
    figures.report([row(0, 1, published=10)], 0)
    figures.report([row(0, 2, published=4)], PERIOD_MS)
    assert shown.values["one engine_published"] == 14


def test_they_are_set_every_few_seconds_only(shown: Shown) -> None:
    figures = RayFigures("one")
    figures.report([row(0, 1, published=1)], 0)
    calls = shown.calls
    figures.report([row(0, 1, published=2)], PERIOD_MS - 1)
    assert shown.calls == calls <= len(GAUGES) + len(COUNTERS)


def test_a_ray_that_has_no_metrics_disturbs_nobody(shown: Shown) -> None:
    figures = RayFigures("one")
    shown.broken = True
    figures.report([row(0, 1, published=1)], 0)
    shown.broken = False
    figures.report([row(0, 1, published=3)], PERIOD_MS)
    assert shown.values["one engine_published"] == 2
