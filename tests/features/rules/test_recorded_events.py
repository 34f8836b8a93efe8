"""The sample of recent events in a real Redis: newest first, bounded by number and age."""

from __future__ import annotations

import time

import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.errors import StorageUnavailable
from engine.features.rules.keys import RECORDED_EVENTS_KEY
from engine.features.rules.recorded_events import RecordedEvent, RecordedEvents


def event(number: int) -> RecordedEvent:
    return RecordedEvent("t", f"e{number}", int(time.time() * 1000), b'{"type":"x"}')


async def test_the_newest_come_first_and_the_oldest_make_room(redis_client: Redis) -> None:
    events = RecordedEvents(redis_client, Config(recorded_events_max=100))
    await events.add([])
    for first in range(0, 400, 100):
        await events.add([event(number) for number in range(first, first + 100)])
    found = await events.newest(3, 0)
    assert [one.delivery for one in found] == ["e399", "e398", "e397"]
    assert (found[0].tenant, found[0].body) == ("t", b'{"type":"x"}')
    assert await redis_client.xlen(RECORDED_EVENTS_KEY) <= 200
    assert await events.newest(3, int(time.time() * 1000) + 60_000) == []


async def test_the_sample_expires_when_nobody_adds_to_it(redis_client: Redis) -> None:
    events = RecordedEvents(redis_client, Config(recorded_events_keep_s=60))
    await events.add([event(1)])
    assert 0 < await redis_client.pttl(RECORDED_EVENTS_KEY) <= 60_000


async def test_the_events_of_a_user_are_found_wherever_they_name_the_user_and_can_be_erased(redis_client: Redis) -> None:
    bodies = (b'{"user":"ann"}', b'{"likes":[{"by":"ann"}]}', b'{"of":{"ann":1}}', b'{"user":"anna"}', b'{"user":"bob"}')
    events = RecordedEvents(redis_client, Config())
    now_ms = int(time.time() * 1000)
    await events.add([RecordedEvent("t", f"e{number}", now_ms, body) for number, body in enumerate(bodies)])
    await events.add([RecordedEvent("other", "e9", now_ms, bodies[0])])
    assert [one.delivery async for one in events.of_user("t:ann")] == ["e0", "e1", "e2"]
    await events.erase("t:ann")
    assert [one.delivery for one in await events.newest(9, 0)] == ["e9", "e4", "e3"]


async def test_erasure_deletes_events_that_number_or_mention_the_user(redis_client: Redis) -> None:
    bodies = (b'{"to":42}', b'{"text":"ask @ann, please"}', b'{"text":"ask @anna"}', b'{"to":[4, 2.5, null, true]}')
    events, now_ms = RecordedEvents(redis_client, Config()), int(time.time() * 1000)
    await events.add([RecordedEvent("t", f"e{number}", now_ms, body) for number, body in enumerate(bodies)])
    await events.erase("t:42")
    await events.erase("t:ann")
    assert [one.delivery for one in await events.newest(9, 0)] == ["e3", "e2"]


async def test_a_deeply_nested_event_stops_no_erasure(redis_client: Redis) -> None:
    deep = b'{"user":"bob","data":' + b"[" * 900 + b"]" * 900 + b"}"
    events, now_ms = RecordedEvents(redis_client, Config()), int(time.time() * 1000)
    await events.add([RecordedEvent("t", "deep", now_ms, deep), RecordedEvent("t", "ann", now_ms, b'{"user":"ann"}')])
    await events.erase("t:ann")
    assert [one.delivery for one in await events.newest(9, 0)] == ["deep"]


async def test_a_damaged_event_stops_no_erasure_and_no_dry_run(redis_client: Redis) -> None:
    events, now_ms = RecordedEvents(redis_client, Config()), int(time.time() * 1000)
    await events.add([RecordedEvent("t", "ann", now_ms, b'{"user":"ann"}'), RecordedEvent("t", "damaged", now_ms, b'{"user":')])
    await redis_client.xadd(RECORDED_EVENTS_KEY, {"t": "t"})
    assert [one.delivery for one in await events.newest(9, 0)] == ["ann"]
    assert [one.delivery async for one in events.of_user("t:ann")] == ["ann"]
    await events.erase("t:bob")
    assert await redis_client.xlen(RECORDED_EVENTS_KEY) == 1


async def test_storage_that_is_away_is_told() -> None:
    client = Redis(host="127.0.0.1", port=1)
    events = RecordedEvents(client, Config())
    try:
        with pytest.raises(StorageUnavailable):
            await events.add([event(1)])
        with pytest.raises(StorageUnavailable):
            await events.newest(1, 0)
        with pytest.raises(StorageUnavailable):
            await events.erase("t:ann")
    finally:
        await client.aclose()
