"""Steps of messages of 1 000 users, half of whom read theirs, with scheduler, edge and shard killed while they are due.

Readers get no mail, every other user one by its Message-ID, and nothing before its time. The mail server is real. The engine's clock is
moved to the steps.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chaos.breakable_engine import ask, status_when, victim_of
from tests.support.chaos.movable_clock import MovableClock
from tests.support.mail_server import MailServer, mail_server
from tests.support.redis_server import RedisServer
from tests.support.running_engine import RunningEngine, running_engine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

RULES = """
[category.alert]
steps = [{ channel = "email", after = "20s", unless = "read" }]
"""
LATE_S = 110
AFTER_MS = 20_000
USERS = 1000
AT_ONCE = 16


@pytest.fixture(scope="module")
def mails() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture(scope="module")
def reaching(
    redis_server: RedisServer, clock: MovableClock, mails: MailServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    """An engine whose parts may be killed, which sends mails."""
    rules: Path = tmp_path_factory.mktemp("rules") / "rules.toml"
    rules.write_text(RULES)
    env = {"ENGINE_RULES_PATH": str(rules), "ENGINE_SMTP_URL": mails.url, "ENGINE_MAIL_FROM": "ops@example.com"}
    with running_engine(env={**env, **clock.environment()}) as running:
        yield running


async def read(engine: RunningEngine, user: str) -> None:
    """The user takes the message on one device, and reads it in the inbox."""
    async with engine.connect(user) as socket:
        (message,) = (await engine.receive(socket, "messages"))["messages"]
        await socket.send(json.dumps({"type": "ack", "seq": message["seq"]}))
    await ask(engine, "POST", f"/v1/inbox/read?user={user}", {"ids": [message["id"]]})


async def no_step_waits(engine: RunningEngine, user: str) -> None:
    """Return when each step of the user is decided."""
    scheduled = f"/v1/scheduled?user={user}"
    await until(lambda: ask(engine, "GET", scheduled), LATE_S, holds=lambda answer: not answer["scheduled"], look_s=0.2)


async def of_each(users: Iterable[str], work: Callable[[str], Awaitable[Any]]) -> None:
    """Do this for each user, some at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(user: str) -> None:
        async with turns:
            await work(user)

    await asyncio.gather(*(one(user) for user in users))


async def test_readers_get_nothing_and_every_other_user_one_mail(reaching: RunningEngine, mails: MailServer, clock: MovableClock) -> None:
    await status_when(reaching, lambda status: status["ready"])
    users = [f"u{n}" for n in range(USERS)]
    readers, others = users[::2], set(users[1::2])
    began_ms = clock.now_ms()
    await of_each(users, lambda user: ask(reaching, "PUT", f"/v1/users/{user}/channels", {"email": f"{user}@example.org"}))
    items = [{"user": user, "type": "alert", "id": f"m-{user}", "category": "alert", "data": {"title": "Disk full"}} for user in users]
    await reaching.publish(*items)
    await of_each(readers, lambda user: read(reaching, user))
    assert mails.mails == [], "nothing is sent before its time"
    clock.step_until(began_ms + AFTER_MS)
    victim = victim_of(reaching)

    def told() -> Counter[str]:
        """Mails by address, those with one Message-ID as one."""
        ids = {(mail.recipients[0], mail.message["Message-ID"]) for mail in mails.mails}
        return Counter(address.partition("@")[0] for address, _ in ids)

    for number, role in enumerate(("scheduler", "edge", "shard"), 1):
        victim.kill(role)
        part = len(others) * number // 4  # some are sent after the last one died
        await until(told, LATE_S, holds=lambda found, part=part: len(found) >= part, look_s=0.1)
    await until(told, LATE_S, holds=lambda found: found.keys() >= others, look_s=0.2)
    await of_each(users, lambda user: no_step_waits(reaching, user))
    assert told() == Counter(dict.fromkeys(others, 1))
    reader = min(readers)
    shown = await ask(reaching, "GET", f"/v1/users/{reader}/messages/m-{reader}")
    assert [step["reason"] for step in shown["timeline"] if step["event"] == "step_skipped"] == ["reached: email: the user has read it"]
