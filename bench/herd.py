"""`python -m bench.herd`: users who are cut all at once while messages to them go on, and come back as the server advises.

A process of its own, at the lowest priority: on a machine shared with the engine, thousands of clients that come first would be what is
measured. Its client is a small one: 0.1 ms of CPU per attempt, where picows takes 1. Reads a `Task` as JSON from standard input, prints a
line when all have connected and got a message, waits for a line with the time of the cut, and prints a `Return`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from msgspec import Struct

from bench.books import Books, Ledger, now_s
from bench.load import decode_frame, take
from bench.server import Engine
from bench.workloads import full_load, open_loop, senders
from engine.config import Config

_DEFAULTS: Final = Config()
_NICENESS: Final = 10
_CONNECTING_AT_ONCE: Final = 200
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after: (\d+)\r\n", re.IGNORECASE)
_NO_MASK: Final = b"\0\0\0\0"  # a key that changes nothing: whoever reads it is no proxy (RFC 6455, section 10.3)


class Task(Struct):
    """Users 0 to `users - 1` get `per_s` messages a second from `lead_s` before the cut until `seconds` later."""

    pid: int
    port: int
    users: int
    per_s: float
    lead_s: float
    seconds: float


class Return(Struct):
    """What became of the users and of the messages to them from the cut on. Times in seconds from the cut."""

    first_attempts_s: tuple[float, float]  # of the first and of the last user
    all_back_s: float
    refused: int  # attempts answered with `Retry-After`
    failed: int  # attempts that ended otherwise
    received: int
    repeated: int
    lost: int


class _Refused(Exception):
    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


class _Client(asyncio.Protocol):
    """One user's WebSocket; acknowledges every frame of messages with one cumulative ACK. `ready` is done by the welcome."""

    __slots__ = ("_books", "_ledger", "_open", "_request", "_tail", "_transport", "ready")

    def __init__(self, books: Books, ledger: Ledger, request: bytes) -> None:
        self._books = books
        self._ledger = ledger
        self._request = request
        self._tail = b""
        self._open = False
        self._transport: asyncio.Transport
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a BaseTransport, says typeshed
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._tail + data
        if not self._open:
            head, complete, data = data.partition(b"\r\n\r\n")
            if not complete:
                self._tail = head
                return
            if not head.startswith(b"HTTP/1.1 101 "):
                self._transport.abort()
                refused = _RETRY_AFTER.search(head + b"\r\n")
                self._fail(ConnectionError(head.decode()) if refused is None else _Refused(float(refused[1])))
                return
            self._open = True
        while (end := _frame_end(data)) is not None:
            start, stop = end
            self._frame(data[0] & 0xF, data[start:stop])
            data = data[stop:]
        self._tail = data

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionError("closed before the welcome"))

    def drop(self) -> None:
        """Cut the connection without a closing handshake."""
        self._transport.abort()

    def _frame(self, opcode: int, payload: bytes) -> None:
        if opcode == 9:
            self._send(b"\x8a", payload)
        elif opcode == 1:
            self._books.bytes_delivered += len(payload)
            frame = decode_frame(payload)
            if frame.type == "messages":
                self._send(b"\x81", take(self._books, self._ledger, frame.messages))
            elif frame.type == "welcome" and not self.ready.done():
                self.ready.set_result(None)

    def _send(self, head: bytes, payload: bytes) -> None:
        self._transport.write(b"%b%c%b%b" % (head, 0x80 | len(payload), _NO_MASK, payload))  # below 126 bytes

    def _fail(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)


def _frame_end(data: bytes) -> tuple[int, int] | None:
    """Where the payload of the first frame begins and ends; None when it is incomplete. A server does not mask, ours sends no fragments."""
    if len(data) < 2:
        return None
    size, start = data[1], 2
    if size > 125:
        start = 4 if size == 126 else 10
        size = int.from_bytes(data[2:start], "big")
        if len(data) < start:
            return None
    return (start, start + size) if len(data) >= start + size else None


