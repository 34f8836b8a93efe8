"""Which edge is called, when edges fail, come and go; handles and names as Ray would give them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from engine.ray import edge_calls
from engine.ray.edge_calls import EdgeCalls

Act = Callable[[], Awaitable[Any]]


async def answers() -> Any:
    return 202, {}, b"{}"


async def is_overloaded() -> Any:
    return 429, {"retry-after": "1"}, b"{}"


async def restarts() -> Any:
    raise ActorUnavailableError("restarting", None)


async def has_died() -> Any:
    raise ActorDiedError


async def hangs() -> Any:
    await asyncio.Event().wait()


class Edges:
    """The edges of a namespace: what each does, who was called, and how often Ray was asked."""

    def __init__(self) -> None:
        self.acts: dict[str, Act] = {}
        self.called: list[str] = []
        self.looks = 0

    def names(self, _namespace: str) -> list[str]:
        self.looks += 1
        return sorted(self.acts)

    def handle(self, name: str, namespace: str) -> Any:
        edges = self
        if name not in edges.acts:
            raise ValueError(name)

        class Method:
            def remote(self, *_arguments: Any) -> Awaitable[Any]:
                edges.called.append(name)
                return edges.acts.get(name, has_died)()

        class Handle:
            request = Method()

        return Handle()


@pytest.fixture
def edges(monkeypatch: pytest.MonkeyPatch) -> Edges:
    made = Edges()
    monkeypatch.setattr(edge_calls, "edge_names", made.names)
    monkeypatch.setattr(edge_calls.ray, "get_actor", made.handle)
    monkeypatch.setattr(edge_calls.random, "choice", lambda names: names[0])
    return made


async def ask(calls: EdgeCalls, timeout_s: float = 5) -> int:
    return (await calls.request("POST", "/v1/notifications", {}, b"[]", timeout_s=timeout_s)).status


async def test_an_edge_that_answers_is_kept_and_ray_asked_once(edges: Edges) -> None:
    edges.acts = {"edge-0": answers, "edge-1": answers}
    calls = EdgeCalls("engine", "default")
    assert [await ask(calls) for _ in range(3)] == [202] * 3
    assert (edges.called, edges.looks) == (["edge-0"] * 3, 1)


@pytest.mark.parametrize("act", [restarts, has_died])
async def test_after_one_that_does_not_answer_another_is_called(edges: Edges, act: Act) -> None:
    edges.acts = {"edge-0": act, "edge-1": answers}
    calls = EdgeCalls("engine", "default")
    with pytest.raises(ConnectionError, match="edge-0"):
        await ask(calls)
    if act is has_died:
        del edges.acts["edge-0"]
    assert await ask(calls) == 202
    assert edges.called == ["edge-0", "edge-1"]


async def test_one_that_hangs_is_given_up_in_time(edges: Edges) -> None:
    edges.acts = {"edge-0": hangs, "edge-1": answers}
    calls = EdgeCalls("engine", "default")
    with pytest.raises(ConnectionError, match="edge-0 does not answer"):
        await ask(calls, timeout_s=0.3)
    assert await ask(calls) == 202


async def test_an_overloaded_one_is_answered_for_and_then_left(edges: Edges) -> None:
    edges.acts = {"edge-0": is_overloaded, "edge-1": answers}
    calls = EdgeCalls("engine", "default")
    assert [await ask(calls) for _ in range(2)] == [429, 202]


async def test_requests_that_fail_together_go_to_the_next_one_and_not_past_it(edges: Edges) -> None:
    edges.acts = {"edge-0": restarts, "edge-1": answers, "edge-2": has_died}
    calls = EdgeCalls("engine", "default")
    failed = await asyncio.gather(*(ask(calls) for _ in range(4)), return_exceptions=True)
    assert all(isinstance(error, ConnectionError) for error in failed)
    assert await ask(calls) == 202
    assert edges.called == ["edge-0"] * 4 + ["edge-1"]


async def test_edges_that_were_added_or_removed_are_found(edges: Edges, monkeypatch: pytest.MonkeyPatch) -> None:
    edges.acts = {"edge-0": answers}
    calls = EdgeCalls("engine", "default")
    await ask(calls)
    edges.acts = {"edge-1": answers}
    monkeypatch.setattr(edge_calls, "LOOK_S", -1.0)
    assert await ask(calls) == 202
    assert edges.called == ["edge-0", "edge-1"]


async def test_an_engine_that_is_not_there_is_looked_for_each_time(edges: Edges) -> None:
    calls = EdgeCalls("engine", "default")
    for _ in range(2):
        with pytest.raises(ConnectionError, match="no edge of it runs"):
            await ask(calls)
    edges.acts = {"edge-0": answers}
    assert await ask(calls) == 202
