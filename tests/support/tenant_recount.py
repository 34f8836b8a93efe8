"""What each tenant has in storage, found by looking at all of it."""

from __future__ import annotations

from collections import Counter

from redis.asyncio import Redis

from engine.core.journal.stored_formats import decode_timer
from engine.core.model.routing import SLOTS, TIMER_PARTITIONS, split_key, topic_of
from engine.store.keys import offline_key, page_key, timer_key
from engine.store.tenant_usage import FIGURES, TenantUsage
from engine.store.timer_store import TIMER_BYTES
from tests.support.stored import decode_page


async def recount(client: Redis, tenant: str) -> dict[str, int]:
    """Its figures, from the pages, streams and timers themselves."""
    found: Counter[str] = Counter()
    users: set[str] = set()
    topics: set[str] = set()
    for slot in range(SLOTS):
        for name, page in (await client.hgetall(page_key(slot))).items():
            key = name.decode()
            if split_key(key)[0] == tenant:
                users.add(key)
                found["stored_bytes"] += len(page)
                topics.update(decode_page(key, page).topics)
                if await client.xlen(offline_key(key)):
                    found["stored_bytes"] += await client.memory_usage(offline_key(key), samples=0)
    for partition in range(TIMER_PARTITIONS):
        for packed in await client.hvals(timer_key(partition)):
            key = decode_timer(packed).key
            if split_key(key)[0] == tenant:
                found["stored_bytes"] += len(packed) + TIMER_BYTES
                if topic_of(key) is None:
                    users.add(key)
    return {**dict.fromkeys(FIGURES, 0), **found, "users": len(users), "topics": len(topics)}


async def counted(client: Redis, tenant: str) -> dict[str, int]:
    return dict(await TenantUsage(client).of(tenant))
