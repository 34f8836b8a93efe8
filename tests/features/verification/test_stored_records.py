"""The check of stored records, on data of every kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.actors import shard_features
from engine.cli.feature_data import FEATURES
from engine.config import Config
from engine.core.model.revocation import Revocation
from engine.core.model.routing import partition_of, slot_of, timer_id
from engine.core.scheduler.scheduler_events import StoreRequest, StoreWork
from engine.core.shard.output import SessionEvent
from engine.core.wire.records import Schedule, Timer
from engine.features.token_revocation.revocation_log import RevocationLog
from engine.features.verification import stored_records
from engine.features.verification.stored_records import Damage, Kinds, Verification
from engine.store import keys
from engine.store.external_streams import handed_events
from engine.store.server_program import installed_servers
from engine.store.shard_feature import ShardPorts, judging
from engine.store.timer_store import TimerStore
from tests.proof import stored
from tests.support.own_redis import served

USER, TIMED = stored.ABSENT[0], stored.TIMED[0]
JOURNALLED = slot_of(stored.PRESENT[0])

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A data directory, made once: each test puts right what it damages."""
    config = Config(data_dir=str(tmp_path_factory.mktemp("data")))
    asyncio.run(stored.make(config, installed_servers()[0]))
    return config


@pytest.fixture
async def data(config: Config) -> AsyncIterator[Redis]:
    async with served(config, installed_servers()[0]) as client:
        yield client


async def damage_of(client: Redis) -> list[Damage]:
    return (await Verification(client, FEATURES).run()).damage


async def spoiled(client: Redis, key: str, blob: bytes | None, field: str) -> Damage:
    """What is found when the last byte of a hash's value is another; it is put right again."""
    assert blob is not None
    await client.hset(key, field, blob[:-1] + bytes([blob[-1] ^ 1]))
    (found,) = await damage_of(client)
    await client.hset(key, field, blob)
    assert found.place == field
    return found


async def test_whole_data_of_every_kind_are_checked_and_whole(data: Redis) -> None:
    verified = await Verification(data, FEATURES).run()
    assert (verified.damage, verified.damaged) == ([], 0)
    assert verified.checked.keys() == {
        "slot map", "page", "offline message", "journal group", "timer", "broadcast", "dead letter", "action", "accepted id"
    }  # fmt: skip
    assert verified.checked["timer"] == len(stored.TIMED)
    assert verified.checked["page"] == len(stored.ABSENT) + len(stored.PRESENT)


async def test_journal_and_pages_are_read_with_the_kinds_of_the_shards_judge(data: Redis) -> None:
    ports = ShardPorts(Config(), "shard-0", data)
    of_shard = judging([on_shard(ports) for on_shard in shard_features.FEATURES]).judge_kinds
    assert of_shard.records
    assert Kinds(FEATURES).of_judge == of_shard


async def test_the_mark_of_a_timer_that_has_fired_is_whole(data: Redis) -> None:
    key, now_ms = "t:fired", int(time.time() * 1000)
    partition, sid = partition_of(key), timer_id(key, "unique")
    store = TimerStore(data, Config(), [partition], "scheduler-0")
    await store.take_over()
    timer = Timer(sid, key, now_ms, now_ms, 3_600_000, stored.envelope("fired"))
    await store.apply([StoreWork(partition, 0, {}, [StoreRequest(Schedule(1, True, timer), False)])], now_ms)
    before = (await Verification(data, FEATURES).run()).checked["accepted id"]
    await store.apply([StoreWork(partition, 0, {sid: key}, [])], now_ms)
    verified = await Verification(data, FEATURES).run()
    assert verified.damage == []
    assert verified.checked["accepted id"] == before + 1


async def test_a_damaged_page_and_a_page_of_another_user_are_found(data: Redis) -> None:
    key = keys.page_key(slot_of(USER))
    page = await data.hget(key, USER)
    assert (await spoiled(data, key, page, USER)).kind == "page"
    await data.hset(key, "t:nobody", page)
    (found,) = await damage_of(data)
    await data.hdel(key, "t:nobody")
    assert (found.kind, found.key, found.place) == ("page", key, "t:nobody")
    assert "belongs to slot" in found.problem


async def test_a_damaged_timer_and_one_that_would_never_fire_are_found(data: Redis) -> None:
    partition = partition_of(TIMED)
    key, due = keys.timer_key(partition), keys.timer_due_key(partition)
    ((sid, packed),) = (await data.hgetall(key)).items()
    assert (await spoiled(data, key, packed, sid.decode())).advice.startswith("nothing: the scheduler quarantines it")
    score = await data.zscore(due, sid)
    await data.zrem(due, sid)
    (found,) = await damage_of(data)
    assert found.problem == "it has no due time, so it never fires"
    await data.zadd(due, {sid: score})


