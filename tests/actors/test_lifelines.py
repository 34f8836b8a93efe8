"""The connections that tell a controller of the death of a shard."""

from __future__ import annotations

import asyncio

import pytest
from ray.exceptions import ActorUnavailableError

from engine.actors.lifelines import Lifelines
from tests.support.waiting import until


class Connection:
    """A Peer to which nothing is sent. `failure`: of its opening; `direct`: it is not Ray's."""

    carrier, retry_s = "unix", None

    def __init__(self, *, failure: Exception | None = None, direct: bool = True) -> None:
        self.failure, self.direct = failure, direct
        self.broken, self.closed = asyncio.Event(), False

    async def open(self) -> float:
        if self.failure:
            raise self.failure
        return 0.05

    async def lost(self) -> bool:
        if self.direct:
            await self.broken.wait()
        return self.direct

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.told: list[str] = []
        self.made = Connection
        self.here: list[bool] = []
        self.lifelines = Lifelines(self._peer, self._on_break)  # type: ignore[arg-type]

    def _on_break(self, name: str, here: bool) -> None:
        self.told.append(name)
        self.here.append(here)

    def _peer(self, name: str) -> Connection:
        self.opened.append(self.made())
        return self.opened[-1]


async def test_a_break_is_told_once_and_the_next_process_is_looked_after() -> None:
    world = World()
    for _ in range(3):
        world.lifelines.hold("shard-1")
        await asyncio.sleep(0)
    (first,) = world.opened
    first.broken.set()
    await until(lambda: world.told == ["shard-1"])
    assert first.closed
    world.lifelines.hold("shard-1")
    await until(lambda: len(world.opened) == 2)
    assert world.told == ["shard-1"]
    world.lifelines.cut()


@pytest.mark.parametrize("made", [lambda: Connection(failure=ConnectionRefusedError()), lambda: Connection(direct=False)])
async def test_nothing_is_told_of_an_actor_without_a_connection(made: type[Connection]) -> None:
    world = World()
    world.made = made
    for count in range(1, 4):
        world.lifelines.hold("shard-0")
        await until(lambda count=count: len(world.opened) == count and world.opened[-1].closed)
        await asyncio.sleep(0)
    assert world.told == []


async def test_a_shard_that_ray_does_not_reach_any_more_is_told() -> None:
    world = World()
    world.made = lambda: Connection(failure=ActorUnavailableError("it died", None))  # type: ignore[assignment]
    world.lifelines.hold("shard-1")
    await until(lambda: world.told == ["shard-1"])


async def test_connections_that_are_cut_are_closed_and_tell_nothing() -> None:
    world = World()
    world.lifelines.hold("shard-0")
    world.lifelines.hold("shard-1")
    await until(lambda: len(world.opened) == 2)
    world.lifelines.cut()
    await until(lambda: all(one.closed for one in world.opened))
    assert world.told == []


@pytest.mark.parametrize(("carrier", "here"), [("unix", True), ("tcp", False)])
async def test_a_break_within_the_node_is_told_as_such(monkeypatch: pytest.MonkeyPatch, carrier: str, here: bool) -> None:
    monkeypatch.setattr(Connection, "carrier", carrier)
    world = World()
    world.lifelines.hold("shard-1")
    await until(lambda: bool(world.opened))
    world.opened[0].broken.set()
    await until(lambda: world.told == ["shard-1"])
    assert world.here == [here]
