"""The stream of outcomes: appended in batches, read at least once, bounded by its bytes, and counted by what waits in it."""

from __future__ import annotations

import redis.asyncio as redis

from engine.config import Config
from engine.core.wire.outcomes import ERASED, Outcome, OutcomeLog
from engine.features.history.outcome_reader import OutcomeReader
from engine.store.keys import OUTCOME_STATE_KEY, OUTCOME_STREAM_KEY
from engine.store.outcome_stream import OutcomeWriter
from tests.support.redis_server import RedisServer


def filled(count: int, first: int = 0) -> OutcomeLog:
    log = OutcomeLog()
    log.extend(Outcome(f"t:user-{number}", number, "event", "a" * 20) for number in range(first, first + count))
    return log


async def test_what_was_recorded_is_read_in_its_order_with_its_numbers(redis_client: redis.Redis) -> None:
    log = filled(4500)
    await OutcomeWriter(redis_client, Config(), "shard-0/7", log).flush()
    assert len(log) == 0
    batches = await OutcomeReader(redis_client, Config()).read(10)
    assert [(batch.source, batch.number, batch.count) for batch in batches] == [
        ("shard-0/7", 0, 2000), ("shard-0/7", 2000, 2000), ("shard-0/7", 4000, 500),
    ]  # fmt: skip
    assert [outcome.at_ms for batch in batches for outcome in batch.outcomes or ()] == list(range(4500))


async def test_a_batch_is_read_again_until_it_is_settled_and_the_lag_is_what_waits(redis_client: redis.Redis) -> None:
    await OutcomeWriter(redis_client, Config(), "edge-0", filled(10)).flush()
    reader = OutcomeReader(redis_client, Config())
    assert (await reader.lag()).waiting == 10
    (batch,) = await reader.read(10)
    assert await reader.read(10) == []
    assert await OutcomeReader(redis_client, Config()).read(10, again=True) == [batch]
    await reader.settle([(batch, 0)])
    await reader.settle([(batch, 0)])
    lag = await reader.lag()
    assert (lag.waiting, lag.bytes, lag.oldest_ms, lag.dropped) == (0, 0, 0, 0)
    assert await reader.read(10, again=True) == []
    state = await redis_client.hgetall(OUTCOME_STATE_KEY)
    assert [state[name] for name in (b"bytes", b"waiting", b"kept")] == [b"0"] * 3


async def test_a_full_stream_drops_what_comes_and_counts_it_until_there_is_room(redis_client: redis.Redis) -> None:
    config = Config(history_stream_bytes_max=1000)
    log = filled(50)
    writer = OutcomeWriter(redis_client, config, "edge-0", log)
    reader = OutcomeReader(redis_client, Config())
    for _ in range(20):
        log.extend(filled(50).take(50))
        await writer.flush()
    full = await reader.lag()
    assert full.bytes <= 1000
    assert (full.waiting > 0, full.dropped > 0, full.waiting + full.dropped) == (True, True, 1050)
    batches = await reader.read(100)
    await reader.settle([(batch, 0) for batch in batches])
    log.extend(filled(50).take(50))
    await writer.flush()
    after = await reader.lag()
    assert (after.waiting, after.dropped) == (50, full.dropped)
    numbers = [batch.number for batch in [*batches, *await reader.read(100)]]
    assert numbers == sorted(set(numbers)), "a dropped batch has used its numbers"


async def test_a_full_stream_takes_the_erasures_of_a_batch(redis_client: redis.Redis) -> None:
    log, erasure = filled(5), Outcome("t:alice", 7, ERASED)
    log.add(erasure)
    log.extend(filled(5).take(5))
    await OutcomeWriter(redis_client, Config(history_stream_bytes_max=1), "shard-0/7", log).flush()
    (batch,) = await OutcomeReader(redis_client, Config()).read(10)
    assert (batch.outcomes, batch.count, batch.lost) == ([erasure], 1, 11)


async def test_a_batch_that_cannot_be_read_is_told_from_the_others(redis_client: redis.Redis) -> None:
    await redis_client.xadd(OUTCOME_STREAM_KEY, {"s": "edge-0", "n": 0, "c": 3, "b": b"nonsense"})
    await redis_client.xadd(OUTCOME_STREAM_KEY, {"later": "version"})
    unreadable, strange = await OutcomeReader(redis_client, Config()).read(10)
    assert (unreadable.outcomes, unreadable.count) == (None, 3)
    assert (strange.outcomes, strange.count) == (None, 0)


async def test_an_append_that_was_not_answered_is_repeated_as_it_was(redis_client: redis.Redis, redis_server: RedisServer) -> None:
    """A Redis that forgets its scripts loads them again: nothing is appended twice by that."""
    log = filled(3)
    writer = OutcomeWriter(redis_client, Config(), "edge-0", log)
    await writer.flush()
    await redis_client.script_flush()
    log.extend(filled(3).take(3))
    await writer.flush()
    assert [batch.number for batch in await OutcomeReader(redis_client, Config()).read(10)] == [0, 3]
