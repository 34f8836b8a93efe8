"""Live scaling by the controller, with actors that do nothing but keep the slot map in a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from unittest.mock import AsyncMock

import httpx
import msgspec
import pytest
from ray.exceptions import ActorUnavailableError, RayError
from redis.asyncio import Redis

from engine.actors import controller as controller_module
from engine.actors import spare_wait, spares
from engine.actors.actor_process import ProcessContext, monotonic_ms
from engine.actors.controller import Controller
from engine.actors.fleet import ActorKey
from engine.actors.replacements import Replacements
from engine.config import Config
from engine.core.controller.health import START_GRACE_FACTOR
from engine.core.controller.wanted import WantedNumbers
from engine.core.model.formats import FORMATS
from engine.core.model.routing import NOBODY, SLOTS, SlotMap
from engine.errors import ConfigError, StorageUnavailable
from engine.store.epoch import claim_end, claim_name, take_epoch
from engine.store.keys import CONTROLLER_FIELD, META_KEY, WANTED_FIELD
from engine.store.redis_client import connect
from engine.store.slot_map import require_slot_map, swap_slot_map
from engine.store.wanted_numbers import read_wanted, write_wanted
from tests.support import fake_actors
from tests.support.chaos.traffic import Traffic
from tests.support.fake_actors import FakeActor, FakeActors
from tests.support.running_engine import RunningEngine
from tests.support.waiting import PATIENCE_S, until

CONFIG = Config(address="auto", shards=2, schedulers=1, edges=1, health_ms=20, stop_timeout_ms=10_000, drain_spread_ms=100, drain_ms=100)


class World:
    """A controller that can be started again, and its actors."""

    def __init__(self, redis_client: Redis, *urls: str, others: Sequence[Redis] = ()) -> None:
        """`urls`: of the stores, which are databases of one server here."""
        self.redis = redis_client
        self.actors = FakeActors(redis_client, *others)
        self.ended = 0
        self.urls = urls
        self.controller: Controller

    async def start(self, **changes: Any) -> Controller:
        context = ProcessContext(
            end_process=self._end,
            vitals=lambda role, index, started_ms: {
                "role": role,
                "index": index,
                "pid": 1,
                "started_ms": started_ms,
                "cpu_s": 0.0,
                "queued_s": 0.0,
            },
            connect=self._connect,
            peer=self.actors.peer,
        )
        url = self.urls[0] if len(self.urls) == 1 else f"redis+cluster://stores/{len(self.urls)}"
        config = msgspec.structs.replace(CONFIG, redis_url=url, **changes)
        self.controller = Controller(config, context, self.actors)
        await self.controller.created()
        return self.controller

    async def start_settled(self, **changes: Any) -> Controller:
        """As `start`, until everything is as it is wanted."""
        controller = await self.start(**changes)
        await self.settled()
        return controller

    def _connect(self, config: Config) -> Redis:
        number = config.redis_url.rpartition("#")[2]
        return connect(msgspec.structs.replace(config, redis_url=self.urls[int(number) if number.isdigit() else 0]))

    def _end(self) -> None:
        self.ended += 1

    async def crash(self) -> None:
        """The controller's process dies; its actors live on."""
        tasks = [self.controller._watching, self.controller._reconciling, self.controller._created]
        tasks += [self.controller._round] if self.controller._round is not None else []
        for task in tasks:
            task.cancel()
        self.controller._lifelines.cut()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self.controller._clients:
            await client.aclose()

    async def slots(self) -> SlotMap:
        return await require_slot_map(self.redis)

    async def settled(self) -> dict[str, Any]:
        """The status once everything is as it is wanted."""
        return await self.when(lambda scaling: bool(scaling["settled"]))

    async def when(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                if self.controller._reconciling.done():
                    self.controller._reconciling.result()  # raises what ended it
                scaling: dict[str, Any] = (await self.controller.status())["scaling"]
                if holds(scaling):
                    return scaling
                await asyncio.sleep(0.01)


@pytest.fixture
async def world(redis_client: Redis, redis_server_url: str) -> AsyncIterator[World]:
    made = World(redis_client, redis_server_url)
    yield made
    await made.crash()


@pytest.fixture
async def two_stores(redis_client: Redis, redis_server_url: str) -> AsyncIterator[World]:
    """Its data are in two stores: two databases of one server."""
    second_url = f"{redis_server_url}?db=1"
    async with Redis.from_url(second_url) as second:
        await second.flushdb()
        made = World(redis_client, redis_server_url, second_url, others=[second])
        yield made
        await made.crash()


def held_hand_over(actor: FakeActor) -> tuple[asyncio.Event, asyncio.Event]:
    """From now on a hand-over of this actor waits; the events that it was asked for, and that it may go on."""
    asked, going_on = asyncio.Event(), asyncio.Event()
    hand_over = actor._hand_over

    async def slowly(*arguments: Any) -> int:
        asked.set()
        await going_on.wait()
        return await hand_over(*arguments)

    actor._hand_over = slowly  # type: ignore[method-assign]
    return asked, going_on


async def test_connections_of_an_edge_go_to_one_that_joins(world: World) -> None:
    await world.start_settled()
    first = world.actors.actors["edge", 0]
    first.connections = 400
    await world.controller.scale(edges=2)
    await until(lambda: first.connections == 200, 30)
    assert [call for call in first.calls if call[0] == "release"] == [("release", 200)]


async def test_shards_that_are_added_get_their_share_of_the_slots_and_no_slot_moves_twice(world: World) -> None:
    controller = await world.start()
    await controller.scale(shards=4, by="somebody")
    status = await world.settled()
    slots = await world.slots()
    assert slots.shards == 4
    assert Counter(slots.owners) == dict.fromkeys(range(4), SLOTS // 4)
    assert len(world.actors.moved) == len({slot for slot, _, _ in world.actors.moved}) == SLOTS // 2
    assert {target for _, _, target in world.actors.moved} == {2, 3}
    assert (status["wanted"]["shards"], status["by"], status["slots_left"], status["slots_moved"]) == (4, "somebody", 0, SLOTS // 2)


async def test_an_actor_that_nobody_looks_after_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that was cut off had created it anew, after its successor had ended it."""
    monkeypatch.setattr(controller_module, "_STRAYS_MS", 50)
    controller = await world.start_settled()
    world.actors.create(None, "shard", 2)
    await until(lambda: ("shard", 2) not in world.actors.actors or world.actors.actors["shard", 2].gone)
    assert (await world.settled())["have"]["shards"] == 2
    assert sorted(controller._fleet.keys("shard")) == [("shard", 0), ("shard", 1)]


async def test_stopping_a_controller_without_storage_ends_all_actors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.start_settled()
    await world.crash()
    before = world.controller
    monkeypatch.setattr(controller_module, "take_control", AsyncMock(side_effect=StorageUnavailable("away")))
    starting = asyncio.ensure_future(world.start())
    await until(lambda: world.controller is not before)
    world.actors.draining = {"here": 1}  # shards may be drained with their slots
    await world.controller.stop()
    await asyncio.gather(starting, return_exceptions=True)
    assert not world.actors.actors


async def test_a_controller_that_has_stopped_the_engine_ends_for_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may be left to end it: the next `engine up` would find a controller that looks after nobody."""
    monkeypatch.setattr(controller_module, "_STOPPED_S", 0.05)
    controller = await world.start_settled()
    world.actors.draining = {"here": 1}  # shards may be drained with their slots
    await asyncio.gather(controller.stop(), controller.stop())
    assert not world.actors.actors
    assert not (await controller.status())["ready"]
    await until(lambda: world.actors.controllers_ended == 1)


async def test_stopping_a_refused_controller_ends_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.start_settled()
    await world.crash()
    monkeypatch.setattr(controller_module, "take_control", AsyncMock(side_effect=ConfigError("not these data")))
    with pytest.raises(ConfigError):
        await world.start()
    before = dict(world.actors.actors)
    await world.controller.stop()
    assert world.actors.actors == before


async def test_actors_of_features_are_drained_beside_the_schedulers(world: World) -> None:
    controller = await world.start_settled(history_url="sqlite:///h", stop_timeout_ms=60_000)
    drained = asyncio.Event()
    world.actors.actors["scheduler", 0]._drain = lambda *_: drained.wait()  # type: ignore[method-assign, assignment, return-value]
    world.actors.draining = {"here": 1}  # shards may be drained with their slots
    archivist = world.actors.actors["archivist", 0]
    stopping = asyncio.ensure_future(controller.stop())
    await until(lambda: archivist.drained)
    drained.set()
    await stopping
    assert not world.actors.actors


@pytest.mark.parametrize("first", ["stop", "upgrade"])
async def test_an_upgrade_during_a_stop_leaves_no_actor(world: World, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """Ray names an actor for a moment after its end."""
    controller = await world.start_settled(stop_timeout_ms=60_000)
    asked, going_on, drained = asyncio.Event(), asyncio.Event(), asyncio.Event()
    names = await world.actors.names("")

    async def late(_namespace: str) -> set[str]:
        asked.set()
        await going_on.wait()
        return names

    monkeypatch.setattr(world.actors, "names", late)
    monkeypatch.setattr(controller_module, "_STRAYS_S", PATIENCE_S)
    world.actors.actors["scheduler", 0]._drain = lambda *_: drained.wait()  # type: ignore[method-assign, assignment, return-value]
    world.actors.draining = {"here": 1}  # shards may be drained with their slots
    upgrade = asyncio.ensure_future(controller.upgrade()) if first == "upgrade" else None
    if upgrade is not None:
        await asked.wait()
    stopping = asyncio.ensure_future(controller.stop())
    await until(lambda: not world.actors.of("shard"))
    going_on.set()
    with pytest.raises(StorageUnavailable, match="stopping"):
        await (upgrade or controller.upgrade())
    drained.set()
    await stopping
    assert not world.actors.actors


async def test_an_edge_serves_on_after_a_lost_call_to_leave(world: World) -> None:
    controller = await world.start_settled(edges=2)
    edge = world.actors.actors["edge", 0]
    hand_over = edge._hand_over
    edge._hand_over = AsyncMock(side_effect=ActorUnavailableError("cut off", None))  # type: ignore[method-assign]
    with pytest.raises(RayError):
        await controller.drain_edge(0)
    assert controller._fleet.serves(("edge", 0))

    async def heard(*arguments: Any) -> int:
        edge.ready = False
        raise ActorUnavailableError("the answer was lost", None)

    edge._hand_over = heard  # type: ignore[method-assign]
    with pytest.raises(RayError):
        await controller.drain_edge(0)
    assert not controller._fleet.serves(("edge", 0))
    edge._hand_over, edge.ready = hand_over, True  # type: ignore[method-assign]
    await until(lambda: controller._fleet.serves(("edge", 0)))
    assert await controller.drain_edge(0) == ("", 0)


async def test_no_edge_is_drained_while_the_other_one_is_told_to_leave(world: World) -> None:
    controller = await world.start_settled(edges=2)
    first, second = (world.actors.actors["edge", index] for index in (0, 1))
    told, answers = held_hand_over(first)
    await controller.upgrade()
    async with asyncio.timeout(30):
        await told.wait()
    refusal, _ = await controller.drain_edge(1)
    assert refusal == "no edge but edge-1 serves: its clients would have nowhere to go"
    answers.set()
    await upgraded(world)
    assert second.calls.count(("hand_over",)) == 1


async def test_an_edge_is_told_again_to_leave_that_did_not_answer(world: World) -> None:
    controller = await world.start_settled(edges=2)
    edge = world.actors.actors["edge", 0]
    hand_over, lost = edge._hand_over, AsyncMock(side_effect=RayError("lost"))

    async def at_the_second_call(*arguments: Any) -> int:
        edge._hand_over = hand_over  # type: ignore[method-assign]
        return int(await lost())

    edge._hand_over = at_the_second_call  # type: ignore[method-assign]
    await controller.upgrade()
    await upgraded(world)
    assert lost.await_count == 1


@pytest.mark.parametrize("role", ["shard", "scheduler", "archivist"])
async def test_a_process_is_ended_again_that_did_not_hear_it(world: World, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word of its end was lost on the way to its node."""
    controller = await world.start_settled(history_url="sqlite:///h", health_timeout_ms=200)
    kill, unheard = world.actors.kill, []

    def lost_once(handle: FakeActor, *, restart: bool) -> None:
        if restart and handle.key == (role, 0) and not unheard:
            unheard.append(handle.key)
        else:
            kill(handle, restart=restart)

    monkeypatch.setattr(world.actors, "kill", lost_once)
    await controller.upgrade()
    async with asyncio.timeout(20):
        await upgraded(world)
    assert unheard == [(role, 0)]
    assert world.actors.replaced.count((role, 0)) == 1


async def test_numbers_beyond_what_the_nodes_carry_are_refused_unless_forced(world: World) -> None:
    controller = await world.start_settled()
    world.actors.carried = {"shard": 3, "scheduler": 1, "edge": 1}
    refused = await controller.scale(shards=4, edges=1)
    assert refused["fits"] == {"shards": 3, "schedulers": 1, "edges": 1}
    assert "4 shards" in refused["refused"]
    assert "3" in refused["refused"]
    assert (await world.settled())["wanted"]["shards"] == 2, "nothing was stored"
    await controller.scale(shards=3)
    assert (await world.settled())["have"]["shards"] == 3
    await controller.scale(shards=5, force=True)
    assert (await world.settled())["have"]["shards"] == 5
    await controller.scale(shards=4)
    assert (await world.settled())["have"]["shards"] == 4, "fewer than there are is never too many"


async def test_numbers_are_taken_when_ray_does_not_say_what_the_nodes_carry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*, by_cores: bool) -> dict[str, int]:
        raise RayError("away")

    controller = await world.start()
    monkeypatch.setattr(world.actors, "capacity", away)
    await controller.scale(shards=3)
    assert (await world.settled())["have"]["shards"] == 3


async def test_no_actor_is_created_while_rays_control_service_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call would block the controller, and with it the fail-over of shards."""
    controller = await world.start_settled()
    with monkeypatch.context() as patch:
        away = AsyncMock(side_effect=RayError("away"))
        patch.setattr(world.actors, "capacity", away)
        patch.setattr(world.actors, "draining_nodes", away)
        await controller.scale(edges=2)
        await until(lambda: away.await_count > 5)
        assert world.actors.of("edge") == [0]
    await world.settled()
    assert world.actors.of("edge") == [0, 1]


async def test_strays_are_not_sought_while_rays_control_service_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search would keep a thread until it is back, and the next question about nodes would find none."""
    monkeypatch.setattr(controller_module, "_STRAYS_MS", 20)
    monkeypatch.setattr(controller_module, "_STRAYS_S", 0.01)
    await world.start_settled()
    away = AsyncMock(side_effect=RayError("away"))
    sought = 0

    async def unanswered(_namespace: str) -> set[str]:
        nonlocal sought
        sought += 1
        await asyncio.Event().wait()
        return set()

    with monkeypatch.context() as patch:
        patch.setattr(world.actors, "draining_nodes", away)
        patch.setattr(world.actors, "names", unanswered)
        await until(lambda: away.await_count > 20)
        assert sought <= 1, "one may be under way when it goes"
    back = AsyncMock(return_value=set())
    monkeypatch.setattr(world.actors, "names", back)
    await until(lambda: back.await_count > 0)


async def test_one_search_finds_all_strays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "_STRAYS_MS", 3_600_000)
    controller = await world.start_settled()
    for role in ("shard", "scheduler"):
        world.actors.create(None, role, 4)
    controller._strays_at_ms = 0.0
    await until(lambda: not {("shard", 4), ("scheduler", 4)} & world.actors.actors.keys())


async def test_an_actor_that_is_ended_while_a_round_of_questions_begins_is_not_asked(world: World) -> None:
    controller = await world.start_settled()
    ended = world.actors.actors["shard", 1]
    asked = asyncio.ensure_future(controller._ask_all())
    await asyncio.sleep(0)  # the questions are about to be asked
    before = len(ended.calls)
    controller._fleet.end(("shard", 1))
    await asked
    assert len(ended.calls) == before


async def test_a_rebalancing_that_is_wanted_while_shards_leave_is_done_afterwards(world: World) -> None:
    controller = await world.start_settled(shards=3)
    first, last = (world.actors.actors["shard", index] for index in (0, 2))
    asked, going_on = held_hand_over(last)
    await controller.scale(shards=2)
    async with asyncio.timeout(30):
        await asked.wait()
    first.loads = {slot: 100.0 for slot, owner in enumerate((await world.slots()).owners) if owner == 0}
    await controller.rebalance()
    going_on.set()
    await world.settled()
    counts = Counter((await world.slots()).owners)
    assert set(counts) == {0, 1}
    assert counts[0] < counts[1], "the first shard is the busier one"


async def test_shards_that_are_removed_leave_when_their_slots_have_moved_and_everybody_knows(world: World) -> None:
    controller = await world.start_settled(shards=4)
    await controller.scale(shards=2)
    await world.settled()
    slots = await world.slots()
    assert slots.shards == 2
    assert Counter(slots.owners) == dict.fromkeys(range(2), SLOTS // 2)
    assert len(world.actors.moved) == SLOTS // 2
    assert world.actors.of("shard") == [0, 1]
    assert sorted(world.actors.ended) == [("shard", 2), ("shard", 3)]


async def test_a_controller_that_dies_in_the_middle_is_continued_by_its_successor(world: World) -> None:
    controller = await world.start()
    await controller.scale(shards=5, schedulers=3, edges=2)
    while len(world.actors.moved) < SLOTS // 4:
        await asyncio.sleep(0.001)
    await world.crash()
    assert (await world.slots()).version > 2
    await world.start()
    status = await world.settled()
    assert status["have"] == {"shards": 5, "schedulers": 3, "edges": 2}
    assert len({slot for slot, _, _ in world.actors.moved}) == len(world.actors.moved), "what had moved stayed"
    assert max(Counter((await world.slots()).owners).values()) == SLOTS // 5 + 1


async def start_one_by_one(world: World) -> list[ActorKey]:
    """Let each new actor be ready when it has been asked a few times; returns them in order. Never two of them start at a time."""
    started = []
    while not (await world.controller.status())["scaling"]["settled"]:
        starting = [actor for actor in world.actors.actors.values() if not actor.ready]
        assert len(starting) <= 1
        if starting and len(starting[0].calls) > 5:
            starting[0].ready = True
            started.append(starting[0].key)
        await asyncio.sleep(0.01)
    return started


async def test_of_several_new_actors_one_starts_at_a_time_on_one_node(world: World) -> None:
    controller = await start_ready(world)
    world.actors.born_ready = False
    await controller.scale(shards=4, schedulers=2, edges=3)
    async with asyncio.timeout(60):
        started = await start_one_by_one(world)
    assert sorted(started) == [("edge", 1), ("edge", 2), ("scheduler", 1), ("shard", 2), ("shard", 3)]


async def test_a_successor_starts_the_new_edges_one_at_a_time_that_its_predecessor_did_not(world: World) -> None:
    controller = await start_ready(world)
    world.actors.born_ready = False
    await controller.scale(edges=4)
    await until(lambda: world.actors.of("edge") == [0, 1])
    await world.crash()
    world.actors.actors["edge", 1].ready = True
    await world.start()
    async with asyncio.timeout(60):
        assert await start_one_by_one(world) == [("edge", 2), ("edge", 3)]


async def test_an_engine_whose_controller_died_before_it_had_an_edge_is_not_ready_without_one(world: World) -> None:
    await world.start_settled(edges=2)
    await world.crash()
    world.actors.actors = {key: actor for key, actor in world.actors.actors.items() if key[0] != "edge"}
    world.actors.born_ready = False
    controller = await world.start(edges=2)
    await until(controller.status, holds=lambda status: status["shards"][1]["ready"] and status["schedulers"][0]["ready"])
    assert not (await controller.status())["ready"]
    world.actors.actors["edge", 0].ready = True
    await until(controller.status, holds=lambda status: status["ready"])


async def test_a_successor_ends_what_its_predecessor_did_not(world: World) -> None:
    controller = await world.start_settled(shards=3, edges=2)
    world.actors.actors["shard", 2].silent = True  # nothing can move away from it
    await controller.scale(shards=2, edges=2)
    await world.crash()
    world.actors.actors["shard", 2].silent = False
    await world.start_settled(shards=3, edges=2)
    assert world.actors.of("shard") == [0, 1]
    assert (await read_wanted(world.redis)).shards == 2  # type: ignore[union-attr]


async def test_the_numbers_may_change_in_the_middle(world: World) -> None:
    controller = await world.start()
    await controller.scale(shards=6)
    while len(world.actors.moved) < SLOTS // 4:
        await asyncio.sleep(0.001)
    await controller.scale(shards=3)
    await world.settled()
    counts = Counter((await world.slots()).owners)
    assert set(counts) == {0, 1, 2}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert world.actors.of("shard") == [0, 1, 2]


async def test_a_source_that_dies_hands_its_slots_over_later(world: World) -> None:
    controller = await world.start()
    source = world.actors.actors["shard", 0]
    left = [3]

    def die() -> None:
        if left:
            left.pop()
            world.actors.fail()

    source.before_hand_over = die
    await controller.scale(shards=3)
    await world.settled()
    assert not left
    assert len(world.actors.moved) == len({slot for slot, _, _ in world.actors.moved}) == SLOTS // 3


async def test_new_shards_that_wait_for_a_machine_hold_nobody_up(world: World) -> None:
    controller = await world.start()
    world.actors.born_ready = False
    await controller.scale(shards=3)
    status = await world.when(lambda scaling: bool(scaling["joining"]))
    assert (status["joining"], status["have"]["shards"], status["settled"]) == (["shard-2"], 2, False)
    await until(controller.status, holds=lambda status: status["ready"])
    assert not world.actors.moved
    world.actors.actors["shard", 2].ready = True
    await world.settled()
    assert (await world.slots()).shards == 3


async def test_shards_that_found_no_machine_are_given_up_without_a_move(world: World) -> None:
    controller = await world.start()
    world.actors.born_ready = False
    await controller.scale(shards=3)
    await world.when(lambda scaling: bool(scaling["joining"]))
    await controller.scale(shards=2)
    await world.settled()
    assert world.actors.of("shard") == [0, 1]
    assert not world.actors.moved


async def test_all_schedulers_follow_a_map_that_moves_their_partitions(world: World) -> None:
    controller = await world.start()
    await controller.scale(schedulers=2)
    await world.settled()
    version = (await world.slots()).version
    assert (await world.slots()).schedulers == 2
    assert all(("follow", version) in world.actors.actors["scheduler", index].calls for index in range(2))
    await controller.scale(schedulers=1)
    await world.settled()
    assert (await world.slots()).schedulers == 1
    assert world.actors.of("scheduler") == [0]


async def test_an_edge_leaves_when_its_clients_have_and_only_while_another_serves(world: World) -> None:
    controller = await world.start(edges=1)
    await controller.scale(edges=3)
    await world.settled()
    assert world.actors.of("edge") == [0, 1, 2]
    leaving = world.actors.actors["edge", 2]
    await controller.scale(edges=1)
    await world.settled()
    assert ("hand_over",) in leaving.calls
    assert world.actors.of("edge") == [0]


async def test_an_edge_that_has_left_is_ended_before_its_next_process_is_started(world: World) -> None:
    controller = await world.start_settled(edges=2)
    world.actors.actors["edge", 1].lingers = True
    await controller.scale(edges=1)
    await world.settled()
    assert (world.actors.of("edge"), world.actors.ended, world.actors.replaced) == ([0], [("edge", 1)], [])


async def test_the_last_edge_that_serves_stays_whatever_is_wanted(world: World) -> None:
    controller = await world.start_settled(edges=2)
    world.actors.actors["edge", 0].ready = False
    await world.when(lambda scaling: scaling["have"]["edges"] == 1)
    await controller.scale(edges=1)
    before = len(world.actors.actors["edge", 1].calls)
    while len(world.actors.actors["edge", 1].calls) < before + 5:
        await asyncio.sleep(0.01)
    assert world.actors.of("edge") == [0, 1]
    world.actors.actors["edge", 0].ready = True
    await world.settled()
    assert world.actors.of("edge") == [0]


def shared_evenly(slots: SlotMap) -> bool:
    return Counter(slots.owners) == dict.fromkeys(range(2), SLOTS // 2)


async def test_slots_of_a_dead_shard_go_to_others_and_come_back(world: World) -> None:
    await world.start_settled(failover_ms=100)
    world.actors.actors["shard", 1].lost = True
    await until(world.slots, 30, holds=lambda slots: set(slots.owners) == {0})
    assert not world.actors.moved, "nobody hands over what a dead shard has"
    world.actors.actors["shard", 1].lost = False
    await until(world.slots, 60, holds=shared_evenly)


async def test_slots_move_when_a_connection_breaks_and_nobody_answers(world: World) -> None:
    await world.start_settled(failover_ms=100)
    dead = world.actors.actors["shard", 1]
    await dead.die()
    await until(world.slots, 30, holds=lambda slots: set(slots.owners) == {0})
    dead.begin()
    await until(world.slots, 60, holds=shared_evenly)


async def test_a_next_process_that_dies_after_its_answer_loses_its_slots(world: World) -> None:
    controller = await world.start_settled(failover_ms=100, health_ms=600_000)
    dead = world.actors.actors["shard", 1]
    calls = len(dead.calls)
    await until(lambda: dead.connected)
    dead.break_connections()  # of its process: the next one answers, and serves
    await until(lambda: len(dead.calls) > calls and controller._fleet.serves(("shard", 1)))
    await dead.die()
    await until(world.slots, 5, holds=lambda slots: set(slots.owners) == {0})


async def test_the_late_failure_of_a_call_says_nothing_of_the_next_process(world: World) -> None:
    controller = await world.start_settled(failover_ms=600_000, health_ms=600_000)
    shard, answer, failing = world.actors.actors["shard", 1], FakeActor.answer, asyncio.Event()

    async def answer_late(actor: FakeActor, name: str, arguments: tuple[Any, ...]) -> Any:
        if actor is shard and not failing.is_set():
            await failing.wait()
            raise ActorUnavailableError("its process has ended", None)
        return await answer(actor, name, arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FakeActor, "answer", answer_late)
        asked = asyncio.ensure_future(controller._ask(("shard", 1)))
        await asyncio.sleep(0)
    await controller._ask(("shard", 1))
    failing.set()
    await asked
    assert controller._fleet.serves(("shard", 1))
    assert not controller._fleet.dead("shard", 0)


async def test_only_a_dead_shard_with_a_spare_process_keeps_its_slots(world: World) -> None:
    controller = await world.start_settled(shards=3, failover_ms=600_000)
    assert world.actors.warm == 1
    before = await world.slots()
    for index in (1, 2):
        dead = world.actors.actors["shard", index]
        await dead.die()
        await until(lambda index=index: index in controller._fleet.dead("shard", 0))
    after = await until(world.slots, holds=lambda slots: 2 not in slots.owners)
    assert after.slots_of(1) == before.slots_of(1)


async def test_slots_of_a_dead_shard_go_to_others_during_another_move(world: World) -> None:
    controller = await world.start_settled(shards=3, failover_ms=100)
    slow, dead = (world.actors.actors["shard", index] for index in (2, 1))
    begun, going_on = held_hand_over(slow)
    await controller.scale(shards=2)
    await begun.wait()
    await dead.die()
    await until(world.slots, 5, holds=lambda slots: 1 not in slots.owners)
    going_on.set()
    dead.begin()
    await until(world.slots, 60, holds=shared_evenly)


async def test_another_store_that_is_away_delays_no_fail_over(two_stores: World, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await two_stores.start(shards=4, schedulers=2, failover_ms=300)
    await two_stores.settled()
    away = AsyncMock(side_effect=ConnectionError("away"))
    monkeypatch.setattr(controller._clients[1], "execute_command", away)
    await until(lambda: away.await_count > 5)
    dead = two_stores.actors.actors["shard", 2]
    await dead.die()
    await until(two_stores.slots, 5, holds=lambda slots: set(slots.owners) == {0, NOBODY})


@pytest.mark.parametrize("away_store", [0, 1])
async def test_a_silent_shard_of_a_store_that_answers_is_replaced(
    two_stores: World, monkeypatch: pytest.MonkeyPatch, away_store: int
) -> None:
    """While the first store is away nobody is replaced: the controller may be cut off, or have a successor."""
    controller = await two_stores.start(shards=4, schedulers=2, health_timeout_ms=200)
    await two_stores.settled()
    away = AsyncMock(side_effect=ConnectionError("away"))
    monkeypatch.setattr(controller._clients[away_store], "execute_command", away)
    await until(lambda: away.await_count > 5)
    actors = [two_stores.actors.actors[key] for key in (("shard", 2), ("shard", 3), ("scheduler", 0), ("scheduler", 1), ("edge", 0))]
    before = [actor.pid for actor in actors]
    for actor in actors:
        actor.silent = True
    if away_store == 1:
        await until(lambda: actors[0].pid != before[0] and actors[2].pid != before[2], 30)
    else:
        await asyncio.sleep(0.5)  # the silence itself
    kept = (1, 3, 4) if away_store == 1 else range(5)
    assert all(actors[at].pid == before[at] for at in kept)


@pytest.mark.parametrize(("carrier", "kept"), [("tcp", True), ("unix", False)])
async def test_a_break_while_storage_is_away_counts_only_within_a_node(
    world: World, monkeypatch: pytest.MonkeyPatch, carrier: str, kept: bool
) -> None:
    """Between nodes the controller may be the one that is cut off."""
    monkeypatch.setattr(fake_actors.Connection, "carrier", carrier)
    controller = await world.start_settled(failover_ms=50)
    silent, away = world.actors.actors["shard", 1], AsyncMock(side_effect=ConnectionError("away"))
    with monkeypatch.context() as patch:
        patch.setattr(controller._clients[0], "execute_command", away)
        await silent.die()
        await until(lambda: not controller._fleet.serves(("shard", 1)))
        await asyncio.sleep(0.3)
        assert (controller._fleet.dead("shard", 0) == []) == kept
    await until(lambda: controller._redis["alive"])
    await asyncio.sleep(0.3)
    assert (1 in (await world.slots()).owners) == kept


async def test_an_answer_asked_before_the_break_keeps_no_slots(world: World) -> None:
    controller = await world.start_settled(failover_ms=100)
    dead = world.actors.actors["shard", 1]
    stats, asked, broken = dead._stats, asyncio.Event(), asyncio.Event()

    async def late() -> dict[str, Any]:
        asked.set()
        await broken.wait()
        return await stats()

    dead._stats = late  # type: ignore[method-assign]
    await asked.wait()
    await dead.die()
    await until(lambda: controller._fleet.dead("shard", 0) == [1], 30)
    broken.set()
    await until(world.slots, 30, holds=lambda slots: set(slots.owners) == {0})


async def test_a_shard_ended_by_a_record_keeps_its_slots_for_a_while(world: World) -> None:
    await world.start_settled(failover_ms=1)
    before, epoch = await world.slots(), await take_epoch(world.redis)
    await claim_name(world.redis, "shard-1", epoch)
    await claim_end(world.redis, "shard-1", epoch)
    dead = world.actors.actors["shard", 1]
    await dead.die()
    await asyncio.sleep(0.3)
    assert await world.slots() == before
    await claim_name(world.redis, "shard-1", epoch + 1)  # the next process has begun, and dies by itself
    await until(world.slots, 30, holds=lambda slots: set(slots.owners) == {0})


async def test_a_connection_that_breaks_while_the_shard_answers_moves_nothing(world: World) -> None:
    await world.start_settled(failover_ms=100)
    before, shard = await world.slots(), world.actors.actors["shard", 1]
    for _ in range(3):
        calls, broken = len(shard.calls), shard.broken
        shard.break_connections()
        await until(lambda calls=calls: len(shard.calls) > calls + 15, 30)  # a round each 20 ms
        assert broken.is_set()
    assert await world.slots() == before


async def test_a_shard_that_is_back_in_time_keeps_its_slots(world: World) -> None:
    controller = await world.start_settled(failover_ms=600_000)
    before = await world.slots()
    world.actors.actors["shard", 1].lost = True
    await until(lambda: not controller._fleet.serves(("shard", 1)), 30)
    await controller._reconciler._step_shards()  # type: ignore[union-attr]
    assert await world.slots() == before


async def test_rebalancing_moves_slots_from_the_busy_shard_and_then_leaves_them_alone(world: World) -> None:
    controller = await world.start_settled()
    world.actors.actors["shard", 0].loads = dict.fromkeys(range(0, SLOTS, 2), 10.0)
    world.actors.actors["shard", 1].loads = {1: 10.0}
    await controller.rebalance()
    await world.settled()
    moved = {slot for slot, source, target in world.actors.moved if (source, target) == (0, 1)}
    assert 6 <= len(moved & set(range(0, SLOTS, 2))) <= 8
    assert len(world.actors.moved) == len(moved) < SLOTS // 4 + 1
    await world.crash()
    await world.start_settled()
    assert len(world.actors.moved) == len(moved), "a successor does not share the slots evenly again"


async def test_the_load_of_a_moved_slot_is_the_sum_of_its_owners(world: World) -> None:
    controller = await world.start_settled()
    world.actors.actors["shard", 0].loads = {0: 7.0, 2: 1.0}
    world.actors.actors["shard", 1].loads = {0: 3.0, 1: 2.0}
    assert controller._reconciler is not None
    await until(controller._reconciler._loads, holds=lambda found: found == {0: 10.0, 1: 2.0, 2: 1.0})  # once both serve


async def test_a_set_of_slots_that_another_change_of_the_map_overtakes_is_read_again(world: World) -> None:
    controller = await world.start_settled()
    found = await world.slots()
    await controller.scale(shards=3)
    await swap_slot_map(world.redis, msgspec.structs.replace(found, version=found.version + 1))  # or not, when it is late
    await world.settled()
    assert (await world.slots()).shards == 3


async def test_wanted_numbers_that_storage_did_not_take_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await world.start()

    async def away(*_arguments: Any) -> None:
        raise StorageUnavailable("away")

    monkeypatch.setattr("engine.actors.reconciler.write_wanted", away)
    with pytest.raises(StorageUnavailable):
        await controller.scale(shards=3)
    assert (await world.settled())["wanted"]["shards"] == 2


async def test_wanted_numbers_that_storage_took_without_an_answer_are_brought_about(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await world.start_settled()

    async def answer_lost(*arguments: Any) -> None:
        await write_wanted(*arguments)
        raise StorageUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("engine.actors.reconciler.write_wanted", answer_lost)
        with pytest.raises(StorageUnavailable):
            await controller.scale(shards=3)
    await world.when(lambda scaling: scaling["wanted"]["shards"] == 3 and scaling["settled"])
    assert (await world.slots()).shards == 3
    await world.redis.hset(META_KEY, WANTED_FIELD, msgspec.json.encode(WantedNumbers(1, 1, 1)))  # type: ignore[misc]
    await until(lambda: read_wanted(world.redis), holds=lambda stored: stored is not None and stored.shards == 3)


async def test_a_controller_that_was_replaced_wants_nothing_any_more(world: World) -> None:
    controller = await world.start_settled()
    await world.redis.hincrby(META_KEY, CONTROLLER_FIELD, 1000)  # type: ignore[misc]
    with pytest.raises(Exception, match="owns the keys now"):
        await controller.scale(shards=3)
    assert (await read_wanted(world.redis)).shards == 2  # type: ignore[union-attr]


async def test_a_load_that_lasts_is_answered_with_shards_and_the_reason_is_shown(world: World) -> None:
    await world.start_settled(autoscale_shards="1-3", autoscale_up_ms=100)
    world.actors.actors["shard", 0].busy = world.actors.actors["shard", 1].busy = True
    status = await world.when(lambda scaling: scaling["wanted"]["shards"] == 3)
    assert (status["by"], status["autoscale"]) == ("autoscaler", "on")
    (decision,) = status["decisions"]
    assert (decision["action"], decision["have"], decision["wanted"]) == ("scale", 2, 3)
    assert decision["reason"].startswith("CPU")
    await world.settled()
    assert (await world.slots()).shards == 3


async def test_a_dry_run_shows_what_it_would_do_and_does_nothing(world: World) -> None:
    await world.start_settled(autoscale_shards="1-3", autoscale_up_ms=100, autoscale_dry_run=True)
    world.actors.actors["shard", 0].busy = world.actors.actors["shard", 1].busy = True
    status = await world.when(lambda scaling: bool(scaling["decisions"]))
    assert (status["autoscale"], status["decisions"][0]["wanted"], status["wanted"]["shards"]) == ("dry run", 3, 2)
    assert world.actors.of("shard") == [0, 1]


async def test_a_start_with_another_number_begins_with_the_stored_one_and_moves_the_slots_then(world: World) -> None:
    await world.start_settled()
    await world.crash()
    world.actors.actors.clear()  # the whole engine was stopped
    await world.start(shards=3, edges=2, schedulers=2)
    status = await world.settled()
    assert status["have"] == {"shards": 3, "schedulers": 2, "edges": 2}
    assert len(world.actors.moved) == SLOTS // 3


async def test_a_shard_that_lost_its_node_is_a_guest_elsewhere_only_where_there_is_no_place(world: World) -> None:
    await world.start_settled(takeover_ms=100)
    lost = world.actors.actors["shard", 1]
    lost.lost = True
    asked = world.actors.asked
    async with asyncio.timeout(60):
        while world.actors.asked < asked + 3:
            await asyncio.sleep(0.01)
        assert not world.actors.guests, "Ray starts it again where there is a place"
        world.actors.room = False
        while not world.actors.guests:
            await asyncio.sleep(0.01)
        while not (await world.controller.status())["shards"][1]["alive"]:
            await asyncio.sleep(0.01)
    assert world.actors.guests == [("shard", 1)]
    assert world.actors.actors["shard", 1] is not lost


async def test_an_actor_that_is_created_anew_is_not_replaced_while_it_starts(world: World) -> None:
    controller = await world.start_settled()
    given_up = world.actors.actors["shard", 1]
    world.actors.full = given_up.gone = True
    await until(lambda: world.actors.actors["shard", 1] is not given_up)
    watch, patience_ms = controller._fleet.watches["shard", 1], CONFIG.health_timeout_ms
    assert watch.verdict(monotonic_ms() + 2 * patience_ms) == "leave"
    assert watch.verdict(monotonic_ms() + (START_GRACE_FACTOR + 1) * patience_ms) == "replace"


async def stood_still(world: World) -> None:
    """The process of the controller stands still during a round, and goes on for some more."""
    first, late = world.actors.actors["shard", 0], world.actors.actors["edge", 0]
    stats = first._stats

    async def stand_still() -> dict[str, Any]:
        first._stats = stats  # type: ignore[method-assign]
        time.sleep(0.5)
        return await stats()

    first._stats = stand_still  # type: ignore[method-assign]
    await until(lambda: first._stats == stats)
    calls = len(late.calls)
    await until(lambda: len(late.calls) > calls + 5)


async def test_a_controller_that_stood_still_replaces_nobody(world: World) -> None:
    await world.start_settled(health_timeout_ms=400)
    await stood_still(world)
    assert not world.actors.replaced


async def test_a_controller_that_stood_still_without_a_store_replaces_nobody(two_stores: World, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await two_stores.start(shards=4, schedulers=2, health_timeout_ms=400)
    await two_stores.settled()
    away = AsyncMock(side_effect=ConnectionError("away"))
    monkeypatch.setattr(controller._clients[1], "execute_command", away)
    await until(lambda: away.await_count > 5)
    await stood_still(two_stores)
    assert not two_stores.actors.replaced


async def test_a_successor_replaces_an_actor_hung_since_before(world: World) -> None:
    await world.start_settled()
    await world.crash()
    world.actors.actors["scheduler", 0].silent = True
    controller = await world.start()
    watch, patience_ms = controller._fleet.watches["scheduler", 0], CONFIG.health_timeout_ms
    assert watch.verdict(monotonic_ms() + 2 * patience_ms) == "leave"
    watch._asked_ms = float("-inf")
    await until(lambda: ("scheduler", 0) in world.actors.replaced)
    await world.settled()


async def test_a_new_actor_without_a_machine_is_not_replaced_by_a_successor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.actors.fleet._SILENT_MS", 50)
    controller = await world.start_settled()
    world.actors.full, world.actors.room = True, False
    await controller.scale(shards=3, edges=2)
    await until(lambda: {("shard", 2), ("edge", 1)} <= world.actors.actors.keys())
    await world.crash()
    fleet = (await world.start())._fleet
    await until(lambda: ("edge", 1) in fleet.without_room())
    for key in (("shard", 2), ("edge", 1)):
        fleet.watches[key]._asked_ms = float("-inf")
    asked = world.actors.asked
    await until(lambda: world.actors.asked > asked + 2)
    assert not world.actors.replaced


async def test_a_new_shard_that_got_a_place_before_a_lower_one_gives_it_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.actors.fleet._SILENT_MS", 50)
    monkeypatch.setattr("engine.actors.reconciler._JOIN_MS", 100)
    controller = await world.start_settled()
    world.actors.placed, world.actors.room = (3,), False
    await controller.scale(shards=4)
    await until(lambda: world.actors.of("shard"), holds=lambda found: 3 in found)
    world.actors.placed = ()
    await until(lambda: world.actors.ended, holds=lambda ended: ("shard", 3) in ended)
    world.actors.actors["shard", 2].lost = False
    status = await world.when(lambda scaling: scaling["have"]["shards"] == 3 and bool(scaling["waiting"]))
    assert [entry["actor"] for entry in status["waiting"]] == ["shard-3"]
    async with asyncio.timeout(60):
        while set((await world.slots()).owners) != {0, 1, 2}:
            await asyncio.sleep(0.01)


async def lost_and_taken_in(world: World, shard: int = 1) -> None:
    """The node of this shard is lost, no other one has a place, and it serves as a guest."""
    world.actors.room = False
    world.actors.actors["shard", shard].lost = True
    await until(lambda: world.actors.guests, holds=bool)
    await until(world.controller.status, holds=lambda status: status["shards"][shard]["ready"])


async def test_a_guest_moves_to_a_place_once_a_node_has_one_and_the_other_shard_has_its_slots_meanwhile(world: World) -> None:
    await world.start_settled(takeover_ms=100)
    await lost_and_taken_in(world)
    guest = world.actors.actors["shard", 1]
    assert not world.actors.moved
    world.actors.room = True
    await until(lambda: world.actors.actors["shard", 1], holds=lambda actor: actor is not guest and actor.has_place)
    assert [call[0] for call in guest.calls if call[0] in ("hand_over", "drain")][-1] == "drain", "it was emptied first"
    await world.settled()
    assert Counter((await world.slots()).owners) == {0: SLOTS // 2, 1: SLOTS // 2}
    assert world.actors.guests == [("shard", 1)], "its successor is none"


async def test_the_only_shard_moves_to_a_place_without_one_more_that_would_take_it(world: World) -> None:
    await world.start_settled(takeover_ms=100, shards=1)
    await lost_and_taken_in(world, 0)
    guest = world.actors.actors["shard", 0]
    world.actors.room = True
    await until(lambda: world.actors.actors["shard", 0], holds=lambda actor: actor is not guest and actor.has_place)
    await world.settled()
    assert (world.actors.of("shard"), world.actors.moved) == ([0], [])


async def test_the_successor_of_a_controller_knows_who_is_a_guest(world: World) -> None:
    await world.start_settled(takeover_ms=100)
    await lost_and_taken_in(world)
    await world.crash()
    guest, world.actors.room = world.actors.actors["shard", 1], True
    await world.start(takeover_ms=100)
    await until(lambda: world.actors.actors["shard", 1], holds=lambda actor: actor is not guest and actor.has_place)


async def test_the_status_says_who_waits_for_a_place_and_the_policy_goes_on_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.actors.fleet._SILENT_MS", 50)
    monkeypatch.setattr("engine.actors.newcomers.CLOSE_ROUNDS_MS", 200)
    await world.start_settled(autoscale_shards="1-3", autoscale_up_ms=1, autoscale_down_ms=100)
    world.actors.room, world.actors.placed = False, ()
    shards = [world.actors.actors["shard", index] for index in range(2)]
    for shard in shards:
        shard.busy = True
    status = await world.when(lambda scaling: bool(scaling["waiting"]))
    assert status["waiting"] == [{"actor": "shard-2", "resource": "engine_shard", "offered": 4}]
    assert (status["wanted"]["shards"], status["settled"]) == (3, False)
    await world.when(lambda scaling: scaling["decisions"][0]["reason"].endswith("but 1 more wait for a machine already"))
    for shard in shards:
        shard.busy = False
    status = await world.when(lambda scaling: scaling["wanted"]["shards"] < 3)
    assert status["by"] == "autoscaler"


@pytest.mark.slow
@pytest.mark.engine
async def test_nothing_is_lost_or_reordered_while_an_engine_grows_and_shrinks_under_traffic(two_edges: RunningEngine) -> None:
    def found(status: dict[str, Any]) -> tuple[int, ...]:
        return tuple(len(status[kind]) for kind in ("shards", "schedulers", "edges"))

    before = two_edges.status_when(lambda status: bool(status["ready"]) and status["scaling"]["settled"])
    headers = {"Authorization": f"Bearer {two_edges.token(scopes='operator')}"}
    async with (
        Traffic(two_edges.url, two_edges.token, "scaled", online=12, away=3, rate=120) as traffic,
        httpx.AsyncClient(base_url=two_edges.url, headers=headers, trust_env=False, verify=False) as client,
    ):
        for shards, schedulers, edges in ((4, 2, 3), (2, 1, 1), found(before)):
            wanted = {"shards": shards, "schedulers": schedulers, "edges": edges}
            answer = await client.post("/v1/scale", json=wanted)
            assert answer.status_code == 202, answer.text
            at_ms = answer.json()["wanted_at_ms"]

            def reached(status: dict[str, Any], at_ms: int = at_ms) -> bool:
                return bool(status["scaling"]["settled"] and status["scaling"]["wanted_at_ms"] >= at_ms)

            status = await asyncio.to_thread(two_edges.status_when, reached)
            assert found(status) == (shards, schedulers, edges)
            assert status["scaling"]["slots_left"] == 0
        books = await traffic.finish()
    assert books["accepted"] > 0
    assert (books["lost"], books["out_of_order"], books["wrong"]) == (0, 0, [])
    assert books["unavailable"] == 0, "publishers notice nothing but the edges that leave"


# -- Replacing processes. ----------------------------------------------------------------------------------------------
def processes(world: World) -> dict[tuple[str, int], int]:
    return {key: actor.pid for key, actor in world.actors.actors.items()}


async def all_ready(world: World) -> None:
    await world.settled()
    while not (await world.controller.status())["ready"]:
        await asyncio.sleep(0.01)


async def start_ready(world: World, **changes: Any) -> Controller:
    """Start a controller, and let all actors be ready."""
    controller = await world.start(**changes)
    await all_ready(world)
    return controller


async def upgraded(world: World) -> dict[str, Any]:
    """The status once an upgrade is done; the controller that it ends is started again, as by Ray."""
    await world.when(lambda _: bool(world.ended))
    await world.crash()
    await world.start()
    return await world.settled()


async def test_an_upgrade_replaces_every_process_and_no_shard_ends_before_its_slots_have_moved(world: World) -> None:
    controller = await start_ready(world, shards=3, schedulers=2, edges=2)
    before = processes(world)
    status = await controller.upgrade(by="olga")
    assert (len(status["upgrading"]), status["by"], status["settled"]) == (8, "olga", False)
    status = await upgraded(world)
    after = processes(world)
    assert after.keys() == before.keys(), "and the numbers are what they were"
    assert all(after[key] != before[key] for key in before)
    assert (status["upgrading"], (await read_wanted(world.redis)).replacing) == ([], {})  # type: ignore[union-attr]
    counts = Counter((await world.slots()).owners)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(world.actors.moved) < 1.7 * SLOTS, "a shard that is emptied fills the one that was"
    assert [role for role, _ in world.actors.replaced] == ["shard"] * 3 + ["scheduler"] * 2 + ["edge"] * 2


async def test_newer_formats_are_written_once_every_process_reads_them_and_not_while_one_is_away(world: World) -> None:
    controller = await start_ready(world, shards=2)
    slots = await world.slots()
    world.actors.formats = FORMATS - 1
    for actor in world.actors.actors.values():
        actor.formats = FORMATS - 1
    assert await swap_slot_map(world.redis, msgspec.structs.replace(slots, version=slots.version + 1, formats=FORMATS - 1))
    await world.when(lambda scaling: scaling["formats"] == FORMATS - 1)
    last, *others = world.actors.actors.values()
    for actor in others:
        actor.formats = FORMATS
    await controller.scale(edges=2)
    await world.settled()
    assert (await world.slots()).formats == FORMATS - 1, "one of them reads no more"
    last.ready, last.formats, world.actors.actors["edge", 1].formats = False, FORMATS, FORMATS
    await world.when(lambda _: not controller._fleet.ready())
    await controller.scale(schedulers=2)
    assert (await world.slots()).formats == FORMATS - 1, "one of them may be about to be replaced by an older one"
    last.ready, world.actors.formats = True, FORMATS
    for actor in world.actors.actors.values():
        actor.formats = FORMATS
    await world.when(lambda scaling: scaling["formats"] == FORMATS)
    assert (await world.slots()).formats == FORMATS


async def test_formats_of_one_store_reach_all_after_the_controller_dies(two_stores: World) -> None:
    await two_stores.start(shards=2, schedulers=2)
    await all_ready(two_stores)
    for client in two_stores.actors.clients[1:]:
        slots = await require_slot_map(client)
        assert await swap_slot_map(client, msgspec.structs.replace(slots, version=slots.version + 1, formats=FORMATS - 1))
    await two_stores.when(lambda scaling: scaling["formats"] == FORMATS - 1)
    await two_stores.crash()
    await two_stores.start(shards=2, schedulers=2)
    await two_stores.when(lambda scaling: scaling["formats"] == FORMATS)


async def test_an_upgrade_of_one_actor_of_each_role_has_a_second_shard_and_edge_meanwhile(world: World) -> None:
    controller = await start_ready(world, shards=1)
    before = processes(world)
    await controller.upgrade()
    await upgraded(world)
    after = processes(world)
    assert after.keys() == before.keys()
    assert all(after[key] != before[key] for key in before)
    assert {slot for slot, _, target in world.actors.moved if target == 1} == set(range(SLOTS))
    assert set((await world.slots()).owners) == {0}
    assert set(world.actors.ended) == {("shard", 1), ("edge", 1)}


async def test_a_shard_that_dies_while_it_is_emptied_gets_its_slots_back(world: World) -> None:
    controller = await start_ready(world, failover_ms=600_000)
    shard, reconciler = world.actors.actors["shard", 0], controller._reconciler
    assert reconciler is not None
    before = shard.pid

    def die_after_the_first_set() -> None:
        if world.actors.moved and reconciler.wanted.replacing:
            if shard.pid == before:
                shard.begin()
            raise ActorUnavailableError("its process has ended", None)

    shard.before_hand_over = die_after_the_first_set
    await reconciler.want(at_ms=1, replacing={"shard-0": before})  # the others are replaced already
    await world.settled()
    assert shard.pid != before
    assert shared_evenly(await world.slots())


async def test_an_upgrade_waits_until_the_last_process_that_it_started_serves(world: World) -> None:
    controller = await start_ready(world, shards=3)
    world.actors.born_ready = False
    before = processes(world)
    await controller.upgrade()
    await world.when(lambda scaling: "shard-0" not in scaling["upgrading"])
    seen = len(world.actors.actors["shard", 1].calls)
    while len(world.actors.actors["shard", 1].calls) < seen + 10:
        await asyncio.sleep(0.01)
    assert sum(pid != before[key] for key, pid in processes(world).items()) == 1
    assert not any(source != 0 for _, source, _ in world.actors.moved)
    world.actors.born_ready = True
    world.actors.actors["shard", 0].ready = True
    await upgraded(world)


async def test_an_upgrade_replaces_a_process_that_came_since_the_last_round(world: World) -> None:
    controller = await start_ready(world, shards=2)
    world.actors.actors["scheduler", 0].begin()
    before = processes(world)
    await controller.upgrade()
    await upgraded(world)
    assert all(pid != before[key] for key, pid in processes(world).items())


@pytest.mark.parametrize("starts", [("scheduler", 0), ("edge", 1)], ids=["member", "newcomer"])
async def test_an_upgrade_replaces_a_process_that_starts_when_it_is_wanted(
    world: World, starts: ActorKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "_ALL_READY_S", PATIENCE_S)  # an edge waits for less; nobody waits here
    controller = await start_ready(world, shards=2, health_timeout_ms=2000)
    world.actors.full = True  # the controller may end the silent process before this test looks: the next one has to wait, too
    if starts in world.actors.actors:
        world.actors.actors[starts].silent = True
    else:
        await controller.scale(edges=2)
        await until(lambda: starts in world.actors.actors)
    starting = world.actors.actors[starts]
    await controller._begin_round()  # a call that had begun while it answered may return late
    upgrade = asyncio.ensure_future(controller.upgrade())
    await until(lambda: controller._fleet.watches[starts]._failed)
    assert not upgrade.done()
    world.actors.full = False
    starting.begin()
    before = processes(world)
    await upgrade
    await upgraded(world)
    assert all(pid != before[key] for key, pid in processes(world).items())


async def test_an_upgrade_replaces_what_a_controller_that_was_cut_off_created(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await start_ready(world)
    with monkeypatch.context() as patch:
        patch.setattr(controller._reconciler.newcomers, "create", lambda *_: None)  # type: ignore[union-attr]
        await controller.scale(edges=2)
        world.actors.create(None, "edge", 1)
        await controller.upgrade()
    assert "edge-1" in controller._reconciler.wanted.replacing  # type: ignore[union-attr]


async def test_an_upgrade_waits_for_a_process_that_has_not_answered_yet(world: World) -> None:
    controller = await start_ready(world)
    reconciler, key = controller._reconciler, ("scheduler", 1)
    assert reconciler is not None
    world.actors.create(None, *key)  # what was surplus when a controller died is wanted again
    surplus = world.actors.actors[key]
    surplus.silent, before = True, processes(world)
    await reconciler.want(schedulers=2, replacing={"scheduler-1": surplus.pid}, by="", at_ms=1)
    await until(lambda: key in controller._fleet.watches and controller._fleet.watches[key]._failed)
    await reconciler._step_controller()
    assert reconciler.wanted.replacing
    surplus.silent = False
    await world.when(lambda scaling: bool(scaling["settled"]) and not scaling["upgrading"])
    assert processes(world)[key] != before[key]


async def test_an_upgrade_is_continued_by_the_successor_of_a_controller_that_dies(world: World) -> None:
    controller = await start_ready(world, shards=3)
    await controller.upgrade()
    await world.when(lambda scaling: "shard-0" not in scaling["upgrading"])
    await world.crash()
    done = processes(world)["shard", 0]
    await world.start(shards=3)
    status = await world.settled()
    assert not status["upgrading"]
    assert processes(world)["shard", 0] == done, "what was replaced stays"
    assert not world.ended, "the controller is another process already"


async def test_a_shard_without_slots_gets_its_share_though_a_scheduler_looked_first(world: World) -> None:
    await world.start_settled()
    reconciler = world.controller._reconciler
    assert reconciler is not None
    await until(lambda: reconciler._now_ms() - reconciler._read_ms > 300)  # everybody sleeps
    assert await swap_slot_map(world.redis, (await world.slots()).with_owner(range(SLOTS), 0))
    reconciler._wake["scheduler"].set()
    await until(lambda: not reconciler.settled)
    await world.settled()
    assert Counter((await world.slots()).owners) == {0: SLOTS // 2, 1: SLOTS // 2}


async def test_a_node_that_is_to_go_is_emptied_at_once_and_what_was_on_it_starts_elsewhere(world: World) -> None:
    await start_ready(world, shards=4, schedulers=2, edges=2)
    for role, index in (("shard", 0), ("shard", 1), ("scheduler", 1), ("edge", 1)):
        world.actors.actors[role, index].node = "spot"
    before = processes(world)
    world.actors.draining = {"spot": 0}
    await world.when(lambda scaling: bool(scaling["draining"]))
    await world.settled()
    after = processes(world)
    changed = {key for key in before if after[key] != before[key]}
    assert changed == {("shard", 0), ("shard", 1), ("scheduler", 1), ("edge", 1)}
    assert all(actor.node == "here" for actor in world.actors.actors.values())
    assert Counter((await world.slots()).owners) == dict.fromkeys(range(4), SLOTS // 4)


async def test_the_next_process_of_an_edge_may_answer_before_the_hand_over_does(world: World) -> None:
    controller = await start_ready(world, edges=2)
    hand_over, told, counted = FakeActor._hand_over, Replacements.told, []

    async def answer_late(actor: FakeActor, *arguments: Any) -> int:
        answer = await hand_over(actor, *arguments)
        await controller._ask(actor.key)
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FakeActor, "_hand_over", answer_late)
        patched.setattr(Replacements, "told", lambda self, key: (told(self, key), counted.append(key)))
        world.actors.actors["edge", 1].node = "spot"
        world.actors.draining = {"spot": 0}
        await until(lambda: counted == [("edge", 1)])
    await world.settled()
    assert controller._fleet.serves(("edge", 1))


async def test_a_shard_without_another_node_to_start_on_has_left_its_slots_to_the_others(world: World) -> None:
    await start_ready(world, shards=2)
    world.actors.actors["shard", 1].node = "spot"
    world.actors.full = True  # no process starts anywhere
    world.actors.draining = {"spot": 0}
    await world.when(lambda _: ("shard", 1) in world.actors.replaced)
    assert set((await world.slots()).owners) == {0}
    world.actors.full = False
    world.actors.actors["shard", 1].begin()
    await world.settled()
    assert Counter((await world.slots()).owners) == dict.fromkeys(range(2), SLOTS // 2)


async def test_a_shard_whose_node_goes_before_its_slots_have_moved_starts_elsewhere_with_them(world: World) -> None:
    await start_ready(world, shards=2, drain_reserve_ms=30_000)
    shard = world.actors.actors["shard", 1]
    shard.node = "spot"
    world.actors.draining = {"spot": time.time_ns() // 1_000_000 + 20_000}
    await world.when(lambda _: ("shard", 1) in world.actors.replaced)
    assert [name for name, *_ in shard.calls].count("drain") == 1
    await world.settled()
    assert (shard.node, world.actors.moved) == ("here", [])


async def test_an_upgrade_without_progress_ends_and_says_what_it_waited_for(world: World) -> None:
    controller = await start_ready(world, shards=3, upgrade_step_ms=500)
    world.actors.born_ready = False
    await controller.upgrade()
    status = await world.when(lambda scaling: bool(scaling["stopped"]))
    assert status["stopped"] == "shard-0 not ready, and no progress for 0 s"
    assert status["upgrading"] == []
    assert len(world.actors.replaced) == 1
    world.actors.born_ready = world.actors.actors["shard", 0].ready = True
    await world.settled()
    assert max(Counter((await world.slots()).owners).values()) == SLOTS // 3 + 1
    assert (await read_wanted(world.redis)).stopped  # type: ignore[union-attr]
    assert not (await controller.upgrade())["stopped"]


async def test_the_numbers_may_change_during_an_upgrade(world: World) -> None:
    controller = await start_ready(world, shards=3, edges=2)
    before = processes(world)
    await controller.upgrade()
    await world.when(lambda scaling: "shard-0" not in scaling["upgrading"])
    await controller.scale(shards=2, edges=1)
    await upgraded(world)
    after = processes(world)
    assert after.keys() == before.keys() - {("shard", 2), ("edge", 1)}
    assert all(after[key] != before[key] for key in after)


async def maps_of(world: World) -> list[SlotMap]:
    return [await require_slot_map(client) for client in world.actors.clients]


async def test_with_two_stores_slots_move_between_shards_of_one_only(two_stores: World) -> None:
    world = two_stores
    controller = await world.start(schedulers=2)
    for shards, schedulers in ((5, 3), (4, 4), (2, 2)):
        await controller.scale(shards=shards, schedulers=schedulers)
        await world.settled()
        for slot_map in await maps_of(world):
            assert (slot_map.shards, slot_map.schedulers) == (shards, schedulers)
            held = Counter(owner for owner in slot_map.owners if owner != NOBODY)
            assert sorted(held) == list(slot_map.local(shards))
            assert sum(held.values()) == SLOTS // 2
            assert max(held.values()) - min(held.values()) <= 1
        assert all(slot % 2 == source % 2 == target % 2 for slot, source, target in world.actors.moved)
        assert (world.actors.of("shard"), world.actors.of("scheduler")) == (list(range(shards)), list(range(schedulers)))
    assert len({slot for slot, _, _ in world.actors.moved}) > SLOTS // 2


async def test_the_only_shard_of_a_store_has_another_while_upgraded(two_stores: World) -> None:
    world = two_stores
    controller = await start_ready(world, schedulers=2)
    before = processes(world)
    await controller.upgrade()
    await upgraded(world)
    after = processes(world)
    assert after.keys() == before.keys()
    assert all(after[key] != before[key] for key in before)
    assert {(source, target) for _, source, target in world.actors.moved} == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert {role for role, _ in world.actors.replaced} == {"shard", "scheduler", "edge"}


@pytest.mark.parametrize("reached", [0, 1])
async def test_a_number_of_one_store_reaches_all_after_the_controller_dies(two_stores: World, reached: int) -> None:
    world = two_stores
    await world.start_settled(schedulers=2)
    await world.crash()
    found = (await maps_of(world))[reached]
    changed = msgspec.structs.replace(found, version=found.version + 1, shards=4)
    assert await swap_slot_map(world.actors.clients[reached], changed)
    controller = await world.start(schedulers=2)
    for wanted in (2, 4):
        await controller.scale(shards=wanted)
        await world.settled()
        assert [slot_map.shards for slot_map in await maps_of(world)] == [wanted, wanted]
        assert world.actors.of("shard") == list(range(wanted))


async def test_another_number_of_stores_than_the_data_have_is_refused(two_stores: World) -> None:
    world = two_stores
    await world.start_settled(schedulers=2)
    await world.crash()
    first, second = world.urls
    world.actors.actors.clear()
    for urls, schedulers, reason in (
        ((second, first), 2, "store 2 of 2, not 1 of 2"),
        ((second,), 1, "store 2 of 2, not 1 of 1"),
        ((first,), 1, "store 1 of 2, not 1 of 1"),
    ):
        world.urls = urls
        with pytest.raises(ConfigError, match=f"redis_url: these data are {reason}; their number is fixed"):
            await world.start(schedulers=schedulers)
        await world.crash()
    world.urls = (first, second)
    await world.start_settled(schedulers=2)


async def test_a_node_that_serves_has_a_spare_process_and_gets_another_when_one_was_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "EVERY_MS", 0)
    world.actors.warm = 0
    await world.start()
    await until(lambda: world.actors.spares == ["here"])
    world.actors.warm = 0
    world.actors.restart(world.actors.actors["shard", 0])
    await until(lambda: world.actors.spares[1:2] == ["here"])


async def test_slots_move_and_edges_leave_when_the_spare_processes_that_new_actors_took_are_there_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slowly(node_id: str, count: int) -> bool:
        world.actors.spares += [node_id] * count
        return True

    world.actors.warm = 1
    controller = await world.start_settled(edges=2)
    monkeypatch.setattr(spares, "EVERY_MS", 0)
    monkeypatch.setattr(world.actors, "start_spares", slowly)
    world.actors.warm = 0
    await until(lambda: world.actors.spares == ["here"])
    await controller.scale(shards=3, edges=1)
    await until(lambda: world.actors.spares == ["here"] * 3, within_s=5)  # new actors, and moves to come: two more
    await until(lambda: [name for name, *_ in world.actors.actors["shard", 2].calls].count("stats") > 3)
    assert (world.actors.moved, world.actors.ended) == ([], [])
    world.actors.warm = 2
    await world.settled()
    assert Counter((await world.slots()).owners).keys() == {0, 1, 2}
    assert world.actors.ended == [("edge", 1)]


async def test_slots_move_in_the_end_where_a_node_keeps_no_spare_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_wait, "MAX_MS", 100)
    monkeypatch.setattr(world.actors, "start_spares", AsyncMock(return_value=False))
    world.actors.warm = 0
    controller = await world.start()
    await controller.scale(shards=3)
    await world.settled()
    assert (await world.slots()).shards == 3


async def test_no_spare_process_is_started_while_a_part_does_not_serve(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "EVERY_MS", 0)
    world.actors.born_ready, world.actors.warm = False, 0
    await world.start()
    late, *others = world.actors.actors.values()
    for actor in others:
        actor.ready = True
    await until(lambda: all(len(actor.calls) > 2 for actor in world.actors.actors.values()))
    assert world.actors.spares == []
    late.ready = True
    await until(lambda: world.actors.spares == ["here"])


async def test_a_controller_goes_on_without_spare_processes_that_cannot_be_started(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(node_id: str, _count: int) -> bool:
        world.actors.spares.append(node_id)
        if len(world.actors.spares) == 1:
            raise ValueError("not with this Ray")
        return len(world.actors.spares) > 2

    monkeypatch.setattr(spares, "EVERY_MS", 0)
    monkeypatch.setattr(world.actors, "start_spares", refused)
    world.actors.warm = 0
    await world.start()
    await until(lambda: world.actors.spares == ["here", "here", "here"])
    await world.settled()
    assert (world.ended, world.actors.spares) == (0, ["here", "here", "here"])
