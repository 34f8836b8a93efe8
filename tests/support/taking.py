"""The first items of something that never ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")

_PATIENCE_S = 90


async def take(coming: AsyncGenerator[T, None], count: int) -> list[T]:
    """So many; of what is acknowledged by asking for the next, the last one is not."""
    found: list[T] = []
    async with asyncio.timeout(_PATIENCE_S), aclosing(coming):
        async for item in coming:
            found.append(item)
            if len(found) == count:
                break
    return found
