"""An edge keeps the controller's handle, and looks it up once at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from engine.actors.controller_calls import ControllerCalls
from engine.errors import StorageUnavailable, Unavailable

SOON_S = 0.05


class Method:
    """A method of an actor that answers, raises, or hangs."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[Any, ...]] = []

    async def remote(self, *arguments: Any, proof: bytes) -> Any:
        self.calls.append((*arguments, proof))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer


class Handle:
    def __init__(self, answer: Any) -> None:
        self.status = Method(answer)


class Registry:
    """Ray's control service."""

    def __init__(self, *handles: Handle | Exception) -> None:
        self.handles = list(handles)
        self.lookups = 0
        self.there = asyncio.Event()
        self.there.set()

    async def find(self) -> Any:
        self.lookups += 1
        await self.there.wait()
        found = self.handles.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


async def test_the_handle_is_looked_up_once() -> None:
    handle = Handle("well")
    registry = Registry(handle)
    calls = ControllerCalls(registry.find, 60)
    assert [await calls.call("status", n, proof=b"p") for n in range(3)] == ["well"] * 3
    assert registry.lookups == 1
    assert handle.status.calls == [(0, b"p"), (1, b"p"), (2, b"p")]


async def test_while_the_control_service_is_away_calls_fail_in_time_and_one_lookup_waits() -> None:
    registry = Registry(Handle("well"))
    registry.there.clear()
    calls = ControllerCalls(registry.find, SOON_S)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await calls.call("status", proof=b"")
    assert registry.lookups == 1
    registry.there.set()
    assert await calls.call("status", proof=b"") == "well"
    assert registry.lookups == 1


async def test_a_controller_that_hangs_fails_the_call_and_keeps_its_handle() -> None:
    for answer in (None, ActorUnavailableError("starting again", b"\0" * 16)):
        registry = Registry(Handle(answer))
        calls = ControllerCalls(registry.find, SOON_S)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await calls.call("status", proof=b"")
        assert registry.lookups == 1


async def test_the_successor_of_a_controller_that_is_gone_for_good_is_looked_up() -> None:
    registry = Registry(ValueError("none yet"), Handle(ActorDiedError()), Handle("well"))
    calls = ControllerCalls(registry.find, 60)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await calls.call("status", proof=b"")
    assert await calls.call("status", proof=b"") == "well"
    assert registry.lookups == 3


async def test_an_actor_whose_storage_is_away_says_which_storage() -> None:
    registry = Registry(Handle(StorageUnavailable("connection to server at 10.0.0.5 failed")))
    calls = ControllerCalls(registry.find, 60, "the archivist of the history", "its database")
    with pytest.raises(Unavailable, match=r"^the archivist of the history gets no answer from its database$"):
        await calls.call("status", proof=b"p")
