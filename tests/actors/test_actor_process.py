"""How shards and schedulers start, wait and end, on a loop with virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

import pytest

from engine.actors.actor_process import ProcessContext, Server, lasting
from engine.config import Config
from engine.errors import StorageUnavailable, Unavailable
from tests.sim.loop import SimLoop


class World:
    """One server that does nothing, a clock that can be set, and when its process ended itself."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.offset_s = 1_000_000.0
        self.ended: list[float] = []
        self.refusals = 0
        context = ProcessContext(
            wall_ns=lambda: int((self.offset_s + self.loop.time()) * 1e9),
            tune_memory=lambda: None,
            end_process=lambda: self.ended.append(self.loop.time()),
        )
        world = self

        class Idle(Server):
            role = "idle"

            async def _recover(self) -> str:
                await self._retry_storage(self._ask)
                return "nothing"

            async def _ask(self) -> None:
                if world.refusals:
                    world.refusals -= 1
                    raise StorageUnavailable("not yet")

            def _tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
                return [self._look()]

            async def _look(self) -> None:
                while True:  # what is measured by the clock asks for it
                    self._now_ms()
                    await asyncio.sleep(0.05)

        self.server = Idle(Config(), 0, context)
        self.loop.call_soon(self.server.begin)

    def run(self, seconds: float) -> None:
        until = self.loop.time() + seconds
        self.loop.run(lambda: self.loop.time() < until and not self.ended, lambda: None)

    def close(self) -> None:
        """Let its tasks unwind, as no process end does it for them here."""
        assert self.server._serving is not None
        self.server._serving.cancel()
        self.loop.run(lambda: False, lambda: None)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_a_server_waits_for_storage_however_long_it_takes(world: World) -> None:
    world.refusals = 50
    world.run(1.3)
    assert not world.server._ready.is_set()
    world.run(0.4)
    assert world.server._ready.is_set()


def test_an_actor_that_starts_keeps_no_call_that_was_given_up(world: World) -> None:
    """Ray runs a thousand calls of an actor at once, and those of the controller are among them."""
    world.refusals = 10_000
    world.run(0.1)
    asked = world.loop.create_task(world.server.address())
    config = Config()
    world.run((config.link_timeout_ms + config.link_park_ms) / 1000 + 0.1)
    assert isinstance(asked.exception(), Unavailable)


@pytest.mark.parametrize("step_s", [3600, 0.5, -0.5])
def test_a_clock_set_forward_or_slightly_back_ends_nothing(world: World, step_s: float) -> None:
    world.run(3)
    world.offset_s += step_s
    world.run(5)
    assert not world.ended


def test_a_clock_set_back_ends_the_process_within_a_second(world: World) -> None:
    world.run(3)
    world.offset_s -= 3600
    world.run(5)
    assert world.ended[0] <= 4.1


def test_a_clock_set_forward_and_back_between_two_looks_ends_the_process(world: World) -> None:
    world.run(3.1)
    world.offset_s += 3600
    world.run(0.2)
    world.offset_s -= 3600
    world.run(5)
    assert world.ended[0] <= 4.1


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_among_what_lasts(fails: bool) -> None:
    before = gc.get_freeze_count()
    with contextlib.suppress(StorageUnavailable), lasting():
        assert not gc.isenabled()
        if fails:
            raise StorageUnavailable("away")
    assert gc.isenabled()
    assert (gc.get_freeze_count() > before) != fails