@pytest.mark.parametrize(
    ("key", "name", "kind"),
    [
        (keys.offline_key(USER), b"m", "offline message"),
        (keys.journal_key(JOURNALLED), b"b", "journal group"),
        (keys.BROADCAST_LOG_KEY, b"b", "broadcast"),
        (keys.BROADCAST_LOG_KEY, b"a", "broadcast"),
        (keys.dead_letter_key("t"), b"body", "dead letter"),
    ],
)
async def test_a_damaged_entry_of_each_stream_is_found_at_its_place(data: Redis, key: str, name: bytes, kind: str) -> None:
    dumped = await data.dump(key)
    ((entry, fields),) = await data.xrevrange(key, count=1)
    await data.xdel(key, entry)
    await data.delete(key)
    await data.xadd(key, {**fields, name: fields[name][:-1] + bytes([fields[name][-1] ^ 1])}, id=entry)
    (found,) = await damage_of(data)
    await data.restore(key, 0, dumped, replace=True)
    assert (found.kind, found.key, found.place) == (kind, key, entry.decode())


async def test_a_journal_that_lost_its_end_is_found(data: Redis) -> None:
    dumped = await data.dump(keys.journal_key(JOURNALLED))
    ((entry, _),) = await data.xrevrange(keys.journal_key(JOURNALLED), count=1)
    await data.xdel(keys.journal_key(JOURNALLED), entry)
    (found,) = await damage_of(data)
    await data.restore(keys.journal_key(JOURNALLED), 0, dumped, replace=True)
    assert found.kind == "journal end"
    assert (await data.get(keys.journal_head_key(JOURNALLED))).decode() in found.problem


async def test_a_journal_that_lost_a_group_in_the_middle_is_found(data: Redis) -> None:
    dumped = await data.dump(keys.journal_key(JOURNALLED))
    entries = await data.xrange(keys.journal_key(JOURNALLED))
    await data.xdel(keys.journal_key(JOURNALLED), entries[-2][0])
    (found,) = await damage_of(data)
    await data.restore(keys.journal_key(JOURNALLED), 0, dumped, replace=True)
    assert (found.kind, found.place) == ("journal group", entries[-1][0].decode())


