"""After storage has lost data: write what a running shard still holds in memory, for its successor to read.

The steps in this order, each idempotent, and each a consistent state to crash in:

    epoch       the fence may be lost as well. Taking a new epoch also detects a newer incarnation
    slot map    unless it is there, or a newer one
    data epoch  replaced before any other write: sequence numbers that clients have seen may be assigned again, and a cursor of the
                old epoch must not match the new one
    journals    the mailboxes in memory, appended to what is left of them (`engine.core.journal.rebuild`)
    sync        the disk has all of it. With an fsync every second another loss could take it along, the data epoch too, before a successor
                has read it: nobody would know of the first loss then

A crash before the last step ends loses what only memory held; clients get `gap` all the same.
"""

from __future__ import annotations

from itertools import count
from typing import Final

import redis.asyncio as redis

from engine.core.commit.group import Group
from engine.core.journal.rebuild import payloads
from engine.core.model.routing import SlotMap
from engine.core.shard.shard import ShardCore
from engine.store.journal import Journal
from engine.store.keys import REPLICATION_KEY
from engine.store.redis_client import replace_data_epoch
from engine.store.slot_map import restore_slot_map
from engine.store.storage_calls import StorageCalls

_SYNCS: Final = 3
"""A sync a second takes longer where the disk is busy."""


async def restore_storage(
    client: redis.Redis, journal: Journal, core: ShardCore, slot_map: SlotMap, entry_bytes_max: int, now_s: int, sync_ms: int
) -> None:
    """Run all steps. The core must not receive input any more.

    Args:
        slot_map: the newest that was stored; the core's own lacks the slots that are being moved.
        entry_bytes_max: size of one journal entry.
        now_s: seconds since the epoch.
        sync_ms: for one reply about the disk.

    Raises:
        Fenced: a newer incarnation exists; its state is newer too.
        DataLost: storage has lost data again.
        StorageUnavailable: no reply; run it again.
    """
    slots = sorted(journal.loss_detector.slots)  # also those that are being handed over
    await journal.take_over(slots)
    await restore_slot_map(client, slot_map)
    await replace_data_epoch(client, core.data_epoch, now_s)
    store, numbers = core.mailbox_store, count(1)
    for slot in slots:
        for payload in payloads(map(core.mailboxes.__getitem__, store.keys_in([slot])), entry_bytes_max):
            await journal.append(Group(next(numbers), {slot: payload}, [], [], [], [], [], []))
    await _synced(client, sync_ms)


async def _synced(client: redis.Redis, sync_ms: int) -> None:
    """Wait for the disk, `_SYNCS` times `sync_ms` at most. Redis replies with an error before 7.2, or without an append-only file."""
    for _ in range(_SYNCS):
        pipeline = client.pipeline(transaction=False)
        pipeline.set(REPLICATION_KEY, b"")  # the connection's own write, behind all others
        pipeline.execute_command("WAITAOF", 1, 0, sync_ms)
        with StorageCalls("sync of what was restored"):
            _, synced = await pipeline.execute(raise_on_error=False)
        if isinstance(synced, Exception) or synced[0]:
            return
