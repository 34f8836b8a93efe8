"""Kill a scheduler, a shard or Redis while delayed messages are due: each arrives, once, and not before its time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from bench.movable_clock import MovableClock
from tests.chaos.test_faults import ask, victim_of
from tests.conftest import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 60
MESSAGES = 1000
USERS = 20
SPREAD_MS = 4000


class Receivers:
    """Users that acknowledge everything, and reconnect with their cursor."""

    def __init__(self, engine: RunningEngine, users: list[str], clock: MovableClock) -> None:
        self.engine = engine
        self.clock = clock
        self.users = users
        self.seqs: dict[str, set[int]] = {}  # message id -> numbers it came with
        self.arrived_ms: dict[str, int] = {}  # by the engine's clock

    async def run(self, user: str) -> None:
        cursor = None
        while True:
            try:
                async with self.engine.connect(user, cursor=cursor) as socket:
                    async for text in socket:
                        frame: dict[str, Any] = json.loads(text)
                        if frame["type"] == "messages":
                            for message in frame["messages"]:
                                self.seqs.setdefault(message["id"], set()).add(message["seq"])
                                self.arrived_ms.setdefault(message["id"], self.clock.now_ms())
                                cursor = message["event_id"]
                            await socket.send(json.dumps({"type": "ack", "seq": frame["messages"][-1]["seq"]}))
            except Exception:  # whatever a dying engine answers: connect again
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("role", ["scheduler", "shard", "redis"])
async def test_every_delayed_message_arrives_once_and_not_early(victim: RunningEngine, clock: MovableClock, role: str) -> None:
    users = [f"{role}{n}" for n in range(USERS)]
    first_ms = clock.now_ms() + 30_000
    items = [
        {"user": users[n % USERS], "type": "test.timer", "data": {}, "at": first_ms + n * SPREAD_MS // MESSAGES, "id": f"{role}-{n}"}
        for n in range(MESSAGES)
    ]
    due_ms = {item["id"]: item["at"] for item in items}
    # An engine that has just lost a part may say 429 for a moment to so many at once: repeated under their ids.
    for result in (await ask(victim, "POST", "/v1/notifications", items))["results"]:
        assert result["status"] in ("scheduled", "duplicate")
    clock.step_until(first_ms)
    receivers = Receivers(victim, users, clock)
    tasks = [asyncio.create_task(receivers.run(user)) for user in users]
    try:
        async with asyncio.timeout(LATE_S):
            while len(receivers.seqs) < MESSAGES // 4:
                await asyncio.sleep(0.01)
            victim_of(victim).kill(role)
            while len(receivers.seqs) < MESSAGES:
                await asyncio.sleep(0.01)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert all(len(seqs) == 1 for seqs in receivers.seqs.values())
    assert all(receivers.arrived_ms[id] >= due_ms[id] for id in due_ms)
