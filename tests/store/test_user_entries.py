"""An erased user's entries in the streams for other systems, on a real Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from engine.core.model.routing import slot_of
from engine.store.keys import SESSION_STREAM_KEY, dead_letter_key, online_key
from engine.store.user_entries import drop_user_entries


async def users_in(client: Redis, stream: str) -> list[tuple[bytes, bytes]]:
    return [(fields.get(b"tenant", b""), fields[b"user"]) for _, fields in await client.xrange(stream)]


async def test_every_entry_of_the_user_goes_and_no_other(redis_client: Redis) -> None:
    pipeline = redis_client.pipeline(transaction=False)
    for number in range(1200):  # more than one part
        user = "ann" if number % 3 == 0 else "bob"
        pipeline.xadd(dead_letter_key("t"), {"user": user, "reason": "user", "body": "ann"})
        pipeline.xadd(SESSION_STREAM_KEY, {"event": "connect", "tenant": "t" if number % 2 else "other", "user": user})
    pipeline.xadd(dead_letter_key("other"), {"user": "ann"})
    pipeline.sadd(online_key(slot_of("t:ann")), "t:ann", "t:bob")
    await pipeline.execute()
    for _ in range(2):  # a repeat changes nothing
        await drop_user_entries(redis_client, "t:ann")
        assert await users_in(redis_client, dead_letter_key("t")) == [(b"", b"bob")] * 800
        assert await users_in(redis_client, dead_letter_key("other")) == [(b"", b"ann")]
        left = await users_in(redis_client, SESSION_STREAM_KEY)
        assert len(left) == 1000
        assert (b"t", b"ann") not in left
        assert left.count((b"other", b"ann")) == 200
        assert await redis_client.smembers(online_key(slot_of("t:ann"))) == {b"t:bob"}


async def test_a_user_without_entries_costs_nothing(redis_client: Redis) -> None:
    await drop_user_entries(redis_client, "t:ann")
    assert await redis_client.keys() == []
