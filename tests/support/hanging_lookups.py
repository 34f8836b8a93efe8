"""Lookups that hang, beside others that need a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


async def leave_threads_to_others(call: Callable[[], Coroutine[Any, Any, object]], answered: threading.Event) -> None:
    """Check that many calls, whose lookups hang until `answered`, leave a thread of the shared pool to others. They end well after it."""
    calls = [asyncio.ensure_future(call()) for _ in range(64)]
    try:
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.to_thread(threading.get_ident), 5)
    finally:
        answered.set()
    await asyncio.gather(*calls)
