"""A real engine among clients that send anything: it answers, none of its processes ends, and the others' messages arrive."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed

from tests.support.edge_world import client_frame
from tests.support.running_engine import RunningEngine

SEED = 20_311
REQUESTS = 300
SOCKETS = 60
SCRAPS = (
    b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 20_000, b'{"user":"f1","type":"a"}', b'{"user":"f1","type":"a","data":NaN}',
    b'[{"user":"f1","type":"a"},{"user":1}]', b'{"user":"f1","type":"a","delay":1e400}', b'{"user":"\\ud800","type":"a"}',
    b'{"type":"ack","seq":9223372036854775808}', b'{"type":"nack","ids":["x"]}', b'{"seq":9223372036854775808}', b'{"type":"ack","seq":1}',
    b'{"at":"2031-02-30T00:00:00Z"}', b'{"user":"f1","type":"a","at":1,"delay":1}', b"x" * (1 << 20), b"x" * ((1 << 20) + 1),
)  # fmt: skip
PATHS = (
    "/v1/notifications", "/v1/events", "/v1/ack", "/v1/nack",
    "/v1/scheduled", "/v1/scheduled/0-x", "/v1/poll?wait=0", "/v1/heartbeat", "/v1/ws",
    "/%ff", "/v1/status",
)  # fmt: skip
HEADS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 1000, b"GET /" + b"a" * 100_000, b"\r\n\r\n\r\n",
    b"GET /v1/ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", b"POST /v1/notifications HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/ack HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)  # fmt: skip
HANDSHAKE = (
    "GET /v1/ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {}\r\n\r\n"
)


def pids(status: dict[str, Any]) -> dict[str, int]:
    """The processes of every part; a part that was replaced has another."""
    rows = [*status["shards"], *status["schedulers"], *status["edges"], status["controller"]]
    return {f"{row['role']}-{row['index']}": row["pid"] for row in rows}


async def send_http(engine: RunningEngine, rng: random.Random) -> None:
    headers = {"Authorization": f"Bearer {engine.token('f1', 'connect publish admin')}"}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=60, trust_env=False, verify=False) as client:
        answered = 0
        for _ in range(REQUESTS):
            method = rng.choice(("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
            kind = rng.choice(("application/json", "application/x-ndjson", "application/cloudevents+json", "text/plain", ""))
            answer = await client.request(method, rng.choice(PATHS), content=rng.choice(SCRAPS), headers={"Content-Type": kind})
            assert answer.status_code < 500 or answer.status_code == 503, (answer.status_code, answer.text)
            answered += answer.status_code != 503
        assert answered, "it has refused them all"


async def send_sockets(engine: RunningEngine, rng: random.Random) -> None:
    port = int(engine.url.rpartition(":")[2])
    for number in range(SOCKETS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if number % 3:
            writer.write(HANDSHAKE.format(engine.token(f"f{number % 5}")).encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            for _ in range(rng.randrange(1, 20)):
                frame = client_frame(rng.choice(SCRAPS)[:70_000], rng.choice((0, 1, 1, 2, 3, 8, 9, 10, 15)), fin=rng.random() < 0.8)
                writer.write(frame if rng.random() < 0.8 else rng.randbytes(rng.randrange(1, 60)))
            writer.write(client_frame(struct.pack("!H", rng.randrange(65_536)) + b"bye", 8))
        else:
            writer.write(rng.choice(HEADS))
        try:
            async with asyncio.timeout(60):
                await writer.drain()
                with contextlib.suppress(OSError):  # ENOTCONN, which is no ConnectionError, where the engine has reset the connection
                    writer.write_eof()
                while await reader.read(1 << 16):
                    pass
        except ConnectionError:
            pass  # the engine has ended it; that is an answer too
        writer.transport.abort()


async def test_garbage_from_every_side_ends_nothing_and_delays_nobody_for_ever(engine: RunningEngine) -> None:
    before = pids(engine.status())
    rng = random.Random(SEED)
    async with engine.connect("fuzz-witness") as witness:
        await engine.receive(witness, "welcome")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_http(engine, random.Random(rng.random())))
            tasks.create_task(send_sockets(engine, random.Random(rng.random())))
        (result,) = await engine.publish({"user": "fuzz-witness", "type": "still.here"})
        frame = await engine.receive(witness, "messages")
        assert frame["messages"][0]["seq"] == result["seq"]
    async with httpx.AsyncClient(base_url=engine.url, timeout=60, trust_env=False, verify=False) as client:
        assert (await client.get("/readyz")).status_code == 200
    assert pids(engine.status()) == before


async def test_timers_and_events_of_a_real_engine_are_cancelled_together(engine: RunningEngine) -> None:
    headers = {"Authorization": f"Bearer {engine.token('app', 'publish')}"}
    results = await engine.publish(*({"user": "fuzz-later", "type": "a", "delay": delay} for delay in (4, 4.5, 3600)))
    assert {result["status"] for result in results} == {"scheduled"}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=60, trust_env=False, verify=False) as client:
        answer = await client.delete("/v1/scheduled", params={"user": "fuzz-later"})
        assert answer.json() == {"cancelled": 3}, answer.text
        assert (await client.get("/v1/scheduled", params={"user": "fuzz-later"})).json() == {"scheduled": []}
        assert (await client.post("/v1/events", json={"type": "a", "user": "fuzz-later"})).json()["matched"] == []
    async with engine.connect("fuzz-later") as socket:
        await engine.receive(socket, "welcome")
        await engine.publish({"user": "fuzz-later", "type": "b", "delay": 5})
        try:
            frame = await engine.receive(socket, "messages")
        except ConnectionClosed as closed:
            raise AssertionError("the connection ended") from closed
        assert [message["type"] for message in frame["messages"]] == ["b"], "a cancelled one was delivered"
