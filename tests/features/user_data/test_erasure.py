"""`DELETE /v1/users/{user}`: the order in which features, timers and the shard erase."""

from __future__ import annotations

from email.message import EmailMessage

from redis.asyncio import Redis

from engine.features.reach.caught_mails import CaughtMails
from tests.support.edge_world import edge_world


async def test_a_mail_of_a_timer_that_fires_meanwhile_is_erased_too(redis_client: Redis) -> None:
    caught, mail = CaughtMails(redis_client), EmailMessage()
    mail["Subject"] = "Reminder"
    mail.set_content("of alice")
    async with edge_world() as world, world.http() as client:

        async def erase_and_fire(key: str) -> None:
            """Erase, and keep a mail of a timer that fires before the timers are over."""
            await caught.erase(key)
            if not world.scheduler.received:
                await caught.keep(mail, "alice@example.com", key)

        world.gateway.erase_of_user["caught_mails"] = erase_and_fire
        world.scheduler.firing = 1
        assert (await client.delete("/v1/users/alice")).status_code == 204
    assert await caught.read() == []
