"""The metrics of windows: what a shard reports, as an edge exports it."""

from __future__ import annotations

from engine.core.model.envelope import Merge
from engine.gateway.metrics import EdgeMetrics
from tests.support.scrapes import rendered, values
from tests.support.shard_world import World


def exported(world: World) -> tuple[float, float, float]:
    row = {"index": 0, "alive": True, **world.core.stats(world.now_ms)}
    text = rendered(EdgeMetrics("edge-0"), {"shards": [row]})
    names = ("engine_windows_open", "engine_merged_total", "engine_windows_closed_total")
    opened, merged, closed = (values(text, name)[("0",)] for name in names)
    return opened, merged, closed


def test_the_windows_of_a_shard_are_exported() -> None:
    world = World()
    for collapse, leading in (("likes", False), ("likes", False), ("follows", True)):
        world.publish(collapse=collapse, merge=Merge(300, leading))
    world.settle()
    assert exported(world) == (2, 2, 0), "a message that opens a leading window is delivered"
    world.now_ms += 300
    world.core.tick(world.now_ms)
    world.settle()
    assert exported(world) == (0, 2, 2)


def test_a_replay_counts_no_window_again() -> None:
    world = World()
    world.publish(collapse="likes", merge=Merge(300, False))
    world.settle()
    world.crash()
    assert exported(world) == (1, 0, 0)
