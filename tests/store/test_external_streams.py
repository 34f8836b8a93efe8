"""Session events on a real Redis, as other systems read them."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.core.model.routing import SLOTS, slot_of
from engine.core.shard.output import SessionEvent
from engine.core.wire.records import SSE, WEBSOCKET
from engine.store.external_streams import (
    Inherited,
    forget_handed,
    handed_events,
    read_inherited,
    trim_session_events,
    write_session_events,
)
from engine.store.keys import SESSION_STREAM_KEY, handed_events_key, trimmed_mark_key


def event(key: str, transport: int = WEBSOCKET, *, name: str = "disconnect", online: bool | None = None) -> SessionEvent:
    return SessionEvent(name, key, "c1", "phone", "edge-0", transport, 1_700_000_000_000, 1006, online)


async def test_a_session_event_has_every_field(redis_client: Redis) -> None:
    await write_session_events(redis_client, [event("acme:ann"), event("acme:ann", SSE)])
    (_, first), (_, second) = await redis_client.xrange(SESSION_STREAM_KEY)
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
    await write_session_events(redis_client, [*came, event("acme:ann", name="suspect"), event("acme:bob", name="offline", online=False)])
    assert sorted((await read_inherited(redis_client, 0, range(SLOTS), 1)).online) == ["acme:ann", "acme:cyd"]
    assert await read_inherited(redis_client, 0, [slot_of("acme:cyd")], 1) == Inherited(["acme:cyd"])


async def test_handed_events_are_inherited_in_order_until_forgotten(redis_client: Redis) -> None:
    """Versions of slot maps are compared as numbers."""
    await write_session_events(redis_client, [event("acme:ann", name="connect", online=True)])
    came, left, again = event("acme:bob", name="connect", online=True), event("acme:ann", online=False), event("acme:ann", SSE)
    await redis_client.hset(handed_events_key(3), mapping={"10": handed_events([again]), "9": handed_events([came, left])})
    inherited = await read_inherited(redis_client, 3, range(SLOTS), 10)
    assert inherited == Inherited(["acme:bob"], [came, left, again], [b"9", b"10"])
    await redis_client.hset(handed_events_key(3), "11", handed_events([left]))
    for _ in range(2):  # the reply to the first may be lost
        await forget_handed(redis_client, 3, inherited)
    assert (await read_inherited(redis_client, 3, [], 11)).versions == [b"11"]
    assert (await read_inherited(redis_client, 1, [], 11)).versions == []


async def test_damaged_handed_events_are_left_out(redis_client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    came, left = event("acme:bob", name="connect", online=True), event("acme:ann", online=False)
    blob = handed_events([came])
    await redis_client.hset(handed_events_key(3), mapping={"9": blob[:-1] + bytes([blob[-1] ^ 1]), "10": handed_events([left])})
    assert await read_inherited(redis_client, 3, range(SLOTS), 10) == Inherited([], [left], [b"9", b"10"])
    assert "lost to shard 3" in caplog.text


async def test_events_handed_with_a_later_map_wait_for_their_slots(redis_client: Redis) -> None:
    came, left = event("acme:bob", name="connect", online=True), event("acme:ann", online=False)
    await redis_client.hset(handed_events_key(3), mapping={"9": handed_events([left]), "10": handed_events([came])})
    assert await read_inherited(redis_client, 3, range(SLOTS), 9) == Inherited([], [left], [b"9"])


async def test_events_of_users_of_another_shard_tell_nobody_s_presence(redis_client: Redis) -> None:
    came, left = event("acme:bob", name="connect", online=True), event("acme:ann", name="offline", online=False)
    await redis_client.hset(handed_events_key(3), "9", handed_events([came, left]))
    inherited = await read_inherited(redis_client, 3, [], 9)
    assert (inherited.online, [(told.event, told.online) for told in inherited.events]) == ([], [("connect", None), ("offline", None)])


async def test_the_stream_is_trimmed_to_about_its_limit(redis_client: Redis) -> None:
    await write_session_events(redis_client, [event("acme:u")] * 400)
    await trim_session_events(redis_client, 50, 400)
    assert 50 <= await redis_client.xlen(SESSION_STREAM_KEY) <= 150, "whole nodes of 100 entries are dropped"
    (first, _), *_ = await redis_client.xrange(SESSION_STREAM_KEY, count=1)
    assert await redis_client.get(trimmed_mark_key(SESSION_STREAM_KEY)) == first
