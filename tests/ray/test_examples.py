"""The examples of docs/RAY.md, run as a user runs them, on the Ray of the session's engine."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.wire.outcomes import AcceptedOutcome, AcknowledgedOutcome, AnyOutcome, Outcome, SentOutcome
from engine.features.history.history_database import HistoryDatabase
from engine.features.history.outcome_rows import rows_of
from engine.store.embedded_redis import dying_with_parent
from tests.support.examples import RAY_PROGRAM, output_of
from tests.support.hosts import CHECKOUT
from tests.support.missing_programs import missing
from tests.support.running_engine import START_TIMEOUT_S, RunningEngine
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TWICE = pytest.mark.parametrize("run", [1, 2])
"""Whoever tries an example tries it again, on the same engine. Of those that do something else the second time."""


@TWICE
def test_a_task_publishes_once_and_its_driver_listens(engine: RunningEngine, run: int) -> None:
    lines = [line for line in output_of(engine, "ray_task.py") if " model.trained " in line]
    assert sorted(line.partition("{")[2] for line in lines) == [
        f"'model': {model}, 'accuracy': {0.9 + model / 100}}}" for model in range(3)
    ]
    assert [line.split(" ")[0] for line in lines] == [str(3 * run - 2), str(3 * run - 1), str(3 * run)]


@TWICE
def test_a_dataset_is_published_row_by_row(engine: RunningEngine, run: int) -> None:
    if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("pandas") is None:
        missing("Ray Data: install ray[data]")
    lines = output_of(engine, "ray_data.py")
    assert f"written: {{'{'accepted' if run == 1 else 'duplicate'}': 1000}}" in lines
    assert "reports/2 user-2 duplicate" in lines


def test_events_of_users_become_a_dataset(engine: RunningEngine) -> None:
    if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("pandas") is None:
        missing("Ray Data: install ray[data]")
    counted = [line.split(" times ") for line in output_of(engine, "ray_events.py")]
    assert sum(int(count) for count, event in counted if event == "connect") >= 3


@TWICE
async def test_the_quickstart_publishes_and_listens(engine: RunningEngine, tmp_path_factory: pytest.TempPathFactory, run: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "quickstart"  # it keeps its cursor in the working directory
    folder.mkdir(exist_ok=True)

    def started(example: str, token: str) -> subprocess.Popen[str]:
        env = os.environ | {"ENGINE_URL": engine.url, "ENGINE_TOKEN": token, "PYTHONPATH": os.fspath(CHECKOUT), "PYTHONUNBUFFERED": "1"}
        # Whoever started the tests in the background has Ctrl-C ignored, and all their children.
        command = ["env", "--default-signal=INT", *dying_with_parent([sys.executable, CHECKOUT / "examples" / example, "quick"])]
        return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)

    published, _ = await asyncio.to_thread(started("quickstart_publish.py", engine.token("app", "publish")).communicate, None, 60)
    assert [word for word in ("accepted", "scheduled") if word not in published] == []
    with started("quickstart_listen.py", engine.token("quick")) as listener:
        assert listener.stdout is not None
        received = iter(listener.stdout.readline, "")
        lines = await asyncio.to_thread(lambda: [next(line for line in received if kind in line) for kind in ("post.liked", "survey.ask")])
        listener.send_signal(signal.SIGINT)
        try:
            await asyncio.to_thread(listener.wait, 60)
        finally:
            listener.kill()
    assert [line.split()[0] for line in lines] == [str(2 * run - 1), str(2 * run)]


@TWICE
def test_recorded_webhooks_are_replayed_once(engine: RunningEngine, run: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine", "replay", CHECKOUT / "examples" / "github" / "deliveries.jsonl.gz", "--user-prefix", "replayed-"],
        env=os.environ | {"ENGINE_URL": engine.url, "ENGINE_TOKEN": engine.token("app", "publish")},
        cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("duplicate" in done.stdout) == (run == 2), done.stdout


def test_the_funnel_of_each_rule_is_read_from_the_history(engine: RunningEngine, tmp_path: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("pandas") is None:
        missing("Ray Data: install ray[data]")
    database = HistoryDatabase("sqlite:///history.db", str(tmp_path))
    database.migrate()
    batch: list[AnyOutcome] = []
    for number in range(6):
        key, id = f"default:user-{number}", f"m{number}"
        batch.append(Outcome(key, 1000, "triggered", id, kind="touch.cart", rule="cart" if number < 5 else "other"))
        if number < 2:
            batch.append(Outcome(key, 1001, "suppressed", id, reason="cap: 3 of 3 were delivered"))
            continue
        batch.append(AcceptedOutcome(key, 1001, id, 1, "touch.cart"))
        batch.append(SentOutcome(key, 1002, id, 1, 1, "s", "", 0, "edge-0"))
        if number < 4:
            batch.append(AcknowledgedOutcome(key, 1005, id, 1, 1002))
        batch.append(Outcome(key, 999 if number == 2 else 2000, "event", f"e{number}", kind="order.paid"))
    database.store(list(rows_of(batch, "test", 0)))
    database.close()
    done = subprocess.run(
        [sys.executable, CHECKOUT / "examples" / "history" / "funnel.py", f"sqlite:///{tmp_path}/history.db", "--acted", "order.paid"],
        env=os.environ | RAY_PROGRAM | {"RAY_ADDRESS": engine.state["ray_address"]},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names, *lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    found = {row[0]: dict(zip(names, row, strict=False)) for row in lines}
    wanted = {"triggered": "5", "suppressed": "2", "accepted": "3", "sent": "3", "acknowledged": "2", "acted": "2", "why": "cap"}
    assert {name: found["cart"][name] for name in wanted} == wanted
    assert (found["other"]["triggered"], found["other"]["sent"], found["other"]["acted"]) == ("1", "1", "1")


def publish_without_data(engine: RunningEngine, user: str) -> None:
    """A message of another program, such as the broadcasts of README.md."""
    bearer = {"Authorization": f"Bearer {engine.token(scopes='publish')}"}
    httpx.post(f"{engine.url}/v1/notifications", headers=bearer, json={"user": user, "type": "other"}).raise_for_status()


def test_a_deployment_of_serve_tells_its_user_the_progress_and_the_end(engine: RunningEngine) -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        missing("Ray Serve: install ray[serve]")
    publish_without_data(engine, "film-maker")
    lines = [line for line in output_of(engine, "ray_serve.py") if line.startswith("render.")]
    (line,) = lines
    assert line.startswith("render.done ")
    assert "'progress': {'value': 1.0, 'text': 'scene 5 of 5'}" in line


def test_a_consumer_of_tasks_tells_its_user_the_end(engine: RunningEngine, redis_server_url: str) -> None:
    if importlib.util.find_spec("celery") is None:
        missing("a consumer of Ray Serve: install celery[redis]")
    broker = redis_server_url.replace("unix://", "redis+socket://")  # as Celery names it
    publish_without_data(engine, "analyst")
    lines = [line for line in output_of(engine, "ray_serve_tasks.py", broker) if line.startswith("report.")]
    assert lines[-1].startswith("report.done ")
    assert "'url': '/reports/report-" in lines[-1]


async def end_of(engine: RunningEngine, user: str, kind: str) -> dict[str, Any]:
    """The message with which a run ends, of those that wait for its user."""
    async with engine.connect(user) as socket:
        while True:
            for message in (await engine.receive(socket, "messages"))["messages"]:
                if message["type"] == kind:
                    found: dict[str, Any] = message
                    return found


async def test_an_unmodified_job_of_ray_data_tells_its_user_the_end(engine: RunningEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("pandas") is None:
        missing("Ray Data: install ray[data]")
    variables = {"RAY_DATA_EXECUTION_CALLBACKS": "ray_notifications.ray.DataProgress", "RAY_NOTIFY": "squarer", "RAY_NOTIFY_AFTER_S": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "rows: 1000" in await asyncio.to_thread(output_of, engine, "ray_unmodified.py")
    assert (await end_of(engine, "squarer", "ray.data.done"))["data"]["pct"] == 100


async def test_a_training_of_ray_train_tells_its_user_the_end(engine: RunningEngine) -> None:
    if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("pandas") is None:
        missing("Ray Train: install ray[train]")
    await asyncio.to_thread(output_of, engine, "ray_train.py", "trainer")
    assert (await end_of(engine, "trainer", "ray.train.done"))["data"]["run"] == "my-model"


async def test_a_search_of_ray_tune_tells_its_user_the_end(engine: RunningEngine) -> None:
    if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("pandas") is None:
        missing("Ray Tune: install ray[tune]")
    await asyncio.to_thread(output_of, engine, "ray_tune.py", "searcher")
    assert (await end_of(engine, "searcher", "ray.tune.done"))["data"]["succeeded"] == 2


RUN = """
import sys, engine
from engine.config import Config
raise SystemExit(engine.run(Config(port=0, shards=1, data_dir=sys.argv[1])))
"""


async def test_a_program_runs_an_engine_until_it_is_told_to_end(tmp_path: Path) -> None:
    state = tmp_path / "data" / "engine.json"
    program = subprocess.Popen(dying_with_parent([sys.executable, "-c", RUN, os.fspath(tmp_path / "data")]), stdout=subprocess.DEVNULL)
    try:
        await until(lambda: state.exists() or program.poll() is not None, START_TIMEOUT_S, look_s=0.1)
        assert json.loads(state.read_text())["pid"] == program.pid
        program.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(program.wait, 60) == 0
    finally:
        program.kill()
        program.wait()
