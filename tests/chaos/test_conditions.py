"""Touch rules, the scheduler or the shard killed while they fire: who was active, or has cancelled, is not touched; all others are, once.
Events that were answered count, whatever dies afterwards. The engine's clock is moved to where something is due (rules: conftest.py)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.support.chaos.breakable_engine import ask, status_when, victim_of
from tests.support.chaos.movable_clock import MovableClock
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 110
USERS = 12
FIRST_DUE_S = 19.5  # the shortest delay of the rules
INACTIVE_S = 40.5  # after the last event; all the rest is due much earlier


async def events(engine: RunningEngine, users: list[str], *types: str) -> None:
    for type in types:
        await asyncio.gather(*(ask(engine, "POST", "/v1/events", {"type": type, "user": user, "id": f"{type}-{user}"}) for user in users))


async def waiting(engine: RunningEngine, user: str) -> int:
    return len((await ask(engine, "GET", f"/v1/scheduled?user={user}"))["scheduled"])


async def until_waiting(engine: RunningEngine, users: list[str], timers: int) -> None:
    """Until each of the users has so many armed."""
    await until(
        lambda: asyncio.gather(*(waiting(engine, user) for user in users)), LATE_S, holds=lambda counts: {*counts} == {timers}, look_s=0.2
    )


@pytest.mark.parametrize("role", ["scheduler", "shard"])
async def test_who_was_active_is_not_touched_and_all_others_are_once(victim: RunningEngine, clock: MovableClock, role: str) -> None:
    await status_when(victim, lambda status: status["ready"])
    quiet = [f"quiet-{role}-{n}" for n in range(USERS)]
    lively = [f"lively-{role}-{n}" for n in range(USERS)]
    began_ms = clock.now_ms()
    await events(victim, [*quiet, *lively], "order.paid", "service.done", "file.downloaded")  # the last one: later ones are activity
    await events(victim, lively, "page.viewed", "order.cancelled")
    await until_waiting(victim, [quiet[0]], 4)  # one timer of each rule
    await until_waiting(victim, [lively[0]], 4)
    clock.step_until(began_ms + int(FIRST_DUE_S * 1000))
    victim_of(victim).kill(role)
    await events(victim, lively, "page.left")  # what follows them is moved, and moved again
    seen_ms = clock.now_ms()
    await until_waiting(victim, [*quiet, *lively], 1)  # the one that inactivity would fire
    clock.step_until(began_ms + int(INACTIVE_S * 1000))
    await until_waiting(victim, quiet, 0)
    clock.step_until(seen_ms + int(INACTIVE_S * 1000))
    await until_waiting(victim, lively, 0)

    got = {user: await received(victim, user) for user in [*quiet, *lively]}
    for user in quiet:
        assert got[user] == {"touch.download": 1, "touch.order_paid": 1, "touch.service_done": 1, "touch.inactive": 1}, user
    for user in lively:
        assert got[user] == {"touch.service_done": 1, "touch.inactive": 1}, user
    told = await ask(victim, "GET", f"/v1/users/{lively[0]}/messages/download/file.downloaded-{lively[0]}")
    assert [entry["reason"].partition(":")[0] for entry in told["timeline"] if "reason" in entry][-1:] == ["interacted"]


async def received(engine: RunningEngine, user: str) -> Counter[str]:
    """What waits for a user, by type; each under one number."""
    async with engine.connect(user) as socket:
        found: Counter[str] = Counter()
        head = (await engine.receive(socket, "welcome"))["seq"]
        while sum(found.values()) < head:
            for message in (await engine.receive(socket, "messages"))["messages"]:
                if message["attempt"] == 1:
                    found[message["type"]] += 1
        return found
