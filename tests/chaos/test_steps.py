"""Steps of messages that nobody has read, with the scheduler, the edge or the shard killed when they are due: readers get no mail, every
other user one by its Message-ID, and nothing before its time. The mail server is real. The engine's clock is moved to the steps.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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
USERS = 20


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


@pytest.mark.parametrize("role", ["scheduler", "edge", "shard"])
async def test_readers_get_nothing_and_every_other_user_one_mail(
    reaching: RunningEngine, mails: MailServer, clock: MovableClock, role: str
) -> None:
    await status_when(reaching, lambda status: status["ready"])
    users = [f"{role}-{n}" for n in range(USERS)]
    readers, others = set(users[::2]), set(users[1::2])
    began_ms = clock.now_ms()
    for user in users:
        await ask(reaching, "PUT", f"/v1/users/{user}/channels", {"email": f"{user}@example.org"})
        item = {"user": user, "type": "alert", "id": f"m-{user}", "category": "alert", "data": {"title": "Disk full"}}
        await ask(reaching, "POST", "/v1/notifications", item)
    await asyncio.gather(*(read(reaching, user) for user in readers))
    assert mails.mails == [mail for mail in mails.mails if role not in mail.recipients[0]], "nothing is sent before its time"
    clock.step_until(began_ms + AFTER_MS)
    victim_of(reaching).kill(role)

    def told() -> Counter[str]:
        """Mails of this test by address, those with one Message-ID as one."""
        ids = {(mail.recipients[0], mail.message["Message-ID"]) for mail in mails.mails if mail.recipients[0].startswith(f"{role}-")}
        return Counter(address.partition("@")[0] for address, _ in ids)

    await until(told, LATE_S, holds=lambda found: found.keys() >= others, look_s=0.2)
    await until(
        lambda: asyncio.gather(*(ask(reaching, "GET", f"/v1/scheduled?user={user}") for user in users)),
        LATE_S,
        holds=lambda answers: not any(answer["scheduled"] for answer in answers),
        look_s=0.2,
    )
    assert told() == Counter(dict.fromkeys(others, 1))
    reader = min(readers)
    shown = await ask(reaching, "GET", f"/v1/users/{reader}/messages/m-{reader}")
    assert [step["reason"] for step in shown["timeline"] if step["event"] == "step_skipped"] == ["reached: email: the user has read it"]
