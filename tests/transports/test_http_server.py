"""What connections and requests leave behind: nothing that waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.support.edge_world import EdgeWorld, client_frame, edge_world
from tests.support.waiting import until

ROUNDS = 60  # above what Python's own caches grow by once


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


async def odd_websocket(world: EdgeWorld) -> None:
    """One that needs the library: a ping, a message in fragments, a close."""
    client = await world.raw()
    await client.frame()
    await client.send(client_frame(b"x", 9) + client_frame(b"{", fin=False) + client_frame(b"}", 0) + client_frame(b"\x03\xe8", 8))
    assert await client.close_code() == 1000
    client.close()
    await until(lambda: not world.gateway.connections)


def alive() -> Counter[str]:
    return Counter(type(thing).__qualname__ for thing in gc.get_objects())


async def test_connections_and_requests_leave_nothing_to_the_collector() -> None:
    """Edges collect rarely; a cycle per connection would be a leak for minutes."""
    async with edge_world() as world:
        for act in (websocket, odd_websocket, request("/healthz"), request("/v1/poll?wait=0")):
            await act(world)
            gc.collect()
            gc.disable()
            try:
                before = alive()
                for _ in range(ROUNDS):
                    await act(world)
                await until(lambda: len(world.server.server_state.connections) == 0)
                left = alive() - before
            finally:
                gc.enable()
            assert all(count < ROUNDS for count in left.values()), left.most_common(10)
