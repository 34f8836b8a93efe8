"""Storage has lost data: put back what a running shard still holds, so that its successor finds it.

In this order, each step safe to repeat, and right if the process dies after any of them:

    epoch       the loss may have taken the fence with it. Taking a new epoch also asks whether a newer incarnation exists
    slot map    unless it is there
    data epoch  replaced before anything else is written: numbers that clients have seen may be given again, and a cursor of the
                old epoch must not be taken for one of the new
    journal     what memory holds, behind what is left of it (`engine.core.journal.rebuild`)

Before the last step is through, a death loses what only memory held; the clients are told of the gap all the same.
"""

from __future__ import annotations

import redis.asyncio as redis

from engine.core.commit.group import Group
from engine.core.journal.rebuild import payloads
from engine.core.shard.shard import ShardCore
from engine.store.journal import Journal
from engine.store.redis_client import replace_data_epoch
from engine.store.slot_map import place_again


async def put_back(client: redis.Redis, journal: Journal, core: ShardCore, entry_bytes_max: int, now_s: int) -> None:
    """Do all of it. The core must not be fed any more.

    Raises:
        Fenced: a newer incarnation exists; what it holds is newer too.
        DataLost: storage has lost data again.
        StorageUnavailable: no answer; begin again.
    """
    await journal.take_over(core.slot_map.slots_of(core.index))
    await place_again(client, core.slot_map)
    await replace_data_epoch(client, core.data_epoch, now_s)
    for number, payload in enumerate(payloads(core.mailboxes.values(), entry_bytes_max), 1):
        await journal.append(Group(number, payload, [], [], [], [], [], []))
