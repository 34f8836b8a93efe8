"""Dead letters and session events on a real Redis, as other systems read them."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.core.model.constants import HIGH
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.model.routing import SLOTS, slot_of
from engine.core.shard.mailbox_store import DeadLetter
from engine.core.shard.output import SessionEvent
from engine.core.wire.records import SSE, WEBSOCKET
from engine.errors import StorageUnavailable
from engine.store.external_streams import read_online, write_dead_letters, write_session_events
from engine.store.keys import dead_letter_key, session_stream_key


def letter(key: str, seq: int = 1) -> DeadLetter:
    return DeadLetter(key, Message(seq, Envelope(f"m{seq}", b"", HIGH, True, b'"id":"m%d"' % seq), 0, 0, 3), "no renderer")


def event(key: str, transport: int = WEBSOCKET, *, name: str = "disconnect", online: bool | None = None) -> SessionEvent:
    return SessionEvent(name, key, "c1", "phone", "edge-0", transport, 1_700_000_000_000, 1006, online)


async def test_a_dead_letter_has_every_field_and_goes_to_its_tenants_stream(redis_client: Redis) -> None:
    await write_dead_letters(redis_client, [letter("acme:a:b"), letter("other:u", 2)], 100)
    ((_, fields),) = await redis_client.xrange(dead_letter_key("acme"))
    assert fields == {
        b"user": b"a:b",
        b"seq": b"1",
        b"id": b"m1",
        b"priority": b"high",
        b"reason": b"no renderer",
        b"attempts": b"3",
        b"body": b'{"id":"m1"}',
    }
    assert await redis_client.xlen(dead_letter_key("other")) == 1


async def test_a_session_event_has_every_field(redis_client: Redis) -> None:
    await write_session_events(redis_client, [event("acme:ann"), event("acme:ann", SSE)], 100)
    (_, first), (_, second) = await redis_client.xrange(session_stream_key())
    assert first == {
        b"event": b"disconnect",
        b"tenant": b"acme",
        b"user": b"ann",
        b"session": b"c1",
        b"device": b"phone",
        b"node": b"edge-0",
        b"transport": b"websocket",
        b"at": b"1700000000000",
        b"code": b"1006",
    }
    assert second[b"transport"] == b"sse"


async def test_who_is_online_is_kept_for_the_successor_of_a_shard(redis_client: Redis) -> None:
    came = [event(key, name="connect", online=True) for key in ("acme:ann", "acme:bob", "acme:cyd")]
    await write_session_events(
        redis_client, [*came, event("acme:ann", name="suspect"), event("acme:bob", name="offline", online=False)], 100
    )
    assert sorted(await read_online(redis_client, range(SLOTS))) == ["acme:ann", "acme:cyd"]
    assert await read_online(redis_client, [slot_of("acme:cyd")]) == ["acme:cyd"]


async def test_both_streams_are_trimmed_to_about_their_limit(redis_client: Redis) -> None:
    await write_dead_letters(redis_client, [letter("acme:u", seq) for seq in range(1, 401)], 50)
    await write_session_events(redis_client, [event("acme:u")] * 400, 50)
    for stream in (dead_letter_key("acme"), session_stream_key()):
        assert 50 <= await redis_client.xlen(stream) <= 150, "whole nodes of 100 entries are dropped"


async def test_a_silent_redis_is_unavailable() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    for call in (write_dead_letters(client, [letter("t:u")], 9), write_session_events(client, [event("t:u")], 9), read_online(client, [1])):
        with pytest.raises(StorageUnavailable):
            await call
    await client.aclose()


async def test_dead_letters_are_bounded_in_bytes(redis_client: Redis) -> None:
    """Each is as large as may be; a count alone would keep them all."""
    body = b'"id":"m","data":"%b"' % (b"x" * 60_000)
    for first in range(0, 400, 40):
        letters = [DeadLetter("t:u", Message(seq, Envelope("m", b"", HIGH, True, body), 0, 0), "no") for seq in range(first, first + 40)]
        await write_dead_letters(redis_client, letters, 100_000, 4 << 20, 64 << 10)
        used = await redis_client.memory_usage(dead_letter_key("t"), samples=0)
        assert used is not None
        assert used < (4 << 20) + 104 * 61_000
    left = [int(fields[b"seq"]) for _, fields in await redis_client.xrange(dead_letter_key("t"))]
    assert left == list(range(400 - len(left), 400)), "the oldest went"
    assert 40 < len(left) < 180
