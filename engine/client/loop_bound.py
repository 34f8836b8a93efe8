"""What belongs to one event loop, in objects that outlive it: a program may call `asyncio.run` again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OfLoop(Generic[T]):
    """Something of the running event loop. It is made anew in another one, once the one before is closed."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: tuple[asyncio.AbstractEventLoop, T] | None = None

    def get(self) -> T:
        """That of the running loop. Raises RuntimeError: it is in use in another loop."""
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            if self._made is not None and not self._made[0].is_closed():
                raise RuntimeError("this client is in use in another event loop: make one in each, or share a SyncPublisher")
            self._made = loop, self._make()
        return self._made[1]


class Pump:
    """A task that works through a buffer.

    Attributes:
        task: while it runs, and after.
        arrived: there may be something for it.
        progress: it has done something, or has ended.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.arrived = asyncio.Event()
        self.progress = asyncio.Event()
