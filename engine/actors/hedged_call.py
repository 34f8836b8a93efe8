"""A call that is made again beside one that gets no answer: a hedged request (Dean and Barroso, "The Tail at Scale", 2013).

Ray 2.60 holds back the failure of a call to a process that has just died until it has heard of the death from its control service, and
looks for that once a second: 1.0 to 2.1 s measured, in which the next process may already run. A call made 50 ms later, when Ray knows of
the death, fails at once or reaches the next process.

The newest call decides: when it fails, so have the older ones, or they will. An older one that succeeds is as good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

AGAIN_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Between a call and the next one beside it; no more calls than these and the first, for they wait at an actor that starts slowly."""


async def hedged(call: Callable[[], Awaitable[T]]) -> T:
    """The result of one of several such calls. Raises what the newest one raises. The call must be one that can be made twice."""
    pending: set[asyncio.Future[T]] = set()
    try:
        for wait_s in (*AGAIN_S, None):
            newest = asyncio.ensure_future(call())
            pending.add(newest)
            while not newest.done():
                done, pending = await asyncio.wait(pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                if answered := [each for each in done if each.exception() is None]:  # of all: asyncio logs exceptions nobody asks for
                    return answered[0].result()
            else:
                return newest.result()
        raise AssertionError("the last call is waited for")
    finally:
        for each in pending:
            each.cancel()
