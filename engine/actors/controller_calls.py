"""Calls of the controller and of features' actors from an edge, for the status and other questions of operators.

The handle of such an actor is looked up once, at Ray's control service, and kept: it stays good while Ray starts the actor again.
A lookup blocks a thread, and with the control service away it lasts until that is back. So there is at most one, which all calls wait for,
and a call that has waited `timeout_s` fails. An actor that is gone for good, whose successor has another handle, is looked up anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import ActorDiedError, RayError

from engine.errors import StorageUnavailable, Unavailable


class ControllerCalls:
    """The calls of one edge to one actor.

    Args:
        find: looks the actor up; raises ValueError when there is none.
        timeout_s: for a call, its lookup included.
        storage: what it stores things in, likewise.
    """

    def __init__(
        self, find: Callable[[], Awaitable[Any]], timeout_s: float, what: str = "the controller", storage: str = "storage"
    ) -> None:
        self._find = find
        self._timeout_s = timeout_s
        self._what = what
        self._storage = storage
        self._handle: asyncio.Future[Any] | None = None  # being looked up, or found

    async def call(self, method: str, *arguments: Any, proof: bytes) -> Any:
        """The answer of a method.

        Raises:
            Unavailable: there is none.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                handle = await self._controller()
                return await getattr(handle, method).remote(*arguments, proof=proof)
        except ActorDiedError as error:
            self._handle = None
            raise Unavailable(f"{self._what} has ended") from error
        except StorageUnavailable as error:  # its text may name hosts
            raise Unavailable(f"{self._what} gets no answer from {self._storage}") from error
        except (TimeoutError, ValueError, RayError) as error:
            raise Unavailable(f"{self._what} does not answer") from error

    async def _controller(self) -> Any:
        handle = self._handle
        if handle is None or (handle.done() and (handle.cancelled() or handle.exception() is not None)):
            handle = self._handle = asyncio.ensure_future(self._find())
        return await asyncio.shield(handle)
