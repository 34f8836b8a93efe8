"""Requests of an edge that wait for a change that any edge may store.

    waiting --woken by its own edge, or by `watch`: storage has another state than the request saw--> looks again
            --its time is over--------------------------------------------------------------------> likewise

`watch` looks for all of them at once, and only while there are some.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from engine.errors import StorageUnavailable
from engine.gateway.gateway import Gateway
from engine.http.problems import RETRY_AFTER_S, too_many_requests

log = logging.getLogger(__name__)

_Name = tuple[str, str]
"""Mailbox key and id of what is waited for."""


class _Waiter(Struct, eq=False):
    seen: Any
    done: asyncio.Future[None]


class Waiters:
    """Those that wait for things of one kind.

    Args:
        waits_max: at once.
        too_many: why another one is refused.
    """

    def __init__(self, gateway: Gateway, waits_max: int, too_many: str) -> None:
        self._gateway = gateway
        self._waits_max = waits_max
        self._too_many = too_many
        self._waiting: dict[_Name, set[_Waiter]] = {}
        self._waits = 0
        self._begun = asyncio.Event()  # somebody waits

    async def wait(self, name: _Name, seen: Any, seconds: float) -> None:
        """Return when the state may be another than was seen, or after so long. Raises Problem 429."""
        if self._waits >= self._waits_max:
            raise too_many_requests(self._too_many, RETRY_AFTER_S)
        waiter = _Waiter(seen, asyncio.get_running_loop().create_future())
        waiters = self._waiting.setdefault(name, set())
        waiters.add(waiter)
        self._waits += 1
        self._begun.set()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await waiter.done
        finally:
            self._waits -= 1
            waiters.discard(waiter)
            if not waiters and self._waiting.get(name) is waiters:
                del self._waiting[name]

    def wake(self, name: _Name) -> None:
        """It has changed, here."""
        for waiter in self._waiting.pop(name, ()):
            if not waiter.done.done():
                waiter.done.set_result(None)

    async def watch(self, states: Callable[[Sequence[_Name]], Awaitable[Sequence[Any]]], poll_ms: int) -> None:
        """Look for what other edges have changed. Runs until cancelled. `states`: in storage; raises StorageUnavailable."""
        while True:
            if not self._waiting:
                self._begun.clear()
                await self._begun.wait()
            await asyncio.sleep(poll_ms / 1000)
            names = list(self._waiting)
            try:
                found = await states(names)
            except StorageUnavailable as error:
                log.warning("requests that wait for a change wait for storage: %s", error)
                continue
            for name, state in zip(names, found, strict=True):
                if self._gateway.draining or any(waiter.seen != state for waiter in self._waiting.get(name, ())):
                    self.wake(name)
