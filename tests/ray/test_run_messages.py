"""Messages of a run: progress, one end, and one when the process is killed. Against the session's engine where it says so."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from engine.client.publish_results import Result
from engine.errors import Unavailable
from engine.ray import Publisher, RunMessages, listen
from engine.ray.run_messages import users_to_notify
from engine.store.embedded_redis import dying_with_parent
from tests.support.hosts import CHECKOUT
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

TENANT = "jobs"


class Recorded:
    """A publisher that writes down what it is asked; `away`: no engine answers."""

    def __init__(self) -> None:
        self.published: list[dict[str, Any]] = []
        self.moved: list[str] = []
        self.cancelled: list[str] = []
        self.away = False

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def publish(self, **members: Any) -> Result:
        if self.away:
            raise Unavailable("no engine")
        self.published.append(members)
        return Result(id=members["id"], status="accepted", scheduled_id=f"timer of {members['user']}" if "delay" in members else None)

    def reschedule(self, id: str, *, delay: float) -> bool:
        self.moved.append(id)
        return True

    def cancel(self, id: str) -> bool:
        self.cancelled.append(id)
        return True

    def types(self) -> list[str]:
        return [members["type"] for members in self.published]


def messages(recorded: Recorded, users: tuple[str, ...] = ("ann",), **options: Any) -> RunMessages:
    return RunMessages("render", "film", users, publisher=lambda: recorded, **({"after_s": 0, "every_s": 0.01} | options))


async def test_a_run_is_told_by_its_progress_and_one_end() -> None:
    recorded = Recorded()
    with messages(recorded) as run:
        run.progress(pct=10)
        await until(lambda: any(one["data"].get("pct") == 10 for one in recorded.published))
        run.progress(pct=60)
        await until(lambda: any(one["data"].get("pct") == 60 for one in recorded.published))
    progress = [one for one in recorded.published if one["type"] == "render.progress"]
    assert [one["data"]["pct"] for one in progress if "pct" in one["data"]] == [10, 60]
    assert {(one["context"], one["collapse"]["key"], one["retain"]) for one in progress} == {(run.id, run.id, False)}
    assert len({one["id"] for one in recorded.published}) == len(recorded.published)
    assert recorded.types()[-1] == "render.done"
    assert recorded.cancelled == ["timer of ann"]


async def test_progress_that_is_faster_than_messages_is_left_out() -> None:
    recorded = Recorded()
    with messages(recorded, every_s=60) as run:
        await until(lambda: recorded.types() == ["render.lost", "render.progress"])
        for pct in range(1000):
            run.progress(pct=pct)
    assert len(recorded.published) == 3


def test_a_short_run_is_no_news_unless_it_fails() -> None:
    recorded = Recorded()
    with messages(recorded, after_s=60):
        pass
    assert recorded.published == []
    with pytest.raises(RuntimeError), messages(recorded, after_s=60):
        raise RuntimeError("kaboom")
    ((told),) = recorded.published
    assert (told["type"], told["data"]["error"]) == ("render.failed", "RuntimeError: kaboom")


async def test_a_long_run_moves_the_message_of_its_loss_ahead() -> None:
    recorded = Recorded()
    with messages(recorded, ("ann", "bob"), lost_after_s=0.05):
        await until(lambda: recorded.moved.count("timer of bob") > 2)
    assert sorted(recorded.cancelled) == ["timer of ann", "timer of bob"]


async def test_an_engine_that_is_away_does_not_stop_a_run(caplog: pytest.LogCaptureFixture) -> None:
    recorded = Recorded()
    recorded.away = True
    async with messages(recorded) as run:
        run.progress(pct=10)
    assert "goes on without messages" in caplog.text


def test_without_users_nothing_is_started() -> None:
    with RunMessages("render", "film", ()) as run:
        run.progress(pct=10)
    assert run._thread is None


@pytest.mark.parametrize(
    ("env", "users"),
    [
        ({"RAY_NOTIFY": "ann, bob,ann"}, ("ann", "bob")),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": '{"metadata": {"notify": "cat"}}'}, ("cat",)),
        ({"RAY_NOTIFY": "ann", "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"metadata": {"notify": "cat"}}'}, ("ann",)),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "?"}, ()),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "[]"}, ()),
        ({}, ()),
    ],
)
def test_a_job_says_whom_to_notify(env: dict[str, str], users: tuple[str, ...]) -> None:
    assert users_to_notify(env) == users


# -- Of the engine. ----------------------------------------------------------------------------------------------------
KILLED = """
import functools, os, signal, sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
from ray_notifications.ray import Publisher, RunMessages
run = RunMessages("render", "film", ["lost-owner"], after_s=0, lost_after_s=1.5, publisher=functools.partial(Publisher, tenant="jobs"))
while run._count == 0: time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_killed_run_is_told_as_lost_once(engine: RunningEngine, job: Any) -> None:
    received: list[str] = []

    async def hear() -> None:
        async for message in listen("lost-owner", tenant=TENANT):
            received.append(message.type)  # noqa: PERF401 - it never ends

    hearing = asyncio.ensure_future(hear())
    program = dying_with_parent([sys.executable, "-c", KILLED, engine.state["ray_address"]])
    done = await asyncio.to_thread(
        subprocess.run, program, env=os.environ | {"RAY_AUTH_MODE": "token", "PYTHONPATH": os.fspath(CHECKOUT)}, timeout=90, check=False
    )
    assert done.returncode == -signal.SIGKILL
    await until(lambda: "render.lost" in received)
    with Publisher(tenant=TENANT) as publisher:
        await asyncio.to_thread(lambda: publisher.publish(user="lost-owner", type="after"))
    await until(lambda: "after" in received)
    hearing.cancel()
    assert [type for type in received if type != "render.progress"] == ["render.lost", "after"]
