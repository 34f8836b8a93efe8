"""Quarantined records on a real Redis, as shards and schedulers leave them."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.errors import StorageUnavailable
from engine.features.inspection.store import Quarantine, QuarantinedRecord
from engine.store.keys import journal_quarantine_key, timer_quarantine_key


async def test_records_of_every_shard_and_partition_are_shown_the_newest_first(redis_client: Redis) -> None:
    await redis_client.xadd(journal_quarantine_key(0), {"where": "journal 1-0", "blob": b"\x01" * 100}, id="5-0")
    await redis_client.xadd(journal_quarantine_key(31), {"where": "page t:\xff", "blob": b"\x02"}, id="9-0")
    await redis_client.hset(timer_quarantine_key(3), "3-a", b"\x03\x04")
    records, total = await Quarantine(redis_client).newest(10)
    assert total == 3
    assert records == [
        QuarantinedRecord("shard-31", "page t:\xff", 9, 1, "02", "{shard-31}quarantine"),
        QuarantinedRecord("shard-0", "journal 1-0", 5, 100, "01" * 48, "{shard-0}quarantine"),
        QuarantinedRecord("timers-3", "3-a", 0, 2, "0304", "{t3}quarantine"),
    ]
    assert [record.part for record in (await Quarantine(redis_client).newest(1))[0]] == ["shard-31"]


async def test_storage_that_does_not_answer_is_said_so() -> None:
    with pytest.raises(StorageUnavailable):
        await Quarantine(Redis(host="127.0.0.1", port=1)).newest(10)
