"""The broadcast log on a real Redis: one entry however many it is for, ids, limits, following."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.commit.first_result import idempotency_value
from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.model.constants import LOW
from engine.core.model.envelope import Envelope
from engine.core.model.routing import audience_key
from engine.core.wire.records import ACCEPTED, CONFLICT, DUPLICATE
from engine.errors import StorageUnavailable
from engine.store.broadcast_stream import BroadcastLog
from engine.store.keys import BROADCAST_LOG_KEY, BROADCAST_STATE_KEY, idempotency_key
from tests.support.redis_server import start_redis
from tests.support.waiting import until

DIGEST = b"digest.."


def entry(
    id: str, topic: str = "", *, tenant: str = "t", body: bytes = b'"x":1', expires_ms: int = 10**15, digest: bytes = DIGEST
) -> BroadcastEntry:
    return BroadcastEntry(tenant, topic, Envelope(id, digest, LOW, True, body), expires_ms, 5)


def log_of(client: Redis, **settings: Any) -> BroadcastLog:
    return BroadcastLog(client, Config(redis_timeout_ms=settings.pop("redis_timeout_ms", 2000), **settings))


async def append(log: BroadcastLog, id: str, topic: str = "", *, repeated: bool = False, **fields: Any) -> Any:
    return (await log.append([(entry(id, topic, **fields), id)], repeated=repeated))[0]


async def stored_bytes(client: Redis) -> int:
    entries: Any = await client.xrange(BROADCAST_LOG_KEY)
    return sum(len(fields[b"b"]) for _, fields in entries)


async def test_what_was_appended_is_read_in_order_with_growing_positions(redis_client: Redis) -> None:
    log = log_of(redis_client)
    first = await append(log, "a", body=b'"n":1')
    second, third = await log.append([(entry("b", "news"), "b"), (entry("c", tenant="other"), "c")])
    read, reached, _ = await log.read(0, wait=False)
    assert [broadcast.pos for broadcast in read] == [first.pos, second.pos, third.pos]
    assert first.pos < second.pos < third.pos == reached
    assert [(b.tenant, b.topic, b.envelope.id) for b in read] == [("t", "", "a"), ("t", "news", "b"), ("other", "", "c")]
    assert read[0].envelope.body == b'"n":1'
    assert read[0].envelope.body.pos == first.pos
    assert await log.read(second.pos, wait=False) == (read[2:], third.pos, None)


async def test_an_id_is_taken_once_per_audience_and_another_payload_under_it_is_a_conflict(redis_client: Redis) -> None:
    log = log_of(redis_client)
    first = await append(log, "a")
    assert (await append(log, "a")).status == DUPLICATE
    assert (await append(log, "a")).pos == first.pos
    assert (await append(log, "a", digest=b"another.")).status == CONFLICT
    assert (await append(log, "a", topic="news")).status == ACCEPTED
    assert (await append(log, "a", tenant="other")).status == ACCEPTED
    assert len((await log.read(0, wait=False))[0]) == 3


async def test_an_attempt_whose_answer_was_lost_finds_itself(redis_client: Redis) -> None:
    log = log_of(redis_client)
    first = await append(log, "a")
    again = await append(log, "a", repeated=True)
    assert (again.status, again.pos) == (ACCEPTED, first.pos)
    assert (await append(log, "a", digest=b"another.", repeated=True)).status == CONFLICT
    assert len((await log.read(0, wait=False))[0]) == 1


async def test_an_id_that_a_delayed_broadcast_has_taken_is_its_duplicate(redis_client: Redis) -> None:
    key = idempotency_key(audience_key("t", ""), "a")
    await redis_client.set(key, idempotency_value(DIGEST, 0, "3-timer"))
    known = await append(log_of(redis_client), "a", repeated=True)
    assert (known.status, known.scheduled_id) == (DUPLICATE, "3-timer")


async def test_what_is_remembered_of_an_id_and_cannot_be_read_is_a_conflict(redis_client: Redis) -> None:
    await redis_client.set(idempotency_key(audience_key("t", ""), "a"), b"garbage")
    assert (await append(log_of(redis_client), "a")).status == CONFLICT


async def test_the_oldest_make_room_when_there_are_too_many(redis_client: Redis) -> None:
    log = log_of(redis_client, broadcasts_max=3)
    appended = [await append(log, f"i{n}") for n in range(5)]
    assert await log.first() == appended[2].pos
    assert [b.envelope.id for b in (await log.read(0, wait=False))[0]] == ["i2", "i3", "i4"]
    assert int(await redis_client.hget(BROADCAST_STATE_KEY, "bytes") or 0) == await stored_bytes(redis_client)


async def test_the_oldest_make_room_when_they_are_too_large_but_the_newest_always_stays(redis_client: Redis) -> None:
    log = log_of(redis_client, broadcasts_bytes_max=900)
    for n in range(4):
        await append(log, f"i{n}", body=b"x" * 300)
    assert [b.envelope.id for b in (await log.read(0, wait=False))[0]] == ["i2", "i3"]
    await append(log, "large", body=b"x" * 5000)
    assert [b.envelope.id for b in (await log.read(0, wait=False))[0]] == ["large"]
    assert int(await redis_client.hget(BROADCAST_STATE_KEY, "bytes") or 0) == await stored_bytes(redis_client)


async def test_an_entry_that_storage_lost_keeps_no_other_from_making_room(redis_client: Redis) -> None:
    """As a damaged write does, which Redis leaves out when it loads its files."""
    log = log_of(redis_client, broadcasts_max=3)
    positions = [(await append(log, id)).pos for id in "abc"]
    await redis_client.xdel(BROADCAST_LOG_KEY, f"{positions[0]}-0")
    for id in "defg":
        assert (await append(log, id)).status == ACCEPTED
    assert await held(log) == {"t": ["e", "f", "g"]}


async def test_a_tenant_whose_only_entry_storage_lost_blocks_no_append(redis_client: Redis) -> None:
    log = log_of(redis_client, broadcasts_max=3, broadcasts_bytes_max=20_000)
    lost = await append(log, "large", tenant="lost", body=b"x" * 15_000)
    await redis_client.xdel(BROADCAST_LOG_KEY, f"{lost.pos}-0")
    for id in "abcdef":
        assert (await append(log, id, tenant=id)).status == ACCEPTED
    assert await held(log) == {"d": ["d"], "e": ["e"], "f": ["f"]}


async def held(log: BroadcastLog) -> dict[str, list[str]]:
    """Ids by tenant."""
    found: dict[str, list[str]] = {}
    for broadcast in (await log.read(0, wait=False))[0]:
        found.setdefault(broadcast.tenant, []).append(broadcast.envelope.id)
    return found


async def test_a_tenant_that_floods_the_log_evicts_its_own_and_followers_learn_which(redis_client: Redis) -> None:
    log = log_of(redis_client, broadcasts_max=6)
    mine = [await append(log, f"q{n}", tenant="quiet") for n in range(2)]
    flood = [await append(log, f"f{n}", tenant="flood") for n in range(20)]
    assert await held(log) == {"quiet": ["q0", "q1"], "flood": ["f16", "f17", "f18", "f19"]}
    assert await log.dropped(0) == (None, 16), "the newest 6 are stored"
    assert await log.dropped(10) == ([(appended.pos, ("flood", "")) for appended in flood[10:16]], 16)
    assert await log.positions() == [appended.pos for appended in (*mine, *flood[16:])]
    assert await log.dropped(15) == ([(flood[15].pos, ("flood", ""))], 16)
    assert await log.dropped(16) == ([], 16)
    assert await log.lost() == ({("flood", ""): flood[15].pos}, 0)
    await append(log, "q2", tenant="quiet")
    await append(log, "q3", tenant="quiet")
    assert await held(log) == {"quiet": ["q1", "q2", "q3"], "flood": ["f17", "f18", "f19"]}, "its fair part is half"
    await log.drop([mine[1].pos, flood[19].pos, flood[18].pos])
    for n in range(4, 7):
        await append(log, f"q{n}", tenant="quiet")
    assert await held(log) == {"quiet": ["q2", "q3", "q4", "q5", "q6"], "flood": ["f17"]}
    assert int(await redis_client.hget(BROADCAST_STATE_KEY, "bytes") or 0) == await stored_bytes(redis_client)


async def test_large_broadcasts_count_by_their_bytes_and_the_one_that_is_appended_stays(redis_client: Redis) -> None:
    log = log_of(redis_client, broadcasts_bytes_max=3000)
    for n in range(3):
        await append(log, f"s{n}", tenant="small", body=b"x" * 100)
    await append(log, "l0", tenant="large", body=b"x" * 1500)
    await append(log, "l1", tenant="large", body=b"x" * 1500)
    assert await held(log) == {"small": ["s0", "s1", "s2"], "large": ["l1"]}
    await append(log, "l2", tenant="large", body=b"x" * 2900)
    assert (await held(log))["large"] == ["l2"], "the largest part is its own, and there is no other entry of its tenant"


async def test_the_newest_lost_entry_of_each_topic_is_remembered_and_the_oldest_of_too_many_forgotten(redis_client: Redis) -> None:
    log = log_of(redis_client, broadcasts_max=3)
    live = BroadcastEntry("t", "live", Envelope("live", DIGEST, LOW, False, b"{}"), 10**15, 5)
    (passing,) = await log.append([(live, "live")])
    lost = [await append(log, f"n{n}", topic) for n, topic in enumerate(("a", "a b", "a"))]
    await log.drop([passing.pos])
    assert await log.dropped(0) == ([(passing.pos, None)], 1)
    assert await log.lost() == ({}, 0), "one that is not retained was only for those who were there"
    await log.drop([appended.pos for appended in lost])
    await log.drop([appended.pos for appended in lost])
    assert await log.lost() == ({("t", "a"): lost[2].pos, ("t", "a b"): lost[1].pos}, 0)
    more = [await append(log, f"m{n}", f"m{n}") for n in range(3)]
    await log.drop([appended.pos for appended in more])
    assert await log.lost() == ({("t", f"m{n}"): appended.pos for n, appended in enumerate(more)}, lost[2].pos)


async def test_dropping_twice_counts_the_bytes_once(redis_client: Redis) -> None:
    log = log_of(redis_client)
    appended = [await append(log, f"i{n}") for n in range(3)]
    await log.drop([appended[0].pos, appended[1].pos])
    await log.drop([appended[1].pos, 12345])
    assert [b.envelope.id for b in (await log.read(0, wait=False))[0]] == ["i2"]
    assert int(await redis_client.hget(BROADCAST_STATE_KEY, "bytes") or 0) == await stored_bytes(redis_client)


async def test_positions_grow_over_an_empty_log_and_a_clock_that_was_ahead(redis_client: Redis) -> None:
    log = log_of(redis_client)
    ahead = 4_000_000_000_000_000  # microseconds: the year 2096
    await redis_client.hset(BROADCAST_STATE_KEY, "last", str(ahead))
    first = await append(log, "a")
    assert first.pos == ahead + 1
    await log.drop([first.pos])
    assert await log.first() == 0
    assert (await append(log, "b")).pos == ahead + 2


async def test_a_follower_waits_and_hears_what_comes(redis_client: Redis) -> None:
    log = log_of(redis_client, redis_timeout_ms=8000)
    waiting = asyncio.ensure_future(log.read(0, wait=True))
    await until(lambda: redis_client.info("clients"), holds=lambda info: info["blocked_clients"])
    appended = await append(log, "a")
    read, reached, _ = await waiting
    assert [b.envelope.id for b in read] == ["a"]
    assert reached == appended.pos


async def test_a_follower_that_hears_nothing_comes_back_where_it_was(redis_client: Redis) -> None:
    assert await log_of(redis_client, redis_timeout_ms=20, redis_replicas_timeout_ms=1).read(77, wait=True) == ([], 77, None)


async def test_an_entry_that_cannot_be_read_is_told_by_itself_with_whom_it_concerns(
    redis_client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(redis_client)
    first = await append(log, "a")
    await redis_client.xadd(BROADCAST_LOG_KEY, {"b": b"\xc1 no entry", "t": "t", "a": "t news"}, id=f"{first.pos + 1}-0")
    await redis_client.hset(BROADCAST_STATE_KEY, "last", str(first.pos + 1))
    last = await append(log, "c")
    before, reached, damaged = await log.read(0, wait=False)
    assert ([b.envelope.id for b in before], reached, damaged) == (["a"], first.pos, None)
    assert await log.read(reached, wait=False) == ([], first.pos + 1, (first.pos + 1, ("t", "news")))
    behind, reached, damaged = await log.read(first.pos + 1, wait=False)
    assert ([b.envelope.id for b in behind], reached, damaged) == (["c"], last.pos, None)
    assert str(first.pos + 1) in caplog.text


async def test_what_too_few_replicas_have_or_redis_does_not_answer_is_not_confirmed(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    client = Redis.from_url(server.url, socket_timeout=5)
    try:
        wanting = log_of(client, redis_replicas_min=1, redis_url=server.url, redis_replicas_timeout_ms=10)
        with pytest.raises(StorageUnavailable):
            await append(wanting, "a")
        server.kill()
        for action in (append(log_of(client), "b"), log_of(client).read(0, wait=False), log_of(client).first(), log_of(client).drop([1])):
            with pytest.raises(StorageUnavailable):
                await action
    finally:
        server.stop()
        await client.aclose()
