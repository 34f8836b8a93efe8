"""The message of a run, which grows on a real edge with a real Redis: its progress, its end, and what a loss leaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from redis.asyncio import Redis

from engine.client.http_connection import HttpConnection
from engine.client.sync import SyncPublisher
from engine.features.growing.keys import GROWING_DUE_KEY, growth_key
from engine.ray import Publisher, RunMessages, TuneProgress
from engine.ray.run_messages import users_to_notify
from tests.support.edge_world import EdgeWorld, edge_world, frame_of
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

FAST = {"growing_poll_ms": 20, "growing_chunk_ms": 20, "growing_rollup_ms": 10}


@pytest.fixture
async def world(redis_client: Redis) -> AsyncIterator[EdgeWorld]:
    async with edge_world(storage=redis_client, **FAST) as world:
        yield world


def run_of(world: EdgeWorld, users: tuple[str, ...] = ("u1",), **options: Any) -> RunMessages:
    """A run that is news at once."""
    given: dict[str, Any] = {"after_s": 0, "every_s": 0.01, "publisher": lambda: SyncPublisher(world.url(), world.token("app", "publish"))}
    return RunMessages("render", "film", users, **(given | options))


def messages(world: EdgeWorld, user: str = "u1") -> list[dict[str, Any]]:
    return [json.loads(b"{%b}" % body) for body in world.shard.mailboxes.get(f"default:{user}", {}).values()]


async def lose(redis_client: Redis, id: str) -> None:
    """Let the engine take the run for lost, as after `growing_idle_s`."""
    await redis_client.zadd(GROWING_DUE_KEY, {f"default:u1\n{id}": 1})
    await until(lambda: redis_client.hexists(growth_key("default:u1", id), "ended"), 20)


async def test_a_run_is_one_message_that_grows_and_ends(world: EdgeWorld) -> None:
    async with world.connect("u1") as socket, run_of(world) as run:
        first = await frame_of(socket, "part")
        assert (first["id"], first["message"]["type"], first["message"]["data"]) == (
            run.id,
            "render.progress",
            {"run": "film", "title": "film"},
        )
        run.progress(0.5, text="frame 50 of 100", step="render" * 100)
        shown = await frame_of(socket, "part")
        assert (shown["progress"]["value"], shown["progress"]["step"]) == (0.5, ("render" * 100)[:200])
        await asyncio.to_thread(run.done, frames=100)
    (told,) = messages(world)
    assert (told["id"], told["type"]) == (run.id, "render.done")
    assert {name: told["data"][name] for name in ("run", "frames")} == {"run": "film", "frames": 100}
    assert isinstance(told["data"]["took_s"], int)
    assert told["data"]["progress"] == shown["progress"]


async def test_progress_that_is_faster_than_parts_is_left_out(world: EdgeWorld) -> None:
    async with run_of(world, every_s=60) as run:
        await until(lambda: bool(run._messages), 20)
        for step in range(1000):
            run.progress(step / 1000)
    assert messages(world)[0]["data"]["progress"] == {"value": 0.999}


@pytest.mark.parametrize("wrong", [{"value": 1.5}, {"value": np.float32(0.5)}, {"text": "caf\udce9"}])
async def test_odd_progress_leaves_a_run_its_messages(world: EdgeWorld, wrong: dict[str, Any]) -> None:
    async with world.connect("u1") as socket, run_of(world) as run:
        await frame_of(socket, "part")
        run.progress(**wrong)
        await frame_of(socket, "part")
        run.progress(0.7)
        await frame_of(socket, "part")
    (told,) = messages(world)
    assert (told["type"], told["data"]["progress"]["value"]) == ("render.done", 0.7)


@pytest.mark.parametrize(
    ("data", "told"),
    [({"loss": np.float32(0.5)}, {"loss": 0.5}), ({"path": "caf\udce9"}, {"path": "caf?"}), ({"log": "x" * 5000}, {})],
)
async def test_a_run_with_odd_data_tells_its_end(world: EdgeWorld, data: dict[str, Any], told: dict[str, Any]) -> None:
    async with run_of(world) as run:
        await asyncio.to_thread(run.done, **data)
    (message,) = messages(world)
    assert message["type"] == "render.done"
    assert {name: value for name, value in message["data"].items() if name in data} == told


async def test_a_short_run_is_no_news_unless_it_fails(world: EdgeWorld) -> None:
    async with run_of(world, after_s=60):
        pass
    with pytest.raises(RuntimeError):
        async with run_of(world, after_s=60):
            raise RuntimeError("kaboom")
    (told,) = messages(world)
    assert (told["type"], told["data"]["error"], told["data"]["body"]) == (
        "render.failed",
        "RuntimeError: kaboom",
        "failed: RuntimeError: kaboom",
    )


async def test_each_user_has_a_message_of_the_run(world: EdgeWorld) -> None:
    async with run_of(world, ("u1", "u2")) as run:
        run.progress(1)
    assert [messages(world, user)[0]["type"] for user in ("u1", "u2")] == ["render.done", "render.done"]


async def test_a_refused_user_costs_the_others_no_message(world: EdgeWorld, caplog: pytest.LogCaptureFixture) -> None:
    async with run_of(world, ("u" * 200, "u1")) as run:
        run.progress(1)
    assert messages(world)[0]["type"] == "render.done"
    assert "goes on without messages for uuu" in caplog.text


async def test_a_user_with_too_many_messages_is_left_out(redis_client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """A user is tried again only where no engine answers: each try would hold up the others for `retry_for_s`."""
    async with edge_world(storage=redis_client, **FAST, growing_per_user_max=1) as world:
        publisher = lambda: SyncPublisher(world.url(), world.token("app", "publish"), retry_for_s=0.1)  # noqa: E731
        async with run_of(world) as other:
            await until(lambda: bool(other._messages), 20)
            async with run_of(world, ("u2", "u1"), publisher=publisher) as run:
                await until(lambda: run.users == ("u2",), 20)
    assert [messages(world, user)[-1]["type"] for user in ("u1", "u2")] == ["render.done", "render.done"]
    assert "growing_per_user_max" in caplog.text


async def test_a_run_without_accepted_users_publishes_no_more(world: EdgeWorld) -> None:
    async with run_of(world, ("u" * 200,)) as run:
        assert run._thread is not None
        await asyncio.to_thread(run._thread.join, 20)
        assert not run._thread.is_alive()


async def test_a_run_that_ended_notifies_nobody_when_it_is_executed_again(world: EdgeWorld) -> None:
    for _ in range(2):
        async with run_of(world, id="film-7") as run:
            run.progress(1)
    assert [one["type"] for one in messages(world)] == ["render.done"]


async def test_a_run_that_failed_tells_of_its_next_try(world: EdgeWorld) -> None:
    for error in ("kaboom", None):
        async with run_of(world, id="film-7") as run:
            await asyncio.to_thread(run.failed, error) if error else None
    assert [(one["id"], one["type"]) for one in messages(world)] == [("film-7", "render.failed"), ("film-7-2", "render.done")]


async def test_a_run_that_was_taken_for_lost_tells_its_end(world: EdgeWorld, redis_client: Redis) -> None:
    async with run_of(world, id="film-7") as run:
        await until(lambda: bool(run._messages), 20)
        await lose(redis_client, "film-7")
        run.progress(0.5)
        await until(lambda: run._messages["u1"].id == "film-7-2", 20)
        await lose(redis_client, "film-7-2")
    assert [(one["id"], one["type"]) for one in messages(world)] == [
        ("film-7", "render.lost"),
        ("film-7-2", "render.lost"),
        ("film-7-3", "render.done"),
    ]


async def test_a_run_tells_its_end_under_an_id_that_failed_long_ago(world: EdgeWorld, redis_client: Redis) -> None:
    for error in ("kaboom", "another", None):
        async with run_of(world, id="film-7") as run:
            await asyncio.to_thread(run.failed, error) if error else None
        await redis_client.delete(*[growth_key("default:u1", id) for id in ("film-7", "film-7-2")])  # as after `growing_keep_s`
    assert [(one["id"], one["type"]) for one in messages(world)] == [
        ("film-7", "render.failed"),
        ("film-7-2", "render.failed"),
        ("film-7-3", "render.done"),
    ]


async def test_a_run_tells_its_end_to_an_engine_that_was_away(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = False
    ask = HttpConnection.request

    async def request(*arguments: Any, **options: Any) -> Any:
        if away:
            raise ConnectionError("away")
        return await ask(*arguments, **options)

    monkeypatch.setattr(HttpConnection, "request", request)
    publisher = lambda: SyncPublisher(world.url(), world.token("app", "publish"), retry_for_s=0.1)  # noqa: E731
    async with world.connect("u1") as socket, run_of(world, publisher=publisher) as run:
        await frame_of(socket, "part")
        away = True
        run.progress(0.3)
        await until(lambda: "away" in caplog.text, 20)
        run.progress(0.4)
        away = False
    (told,) = messages(world)
    assert (told["type"], told["data"]["progress"]["value"]) == ("render.done", 0.4)


async def test_another_process_tells_the_progress_of_the_same_message(world: EdgeWorld) -> None:
    async with world.connect("u1") as socket, run_of(world, after_s=60) as run:
        run.begin()
        other = run_of(world, id=run.id)
        other.progress(0.5)
        while (await frame_of(socket, "part")).get("progress", {}).get("value") != 0.5:
            pass
    (told,) = messages(world)
    assert (told["type"], told["data"]["progress"]["value"]) == ("render.done", 0.5)


async def test_an_engine_that_is_away_does_not_stop_a_run(world: EdgeWorld, caplog: pytest.LogCaptureFixture) -> None:
    away = lambda: SyncPublisher("http://127.0.0.1:9", world.token("app", "publish"), retry_for_s=0.1)  # noqa: E731
    async with run_of(world, publisher=away) as run:
        run.progress(0.1)
    assert "goes on without messages" in caplog.text


def test_without_users_nothing_is_started() -> None:
    with RunMessages("render", "film", ()) as run:
        run.progress(0.1)
    assert run._thread is None


@pytest.mark.parametrize("made", [partial(RunMessages, "render", "film"), partial(TuneProgress, "search")])
def test_one_name_is_not_taken_for_the_names_of_its_letters(made: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"users: a list of names, \['ann'\]"):
        made("ann")


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


# -- Of the session's engine. ------------------------------------------------------------------------------------------
async def test_a_task_that_ray_runs_again_goes_on_with_its_message(engine: RunningEngine, job: Any, tmp_path: Path) -> None:
    tried = tmp_path / "tried"

    @job.remote(max_retries=1, num_cpus=0)
    def renders() -> None:
        with RunMessages("render", "film", ["task-owner"], after_s=0, every_s=0.05, publisher=partial(Publisher, tenant="jobs")) as run:
            run.progress(0.5)
            while run._told is None:
                time.sleep(0.01)
            if not tried.exists():
                tried.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    await asyncio.to_thread(job.get, renders.remote())
    headers = {"Authorization": f"Bearer {engine.token('task-owner', tenant='jobs')}"}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers) as client:
        growing = (await client.get("/v1/growing")).json()["growing"]
        kept = (await client.get("/v1/inbox")).json()["messages"]
    assert (growing, [message["type"] for message in kept]) == ([], ["render.done"])
