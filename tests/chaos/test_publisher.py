"""Many calls of one publisher while edges and shards are killed: whatever was accepted arrives, each message under one number."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict

import pytest

from engine import Client, Publisher
from tests.support.chaos.breakable_engine import status_when
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

USERS = [f"called-{number}" for number in range(5)]
CALLERS = 40
KILLED = ("edges", "shards", "edges")


async def test_everything_accepted_arrives_under_one_number_while_edges_and_shards_are_killed(victim: RunningEngine) -> None:
    status = await status_when(victim, lambda status: status["ready"])
    accepted: set[tuple[str, str]] = set()
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    over = asyncio.Event()

    async def listen(user: str) -> None:
        async with Client(victim.url, victim.token(user)) as client:
            async for message in client:
                numbers[user, message.data].add(message.seq)

    async def publish(publisher: Publisher, caller: int) -> None:
        n = 0
        while not over.is_set():
            user, text = USERS[(caller + n) % len(USERS)], f"{caller}.{n}"
            result = await publisher.publish(user=user, type="called.test", data=text)
            assert result.status in ("accepted", "duplicate"), "a duplicate was stored by the attempt whose answer was lost"
            accepted.add((user, text))
            n += 1

    async with Publisher(victim.url, victim.token("app", "publish")) as publisher, asyncio.TaskGroup() as group:
        listening = [group.create_task(listen(user)) for user in USERS]
        publishing = [group.create_task(publish(publisher, caller)) for caller in range(CALLERS)]
        for kind in KILLED:
            before = len(accepted)
            await until(lambda before=before: len(accepted) > before + 2 * CALLERS, within_s=90)  # type: ignore[misc]
            status = await status_when(victim, lambda status: status["ready"])
            pid = status[kind][0]["pid"]
            os.kill(pid, signal.SIGKILL)
            await status_when(victim, lambda status, kind=kind, pid=pid: status["ready"] and status[kind][0]["pid"] != pid)  # type: ignore[misc]
        before = len(accepted)
        await until(lambda: len(accepted) > before + 2 * CALLERS, within_s=90)
        over.set()
        await asyncio.wait(publishing)
        await until(lambda: numbers.keys() >= accepted, within_s=90)
        for task in listening:
            task.cancel()

    assert numbers.keys() == accepted
    assert {message: found for message, found in numbers.items() if len(found) != 1} == {}
    for user in USERS:
        of_user = [number for (receiver, _), found in numbers.items() if receiver == user for number in found]
        assert len(set(of_user)) == len(of_user), "no number is of two messages"