@pytest.mark.parametrize("left", [0, 1])
async def test_a_journal_trimmed_while_it_is_read_is_whole(data: Redis, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    key, read = keys.journal_key(JOURNALLED).encode(), data.xrange
    dumped = await data.dump(key)
    assert await data.xlen(key) > 2

    async def trimming(name: bytes, **options: Any) -> Any:
        found = await read(name, **options)
        if name == key:
            await data.xtrim(key, left, approximate=False)
        return found

    monkeypatch.setattr(stored_records, "_RECORDS_READ", 1)
    monkeypatch.setattr(data, "xrange", trimming)
    found = await damage_of(data)
    await data.restore(key, 0, dumped, replace=True)
    assert not found


async def test_damage_counts_once_though_redis_gives_its_key_twice(data: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    async def twice(**_: object) -> AsyncIterator[bytes]:
        yield b"renamed"
        yield b"renamed"

    monkeypatch.setattr(data, "scan_iter", twice)
    found = await Verification(data, FEATURES).run()
    assert ([one.key for one in found.damage], found.damaged) == (["renamed"], 1)


async def test_records_count_once_though_redis_gives_keys_and_fields_twice(data: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(scan: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def repeated(*args: Any, **options: Any) -> AsyncIterator[Any]:
            async for one in scan(*args, **options):
                yield one
                yield one

        return repeated

    whole = (await Verification(data, FEATURES).run()).checked
    for name in ("scan_iter", "hscan_iter"):
        monkeypatch.setattr(data, name, twice(getattr(data, name)))
    assert (await Verification(data, FEATURES).run()).checked == whole


async def test_damaged_events_for_another_shard_are_found(data: Redis) -> None:
    blob = handed_events([SessionEvent("offline", "t:u", "e", "s", "d", 0, 1, 0, False)])
    await data.hset(keys.handed_events_key(3), "9", blob)
    assert not await damage_of(data)
    found = await spoiled(data, keys.handed_events_key(3), blob, "9")
    await data.delete(keys.handed_events_key(3))
    assert (found.kind, found.key) == ("handed events", keys.handed_events_key(3))


async def test_a_damaged_slot_map_and_a_key_of_no_kind_are_found(data: Redis) -> None:
    packed = await data.get(keys.SLOTS_KEY)
    await data.set(keys.SLOTS_KEY, packed[:-1] + b"\x00")
    await data.set("s1:pagf", "x")
    found = await damage_of(data)
    await data.set(keys.SLOTS_KEY, packed)
    await data.delete("s1:pagf")
    assert {(one.kind, one.key) for one in found} == {("slot map", keys.SLOTS_KEY), ("unknown key", "s1:pagf")}
    assert msgspec.json.encode(found)


@pytest.mark.parametrize(
    ("kind", "key", "field", "value"),
    [
        ("question", f"s{slot_of('t:u')}:questions:t:u", "q1", b"\xc1"),
        ("growing message", f"s{slot_of('t:u')}:growth:3:t:u:g1", "head", b"\xc1"),
        ("rules", "rules:state", "state", b"{"),
        ("rules", "rules:state:t", "state", b'{"active":"one"}'),
        ("rules", "rules:texts:t", "1", b"\xff"),
        ("addresses", "channels:of:t", "u", b"no checksum"),
    ],
)
async def test_a_damaged_record_of_a_feature_is_found(data: Redis, kind: str, key: str, field: str, value: bytes) -> None:
    await data.hset(key, field, value)
    (found,) = await damage_of(data)
    await data.delete(key)
    assert (found.kind, found.key, found.place) == (kind, key, field)
    assert found.advice


@pytest.mark.parametrize(
    ("kind", "key"), [("dead letter", "dead:t"), ("action", keys.action_stream_key(stored.TARGET)), ("revocation", "revoked:log")]
)
async def test_a_damaged_entry_of_a_feature_is_found(data: Redis, kind: str, key: str) -> None:
    before = (await Verification(data, FEATURES).run()).checked.get(kind, 0)
    entry = await data.xadd(key, {"data": "x", "crc32c": "00000000"})
    verified = await Verification(data, FEATURES).run()
    await data.xdel(key, entry)
    assert [(damage.kind, damage.place) for damage in verified.damage] == [(kind, entry.decode())]
    assert verified.checked[kind] == before + 1


async def test_a_dead_letter_of_another_tenant_is_found(data: Redis) -> None:
    ((entry, fields),) = await data.xrevrange(keys.dead_letter_key("t"), count=1)
    await data.xadd(keys.dead_letter_key("u"), fields, id=entry)
    (found,) = await damage_of(data)
    await data.delete(keys.dead_letter_key("u"))
    assert (found.kind, found.key, found.place) == ("dead letter", keys.dead_letter_key("u"), entry.decode())


async def test_actions_for_a_target_that_no_edge_knows_are_found(data: Redis) -> None:
    await data.srem(keys.ACTION_TARGETS_KEY, stored.TARGET)
    (found,) = await damage_of(data)
    await data.sadd(keys.ACTION_TARGETS_KEY, stored.TARGET)
    assert (found.kind, found.key) == ("action", keys.action_stream_key(stored.TARGET))


@pytest.mark.parametrize("key", [b"channels:of:t\xff", b"rules:state:\xff", b"s1:growth:\xff", b"dead:\xff", b"actions:to:\xff"])
async def test_a_damaged_name_of_a_key_hides_no_other_damage(data: Redis, key: bytes) -> None:
    await data.hset(key.decode("latin-1"), "u", "v")
    renamed: Any = key
    await data.rename(key.decode("latin-1"), renamed)
    await data.set("no-such-kind", "v")
    found = await damage_of(data)
    await data.delete(renamed, "no-such-kind")
    assert {(one.kind, one.key) for one in found} == {
        ("unknown key", key.decode(errors="backslashreplace")),
        ("unknown key", "no-such-kind"),
    }


@pytest.mark.parametrize("key", ["channels:of:t", "rules:state", "s1:growth:u", "dead:t", "ids:7", "s1:journal", "s1:page"])
async def test_a_value_under_the_name_of_another_type_is_found(redis_client: Redis, key: str) -> None:
    await redis_client.set(key, "v")
    assert [(one.kind, one.key) for one in await damage_of(redis_client)] == [("unknown key", key)]


async def test_whole_revocations_are_checked_and_whole(redis_client: Redis) -> None:
    await RevocationLog(redis_client, Config()).append([Revocation("jti", "t", "token:1", int(time.time() * 1000) + 60_000)])
    verified = await Verification(redis_client, FEATURES).run()
    assert (verified.damage, verified.checked) == ([], {"revocation": 1})
