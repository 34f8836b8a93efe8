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
    await redis_client.xadd(timer_quarantine_key(3), {"where": "3-a", "blob": b"\x03\x04"}, id="7-0")
    records, total = await Quarantine(redis_client).newest(10)
    assert total == 3
    assert records == [
        QuarantinedRecord("shard-31", "page t:\xff", 9, 1, "02", "shard-31:quarantine"),
        QuarantinedRecord("timers-3", "3-a", 7, 2, "0304", "t3:quarantine"),
        QuarantinedRecord("shard-0", "journal 1-0", 5, 100, "01" * 48, "shard-0:quarantine"),
    ]
    assert [record.part for record in (await Quarantine(redis_client).newest(1))[0]] == ["shard-31"]


async def test_large_records_leave_redis_cut(redis_client: Redis) -> None:
    for number in range(1, 21):
        await redis_client.xadd(journal_quarantine_key(0), {"where": "page", "blob": b"x" * (1 << 20)}, id=f"{number}-0")
    sent = (await redis_client.info("stats"))["total_net_output_bytes"]
    records, total = await Quarantine(redis_client).newest(100)
    assert (await redis_client.info("stats"))["total_net_output_bytes"] - sent < 1 << 20
    assert total == 20
    assert [record.at for record in records] == list(range(20, 12, -1)), "not all are looked at"
    assert {record.bytes for record in records} == {1 << 20}


async def test_storage_that_does_not_answer_is_said_so() -> None:
    with pytest.raises(StorageUnavailable):
        await Quarantine(Redis(host="127.0.0.1", port=1)).newest(10)
