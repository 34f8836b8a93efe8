"""What the controller knows of its actors."""

from __future__ import annotations

from engine.actors.fleet import Fleet
from engine.config import Config
from engine.core.controller.health import START_GRACE_FACTOR
from tests.support.fake_actors import FakeActors


def test_a_late_answer_of_a_guest_that_was_told_to_end_does_not_make_its_successor_one() -> None:
    fleet, key = Fleet(Config(), FakeActors(), lambda: 0.0), ("shard", 0)
    fleet.add(key)

    def answer() -> None:
        fleet.watches[key].answered({"pid": 1, "started_ms": 1, "cpu_s": 0.0, "has_place": False, "ready": True}, 0.0)
        fleet.answered(key)

    answer()
    assert fleet.guests == {key}
    fleet.drained(key)
    fleet.replace(key)
    answer()
    assert not fleet.guests


def test_a_guest_has_the_time_of_a_start_to_answer() -> None:
    now_ms = [0.0]
    config = Config()
    fleet, key = Fleet(config, FakeActors(), lambda: now_ms[0]), ("shard", 0)
    fleet.add(key)
    watch = fleet.watches[key]
    watch.answered({"pid": 1, "started_ms": 1, "cpu_s": 0.0, "ready": True}, 0.0)
    watch.restarting(0.0)
    patience_ms = START_GRACE_FACTOR * config.health_timeout_ms
    now_ms[0] = patience_ms
    fleet.take_over(key)
    assert watch.verdict(2 * patience_ms) == "leave"
    assert watch.verdict(2 * patience_ms + 1) == "replace"


async def test_where_actors_need_no_place_none_is_a_guest_and_ray_is_not_asked() -> None:
    actors, key = FakeActors(), ("shard", 0)
    fleet = Fleet(Config(place="anywhere", takeover_ms=1), actors, iter(range(0, 10_000, 1000)).__next__)
    fleet.add(key)
    fleet.watches[key].answered({"pid": 1, "started_ms": 1, "cpu_s": 0.0, "has_place": False, "ready": True}, 0.0)
    fleet.answered(key)
    assert not fleet.guests
    fleet.failed(key)
    assert fleet.without_place() == [key]
    assert not await fleet.look_for_places()
    assert actors.asked == 0


def test_a_next_process_that_does_not_serve_yet_is_waited_for_again() -> None:
    now_ms = [0.0]
    fleet, key = Fleet(Config(failover_ms=600), FakeActors(), lambda: now_ms[0]), ("shard", 0)
    fleet.add(key)

    def answer(at_ms: float, ready: bool) -> None:
        now_ms[0] = at_ms
        fleet.watches[key].answered({"pid": 1, "started_ms": 1, "cpu_s": 0.0, "queued_s": 0.0, "ready": ready}, at_ms)
        fleet.answered(key)

    answer(0, ready=True)
    fleet.failed(key, died=True)
    answer(500, ready=False)
    answer(1000, ready=False)
    now_ms[0] = 1599
    assert fleet.waited_for(key)
    assert not fleet.dead("shard")
    now_ms[0] = 1600
    assert not fleet.waited_for(key)
    assert fleet.dead("shard") == [0]
    answer(1601, ready=True)
    assert not fleet.dead("shard", 0)
