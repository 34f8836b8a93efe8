"""Ids of messages for users: exact for a day, in small hashes, by the real scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from redis.asyncio import Redis

from engine.core.commit.first_result import idempotency_value, packed_result
from engine.core.commit.group import Group
from engine.core.model.message import timer_effect_id
from engine.store.accepted_ids import AcceptedIds, Pairs, id_hash
from engine.store.journal import Journal
from engine.store.keys import IDS_PREFIX, IDS_STATE_KEY, idempotency_key
from tests.support.simulated_client import SimulatedClient

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW = 1_790_000_000_000
DIGEST = b"digest.."
KEY = "default:ann"


class World(SimulatedClient):
    """A server with a clock of its own, and what it has to know."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self.ids = AcceptedIds(self, DAY_MS)  # type: ignore[arg-type]
        self.journal = Journal(self, 0, DAY_MS)  # type: ignore[arg-type]
        self.stored: dict[tuple[str, str], tuple[bytes, int]] = {}  # value, when
        self._groups = 0

    async def store(self, pairs: Pairs, values: Sequence[bytes]) -> Mapping[int, bytes]:
        """Store the ids that are not known, with a group of their own; the values of the others."""
        if not self._groups:
            await self.journal.take_over([0])
        known = await self._append(pairs, values)
        if known:
            rest = [index for index in range(len(pairs)) if index not in known]
            assert not await self._append([pairs[index] for index in rest], [values[index] for index in rest])
        return known

    async def _append(self, pairs: Pairs, values: Sequence[bytes]) -> Mapping[int, bytes]:
        self._groups += 1
        return await self.journal.append(Group(self._groups, {0: b"p"}, list(pairs), list(values), [], [], [], []))

    async def take(self, *pairs: tuple[str, str], seq: int = 1) -> None:
        """Store what is not known, and hold the answer against the book."""
        values = [packed_result(DIGEST, seq, "") for _ in pairs]
        found = await self.store(pairs, values)
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
        prefix = IDS_PREFIX.encode()
        return {
            key: value
            for key, value in self.server.data.items()
            if key.startswith(prefix) and key != IDS_STATE_KEY.encode() and self.server.execute("HLEN", key)
        }


@pytest.fixture
def world() -> World:
    pytest.importorskip("lupa")
    return World()


# -- Exact. ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", [1, 2])
async def test_an_id_is_known_for_a_day_whatever_happens_beside_it(world: World, seed: int) -> None:
    """Against a book, while buckets grow, are swept and expire."""
    rng = Random(seed)
    for turn in range(120):
        fresh = [(f"t:u{rng.randrange(50)}", f"{turn}-{number}") for number in range(rng.randrange(40))]
        again = rng.sample(sorted(world.stored), min(len(world.stored), 10))
        await world.take(*dict.fromkeys((*fresh, *again)), seq=turn)
        while turn % 3 and await world.ids.sweep():
            pass
        world.now_ms += rng.choice((0, 1, 999, 60_000, HOUR_MS, 3 * HOUR_MS))
    assert len(world.buckets()) > 1


async def test_an_id_is_forgotten_after_its_day_and_may_be_used_anew(world: World) -> None:
    await world.take((KEY, "a"), seq=1)
    world.now_ms += DAY_MS - 1
    await world.take((KEY, "a"), seq=2)
    world.now_ms += 1001
    await world.take((KEY, "a"), seq=3)
    assert await world.ids.look_up([(KEY, "a")]) == {(KEY, "a"): 3}
    world.now_ms += DAY_MS - 1
    assert await world.store([(KEY, "a")], [b""]) == {0: packed_result(DIGEST, 3, "")}


async def test_an_id_that_is_there_twice_in_one_step_is_stored_once(world: World) -> None:
    first, second = packed_result(DIGEST, 1, ""), packed_result(DIGEST, 2, "")
    assert await world.store([(KEY, "a"), (KEY, "a")], [first, second]) == {1: first}


async def test_the_effect_of_an_action_which_has_a_key_of_its_own_is_looked_up(world: World) -> None:
    effect = timer_effect_id("3-a")
    world.server.execute("SET", idempotency_key(KEY, effect), idempotency_value(DIGEST, 0, "3-a"))
    assert await world.ids.look_up([(KEY, effect), (KEY, "other")]) == {(KEY, effect): 0}


# -- Small. ------------------------------------------------------------------------------------------------------------
async def test_what_is_past_its_time_is_swept_also_when_no_ids_come_any_more(world: World) -> None:
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
    journal = Journal(redis_client, 0, DAY_MS)
    await journal.take_over([0])
    pairs = [(f"default:user-{number % 997}", f"order-{number:012d}-paid") for number in range(20_000)]
    values = [packed_result(DIGEST, number % 2000, "") for number in range(20_000)]
    for first in range(0, 20_000, 500):
        group = Group(1 + first // 500, {0: b"p"}, pairs[first : first + 500], values[first : first + 500], [], [], [], [])
        assert await journal.append(group) == {}
    assert (await AcceptedIds(redis_client, DAY_MS).look_up(pairs[:3000])).keys() == set(pairs[:3000])
    pipeline = redis_client.pipeline(transaction=False)
    buckets = [key async for key in redis_client.scan_iter(f"{IDS_PREFIX}[0-9]*", count=1000)]
    for key in buckets:
        pipeline.memory_usage(key)
        pipeline.object("ENCODING", key)
    replies = await pipeline.execute()
    assert set(replies[1::2]) == {b"listpack"}
    assert sum(replies[::2]) / 20_000 < 45


async def test_an_id_of_the_engine_itself_is_not_stored(redis_client: Redis) -> None:
    """Posts without an id of the publisher bring none into the group (`GroupBuilder`)."""
    journal = Journal(redis_client, 3, DAY_MS)
    await journal.take_over([0])
    await journal.append(Group(1, {0: b"payload"}, [], [], [], [], [], []))
    assert not [key async for key in redis_client.scan_iter(f"{IDS_PREFIX}[0-9]*")]


def test_the_same_text_split_otherwise_is_another_id() -> None:
    assert id_hash("t:g", "x:1") != id_hash("t:g:x", "1")
