"""What each tenant has in storage, found by looking at all of it."""

from __future__ import annotations

from collections import Counter

from redis.asyncio import Redis

from engine.core.journal.stored_formats import decode_page
from engine.core.model.routing import split_key
from engine.store.keys import offline_key
from engine.store.tenant_usage import FIGURES, TenantUsage


async def recount(client: Redis, tenant: str) -> dict[str, int]:
    """Its figures, from the pages and streams themselves."""
    found: Counter[str] = Counter()
    topics: set[str] = set()
    for pages in await client.keys("{s*}page"):
        for name, page in (await client.hgetall(pages)).items():
            key = name.decode()
            if split_key(key)[0] == tenant:
                found["users"] += 1
                found["stored_bytes"] += len(page)
                topics.update(decode_page(page).topics)
                if await client.xlen(offline_key(key)):
                    found["stored_bytes"] += await client.memory_usage(offline_key(key), samples=0)
    return {**dict.fromkeys(FIGURES, 0), **found, "topics": len(topics)}


async def counted(client: Redis, tenant: str) -> dict[str, int]:
    """Its figures, as they are counted."""
    return dict(await TenantUsage(client).of(tenant))
