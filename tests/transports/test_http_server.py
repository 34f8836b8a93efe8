"""The listening socket of an edge that leaves, and what connections and requests leave behind: nothing for the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from engine.config import Config
from engine.transports import http_server
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux drops requests for connections by a filter")
async def test_a_port_that_is_closed_behind_the_filter_refuses_nobody() -> None:
    """Two edges on one port: what was queued at the first is accepted, what comes later gets to the second."""
    loop = asyncio.get_running_loop()
    first = http_server.bind(Config(), 0)
    port = first.getsockname()[1]
    second = http_server.bind(Config(), port)
    accepted = []
    for listener in (first, second):
        listener.listen(http_server.BACKLOG)
    connecting = [asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    queued = await asyncio.gather(*connecting)
    http_server.drop_new(first)
    later = [asyncio.ensure_future(asyncio.open_connection("127.0.0.1", port)) for _ in range(20)]
    await until(lambda: any(task.done() for task in later))
    with contextlib.suppress(BlockingIOError):
        while True:
            accepted.append(first.accept()[0])
    first.close()
    assert {connection.getpeername() for connection in accepted} <= {writer.get_extra_info("sockname") for _, writer in queued}
    connected = await asyncio.gather(*later)
    async with asyncio.timeout(5):
        while len(accepted) < len(queued) + len(later):
            accepted.append((await loop.sock_accept(second))[0])
    for connection in accepted:
        connection.sendall(b"hello")
    for reader, writer in (*queued, *connected):
        assert await reader.readexactly(5) == b"hello"
        writer.close()
    for listener in (*accepted, second):
        assert isinstance(listener, socket.socket)
        listener.close()
