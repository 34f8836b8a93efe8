"""Peers of links for tests."""

from __future__ import annotations

import asyncio

from engine.actors.carrier import RayPeer


class Nobody(RayPeer):
    """An actor that never comes to be."""

    def __init__(self) -> None:
        super().__init__(None)

    async def open(self) -> float:
        """Waits for ever."""
        never: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        return await never
