"""Waiting for what will be true, with a deadline: no test sleeps a while and hopes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""For what takes no second where there is a core for it: waiting ends with the condition, and this machine may be doing anything else."""


async def until(look: Callable[[], Any], within_s: float = PATIENCE_S, *, holds: Callable[[Any], Any] = bool, look_s: float = 0.005) -> Any:
    """What a function returns, which may have to be awaited, as soon as it is true, or as wanted; fails with what it was last."""
    found: Any = None
    try:
        async with asyncio.timeout(within_s):
            while True:
                found = look()
                if inspect.isawaitable(found):
                    found = await found
                if holds(found):
                    return found
                await asyncio.sleep(look_s)
    except TimeoutError:
        raise AssertionError(f"not within {within_s} s: it stays {found!r}") from None


async def until_done(
    action: Callable[[], Awaitable[T]], *passing: type[Exception], within_s: float = PATIENCE_S, look_s: float = 0.05
) -> T:
    """What the action returns as soon as it raises none of the errors that pass; fails with the last of them."""
    last: Exception | None = None
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    return await action()
                except passing as error:
                    last = error
                await asyncio.sleep(look_s)
    except TimeoutError:
        raise AssertionError(f"it still failed after {within_s} s") from last
