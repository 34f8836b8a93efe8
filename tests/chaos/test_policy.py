"""Kill the scheduler while quiet hours hold messages back, and the shard while it counts: the morning comes once, and caps hold."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.support.chaos.breakable_engine import ask, status_when, victim_of
from tests.support.chaos.judged_run import JudgedRun
from tests.support.chaos.listeners import listening
from tests.support.chaos.movable_clock import MovableClock
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 110
USERS = 3
MESSAGES = 20
MORNING_MS = 2000  # before quiet hours end: whoever listens hears nothing yet


def of_day(at_ms: int) -> str:
    return time.strftime("%H:%M", time.gmtime(at_ms // 1000))


async def test_what_quiet_hours_hold_back_comes_once_when_they_end(victim: RunningEngine, clock: MovableClock) -> None:
    await status_when(victim, lambda status: status["ready"])
    end_ms = (clock.now_ms() // 60_000 + 2) * 60_000  # a whole minute, as profiles have it; longer than falling asleep takes
    asleep = asyncio.Barrier(2)
    async with asyncio.TaskGroup() as nights:
        for role in ("scheduler", "shard"):
            nights.create_task(night(victim, clock, role, end_ms, asleep))


async def night(victim: RunningEngine, clock: MovableClock, role: str, end_ms: int, asleep: asyncio.Barrier) -> None:
    """Publish to users who sleep; when all do, kill a process, and let the morning come soon: everything is there once."""
    async with JudgedRun(victim, clock.now_ms) as run:
        await judged_night(run, victim, clock, role, end_ms, asleep)
        run.complete()


async def judged_night(run: JudgedRun, victim: RunningEngine, clock: MovableClock, role: str, end_ms: int, asleep: asyncio.Barrier) -> None:
    profile = {"quiet": [{"from": of_day(end_ms - 3_600_000), "to": of_day(end_ms)}]}
    users = [f"night-{role}-{n}" for n in range(USERS)]
    for user in users:
        assert (await ask(victim, "PUT", f"/v1/users/{user}/profile", profile))["quiet"][0]["to"] == of_day(end_ms)
        run.recorder.quiet(user, end_ms - 3_600_000, end_ms)
    ids = [f"{role}-{n}" for n in range(MESSAGES)]
    items = [{"users": users, "type": "test.night", "id": id} for id in ids]
    for result in await run.publish(*items):
        assert (result["status"], result["scheduled_at"]) == ("scheduled", end_ms)
        assert result["reason"].startswith("quiet_hours: ")
    # These become due in the middle of the night, and are moved.
    await run.publish(*({"users": users, "type": "test.dreamt", "id": f"dream-{id}", "delay": 1} for id in ids[:3]), suppressible=True)
    dream = f"/v1/users/{users[0]}/messages/dream-{ids[0]}"
    await until(lambda: ask(victim, "GET", dream), holds=lambda told: told["timeline"][-1]["event"] == "deferred", look_s=0.1)
    await asleep.wait()
    victim_of(victim).kill(role)
    again = await run.publish(*items)
    assert {result["status"] for result in again} == {"duplicate"}
    await asleep.wait()  # the other repeats its messages in the night too
    clock.step_until(end_ms - MORNING_MS)
    listeners = run.listeners(users, now_ms=clock.now_ms)
    wanted = {*ids, *(f"dream-{id}" for id in ids[:3])}
    async with listening(listeners):
        await until(lambda: all(one.messages.keys() >= wanted for one in listeners), LATE_S)
        await asyncio.sleep(1)  # what would come twice would come now
    for one in listeners:
        assert not one.renumbered
        assert all(one.arrived_ms[id] >= end_ms for id in wanted)


async def test_caps_hold_when_the_shard_dies_between_the_third_and_the_fourth(victim: RunningEngine, clock: MovableClock) -> None:
    users = [f"touched-{n}" for n in range(10)]
    async with JudgedRun(victim, clock.now_ms) as run:
        run.recorder.capped("touch", 3, 86_400_000)
        await touched(run, victim, users)
        async with listening(listeners := run.listeners(users)):
            await until(lambda: all(len(one.messages) == 3 for one in listeners), LATE_S)
        run.complete()


async def touched(run: JudgedRun, victim: RunningEngine, users: list[str]) -> None:
    def touch(user: str, n: int) -> dict[str, Any]:
        return {"user": user, "type": f"touch.kind{n}", "category": "touch", "id": f"{user}-{n}"}

    three = await run.publish(*(touch(user, n) for n in range(3) for user in users))
    assert {result["status"] for result in three} == {"accepted"}
    victim_of(victim).kill("shard")
    fourth = await run.publish(*(touch(user, 3) for user in users))
    assert {(result["status"], result["reason"].partition(":")[0]) for result in fourth} == {("suppressed", "cap")}
    await status_when(victim, lambda status: status["ready"])
    for user in users:
        explained = (await ask(victim, "POST", "/v1/explain", touch(user, 4)))["results"][0]
        assert (explained["decision"], explained["reasons"][-1]["code"]) == ("suppress", "cap")
        told = await ask(victim, "GET", f"/v1/users/{user}/messages/{user}-3")
        assert (told["state"], told["timeline"][-1]["event"]) == ("suppressed", "suppressed")
        assert (await ask(victim, "GET", f"/v1/users/{user}/messages/{user}-2"))["state"] == "pending"


async def test_choices_that_were_answered_hold_when_the_shard_dies(victim: RunningEngine) -> None:
    users = [f"chooser-{n}" for n in range(10)]
    patches: list[dict[str, Any]] = [{"categories": {"touch": "off"}}, {"types": {"chosen.on": "on"}}, {"zone": "Asia/Tokyo"}]
    await asyncio.gather(*(ask(victim, "PATCH", f"/v1/preferences?user={user}", patch) for user in users for patch in patches))
    victim_of(victim).kill("shard")
    for user in users:
        found = await ask(victim, "GET", f"/v1/preferences?user={user}")
        assert (found["categories"], found["types"], found["zone"]) == ({"touch": "off"}, {"chosen.on": "on"}, "Asia/Tokyo")
    items = [{"user": user, "type": "chosen.on", "category": "touch"} for user in users]
    results = (await ask(victim, "POST", "/v1/notifications", items))["results"]
    assert {(result["status"], result["reason"].partition(":")[0]) for result in results} == {("suppressed", "muted_category")}
    (link,) = (await ask(victim, "POST", "/v1/unsubscribe-links", {"user": users[0], "category": "touch"}))["links"]
    assert link["path"].startswith("/v1/unsubscribe?token=")
    await status_when(victim, lambda status: status["ready"])