class _Herd:
    """Users who connect, and return as the server advises."""

    def __init__(self, system: Engine, books: Books) -> None:
        self._system = system
        self._books = books
        self._chance = random.Random(1)
        self._requests = [self._request(ledger.user) for ledger in books.ledgers]  # signing the tokens is not the storm's
        self.first_attempts_s: list[float] = []
        self.refused = self.failed = 0

    def _request(self, user: int) -> str:
        token = self._system.token(self._system.user_name(user), "connect")
        return (
            "GET /v1/ws?last_event_id=%s HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"Sec-WebSocket-Protocol: notify.v1.json\r\nAuthorization: Bearer {token}\r\n\r\n"
        )

    async def join(self) -> list[_Client]:
        """All of them, for the first time."""
        gate = asyncio.Semaphore(_CONNECTING_AT_ONCE)

        async def one(ledger: Ledger) -> _Client:
            async with gate:
                return await self._come(ledger, 0)

        return await asyncio.gather(*map(one, self._books.ledgers))

    async def come_back(self) -> list[_Client]:
        """All of them, after they were cut in this moment."""
        cut_s = now_s()
        self.first_attempts_s, self.refused, self.failed = [], 0, 0

        async def one(ledger: Ledger) -> _Client:
            await asyncio.sleep(self._delay_s(0))
            self.first_attempts_s.append(now_s() - cut_s)
            return await self._come(ledger, 1)

        return await asyncio.gather(*map(one, self._books.ledgers))

    async def _come(self, ledger: Ledger, attempt: int) -> _Client:
        loop = asyncio.get_running_loop()
        while True:
            client = _Client(self._books, ledger, (self._requests[ledger.user] % ledger.position).encode())
            try:
                await loop.create_connection(lambda client=client: client, "127.0.0.1", self._system.port)  # type: ignore[misc]
                await client.ready
                return client
            except _Refused as refused:
                self.refused += 1
                wait_s = refused.retry_after_s * self._chance.uniform(1, 1.3)
            except OSError:
                self.failed += 1
                wait_s = self._delay_s(attempt)
            attempt += 1
            await asyncio.sleep(wait_s)

    def _delay_s(self, attempt: int) -> float:
        delays, jitter = _DEFAULTS.reconnect_delays_ms, _DEFAULTS.reconnect_jitter
        return delays[min(attempt, len(delays) - 1)] / 1000 * self._chance.uniform(1 - jitter, 1 + jitter)


async def run(task: Task) -> Return:
    """Connect, wait for the time of the cut, and for all to be back."""
    system = Engine(task.pid, task.port, Path())
    books = Books(task.users)
    herd = _Herd(system, books)
    clients = await herd.join()
    (sender,) = await senders(system, books, 1)
    await full_load([sender], books, task.users)  # so that every client has a cursor
    print(flush=True)
    cut_s = float(await asyncio.to_thread(sys.stdin.readline))
    await asyncio.sleep(cut_s - task.lead_s - now_s())
    loading = asyncio.ensure_future(open_loop([sender], books, task.per_s, task.lead_s + task.seconds))
    await asyncio.sleep(cut_s - now_s())
    received, repeated = books.received, books.repeated
    for client in clients:
        client.drop()
    clients = await herd.come_back()
    back_s = now_s() - cut_s
    await loading
    sender.close()
    first = herd.first_attempts_s
    result = Return(
        first_attempts_s=(round(min(first), 2), round(max(first), 2)),
        all_back_s=round(back_s, 2),
        refused=herd.refused,
        failed=herd.failed,
        received=books.received - received,
        repeated=books.repeated - repeated,
        lost=books.sent - books.received,
    )
    for client in clients:
        client.drop()
    return result


class Elsewhere:
    """A herd in a process of its own. Where the kernel schedules by session (`sched_autogroup_enabled`), its session too comes last."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, task: Task) -> Elsewhere:
        """Returns when all have connected."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.herd", stdin=pipe, stdout=pipe, start_new_session=True, limit=1 << 20
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        await process.stdout.readline()
        return cls(process)

    async def cut(self, at_s: float) -> Return:
        """Cut them at this time; returns when all are back."""
        output, _ = await self._process.communicate(f"{at_s}\n".encode())
        if self._process.returncode:
            raise RuntimeError(f"the herd ended with {self._process.returncode}")
        return msgspec.json.decode(output, type=Return)


def _come_last() -> None:
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICENESS))


if __name__ == "__main__":
    _come_last()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(msgspec.json.decode(sys.stdin.readline(), type=Task)))))
