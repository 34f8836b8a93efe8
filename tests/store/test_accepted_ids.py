"""Ids of messages for users: exact for a day in both layouts and across the change, in small hashes, by the real scripts."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from engine.core.commit.first_result import idempotency_value, packed_result
from engine.core.commit.group import Group
from engine.core.model.message import timer_effect_id
from engine.store.accepted_ids import AcceptedIds, begin_with_buckets, id_hash, open_buckets
from engine.store.journal import Journal
from engine.store.keys import EPOCH_FIELD, idempotency_key, ids_prefix, ids_state_key, meta_key
from engine.store.legacy_ids import wall_ms
from engine.store.redis_client import claim_data_epoch
from engine.store.slot_map import claim_slot_map
from tests.sim.redis import MiniRedis

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW = 1_790_000_000_000
DIGEST = b"digest.."
KEY = "default:ann"


class World:
    """A server with a clock of its own, as a client, and what it has to know."""

    def __init__(self) -> None:
        self.now_ms = NOW
        self.server = MiniRedis(lambda: self.now_ms)
        self.ids = AcceptedIds(self, DAY_MS, lambda: self.now_ms)  # type: ignore[arg-type]
        self.stored: dict[tuple[str, str], tuple[bytes, int]] = {}  # value, when

    async def execute_command(self, *command: Any) -> Any:
        reply = self.server.execute(*command)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def hget(self, key: str, field: str) -> Any:
        return self.server.execute("HGET", key, field)

    async def hsetnx(self, key: str, field: str, value: str) -> Any:
        return self.server.execute("HSETNX", key, field, value)

    async def open(self, since_ms: int) -> None:
        await open_buckets(self, since_ms)  # type: ignore[arg-type]

    async def take(self, *pairs: tuple[str, str], seq: int = 1) -> None:
        """Store what is not known, and hold the answer against the book."""
        values = [packed_result(DIGEST, seq, "") for _ in pairs]
        found = await self.ids.take(pairs, values)
        for index, pair in enumerate(pairs):
            self.hold(pair, found.get(index), values[index])

    def hold(self, pair: tuple[str, str], found: bytes | None, value: bytes) -> None:
        first, stored_ms = self.stored.get(pair, (None, 0))
        age_ms = self.now_ms - stored_ms
        if age_ms < DAY_MS:
            assert found == first, f"{pair} after {age_ms} ms"
        elif age_ms > DAY_MS + 1000:
            assert found is None, f"{pair} after {age_ms} ms"
        if found is None:
            self.stored[pair] = (value, self.now_ms)

    def buckets(self) -> dict[bytes, dict[bytes, bytes]]:
        prefix = ids_prefix().encode()
        return {
            key: value
            for key, value in self.server.data.items()
            if key.startswith(prefix) and key != ids_state_key().encode() and self.server.execute("HLEN", key)
        }


@pytest.fixture
def world() -> World:
    pytest.importorskip("lupa")
    return World()


# -- Exact. ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("opened_after", [0, 40, None])
@pytest.mark.parametrize("seed", [1, 2])
async def test_an_id_is_known_for_a_day_whatever_happens_beside_it(world: World, seed: int, opened_after: int | None) -> None:
    """Against a book, while buckets are opened, grow, are swept and expire."""
    rng = Random(seed)
    for turn in range(120):
        if turn == opened_after:
            await world.open(world.now_ms if turn else 0)
        fresh = [(f"t:u{rng.randrange(50)}", f"{turn}-{number}") for number in range(rng.randrange(40))]
        again = rng.sample(sorted(world.stored), min(len(world.stored), 10))
        await world.take(*dict.fromkeys((*fresh, *again)), seq=turn)
        while turn % 3 and await world.ids.sweep():
            pass
        world.now_ms += rng.choice((0, 1, 999, 60_000, HOUR_MS, 3 * HOUR_MS))
    if opened_after is not None:
        assert len(world.buckets()) > 1


async def test_an_id_is_forgotten_after_its_day_and_may_be_used_anew(world: World) -> None:
    await world.open(0)
    await world.take((KEY, "a"), seq=1)
    world.now_ms += DAY_MS - 1
    await world.take((KEY, "a"), seq=2)
    world.now_ms += 1001
    await world.take((KEY, "a"), seq=3)
    assert await world.ids.look_up([(KEY, "a")]) == {0: packed_result(DIGEST, 3, "")}
    world.now_ms += DAY_MS - 1
    assert await world.ids.look_up([(KEY, "a")]) == {0: packed_result(DIGEST, 3, "")}


async def test_an_id_that_is_there_twice_in_one_step_is_stored_once(world: World) -> None:
    await world.open(0)
    first, second = packed_result(DIGEST, 1, ""), packed_result(DIGEST, 2, "")
    assert await world.ids.take([(KEY, "a"), (KEY, "a")], [first, second]) == {1: first}


async def test_only_the_value_that_was_stored_is_released(world: World) -> None:
    first, second = packed_result(DIGEST, 0, "3-a"), packed_result(DIGEST, 0, "3-b")
    for opened in (False, True):
        if opened:
            await world.open(world.now_ms)
        await world.ids.take([(KEY, f"{opened}")], [first])
        await world.ids.release([(KEY, f"{opened}")], [second])
        assert await world.ids.look_up([(KEY, f"{opened}")]) == {0: first}
        await world.ids.release([(KEY, f"{opened}")], [first])
        assert await world.ids.look_up([(KEY, f"{opened}")]) == {}


# -- The change. -------------------------------------------------------------------------------------------------------
async def test_keys_of_their_own_are_looked_at_for_a_day_after_buckets_are_opened(world: World) -> None:
    await world.take((KEY, "a"))
    assert world.server.execute("EXISTS", idempotency_key(KEY, "a"))
    world.now_ms += 23 * HOUR_MS
    await world.open(world.now_ms)
    await world.take((KEY, "a"), (KEY, "b"))
    assert not world.server.execute("EXISTS", idempotency_key(KEY, "b")), "from one moment on, whatever the process knows"
    assert len(world.ids.keys([(KEY, "a")])) == 3
    world.now_ms += 26 * HOUR_MS
    await world.take((KEY, "c"))
    assert len(world.ids.keys([(KEY, "c")])) == 2


async def test_what_is_in_a_key_of_its_own_counts_for_who_has_not_seen_the_change(world: World) -> None:
    """Two writers: the one that has not looked since writes where the other one looks."""
    late = AcceptedIds(world, DAY_MS, lambda: world.now_ms)  # type: ignore[arg-type]
    await late.look()
    await world.open(world.now_ms)
    await world.take((KEY, "a"))
    assert await late.take([(KEY, "a"), (KEY, "b")], [b"", packed_result(DIGEST, 5, "")]) == {0: packed_result(DIGEST, 1, "")}
    assert await world.ids.look_up([(KEY, "b")]) == {0: packed_result(DIGEST, 5, "")}


async def test_an_opening_that_ended_half_way_looks_at_both_layouts(world: World) -> None:
    world.server.execute("HSET", ids_state_key(), "buckets", 1)
    await world.take((KEY, "a"))
    assert len(world.ids.keys([(KEY, "a")])) == 3
    await world.open(world.now_ms)
    world.now_ms += 120_000
    await world.take((KEY, "a"))
    assert len(world.ids.keys([(KEY, "a")])) == 3


async def test_a_second_opening_changes_nothing(world: World) -> None:
    await world.open(0)
    await world.take(*((KEY, f"{number}") for number in range(1000)))
    await world.open(NOW)
    await world.take(*((KEY, f"{number}") for number in range(1000)))


async def test_data_of_an_older_version_do_not_begin_with_buckets(redis_client: Redis) -> None:
    await claim_data_epoch(redis_client, NOW // 1000)
    await claim_slot_map(redis_client, 2, 1)
    await begin_with_buckets(redis_client)
    assert not await redis_client.exists(ids_state_key())


async def test_a_backup_of_an_older_version_keeps_its_ids_when_it_is_restored(redis_client: Redis) -> None:
    """As OPERATIONS.md has it: without the data epoch."""
    await claim_data_epoch(redis_client, NOW // 1000)
    await claim_slot_map(redis_client, 2, 1)
    first, second = packed_result(DIGEST, 1, ""), packed_result(DIGEST, 2, "")
    await AcceptedIds(redis_client, DAY_MS).take([(KEY, "a")], [first])
    await redis_client.hdel(meta_key(), EPOCH_FIELD)  # type: ignore[misc]
    await begin_with_buckets(redis_client)
    await open_buckets(redis_client, wall_ms())  # once every process reads them
    assert await AcceptedIds(redis_client, DAY_MS).take([(KEY, "a")], [second]) == {0: first}


async def test_the_effect_of_an_action_which_has_a_key_of_its_own_is_looked_up(world: World) -> None:
    await world.open(0)
    await world.ids.look()
    effect = timer_effect_id("3-a")
    world.server.execute("SET", idempotency_key(KEY, effect), idempotency_value(DIGEST, 0, "3-a"))
    assert await world.ids.look_up([(KEY, effect)]) == {0: packed_result(DIGEST, 0, "3-a")}


# -- Small. ------------------------------------------------------------------------------------------------------------
async def test_what_is_past_its_time_is_swept_also_when_no_ids_come_any_more(world: World) -> None:
    await world.open(0)
    for hour in range(72):
        await world.take(*((KEY, f"{hour}-{number}") for number in range(100)))
        world.now_ms += HOUR_MS
        await world.ids.sweep()
    fields = sum(map(len, world.buckets().values()))
    assert 2400 <= fields < 2400 * 4 / 3 + 100, "a day's ids, and those of a third of it at most that wait for their sweep"
    for _ in range(33):
        world.now_ms += HOUR_MS
        await world.ids.sweep()
    assert not world.buckets()


async def test_a_pass_has_its_time_whoever_sweeps_how_often(world: World) -> None:
    await world.open(0)
    await world.take(*((KEY, f"{number}") for number in range(8000)))
    buckets = len(world.buckets())
    assert buckets > 160
    turns = 0
    while await world.ids.sweep():
        turns += 1
    assert turns == buckets // 64, "the first pass is at once"
    world.now_ms += 8 * HOUR_MS // 4
    assert await world.ids.sweep() == (buckets // 4 > 64)


async def test_an_id_takes_less_than_45_bytes(redis_client: Redis) -> None:
    await begin_with_buckets(redis_client)
    ids = AcceptedIds(redis_client, DAY_MS)
    pairs = [(f"default:user-{number % 997}", f"order-{number:012d}-paid") for number in range(20_000)]
    values = [packed_result(DIGEST, number % 2000, "") for number in range(20_000)]
    for first in range(0, 20_000, 500):
        await ids.take(pairs[first : first + 500], values[first : first + 500])
    assert await ids.look_up(pairs[:3000]) == dict(enumerate(values[:3000]))
    pipeline = redis_client.pipeline(transaction=False)
    buckets = [key async for key in redis_client.scan_iter(f"{ids_prefix()}[0-9]*", count=1000)]
    for key in buckets:
        pipeline.memory_usage(key)
        pipeline.object("ENCODING", key)
    replies = await pipeline.execute()
    assert set(replies[1::2]) == {b"listpack"}
    assert sum(replies[::2]) / 20_000 < 45


async def test_an_id_of_the_engine_itself_is_not_stored(redis_client: Redis) -> None:
    """Posts without an id of the publisher bring none into the group (`GroupBuilder`)."""
    await begin_with_buckets(redis_client)
    journal = Journal(redis_client, 3, DAY_MS)
    await journal.take_over([1])
    await journal.append(Group(1, b"payload", [], [], [], [], [], []))
    assert not [key async for key in redis_client.scan_iter(f"{ids_prefix()}[0-9]*")]


def test_the_same_text_split_otherwise_is_another_id() -> None:
    assert id_hash("t:g", "x:1") != id_hash("t:g:x", "1")
