"""How many new actors start at a time."""

from __future__ import annotations

import asyncio

import pytest

from engine.actors.fleet import ActorKey, Fleet
from engine.actors.newcomers import CLOSE_ROUNDS_MS, FIRST_ANSWER_MS, Newcomers
from engine.config import Config
from tests.support.fake_actors import FakeActors


class World:
    """A fleet of members on some nodes, and a clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.actors = FakeActors()
        self.looks = 0  # at the clock
        self.fleet = Fleet(Config(), self.actors, self._clock)
        self.newcomers = Newcomers(self.fleet, self._clock)

    def _clock(self) -> float:
        self.looks += 1
        return self.now_ms

    def member(self, key: ActorKey, node: str) -> None:
        self.fleet.add(key)
        self.ready(key, node)

    def ready(self, key: ActorKey, node: str = "a") -> None:
        self.answer(key, node, ready=True)

    def answer(self, key: ActorKey, node: str = "a", *, ready: bool) -> None:
        times = {"started_ms": 1, "cpu_s": 0.0, "queued_s": 0.0}
        self.fleet.watches[key].answered({"pid": 1, **times, "node_id": node, "ready": ready}, self.now_ms)
        self.fleet.answered(key)

    async def wait(self, ms: float) -> None:
        """Nobody who has not answered yet does meanwhile; the controller asks Ray for places, as it does then."""
        self.now_ms += ms
        assert await self.fleet.look_for_places()


@pytest.fixture
def world() -> World:
    made = World()
    made.member(("shard", 0), "a")
    return made


def test_on_one_node_a_new_actor_is_created_when_the_one_before_is_ready_whatever_their_roles(world: World) -> None:
    for _ in range(3):
        world.newcomers.create("shard", range(1, 3))
        world.newcomers.create("edge", range(1))
    assert (world.actors.of("shard"), world.actors.of("edge")) == ([0, 1], [])
    world.ready(("shard", 1))
    world.newcomers.create("edge", range(1))
    world.newcomers.create("shard", range(1, 3))
    assert (world.actors.of("shard"), world.actors.of("edge")) == ([0, 1], [0])
    world.ready(("edge", 0))
    world.newcomers.create("shard", range(1, 3))
    assert world.actors.of("shard") == [0, 1, 2]


def test_as_many_start_at_a_time_as_there_are_nodes_with_actors(world: World) -> None:
    world.member(("edge", 0), "b")
    world.member(("edge", 1), "b")
    world.newcomers.create("shard", range(1, 6))
    assert world.actors.of("shard") == [0, 1, 2]
    world.ready(("shard", 2))
    world.newcomers.create("shard", range(1, 6))
    assert world.actors.of("shard") == [0, 1, 2, 3]


async def test_once_one_waits_for_a_place_all_of_its_role_do_so_that_the_demand_is_seen_and_other_roles_go_on(world: World) -> None:
    world.newcomers.create("shard", range(1, 5))
    await world.wait(6_000)
    world.newcomers.create("shard", range(1, 5))
    assert world.actors.of("shard") == [0, 1], "a node has a place: it starts slowly"
    world.actors.room = False
    await world.wait(0)
    world.newcomers.create("shard", range(1, 5))
    assert world.actors.of("shard") == [0, 1, 2, 3, 4]
    for shard in range(2, 5):
        assert ("shard", shard) in world.fleet.joining
    await world.wait(6_000)
    world.newcomers.create("edge", range(1))
    assert world.actors.of("edge") == [0]


async def test_places_that_were_full_once_say_nothing_of_those_who_start_another_day(world: World) -> None:
    world.actors.room = False
    world.newcomers.create("shard", range(1, 2))
    await world.wait(6_000)
    world.actors.room = True
    world.ready(("shard", 1))
    assert not await world.fleet.look_for_places(), "nobody needs one"
    world.now_ms += 3_600_000
    for _ in range(2):
        world.newcomers.create("shard", range(2, 9))
        world.now_ms += 6_000
    assert world.actors.of("shard") == [0, 1, 2]


async def test_an_answer_about_places_that_comes_when_nobody_needs_one_is_not_taken_for_a_later_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = asyncio.Event()

    async def late() -> dict[str, tuple[int, int]]:
        await hanging.wait()
        return {"shard": (4, 0)}

    world.newcomers.create("shard", range(1, 2))
    world.now_ms += 6_000
    with monkeypatch.context() as patch:
        patch.setattr("engine.actors.fleet._PLACES_S", 0)
        patch.setattr(world.actors, "places", late)
        assert not await world.fleet.look_for_places()
    world.ready(("shard", 1))
    hanging.set()
    assert not await world.fleet.look_for_places(), "nobody needs one"
    world.newcomers.create("shard", range(2, 3))
    await world.wait(6_000)
    assert world.fleet.free_places("shard") == 1


async def test_the_clock_is_read_a_few_times_for_each_actor_however_many_there_are(world: World) -> None:
    world.actors.room = False
    world.newcomers.create("shard", range(1, 2))
    await world.wait(6_000)
    world.newcomers.create("shard", range(1, 256))
    await world.wait(6_000)
    world.looks = 0
    world.newcomers.create("shard", range(1, 512))
    assert len(world.fleet.waiting()) == 255
    assert world.looks < 5 * 512


async def test_one_that_does_not_answer_although_a_node_has_a_place_holds_the_others_up_for_some_seconds(world: World) -> None:
    world.newcomers.create("shard", range(1, 4))
    await world.wait(FIRST_ANSWER_MS - 1)
    world.newcomers.create("shard", range(1, 4))
    assert world.actors.of("shard") == [0, 1]
    await world.wait(1)
    world.newcomers.create("shard", range(1, 4))
    assert world.actors.of("shard") == [0, 1, 2], "as long as that one starts no other does"
    assert world.newcomers.about_to_be_ready


def test_one_that_has_answered_and_is_not_ready_yet_takes_the_time_of_a_start(world: World) -> None:
    world.newcomers.create("shard", range(1, 3))
    world.answer(("shard", 1), ready=False)
    world.now_ms += FIRST_ANSWER_MS
    world.newcomers.create("shard", range(1, 3))
    assert world.actors.of("shard") == [0, 1]


def test_one_that_is_not_ready_for_long_holds_nobody_up(world: World) -> None:
    world.newcomers.create("shard", range(1, 3))
    world.now_ms += CLOSE_ROUNDS_MS
    assert not world.newcomers.about_to_be_ready
    assert world.newcomers.waiting()["shards"] == 1
    world.newcomers.create("shard", range(1, 3))
    assert world.actors.of("shard") == [0, 1, 2]
    assert world.newcomers.waiting()["shards"] == 1
