"""Kill the shard, or Redis, in the middle of aggregation windows, under publishers that repeat themselves: the counts are exact."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.chaos.test_faults import victim_of
from tests.conftest import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 60
WINDOW_S = 6
LIKES = 100
USERS = 5


async def publish(engine: RunningEngine, item: dict[str, Any]) -> None:
    """Until there is an answer that is final, and once more, as publishers do that crashed before they noted it."""
    taken = 0
    while taken < 2:
        try:
            (result,) = await engine.publish(item)
        except Exception:  # whatever a dying engine answers: repeat it under the same id
            await asyncio.sleep(0.1)
            continue
        assert result["status"] in ({"merged", "duplicate", "accepted"} if not taken else {"duplicate"}), result
        taken += 1


async def listen(engine: RunningEngine, user: str, heard: dict[str, dict[str, Any]]) -> None:
    """Collect and acknowledge the user's messages, by id."""
    cursor = None
    while True:
        try:
            async with engine.connect(user, cursor=cursor) as socket:
                async for text in socket:
                    frame: dict[str, Any] = json.loads(text)
                    if frame["type"] == "messages":
                        for message in frame["messages"]:
                            assert heard.setdefault(message["id"], message)["seq"] == message["seq"]
                            cursor = message["event_id"]
                        await socket.send(json.dumps({"type": "ack", "seq": frame["messages"][-1]["seq"]}))
        except AssertionError:
            raise
        except Exception:  # whatever a dying engine answers: connect again
            await asyncio.sleep(0.1)


def counted(messages: dict[str, dict[str, Any]]) -> int:
    """How many likes these messages stand for."""
    replaced = {message["replaces"] for message in messages.values() if "replaces" in message}
    return sum(message.get("count", 1) for id, message in messages.items() if id not in replaced)


@pytest.mark.parametrize("role", ["shard", "redis"])
async def test_every_like_counts_once(victim: RunningEngine, role: str) -> None:
    users = [f"liked-{role}-{n}" for n in range(USERS)]
    heard: dict[str, dict[str, dict[str, Any]]] = {user: {} for user in users}
    listeners = [asyncio.create_task(listen(victim, user, heard[user])) for user in users]
    gate = asyncio.Semaphore(20)

    async def like(user: str, n: int) -> None:
        collapse = {"key": "likes", "window": WINDOW_S, "leading": user == users[0], "text": "{count} people liked it"}
        async with gate:
            await publish(victim, {"user": user, "type": "post.liked", "actor": f"a{n}", "id": f"{role}-{n}", "collapse": collapse})

    try:
        async with asyncio.timeout(LATE_S):
            tasks = [asyncio.create_task(like(user, n)) for n in range(LIKES) for user in users]
            while sum(task.done() for task in tasks) < len(tasks) // 2:
                await asyncio.sleep(0.01)
            victim_of(victim).kill(role)
            await asyncio.gather(*tasks)
            while any(counted(messages) < LIKES for messages in heard.values()):
                assert not any(listener.done() for listener in listeners), listeners
                await asyncio.sleep(0.05)
            await asyncio.sleep(WINDOW_S / 2)  # what would count twice would come now
    finally:
        for task in listeners:
            task.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
    assert [counted(messages) for messages in heard.values()] == [LIKES] * USERS
    assert all(len(messages) < LIKES // 4 for messages in heard.values()), "they were merged"
    assert any(message.get("text") == f"{message.get('count')} people liked it" for message in heard[users[0]].values())
