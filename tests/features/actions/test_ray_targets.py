"""Ray actors as targets, and a whole engine that acts: the rule of the example, its actor, and what is given up is redriven."""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from engine.core.model.action import ActorTarget
from engine.core.model.constants import NORMAL
from engine.errors import ActionFailed
from engine.features.actions.ray_targets import RayTargets
from engine.features.actions.store import QueuedAction
from tests.support.hanging_lookups import leave_threads_to_others
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray_action.py"
ACTION = QueuedAction("1-0", "", "acme", "ann", "m1", "k", 17, NORMAL, b'{"id":"m1"}')


class Method:
    """A method of an actor, as a handle has it."""

    def __init__(self, *raises: Exception) -> None:
        self.given: list[Any] = []
        self.raises = list(raises)

    async def remote(self, event: Any) -> None:
        self.given.append(event)
        if self.raises:
            raise self.raises.pop(0)


class Handle:
    def __init__(self, touch: Method) -> None:
        self.touch = touch


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Handle]:
    """The named actors of the cluster, by namespace and name."""
    named: dict[tuple[str, str], Handle] = {}

    def get_actor(name: str, namespace: str) -> Handle:
        if (namespace, name) not in named:
            raise ValueError("no such actor")
        return named[namespace, name]

    monkeypatch.setattr(ray, "get_actor", get_actor)
    return named


async def failure(targets: RayTargets, target: ActorTarget) -> ActionFailed:
    with pytest.raises(ActionFailed) as raised:
        await targets.call(target, ACTION)
    return raised.value


async def test_a_method_is_called_with_the_action_and_the_actor_is_looked_up_once(actors: dict[tuple[str, str], Handle]) -> None:
    touch, targets = Method(), RayTargets("engine")
    actors["shop", "carts"] = Handle(touch)
    await targets.call(ActorTarget("shop", "carts", "touch"), ACTION)
    actors.clear()
    await targets.call(ActorTarget("shop", "carts", "touch"), ACTION)
    assert touch.given == [{"key": "k", "tenant": "acme", "user": "ann", "due": 17, "message": {"id": "m1"}}] * 2


async def test_an_actor_that_is_not_there_or_raises_or_dies_may_be_better_later(actors: dict[tuple[str, str], Handle]) -> None:
    target, targets = ActorTarget("shop", "carts", "touch"), RayTargets("engine")
    assert not (await failure(targets, target)).final
    raised = RayTaskError("touch", "a traceback", ValueError("no such cart"))
    touch = Method(raised, ActorDiedError())
    actors["shop", "carts"] = Handle(touch)
    error = await failure(targets, target)
    assert (str(error), error.final) == ("ValueError: no such cart", False)
    assert not (await failure(targets, target)).final
    await targets.call(target, ACTION)


async def test_a_missing_method_and_the_engine_itself_are_refused_for_good(actors: dict[tuple[str, str], Handle]) -> None:
    actors["shop", "carts"] = actors["engine", "shard-0"] = Handle(Method())
    targets = RayTargets("engine")
    for target in (ActorTarget("shop", "carts", "toch"), ActorTarget("engine", "shard-0", "touch")):
        assert (await failure(targets, target)).final


async def test_a_replaced_actor_is_asked_for_its_new_methods(actors: dict[tuple[str, str], Handle]) -> None:
    targets = RayTargets("engine")
    actors["shop", "carts"] = Handle(Method())
    await targets.call(ActorTarget("shop", "carts", "touch"), ACTION)
    actors["shop", "carts"] = newer = Handle(Method())
    newer.touch_again = again = Method()  # type: ignore[attr-defined]
    await targets.call(ActorTarget("shop", "carts", "touch_again"), ACTION)
    assert len(again.given) == 1


async def test_a_method_that_does_not_take_the_call_is_refused_for_good(actors: dict[tuple[str, str], Handle]) -> None:
    """Ray compares the signature in `.remote()`, and raises there."""
    touch = Method()
    touch.remote = lambda _event: (_ for _ in ()).throw(TypeError("too many positional arguments"))  # type: ignore[assignment,method-assign]
    actors["shop", "carts"] = Handle(touch)
    error = await failure(RayTargets("engine"), ActorTarget("shop", "carts", "touch"))
    assert (str(error), error.final) == ("TypeError: too many positional arguments", True)


async def test_lookups_of_actors_that_hang_leave_the_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's control service may be away for a minute; Apprise and the rules need threads meanwhile."""
    answered = threading.Event()
    monkeypatch.setattr(ray, "get_actor", lambda *_, **__: answered.wait(60) and Handle(Method()))
    await leave_threads_to_others(lambda: RayTargets("engine").call(ActorTarget("shop", "carts", "touch"), ACTION), answered)


@pytest.mark.parametrize("name", ["ray_action.py", "ray_serve_action.py"])
def test_an_example_makes_one_token_for_all_events(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A token takes a process and about a second; the rule of carts fires after two."""
    monkeypatch.delenv("ENGINE_TOKEN", raising=False)
    made: list[list[str]] = []
    monkeypatch.setattr("subprocess.check_output", lambda command, **_: made.append(command) or f"token-{len(made)}\n")
    token = runpy.run_path(str(EXAMPLE.with_name(name)))["token"]
    assert [token(), token(), token()] == ["token-1"] * 3
    assert len(made) == 1


# -- a whole engine ------------------------------------------------------------------------------------------------------
async def test_the_example_acts_when_its_rule_fires_and_not_when_it_was_cancelled(engine: RunningEngine) -> None:
    env = {"ENGINE_URL": engine.url, "ENGINE_TOKEN": engine.token("shop", "publish"), "RAY_AUTH_MODE": "token"}
    example = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), engine.state["ray_address"],
        env=os.environ | env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, complaints = await asyncio.wait_for(example.communicate(), 90)
    assert printed.decode().splitlines() == ["cancelled 1", "touched ann: a lamp"], complaints.decode()[-2000:]


async def test_an_action_that_is_refused_is_a_dead_letter_and_can_be_redriven(engine: RunningEngine) -> None:
    headers = {"Authorization": f"Bearer {engine.token('shop', 'publish admin', tenant='acting')}"}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=20, trust_env=False, verify=False) as http:

        async def letters() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await http.get("/v1/dead-letters")).json()["dead_letters"]
            return found

        told = await http.post("/v1/events", json={"type": "test.refused", "user": "ann", "data": {"n": 1}})
        assert told.json()["matched"] == ["refused"], told.text
        (letter,) = await until(letters)
        assert (letter["action"], letter["user"], letter["seq"]) == ("https://127.0.0.1/hook", "ann", 0)
        assert letter["reason"] == "refused: 127.0.0.1 has the address 127.0.0.1, which is not public"
        (result,) = (await http.post("/v1/dead-letters/redrive", json={"letters": [letter["letter"]]})).json()["results"]
        assert result["status"] == "scheduled"
        (again,) = await until(letters, holds=lambda found: found and found[0]["letter"] != letter["letter"])
        assert again["id"] == result["id"], "it was tried, and refused, again"
        assert (await http.post("/v1/dead-letters/drop", json={"letters": [again["letter"]]})).json() == {"dropped": 1}
