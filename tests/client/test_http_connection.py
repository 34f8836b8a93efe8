"""HTTP/1.1 of the clients against a server that writes bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from engine.client.credentials import EngineUrl
from engine.client.http_connection import RESPONSE_BYTES_MAX, HttpConnection, Response

Step = Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Name: Value\r\n\r\nhi"


class Server:
    """Answers each request by the next step, the last one for ever."""

    def __init__(self, *steps: Step | bytes) -> None:
        self.steps = list(steps)
        self.requests: list[bytes] = []
        self.connections = 0
        self.in_flight = self.in_flight_max = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                self.in_flight += 1
                self.in_flight_max = max(self.in_flight, self.in_flight_max)
                step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
                if isinstance(step, bytes):
                    writer.write(step)
                else:
                    await step(writer)
                self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()


@asynccontextmanager
async def serving(*steps: Step | bytes, connections_max: int = 8) -> AsyncIterator[tuple[Server, HttpConnection]]:
    server = Server(*steps)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        http = HttpConnection(EngineUrl(False, "127.0.0.1", port, "/mounted"), connections_max=connections_max)
        try:
            yield server, http
        finally:
            http.close()


async def get(http: HttpConnection, body: bytes = b"", timeout_s: float = 5) -> Response:
    return await http.request("POST", "/path", {"Name": "value"}, body, timeout_s=timeout_s)


async def test_a_request_has_its_path_headers_and_body_and_the_answer_status_headers_and_body() -> None:
    async with serving(OK) as (server, http):
        assert await get(http, b"body") == Response(200, {"content-length": "2", "x-name": "Value"}, b"hi")
        line, host, *_ = server.requests[0].split(b"\r\n")
        assert line == b"POST /mounted/path HTTP/1.1"
        assert host.startswith(b"Host: 127.0.0.1:")
        assert server.requests[0].endswith(b"Content-Length: 4\r\nName: value\r\n\r\nbody")


async def test_a_request_under_way_leaves_no_connection_after_close() -> None:
    asked, answered, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await answered.wait()
        writer.write(OK)
        await writer.drain()
        asyncio.get_running_loop().create_task(writer.wait_closed()).add_done_callback(lambda _: ended.set())

    async with serving(answer) as (_, http):
        request = asyncio.create_task(get(http))
        await asked.wait()
        http.close()
        answered.set()
        assert (await request).body == b"hi"
        async with asyncio.timeout(5):
            await ended.wait()


async def test_a_request_that_waits_for_its_turn_ends_with_close() -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await answered.wait()
        writer.write(OK)

    async with serving(answer, connections_max=1) as (server, http):
        first, waiting = asyncio.create_task(get(http)), asyncio.create_task(get(http))
        await asked.wait()
        http.close()
        answered.set()
        assert (await first).body == b"hi"
        with pytest.raises(ConnectionRefusedError, match="closed"):
            await waiting
        assert len(server.requests) == 1


async def test_a_connection_is_used_again_and_the_number_of_requests_in_flight_is_bounded() -> None:
    async with serving(OK, connections_max=3) as (server, http):
        for _ in range(5):
            await get(http)
        assert server.connections == 1
        await asyncio.gather(*(get(http) for _ in range(20)))
        assert server.connections <= 3
        assert server.in_flight_max <= 3
        assert len(server.requests) == 25


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ],
)
async def test_chunked_answers_and_informational_ones_are_read(answer: bytes) -> None:
    async with serving(answer) as (server, http):
        for _ in range(2):
            assert (await get(http)).body == b"hi"
        assert server.connections == 1


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def until_closed(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async with serving(until_closed, OK) as (server, http):
        assert (await get(http)).body == b"hi"
        assert (await get(http)).body == b"hi"
        assert server.connections == 2


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked"])
async def test_a_chunked_answer_that_is_cut_short_is_none(coding: bytes) -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: %b\r\n\r\n2\r\nhi\r\n" % coding)
        await writer.drain()
        writer.close()

    async with serving(cut) as (_, http):
        with pytest.raises(ConnectionError):
            await get(http)


async def test_a_server_that_asks_to_close_gets_its_next_request_on_another_connection() -> None:
    async with serving(OK.replace(b"X-Name: Value", b"Connection: close"), OK) as (server, http):
        await get(http)
        await get(http)
        assert server.connections == 2


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
async def test_an_answer_that_is_no_http_breaks_the_connection(answer: bytes) -> None:
    async with serving(answer, OK) as (server, http):
        with pytest.raises(ConnectionError):
            await get(http)
        assert (await get(http)).status == 200
        assert server.connections == 2


async def test_an_answer_above_the_limit_breaks_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (2 * RESPONSE_BYTES_MAX)
    async with serving(head + bytes(RESPONSE_BYTES_MAX + 1)) as (_, http):
        with pytest.raises(ConnectionError, match="longer than"):
            await get(http)


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"])
async def test_a_connection_that_is_closed_before_the_answer_is_a_connection_error(begun: bytes) -> None:
    async def close(writer: asyncio.StreamWriter) -> None:
        writer.write(begun)
        writer.close()

    async with serving(close, OK) as (_, http):
        with pytest.raises(ConnectionError):
            await get(http)
        assert (await get(http)).status == 200


async def test_after_a_timeout_the_late_answer_is_not_taken_for_that_of_the_next_request() -> None:
    late = asyncio.Event()

    async def wait(writer: asyncio.StreamWriter) -> None:
        await late.wait()
        writer.write(OK.replace(b"hi", b"no"))

    async with serving(wait, OK) as (server, http):
        with pytest.raises(TimeoutError):
            await get(http, timeout_s=0.05)
        late.set()
        assert (await get(http)).body == b"hi"
        assert server.connections == 2


async def test_data_that_nobody_asked_for_ends_an_idle_connection() -> None:
    async with serving(OK + OK, OK) as (_, http):
        assert (await get(http)).body == b"hi"
        assert (await get(http)).body == b"hi"


async def test_no_server_is_an_os_error() -> None:
    async with serving(OK) as (_, http):
        address = http._address
    with pytest.raises(OSError):
        await get(HttpConnection(address))


@pytest.mark.parametrize("value", ["a\r\nInjected: 1", "a\nb", "a\rb"])
async def test_a_line_break_in_a_header_is_a_value_error(value: str) -> None:
    async with serving(OK) as (server, http):
        with pytest.raises(ValueError, match="line break"):
            await http.request("GET", "/", {"Name": value}, timeout_s=1)
        with pytest.raises(ValueError, match="line break"):
            await http.request("GET", f"/{value}".replace("\r", "\n"), {}, timeout_s=1)
        assert server.requests == []


def test_it_works_in_a_loop_of_uvloop_whose_transports_are_no_asyncio_transports_by_class() -> None:
    """Servers and Ray's workers run their coroutines in such loops."""

    async def ask() -> int:
        async with serving(OK) as (_, http):
            return (await get(http)).status

    assert uvloop.run(ask()) == 200


async def test_the_time_of_a_request_covers_connecting_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answers_late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.6)
        writer.write(OK)

    async with serving(answers_late) as (_server, http):
        connects = http._connection

        async def connects_late() -> object:
            await asyncio.sleep(0.6)
            return await connects()

        monkeypatch.setattr(http, "_connection", connects_late)
        with pytest.raises(TimeoutError):
            await get(http, timeout_s=1)
