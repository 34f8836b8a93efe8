"""A whole engine is killed and put back to a snapshot: what was accepted before it is delivered, and nothing is numbered twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.process_tree import tree
from tests.support.running_engine import RunningEngine, wait_gone

pytestmark = [pytest.mark.engine, pytest.mark.slow]


async def command(*words: str) -> tuple[int, str]:
    """Exit code and output of an `engine` command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def handled(engine: RunningEngine, user: str, last: str, cursor: str | None = None) -> tuple[str, list[dict[str, Any]]]:
    """Connects, receives until the message with the id `last`, acknowledges. Returns how the connection was resumed, and the messages."""
    async with engine.connect(user, cursor=cursor) as socket:
        resumed = (await engine.receive(socket, "welcome"))["resumed"]
        messages: list[dict[str, Any]] = []
        while last not in ids(messages):
            messages += (await engine.receive(socket, "messages"))["messages"]
        await socket.send(json.dumps({"type": "ack", "seq": messages[-1]["seq"]}))
        return resumed, messages


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [message["id"] for message in messages]


def items(prefix: str) -> list[dict[str, Any]]:
    """Three messages for each of two users."""
    return [{"user": user, "type": "test.event", "id": f"{prefix}-{number}"} for number in range(3) for user in ("ann", "bob")]


async def test_what_was_accepted_before_the_snapshot_is_delivered_and_cursors_of_the_lost_time_get_a_gap(tmp_path: Path) -> None:
    engine = RunningEngine(tmp_path, "--shards", "1", env={"ENGINE_SNAPSHOT_INTERVAL_S": "3600"})
    engine.start()
    try:
        await asyncio.to_thread(engine.status_when, lambda found: found["redis"]["snapshots"]["count"] == 1)  # the schedule's first
        await engine.publish(*items("early"))
        _, ann = await handled(engine, "ann", "early-2")
        code, output = await command("snapshot", "--data-dir", str(engine.data_dir))
        assert code == 0, output
        await engine.publish(*items("late"))
        _, lost = await handled(engine, "ann", "late-2", cursor=ann[-1]["event_id"])
        assert ids(lost) == ["late-0", "late-1", "late-2"]
        code, output = await command("restore", "latest", "--data-dir", str(engine.data_dir))
        assert code == 1
        assert "another engine (pid" in output

        assert engine.process is not None
        processes = [psutil.Process(pid) for pid in tree(engine.process.pid)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        engine.process.wait(30)
        wait_gone(processes, 30)
        code, output = await command("restore", "latest", "--data-dir", str(engine.data_dir))
        assert code == 0, output
        assert "new data epoch" in output

        engine.start()
        await engine.publish({"user": "ann", "type": "test.event", "id": "after"})
        resumed, again = await handled(engine, "ann", "after", cursor=lost[-1]["event_id"])
        assert resumed == "gap"
        _, bob = await handled(engine, "bob", "early-2")
        assert ids(bob) == ["early-0", "early-1", "early-2"]
        (repeated,) = await engine.publish({"user": "bob", "type": "test.event", "id": "early-0"})
        assert repeated["status"] == "duplicate"
        received: dict[str, set[str]] = {}
        for message in (*ann, *lost, *again):
            received.setdefault(message["event_id"], set()).add(message["id"])
        assert all(len(messages) == 1 for messages in received.values()), "no number is used twice within one data epoch"
    finally:
        assert engine.stop() == 0
