"""The listening socket of an edge that leaves, and what connections and requests leave behind: nothing for the
garbage collector, and of hostile ones nothing at all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

from engine.config import Config
from engine.transports import http_server
from tests.support.edge_process import EdgeProcess, edge_process
from tests.support.edge_world import EdgeWorld, client_frame, edge_world
from tests.support.process_tree import rss_bytes
from tests.support.publish_requests import asked, connected
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


async def left_by(world: EdgeWorld, act: Callable[[EdgeWorld], Awaitable[None]]) -> Counter[str]:
    """What `ROUNDS` of it leave to the collector."""
    gc.collect()
    gc.freeze()  # what earlier tests left alive is not counted: it took a minute where that was much
    gc.disable()
    try:
        before = alive()
        for _ in range(ROUNDS):
            await act(world)
        await until(lambda: len(world.server.server_state.connections) == 0)
        return alive() - before
    finally:
        gc.enable()


async def test_connections_and_requests_leave_nothing_to_the_collector(world: EdgeWorld) -> None:
    """Edges collect rarely; a cycle per connection would be a leak for minutes."""
    for act in (websocket, odd_websocket, request("/healthz"), request("/v1/poll?wait=0")):
        await act(world)
        left: Counter[str] = Counter()
        for _ in range(3):  # a thread that earlier tests left running, such as Ray's, may leave something of its own once
            left = await left_by(world, act)
            if max(left.values(), default=0) < ROUNDS:
                break
        else:
            pytest.fail(str(left.most_common(10)))


@pytest.mark.parametrize("short", [True, False])
async def test_a_publisher_that_has_closed_its_half_gets_the_answer(short: bool) -> None:
    async with edge_world(short=short) as world, connected(world) as connection:
        connection.writer.write(asked(world.token()))
        connection.writer.write_eof()
        answer = await connection.answer()
        assert answer.startswith(b"HTTP/1.1 202 ")
        assert b"connection: close" in answer.lower()


async def test_a_server_that_is_told_to_end_does_not_wait_for_its_next_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.transports.http_server._DATE_S", 3600)
    async with asyncio.timeout(60), edge_world() as world:
        await request("/healthz")(world)


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
    async with asyncio.timeout(60):
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


# -- What clients without a token can make it hold. ------------------------------------------------------------------------
GROWTH_BYTES_MAX = 30 << 20
"""Of a process: each attack took it hundreds of MB."""

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /v1/notifications HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"

HALF_SPOKEN = (
    b"",
    b"GE",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
    GET + b"\r\n",
    GET + b"GET",
    GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\n123"),
    b"POST /v1/notifications HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n123",  # refused before it is read
    CHUNKED,
    CHUNKED + b"0\r\n",
    CHUNKED + b"0\r\nX: y\r\n",
)


@pytest.fixture(scope="module")
def edge() -> Iterator[EdgeProcess]:
    with edge_process(
        request_timeout_s=1, keep_alive_s=1, send_stall_ms=400, close_timeout_ms=500, socket_send_buffer_bytes=8192
    ) as running:
        yield running


def push(sock: socket.socket, data: bytes) -> bytes:
    """Send until the server no longer reads; what it has answered."""
    with contextlib.suppress(OSError):
        sock.sendall(data)
    read = b""
    with contextlib.suppress(OSError):
        while chunk := sock.recv(1 << 16):
            read += chunk
    return read


@pytest.mark.parametrize(
    "request_",
    [
        CHUNKED + b"0\r\n" + b"X-Trailer: y\r\n" * (24_000_000 // 14),
        CHUNKED + b"0\r\nX: " + b"y" * 24_000_000,
        CHUNKED + b"1;a=" + b"y" * 5_000_000,
        GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 99999999\r\n\r\n") + b"y" * 24_000_000,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"aa:b\r\n" * 1_000_000,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 24_000_000,
        b"GET /" + b"y" * 24_000_000,
    ],
    ids=["trailers", "a trailer", "a chunk extension", "a body of GET", "headers", "a header", "a target"],
)
def test_a_request_without_end_is_cut_off_and_leaves_nothing(edge: EdgeProcess, request_: bytes) -> None:
    before = rss_bytes(edge.pid)
    with edge.connect() as sock:
        answer = push(sock, request_)
    assert rss_bytes(edge.pid) - before < GROWTH_BYTES_MAX
    assert answer.startswith(b"HTTP/1.1 ")
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_requests_whose_answers_nobody_takes_cost_little_and_end_their_connections(edge: EdgeProcess) -> None:
    before = rss_bytes(edge.pid)
    requests = GET * (120_000 // len(GET))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(edge.connect(receive_buffer_bytes=4096)) for _ in range(20)]
        grown = 0
        for client in clients:
            client.setblocking(False)
        for _ in range(3):
            for client in clients:
                with contextlib.suppress(BlockingIOError):
                    client.send(requests)
            edge.look()
            grown = max(grown, rss_bytes(edge.pid) - before)
        await until(lambda: edge.look()["connections"] == 0)
    assert grown < GROWTH_BYTES_MAX


async def test_half_spoken_connections_are_gone_when_their_time_is_up_and_disturb_nobody(edge: EdgeProcess) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(edge.connect()) for _ in range(500)]
        for number, client in enumerate(clients):
            client.sendall(HALF_SPOKEN[number % len(HALF_SPOKEN)])
        assert edge.look()["connections"] > 0
        with edge.connect() as honest:
            honest.sendall(GET)
            assert honest.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        await until(lambda: edge.look()["connections"] == 0, 10)
        answers = [push(client, b"") for client in clients]
    refused = [HALF_SPOKEN[number % len(HALF_SPOKEN)] for number, answer in enumerate(answers) if b"HTTP/1.1 408 " in answer]
    assert set(refused) == {HALF_SPOKEN[2]}  # the others were silent, or have their answer already
