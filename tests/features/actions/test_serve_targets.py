"""Deployments of Ray Serve as targets, and a whole engine that calls one."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from engine.core.model.action import ServeTarget
from engine.core.model.constants import NORMAL
from engine.errors import ActionFailed
from engine.features.actions.serve_targets import ServeTargets
from engine.features.actions.store import QueuedAction
from tests.support.hanging_lookups import leave_threads_to_others
from tests.support.missing_programs import missing
from tests.support.running_engine import RunningEngine

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray_serve_action.py"
ACTION = QueuedAction("1-0", "", "acme", "ann", "m1", "k", 17, NORMAL, b'{"id":"m1"}')
TARGET = ServeTarget("orders", "Orders", "confirm")


class Deployment:
    def __init__(self) -> None:
        self.found = 0
        self.shut_down = 0
        self.forgotten: list[None] = []
        self.given: list[tuple[str, Any]] = []
        self.raises: list[Exception] = []
        self.silent = False

    def options(self, method_name: str) -> Any:
        deployment = self

        class Method:
            async def remote(self, event: Any) -> None:
                deployment.given.append((method_name, event))
                if deployment.silent:
                    await asyncio.Event().wait()
                if deployment.raises:
                    raise deployment.raises.pop(0)

        return Method()

    async def shutdown_async(self) -> None:
        self.shut_down += 1


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    made = Deployment()
    serve: Any = ModuleType("ray.serve")

    def get_deployment_handle(deployment: str, app_name: str) -> Deployment:
        if (app_name, deployment) != ("orders", "Orders"):
            raise RuntimeError("there is no Serve instance")
        made.found += 1
        return made

    serve.get_deployment_handle = get_deployment_handle
    serve.context = SimpleNamespace(_set_global_client=made.forgotten.append)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    monkeypatch.setattr("ray.serve", serve, raising=False)
    return made


async def failure(targets: ServeTargets, target: ServeTarget = TARGET) -> ActionFailed:
    with pytest.raises(ActionFailed) as raised:
        await targets.call(target, ACTION)
    return raised.value


async def test_a_method_is_called_with_the_action_by_one_handle(deployment: Deployment) -> None:
    targets = ServeTargets()
    for _ in range(2):
        await targets.call(TARGET, ACTION)
    assert deployment.given == [("confirm", {"key": "k", "tenant": "acme", "user": "ann", "due": 17, "message": {"id": "m1"}})] * 2
    assert (deployment.found, deployment.shut_down) == (1, 0)


async def test_calls_at_once_share_one_handle(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle that nobody shuts down keeps its tasks."""
    used: list[int] = []

    def get_deployment_handle(deployment_name: str, app_name: str) -> Any:
        number = deployment.found = deployment.found + 1
        return SimpleNamespace(options=lambda method_name: used.append(number) or deployment.options(method_name))

    monkeypatch.setattr(sys.modules["ray.serve"], "get_deployment_handle", get_deployment_handle)
    targets = ServeTargets()
    await asyncio.gather(*(targets.call(TARGET, ACTION) for _ in range(4)))
    assert len(set(used)) == 1 < deployment.found


async def test_what_the_method_raises_may_pass_and_the_handle_stays(deployment: Deployment) -> None:
    targets = ServeTargets()
    deployment.raises = [RayTaskError("confirm", "a traceback", ValueError("no such order"))]
    error = await failure(targets)
    assert (str(error), error.final) == ("ValueError: no such order", False)
    await targets.call(TARGET, ACTION)
    assert (deployment.found, deployment.shut_down) == (1, 0)


async def test_after_any_other_failure_and_after_silence_the_handle_is_a_new_one(deployment: Deployment) -> None:
    targets = ServeTargets()
    deployment.raises = [RuntimeError("the queue is full")]
    assert not (await failure(targets)).final
    assert deployment.shut_down == 1
    deployment.silent = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(targets.call(TARGET, ACTION), 0.05)
    assert deployment.shut_down == 2
    deployment.silent = False
    await targets.call(TARGET, ACTION)
    assert deployment.found == len(deployment.forgotten) == 3


async def test_lookups_of_deployments_that_hang_leave_the_threads_to_others(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(sys.modules["ray.serve"], "get_deployment_handle", lambda *_, **__: answered.wait(60) and deployment)
    await leave_threads_to_others(lambda: ServeTargets().call(TARGET, ACTION), answered)


async def test_a_cluster_without_serve_may_have_it_later_and_an_engine_without_it_gives_up(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not (await failure(ServeTargets(), ServeTarget("other", "Orders", "confirm"))).final
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    monkeypatch.delattr("ray.serve")
    error = await failure(ServeTargets())
    assert error.final
    assert "not installed" in str(error)


# -- a whole engine ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
async def test_the_example_is_called_and_called_again_after_it_failed(engine: RunningEngine) -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        missing("Ray Serve: install ray[serve]")
    env = {"ENGINE_URL": engine.url, "ENGINE_TOKEN": engine.token("shop", "publish"), "RAY_AUTH_MODE": "token"}
    example = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), engine.state["ray_address"],
        env=os.environ | env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, complaints = await asyncio.wait_for(example.communicate(), 150)
    lines = [line for line in printed.decode().splitlines() if line.startswith("confirmed")]  # Ray prints there too
    assert lines == ["confirmed ann: a lamp, at try 2"], complaints.decode()[-2000:]
