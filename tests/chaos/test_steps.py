"""Steps of messages of 300 users, half of whom read theirs, with scheduler, edge and shard killed while they are due.

Readers get no mail and no push, every other user one mail by its Message-ID and one push by its tag, and nothing before its time. The mail
server is real, the push service reads what it gets as browsers do. The engine's clock is moved to the steps. Questions are escalated by
steps until somebody answers.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.chaos.breakable_engine import ask, status_when, victim_of
from tests.support.chaos.movable_clock import MovableClock
from tests.support.mail_server import MailServer
from tests.support.push_service import Browser, PushService
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until
from tests.support.webhook_target import WebhookServer

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 110
AFTER_MS = 120_000  # longer than the users take to read on a busy machine
USERS = 300
AT_ONCE = 16


async def read(engine: RunningEngine, user: str) -> None:
    """The user takes the message on one device, and reads it in the inbox."""
    async with engine.connect(user) as socket:
        (message,) = (await engine.receive(socket, "messages"))["messages"]
        await socket.send(json.dumps({"type": "ack", "seq": message["seq"]}))
    await ask(engine, "POST", f"/v1/inbox/read?user={user}", {"ids": [message["id"]]})


def addresses_of(user: str, browser: Browser) -> dict[str, Any]:
    endpoint, keys = browser.subscription.endpoint, browser.subscription.keys
    return {"email": f"{user}@example.org", "push": [{"endpoint": endpoint, "keys": {"p256dh": keys.p256dh, "auth": keys.auth}}]}


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


async def test_readers_get_nothing_and_every_other_user_one_mail_and_one_push(
    victim: RunningEngine, mails: MailServer, pushes: PushService, clock: MovableClock
) -> None:
    await status_when(victim, lambda status: status["ready"])
    users = [f"u{n}" for n in range(USERS)]
    readers, others = users[::2], set(users[1::2])
    browsers = {user: pushes.subscribe(user) for user in users}
    began_ms = clock.now_ms()
    await of_each(users, lambda user: ask(victim, "PUT", f"/v1/users/{user}/channels", addresses_of(user, browsers[user])))
    items = [{"user": user, "type": "alert", "id": f"m-{user}", "category": "alert", "data": {"title": "Disk full"}} for user in users]
    await victim.publish(*items)
    await of_each(readers, lambda user: read(victim, user))
    assert (mails.mails, pushes.server.received) == ([], []), "nothing is sent before its time"
    clock.step_until(began_ms + AFTER_MS)

    def told() -> Counter[str]:
        """Mails by address, those with one Message-ID as one."""
        ids = {(mail.recipients[0], mail.message["Message-ID"]) for mail in mails.mails}
        return Counter(address.partition("@")[0] for address, _ in ids)

    for number, role in enumerate(("scheduler", "edge", "shard"), 1):
        victim_of(victim).kill(role)
        part = len(others) * number // 4  # some are sent after the last one died
        await until(told, LATE_S, holds=lambda found, part=part: len(found) >= part, look_s=0.1)
    await until(told, LATE_S, holds=lambda found: found.keys() >= others, look_s=0.2)
    await until(lambda: {got.path for got in pushes.server.received}, LATE_S, holds=lambda found: len(found) >= len(others), look_s=0.2)
    await of_each(users, lambda user: no_step_waits(victim, user))
    assert told() == Counter(dict.fromkeys(others, 1))
    pushed = {user: {(push.payload["id"], push.headers["topic"]) for push in pushes.pushes(browsers[user])} for user in users}
    assert {user: len(tags) for user, tags in pushed.items()} == dict.fromkeys(others, 1) | dict.fromkeys(readers, 0)
    reader = min(readers)
    shown = await ask(victim, "GET", f"/v1/users/{reader}/messages/m-{reader}")
    skipped = sorted(step["reason"] for step in shown["timeline"] if step["event"] == "step_skipped")
    assert skipped == [f"reached: {channel}: the user has read it" for channel in ("email", "push")]


async def test_a_question_is_escalated_by_steps_until_somebody_answers(
    victim: RunningEngine, mails: MailServer, pushes: PushService, oncall: WebhookServer, clock: MovableClock
) -> None:
    await status_when(victim, lambda status: status["ready"])
    users = ("at-once", "by-mail", "never")
    browsers = {user: pushes.subscribe(user) for user in users}
    for user in users:
        await ask(victim, "PUT", f"/v1/users/{user}/channels", addresses_of(user, browsers[user]))
    began_ms = clock.now_ms()
    choices = {"answers": [{"id": "yes", "label": "Approve"}], "deadline": "1h"}
    question = {"type": "deploy.ask", "category": "approval", "data": {"title": "Deploy?"}, "ask": choices}
    await victim.publish(*({"user": user, "id": f"q-{user}", **question} for user in users))

    async def listed(user: str) -> list[str]:
        return [message["id"] for message in (await ask(victim, "GET", f"/v1/inbox?user={user}"))["messages"]]

    async def answer(user: str) -> None:
        """Answer, and wait until the question has left the inbox."""
        await ask(victim, "POST", f"/v1/answers/q-{user}?user={user}", {"answer": "yes"})
        outcome = [f"answer:q-{user}"]
        await until(lambda: listed(user), LATE_S, holds=lambda ids: ids == outcome, look_s=0.2)

    def told(user: str) -> tuple[int, int]:
        return len(mails.to(f"{user}@example.org")), len(pushes.pushes(browsers[user]))

    await answer("at-once")
    assert [told(user) for user in users] == [(0, 0)] * 3, "nothing is sent before its time"
    clock.step_until(began_ms + AFTER_MS)
    await until(lambda: [told(user) for user in users], LATE_S, holds=lambda found: found == [(0, 0), (1, 1), (1, 1)], look_s=0.2)
    await answer("by-mail")
    assert oncall.received == []
    clock.step_until(began_ms + 2 * AFTER_MS)
    await of_each(users, lambda user: no_step_waits(victim, user))
    await until(lambda: oncall.received, LATE_S, holds=bool, look_s=0.2)
    assert [one.event["title"] for one in oncall.received] == ["Deploy?"], "one question, of who never answers"
    assert [told(user) for user in users] == [(0, 0), (1, 1), (1, 1)]
    shown = await ask(victim, "GET", "/v1/users/by-mail/messages/q-by-mail")
    assert [step["reason"] for step in shown["timeline"] if step["event"] == "step_skipped"] == [
        "reached: apprise: the user has dealt with it"
    ]


async def test_a_digest_by_mail_survives_the_death_of_each_part_and_arms_the_next(
    victim: RunningEngine, mails: MailServer, clock: MovableClock
) -> None:
    await status_when(victim, lambda status: status["ready"])
    due = datetime.fromtimestamp(clock.now_ms() / 1000 + 120, UTC).replace(second=0, microsecond=0)
    await ask(victim, "PUT", "/v1/users/dora/channels", {"email": "dora@example.org"})
    await ask(victim, "PATCH", "/v1/preferences?user=dora", {"mail_digest": {"at": f"{due:%H:%M}"}})
    await victim.publish({"user": "dora", "type": "post.liked", "target": {"title": "Roses"}, "actor": "ana", "retain": True})
    for role in ("scheduler", "shard", "edge"):
        victim_of(victim).kill(role)
        await status_when(victim, lambda status: status["ready"])
    assert mails.to("dora@example.org") == [], "nothing is sent before its time"
    clock.step_until(int(due.timestamp() * 1000))
    victim_of(victim).kill("shard")
    sent = await until(lambda: mails.to("dora@example.org"), LATE_S, holds=bool, look_s=0.2)
    assert {mail["Subject"] for mail in sent} == {"While you were away: 1 unread"}
    assert len({mail["Message-ID"] for mail in sent}) == 1
    (following,) = (await ask(victim, "GET", "/v1/scheduled?user=dora"))["scheduled"]
    assert following["scheduled_at"] == int((due + timedelta(days=1)).timestamp() * 1000)
