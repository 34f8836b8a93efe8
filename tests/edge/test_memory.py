"""What connections and requests leave behind: nothing that waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.edge.edge_world import EdgeWorld, edge_world, until

ROUNDS = 20


async def websocket(world: EdgeWorld) -> None:
    client = await world.raw()
    await client.frame()
    client.close()
    await until(lambda: not world.gateway.connections)


def request(path: str) -> Callable[[EdgeWorld], Awaitable[None]]:
    async def ask(world: EdgeWorld) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.token()}\r\nConnection: close\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()
        await reader.read()
        writer.close()
        await writer.wait_closed()

    return ask


async def test_connections_and_requests_leave_no_cycles() -> None:
    """Edges collect rarely; a cycle per connection would be a leak for minutes."""
    async with edge_world() as world:
        for act in (websocket, request("/healthz"), request("/v1/poll?wait=0")):
            await act(world)
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                for _ in range(ROUNDS):
                    await act(world)
                gc.collect()
                left = Counter(type(thing).__name__ for thing in gc.garbage)
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
            assert sum(left.values()) < ROUNDS, left.most_common(10)
