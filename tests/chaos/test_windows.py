"""Kill the shard, or Redis, in the middle of aggregation windows, under publishers that repeat themselves: the counts are exact."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.chaos.breakable_engine import victim_of
from tests.support.chaos.judged_run import JudgedRun
from tests.support.chaos.listeners import listening
from tests.support.chaos.movable_clock import MovableClock
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 110
WINDOW_S = 6
LIKES = 60
USERS = 5


async def publish(run: JudgedRun, item: dict[str, Any]) -> None:
    """Until there is an answer that is final, and once more, as publishers do that crashed before they noted it."""
    for statuses in ({"merged", "duplicate", "accepted"}, {"duplicate"}):
        (result,) = await run.publish(item)
        assert result["status"] in statuses, result


def counted(messages: dict[str, dict[str, Any]]) -> int:
    """How many likes these messages stand for."""
    replaced = {message["replaces"] for message in messages.values() if "replaces" in message}
    return sum(message.get("count", 1) for id, message in messages.items() if id not in replaced)


@pytest.mark.parametrize("role", ["shard", "redis"])
async def test_every_like_counts_once(victim: RunningEngine, clock: MovableClock, role: str) -> None:
    users = [f"liked-{role}-{n}" for n in range(USERS)]
    gate = asyncio.Semaphore(20)

    async def like(user: str, n: int) -> None:
        collapse = {"key": "likes", "window": WINDOW_S, "leading": user == users[0], "text": "{count} people liked it"}
        async with gate:
            await publish(run, {"user": user, "type": "post.liked", "actor": f"a{n}", "id": f"{role}-{n}", "collapse": collapse})

    async with asyncio.timeout(LATE_S), JudgedRun(victim, clock.now_ms) as run, listening(listeners := run.listeners(users)):
        tasks = [asyncio.create_task(like(user, n)) for n in range(LIKES) for user in users]
        await until(lambda: sum(task.done() for task in tasks) >= len(tasks) // 2, LATE_S)
        victim_of(victim).kill(role)
        await asyncio.gather(*tasks)
        clock.step_until(clock.now_ms() + WINDOW_S * 1000)
        await until(lambda: all(counted(listener.messages) >= LIKES for listener in listeners), LATE_S)
        clock.step_until(clock.now_ms() + WINDOW_S * 1000)
        await asyncio.sleep(1)  # what would count twice would come now
        run.complete()
    assert [counted(listener.messages) for listener in listeners] == [LIKES] * USERS
    assert all(len(listener.messages) < LIKES // 4 for listener in listeners), "they were merged"
    assert any(message.get("text") == f"{message.get('count')} people liked it" for message in listeners[0].messages.values())
    assert not any(listener.renumbered for listener in listeners)
