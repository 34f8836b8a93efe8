"""Servers of asyncio for tests that are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final

DEADLINE_S: Final = 60.0
_TURNS: Final = 5  # of the loop until a connection is accepted and its handler has begun: else it stays open when its server is closed


@contextmanager
def in_background(server: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
    """A server on an event loop of its own, in a thread: the test and what it calls are synchronous, or have theirs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        started = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(DEADLINE_S)
        try:
            yield started
        finally:
            asyncio.run_coroutine_threadsafe(_end(server), loop).result(DEADLINE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: AbstractAsyncContextManager[Any]) -> None:
    """End it, and what still runs for its connections: they would stay open when the loop is closed."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    await server.__aexit__(None, None, None)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)  # transports that were aborted close in the next turn
