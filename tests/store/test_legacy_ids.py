"""Ids that 65fafe9 stored are still found for a day, by keys as that version wrote them (`data/ids_65fafe9.json`)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from engine.config import Config
from engine.core.commit.first_result import idempotency_value, packed_result
from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.model.constants import LOW
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.model.routing import audience_key, mailbox_key, partition_of, slot_of, timer_id
from engine.core.scheduler.scheduler_events import StoreRequest, StoreWork
from engine.core.shard.fired_timers import FiredTimers
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import ACCEPTED, CONFLICT, DUPLICATE, FireDone, Schedule, Timer
from engine.errors import StorageUnavailable
from engine.store.broadcast_stream import BroadcastLog
from engine.store.keys import IDS_SINCE_FIELD, meta_key
from engine.store.legacy_ids import LegacyIds, legacy_key, mark_upgrade
from engine.store.slot_map import claim_slot_map
from engine.store.timer_store import TimerStore
from tests.support.journal_writer import USER, Writer
from tests.support.key_strategies import AUDIENCES, IDS, MAILBOXES, colliding_users

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "ids_65fafe9.json").read_text("utf-8"))
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW = 1_790_000_000_000
KEY = "default:ann"
DIGEST = b"digest.."
SID = "3-01a2016c-2647-7ab9-a075-06aafb696dcf"


def old_key(key: str, id: str) -> str:
    """As 65fafe9 has it in `engine/store/keys.py`."""
    return f"{{s{slot_of(key)}}}idemp:{key}:{id}"


def recorded_pairs() -> list[tuple[str, str]]:
    return [
        (mailbox_key("default", item["user"]) if "user" in item else audience_key("default", item.get("topic", "")), item["id"])
        for item in RECORDED["items"]
    ]


async def mark(client: Redis, age_ms: int) -> None:
    """The data was first used with the new keys so long ago."""
    await client.hset(meta_key(), IDS_SINCE_FIELD, str(int(time.time() * 1000) - age_ms))  # type: ignore[misc]


def timer(unique: str, id: str = "", digest: bytes = DIGEST) -> Timer:
    return Timer(timer_id(KEY, unique), KEY, NOW + 60_000, NOW, 60_000, Envelope(id, digest, 1, True, b"x"))


class Clock:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


# -- The keys. ---------------------------------------------------------------------------------------------------------
def test_the_keys_are_those_that_the_old_version_wrote() -> None:
    unambiguous = [pair for pair in recorded_pairs() if pair[1] != "x:order-1"]
    assert {legacy_key(*pair) for pair in unambiguous} < set(RECORDED["keys"])
    assert len(unambiguous) == len(RECORDED["keys"]) - 1


def test_a_key_that_two_users_share_is_not_looked_at() -> None:
    user, longer = colliding_users("g")
    assert old_key(mailbox_key("default", user), "x:order-1") == old_key(mailbox_key("default", longer), "order-1")
    assert legacy_key(mailbox_key("default", user), "x:order-1") is None
    assert legacy_key(mailbox_key("default", longer), "order-1") is None


def test_a_colon_alone_does_not_make_a_key_ambiguous() -> None:
    assert legacy_key("t:g", "order:17") == old_key("t:g", "order:17")


def test_the_effect_of_a_timer_is_always_looked_at() -> None:
    """No publisher can know the scheduled id that ends it before it was made."""
    user = next(f"t:u{n}" for n in range(10**6) if slot_of(f"t:u{n}") == slot_of(f"t:u{n}:timer"))
    assert legacy_key(user, timer_effect_id(SID)) == old_key(user, timer_effect_id(SID))
    assert legacy_key(user, "timer:mine") is None


@given(MAILBOXES | AUDIENCES, IDS, st.data())
def test_a_key_that_is_looked_at_belongs_to_no_other_pair(key: str, id: str, data: st.DataObject) -> None:
    joined = f"{key}:{id}"
    colons = [at for at, char in enumerate(joined) if char == ":" and at != len(key)][1:]
    others = [(joined[:at], joined[at + 1 :]) for at in colons]
    found = legacy_key(key, id)
    if found is not None:
        assert found == old_key(key, id)
        assert found not in {old_key(*other) for other in others if other[0].partition(":")[2] and other[1]}


# -- When they are looked at. ------------------------------------------------------------------------------------------
async def test_data_that_an_older_version_used_is_marked_once_with_the_time_of_the_upgrade(redis_client: Redis) -> None:
    await claim_slot_map(redis_client, 2, 1)  # and no data epoch: a backup was restored
    await mark_upgrade(redis_client, 1_700_000_000_000)
    await mark_upgrade(redis_client, 1_800_000_000_000)
    assert await redis_client.hget(meta_key(), IDS_SINCE_FIELD) == b"1700000000000"  # type: ignore[misc]


async def test_new_data_is_marked_as_free_of_legacy_keys(redis_client: Redis) -> None:
    await mark_upgrade(redis_client, 1_700_000_000_000)
    await claim_slot_map(redis_client, 2, 1)
    await mark_upgrade(redis_client, 1_800_000_000_000)
    assert await redis_client.hget(meta_key(), IDS_SINCE_FIELD) == b"0"  # type: ignore[misc]


async def test_they_are_looked_at_until_the_last_has_expired_and_never_again(redis_client: Redis) -> None:
    await redis_client.hset(meta_key(), IDS_SINCE_FIELD, str(NOW))  # type: ignore[misc]
    await redis_client.set(old_key(USER, "a"), b"value")
    clock = Clock(NOW + DAY_MS - 1)
    ids = LegacyIds(redis_client, DAY_MS, clock)
    assert await ids.look_up([(USER, "b"), (USER, "a")]) == {1: b"value"}
    assert ids.may_exist
    clock.now_ms += 1
    assert await ids.look_up([(USER, "a")]) == {}
    assert not ids.may_exist


@pytest.mark.parametrize("marked", [None, "0"])
async def test_data_without_an_upgrade_is_asked_once_and_for_no_key(redis_client: Redis, marked: str | None) -> None:
    if marked is not None:
        await redis_client.hset(meta_key(), IDS_SINCE_FIELD, marked)  # type: ignore[misc]
    await redis_client.set(old_key(USER, "a"), b"value")
    ids = LegacyIds(redis_client, DAY_MS)
    assert await ids.look_up([(USER, "a")]) == {}
    assert not ids.may_exist


async def test_nothing_but_shared_keys_asks_storage_for_none(redis_client: Redis) -> None:
    await mark(redis_client, HOUR_MS)
    user, _ = colliding_users("g")
    assert await LegacyIds(redis_client, DAY_MS).look_up([(mailbox_key("default", user), "x:1")]) == {}


async def test_a_silent_redis_is_unavailable() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    with pytest.raises(StorageUnavailable):
        await LegacyIds(client, DAY_MS).look_up([(USER, "a")])
    await client.aclose()


# -- Who looks at them. ------------------------------------------------------------------------------------------------
async def test_an_id_in_the_journals_group_that_the_old_version_stored_is_known_and_nothing_is_written(redis_client: Redis) -> None:
    await mark(redis_client, HOUR_MS)
    await redis_client.set(old_key(USER, "b"), idempotency_value(b"digest..", 7, ""))
    writer = Writer(redis_client)
    writer.journal._idempotency_ms = writer.journal._legacy_ids._remembered_ms = DAY_MS
    await writer.journal.take_over([1])
    assert await writer.write("a", "b") == {1: packed_result(b"digest..", 7, "")}
    assert await writer.stored() == []
    assert await writer.write("a") == {}
    assert await writer.stored() == ["a"]


async def test_a_timer_whose_effect_the_old_version_stored_is_done(redis_client: Redis) -> None:
    await mark(redis_client, 0)
    due = timer("x", "any")
    await redis_client.set(old_key(KEY, timer_effect_id(due.sid)), b"value")
    writer = Writer(redis_client)
    output = ShardOutput()
    fired = FiredTimers(10, output)
    fired.take(due)
    fired.again([(due.sid, NOW)])
    await writer.journal.look_up(fired)
    assert output.to_schedulers == [(partition_of(KEY), FireDone([due.sid]))]


async def test_a_delayed_publish_under_an_id_of_the_old_version_is_a_duplicate_of_the_first(redis_client: Redis) -> None:
    await mark(redis_client, HOUR_MS)
    first = timer("first", id="mine")
    await redis_client.set(old_key(KEY, "mine"), idempotency_value(DIGEST, 0, first.sid))
    await redis_client.set(old_key(KEY, "sent"), idempotency_value(DIGEST, 42, ""))
    store = TimerStore(redis_client, Config(), [partition_of(KEY)], "scheduler-0")
    await store.take_over()
    timers = [timer("a", id="other"), timer("b", id="mine"), timer("c", id="sent"), timer("d", id="mine", digest=b"another.")]
    requests = [StoreRequest(Schedule(ref, True, one)) for ref, one in enumerate(timers)]
    answers = (await store.apply([StoreWork(partition_of(KEY), 0, {}, requests)], NOW))[0].answers
    assert [(answer.status, answer.detail) for answer in answers[1:]] == [(DUPLICATE, first.sid), (DUPLICATE, "seq=42"), (CONFLICT, "")]
    assert answers[0].timers[0].sid == timers[0].sid
    assert answers[1].timers[0].sid == first.sid, "the crash between its two steps is mended as ever"


async def test_a_broadcast_under_an_id_of_the_old_version_is_a_duplicate_and_its_neighbours_are_appended(redis_client: Redis) -> None:
    await mark(redis_client, HOUR_MS)
    await redis_client.set(old_key(audience_key("t", ""), "b"), idempotency_value(DIGEST, 99, ""))
    log = BroadcastLog(redis_client, Config())
    entries = [BroadcastEntry("t", "", Envelope(id, DIGEST, LOW, True, b'"x":1'), 10**15, 5) for id in ("a", "b", "c")]
    for repeated in (False, True):
        first, known, last = await log.append([(entry, entry.envelope.id) for entry in entries], repeated=repeated)
        assert (known.status, known.pos) == (DUPLICATE, 99)
        assert (first.status, last.status) == (ACCEPTED, ACCEPTED)
    assert [broadcast.envelope.id for broadcast in (await log.read(0, wait=False))[0]] == ["a", "c"]
