"""Touch rules with short times, the scheduler or the shard killed while they fire: who was active, or has cancelled, is not touched; all
others are, once. Events that were answered count, whatever dies afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.test_faults import victim_of
from tests.chaos.test_judgement import ask
from tests.conftest import RedisServer, RunningEngine, running_engine

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 60
USERS = 12
KILL_S = 3.6  # just before the first timers are due
INACTIVE_S = 8.5  # of the rule below; longer than a killed shard is away

RULES = """
[[rule]]
name = "download"
event = "file.downloaded"
recipients = ["user"]
type = "touch.download"
delay = "4s"
fire = { unless_active = true }

[[rule]]
name = "order-paid"
event = "order.paid"
recipients = ["user"]
type = "touch.order_paid"
delay = "3500ms"
fire = { unless_event = ["order.cancelled"] }

[[rule]]
name = "service-done"
event = "service.done"
recipients = ["user"]
type = "touch.service_done"
delay = "4500ms"

[[rule]]
name = "inactive"
event = "*"
recipients = ["user"]
type = "touch.inactive"
inactive = "8s"
delay = "500ms"
"""


async def events(engine: RunningEngine, users: list[str], *types: str) -> None:
    for type in types:
        await asyncio.gather(*(ask(engine, "POST", "/v1/events", {"type": type, "user": user, "id": f"{type}-{user}"}) for user in users))


async def waiting(engine: RunningEngine, user: str) -> int:
    return len((await ask(engine, "GET", f"/v1/scheduled?user={user}"))["scheduled"])


@pytest.mark.parametrize("role", ["scheduler", "shard"])
async def test_who_was_active_is_not_touched_and_all_others_are_once(redis_server: RedisServer, tmp_path: Path, role: str) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    with running_engine(env={"ENGINE_RULES_PATH": str(rules)}) as engine:
        quiet = [f"quiet-{n}" for n in range(USERS)]
        lively = [f"lively-{n}" for n in range(USERS)]
        began_s = time.monotonic()
        await events(engine, [*quiet, *lively], "order.paid", "service.done", "file.downloaded")  # the last one: later ones are activity
        last_seen_s = time.monotonic()
        await events(engine, lively, "page.viewed", "order.cancelled")
        armed_s = time.monotonic() - began_s
        for user in (quiet[0], lively[0]):
            assert await waiting(engine, user) == 4, f"one timer of each rule, after {armed_s} s"
        await asyncio.sleep(max(0.0, began_s + KILL_S - time.monotonic()))
        victim_of(engine).kill(role)
        await events(engine, lively, "page.left")  # what follows them is moved, and moved again
        seen_in_time = time.monotonic() < last_seen_s + INACTIVE_S  # on a very slow machine they were inactive, and are once more
        deadline = time.monotonic() + LATE_S
        while sum(await asyncio.gather(*(waiting(engine, user) for user in [*quiet, *lively]))):
            assert time.monotonic() < deadline, "timers stay armed"
            await asyncio.sleep(0.2)

        got = {user: await received(engine, user) for user in [*quiet, *lively]}
        for user in quiet:
            assert got[user] == {"touch.download": 1, "touch.order_paid": 1, "touch.service_done": 1, "touch.inactive": 1}, user
        for user in lively:
            assert got[user] in [{"touch.service_done": 1, "touch.inactive": n} for n in ((1,) if seen_in_time else (1, 2))], user
        told = await ask(engine, "GET", f"/v1/users/{lively[0]}/messages/download/file.downloaded-{lively[0]}")
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
