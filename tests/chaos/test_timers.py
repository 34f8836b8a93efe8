"""Kill a scheduler, a shard or Redis while delayed messages are due: each arrives, once, and not before its time."""

from __future__ import annotations

import pytest

from tests.support.chaos.breakable_engine import ask, victim_of
from tests.support.chaos.listeners import Listener, listening
from tests.support.chaos.movable_clock import MovableClock
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 110
MESSAGES = 1000
USERS = 20
SPREAD_MS = 2500


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
    listeners = [Listener(victim, user, now_ms=clock.now_ms) for user in users]
    async with listening(listeners):
        await until(lambda: sum(len(one.messages) for one in listeners) >= MESSAGES // 4, LATE_S)
        victim_of(victim).kill(role)
        await until(lambda: sum(len(one.messages) for one in listeners) >= MESSAGES, LATE_S)
    assert not any(one.renumbered for one in listeners)
    arrived_ms = {id: at_ms for one in listeners for id, at_ms in one.arrived_ms.items()}
    assert all(arrived_ms[id] >= due_ms[id] for id in due_ms)
