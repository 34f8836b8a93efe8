"""Servers of asyncio for tests that are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final

DEADLINE_S: Final = 60.0


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
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(DEADLINE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
