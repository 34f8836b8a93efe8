"""Datasets published row by row, to the session's engine; the reading of rows and answers without one."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.client.credentials import Credentials
from engine.client.http_connection import Response
from engine.client.publish_results import PublishError
from engine.client.retried_requests import RetriedRequests
from tests.support.missing_programs import missing
from tests.support.running_engine import RunningEngine

if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("pandas") is None:
    missing("Ray Data: install ray[data]")

import pyarrow as pa

from engine.ray.notification_sink import NotificationSink, _Row, outcomes_of

TENANT = "jobs"


# -- rows --------------------------------------------------------------------------------------------------------------
def bodies(sink: NotificationSink, *tables: pa.Table) -> list[list[dict[str, Any]]]:
    return [[json.loads(row.body) for row in rows] for rows in sink._bodies(tables)]


TABLE = pa.table({"who": ["ann", "bob", "cat"], "row": [1, 2, 3], "score": [0.5, None, 1.5], "tags": [["a"], [], ["b", "c"]]})


def test_columns_become_members() -> None:
    sink = NotificationSink(user="who", type="report.ready", id="row", data=["score", "tags"], priority="low")
    (rows,) = bodies(sink, TABLE)
    assert rows[0] == {"user": "ann", "type": "report.ready", "id": "1", "data": {"score": 0.5, "tags": ["a"]}, "priority": "low"}
    assert [row["data"]["score"] for row in rows] == [0.5, None, 1.5]


def test_functions_of_a_row_decide_what_columns_cannot() -> None:
    sink = NotificationSink(
        user=lambda row: row["who"].upper(), type=lambda row: f"score.{row['row']}", id=lambda row: f"r{row['row']}",
        data=lambda row: row["tags"], ttl=lambda row: row["row"] * 60,
    )  # fmt: skip
    (rows,) = bodies(sink, TABLE)
    assert rows[2] == {"user": "CAT", "type": "score.3", "id": "r3", "data": ["b", "c"], "ttl": 180}


def test_a_single_column_is_the_data_itself_and_none_is_left_out() -> None:
    (rows,) = bodies(NotificationSink(user="who", type="t", id="row", data="score"), TABLE)
    assert [row.get("data", "none") for row in rows] == [0.5, "none", 1.5]


def test_bodies_are_bounded_by_rows_and_bytes_over_all_blocks() -> None:
    sink = NotificationSink(user="who", type="t", id="row", batch_max=2)
    assert [[row["id"] for row in rows] for rows in bodies(sink, TABLE, TABLE)] == [["1", "2"], ["3", "1"], ["2", "3"]]
    large = pa.table({"who": ["ann"] * 40, "row": range(40), "text": ["x" * 60_000] * 40})
    sizes = [
        sum(len(row.body) + 1 for row in rows) for rows in NotificationSink(user="who", type="t", id="row", data="text")._bodies([large])
    ]
    assert len(sizes) == 3
    assert max(sizes) < 1 << 20


def test_a_column_that_does_not_exist_is_named() -> None:
    with pytest.raises(KeyError, match="no column 'whom'; it has who, row"):
        bodies(NotificationSink(user="whom", type="t", id="row"), TABLE)


# -- answers -----------------------------------------------------------------------------------------------------------
class Scripted:
    """An engine that refuses rows by their data: 422 for `bad`, 100 listed at most, 413 for a body with `large` and others."""

    engine = "a script"

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def request(self, method: str, path: str, headers: Any, body: bytes, **options: Any) -> Response:
        items = json.loads(body)
        self.asked.append(len(items))
        bad = [{"index": index, "path": "$.type", "detail": "no"} for index, item in enumerate(items) if item["data"] == "bad"]
        if any(item["data"] == "large" for item in items) and len(items) > 1:
            return self._answer(413, {"detail": "too large"})
        if bad:
            return self._answer(422, {"detail": "not valid", "errors": bad[:2]})
        results = [
            {"id": item["id"], "user": item["user"], "status": "conflict" if item["data"] == "other" else "accepted", "seq": 1}
            for item in items
        ]
        conflict = any(result["status"] == "conflict" for result in results)
        return self._answer(409 if conflict else 202, {"results": results})

    def _answer(self, status: int, body: Any) -> Response:
        return Response(status, {}, json.dumps(body).encode())

    def close(self) -> None: ...


def rows_of(*data: str) -> list[_Row]:
    items = [{"user": f"u{index}", "id": "same", "data": value} for index, value in enumerate(data)]
    return [_Row("same", item["user"], json.dumps(item).encode()) for item in items]


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (["ok", "ok"], ["accepted", "accepted"]),
        (["ok", "other", "ok"], ["accepted", "conflict", "accepted"]),
        (["bad", "ok", "bad", "bad", "ok", "bad"], ["refused", "accepted", "refused", "refused", "accepted", "refused"]),
        (["ok", "large", "bad", "other"], ["accepted", "accepted", "refused", "conflict"]),
        (["bad"], ["refused"]),
    ],
)
async def test_every_row_gets_its_own_outcome(data: Sequence[str], statuses: Sequence[str]) -> None:
    requests = RetriedRequests(Scripted, Credentials(""), timeout_s=1, retry_for_s=1)
    outcomes = await outcomes_of(requests, rows_of(*data))
    assert [(one.user, one.status) for one in outcomes] == [(f"u{index}", status) for index, status in enumerate(statuses)]
    assert all(one.reason == "$.type: no" for one in outcomes if one.status == "refused")


# -- Ray Data ----------------------------------------------------------------------------------------------------------
def dataset(ray: Any, count: int, prefix: str) -> Any:
    from ray.data import DataContext

    DataContext.get_current().enable_progress_bars = False
    rows = [{"user_id": f"{prefix}-{number % 10}", "row_id": f"row-{number}", "a": number, "b": "x" * 20} for number in range(count)]
    return ray.data.from_items(rows, override_num_blocks=4)


@pytest.mark.slow
def test_a_dataset_is_published_once_however_often_it_is_written(job: Any, engine: RunningEngine) -> None:
    sink = NotificationSink(user="user_id", type="report.ready", data=["a", "b"], id="row_id", tenant=TENANT)
    ds = dataset(job, 3000, "sink-once")
    ds.write_datasink(sink)
    assert sink.counts == {"accepted": 3000}
    ds.write_datasink(sink)
    assert sink.counts == {"duplicate": 3000}


@pytest.mark.slow
def test_what_became_of_each_row_is_a_dataset(job: Any, engine: RunningEngine) -> None:
    sink = NotificationSink(
        user="user_id", type=lambda row: "no type" if row["a"] == 7 else "report.ready", data=["a"], id="row_id", tenant=TENANT
    )
    outcomes = dataset(job, 100, "sink-rows").map_batches(sink.results, batch_format="pyarrow", batch_size=None).take_all()
    by_status = {status: [one["id"] for one in outcomes if one["status"] == status] for status in ("accepted", "refused")}
    assert (len(by_status["accepted"]), by_status["refused"]) == (99, ["row-7"])
    (refused,) = [one for one in outcomes if one["status"] == "refused"]
    assert refused["reason"].endswith("joined by dots, at most 128 characters")


@pytest.mark.slow
def test_a_write_with_refused_rows_publishes_the_others_and_fails(job: Any, engine: RunningEngine) -> None:
    sink = NotificationSink(user="user_id", type=lambda row: "no type" if row["a"] == 7 else "report.ready", id="row_id", tenant=TENANT)
    ds = dataset(job, 100, "sink-part")
    with pytest.raises(PublishError, match=r"422: item \(id row-7\): user 'sink-part-7'"):
        ds.write_datasink(sink, concurrency=1)  # the row is in the first of four blocks
    assert sink.counts == {"accepted": 99, "refused": 1}
    whole = NotificationSink(user="user_id", type="report.ready", id="row_id", tenant=TENANT)
    ds.write_datasink(whole)
    assert whole.counts == {"accepted": 1, "duplicate": 99}


KILLED = """
import json, sys, ray
from engine.ray import NotificationSink
ray.init(address=sys.argv[1], namespace="killed", log_to_driver=False, logging_level="ERROR")
ray.data.DataContext.get_current().enable_progress_bars = False
ds = ray.data.range(24_000, override_num_blocks=12)
sink = NotificationSink(user=lambda row: f"sink-kill-{row['id'] % 100}", type="t", id="id", data="id", tenant="jobs")
ds.write_datasink(sink)
print(json.dumps(sink.counts))
"""


@pytest.mark.slow
async def test_a_job_that_was_killed_and_runs_again_publishes_each_row_once(job: Any, engine: RunningEngine, tmp_path: Path) -> None:
    program = [sys.executable, "-c", KILLED, engine.state["ray_address"]]
    environment = os.environ | {"RAY_AUTH_MODE": "token"}

    def published() -> int:
        return int(engine.status()["totals"]["published"])

    users = [f"sink-kill-{number}" for number in range(100)]
    began = await engine.publish(*({"user": user, "type": "first"} for user in users), tenant=TENANT)
    before = published()
    first = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 100
    while published() < before + 2000 and first.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    again = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stderr
    counts = Counter(json.loads(again.stdout.strip().splitlines()[-1]))
    assert counts["accepted"] + counts["duplicate"] == 24_000
    assert counts["duplicate"] > 0
    ended = await engine.publish(*({"user": user, "type": "last"} for user in users), tenant=TENANT)
    numbers = {user: last["seq"] - first["seq"] for user, first, last in zip(users, began, ended, strict=True)}
    if others := [user for user, count in numbers.items() if count != 241]:
        pytest.fail(f"each was sent 240 rows; {others} more or fewer: {await _came_to(others[0], engine)}")


async def _came_to(user: str, engine: RunningEngine) -> list[tuple[int, str, Any]]:
    """(number, id, data) of all that the user was sent, of which the last is of type `last`; gaps also."""
    came: list[tuple[int, str, Any]] = []
    async with engine.connect(user, tenant=TENANT) as socket, asyncio.timeout(60):
        async for text in socket:
            frame = json.loads(text)
            if frame["type"] == "gap":
                came.append((frame["from"], "gap", frame["to"]))
            for message in frame.get("messages", ()):
                came.append((message["seq"], message["id"], message.get("data")))
                if message["type"] == "last":
                    return came
            if came:
                await socket.send(json.dumps({"type": "ack", "seq": came[-1][0]}))
    return came
