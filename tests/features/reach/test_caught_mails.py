"""Mails that are caught in place of being sent: a bounded list, shown to operators, part of an export, erased with the user."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from engine.config import CATCH_MAILS, Config
from engine.core.model.constants import NORMAL
from engine.errors import ActionFailed
from engine.features.actions.store import QueuedAction
from engine.features.reach.caught_mails import MAILS_MAX, CaughtMails
from engine.features.reach.email_channel import EmailChannel
from engine.features.reach.keys import CAUGHT_MAILS_KEY
from tests.support.edge_world import edge_world

SETTINGS: dict[str, Any] = {"smtp_url": CATCH_MAILS, "mail_from": "Ops <ops@example.com>"}


def step(user: str, number: int = 1) -> QueuedAction:
    body = b'{"id":"m%d","type":"alert","data":{"title":"Disk %d is full","body":"On db1"}}' % (number, number)
    return QueuedAction("1-0", "channel://email", "acme", user, f"m{number}", "k1", 1000, NORMAL, body)


async def test_caught_mails_are_kept_up_to_the_limit_the_newest_first(redis_client: Redis) -> None:
    caught = CaughtMails(redis_client)
    email = EmailChannel(Config(**SETTINGS), caught)
    for number in range(MAILS_MAX + 1):
        await email.send(step("ann", number), "ann@example.org")
    mails = await caught.read()
    assert [mail.subject for mail in mails] == [f"Disk {number} is full" for number in range(MAILS_MAX, 0, -1)]
    assert (mails[0].to, mails[0].text.strip(), mails[0].key) == ("ann@example.org", "On db1", "acme:ann")
    assert 0 < await redis_client.ttl(CAUGHT_MAILS_KEY) <= 86_400


async def test_caught_mails_of_an_erased_user_go(redis_client: Redis) -> None:
    caught = CaughtMails(redis_client)
    email = EmailChannel(Config(**SETTINGS), caught)
    for user in ("ann", "bob", "ann"):
        await email.send(step(user), f"{user}@example.org")
    await caught.erase("acme:ann")
    assert [mail.key for mail in await caught.read()] == ["acme:bob"]


async def test_an_unreadable_caught_mail_hides_no_other_and_is_erased(redis_client: Redis) -> None:
    caught = CaughtMails(redis_client)
    for user in ("ann", "bob"):
        await EmailChannel(Config(**SETTINGS), caught).send(step(user), f"{user}@example.org")
    await redis_client.lpush(CAUGHT_MAILS_KEY, b'{"to":"\xff"}', b'{"to":"of another release"}')  # type: ignore[misc]
    assert [mail.key for mail in await caught.read()] == ["acme:bob", "acme:ann"]
    await caught.erase("acme:ann")
    assert await redis_client.llen(CAUGHT_MAILS_KEY) == 1  # type: ignore[misc]
    assert [mail.key for mail in await caught.read()] == ["acme:bob"]


async def test_a_mail_that_cannot_be_caught_is_tried_again() -> None:
    client = Redis(port=1)
    with pytest.raises(ActionFailed, match="caught mails") as failed:
        await EmailChannel(Config(**SETTINGS), CaughtMails(client)).send(step("ann"), "ann@example.org")
    assert not failed.value.final
    await client.aclose()


async def test_an_operator_reads_caught_mails(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, public_url="https://notify.example.com", **SETTINGS) as world:
        async with world.http("ann") as client:
            assert (await client.put("/v1/channels/email", json={"email": "ann@example.org"})).status_code == 202
        (mail,) = (await world.once("ops", scopes="operator").get("/v1/caught-mails")).json()["mails"]
    assert (mail["to"], "https://notify.example.com/v1/channels/confirm" in mail["text"]) == ("ann@example.org", True)


async def test_an_engine_that_sends_mails_shows_none() -> None:
    async with edge_world() as world, world.http("ops", scopes="operator") as client:
        answer = await client.get("/v1/caught-mails")
    assert (answer.status_code, "catch://" in answer.json()["detail"]) == (404, True)
