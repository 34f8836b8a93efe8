"""Streams: 1 000 messages grow by 30 tokens a second each, before one device each; what a token costs, and how late devices have it.

One publisher sends the new tokens of all messages each 80 ms, as the shipped one does. Devices are WebSockets that count bytes. Some decode
their parts, for the text, and for the time from the first token of a part to the device. At the end the text of each message is compared.
The CPU of the publisher and the devices is left out, that of Redis is in. What a message costs is what `delivery` says.
"""

from __future__ import annotations

import asyncio
import base64
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, cast

import httpx
import uvloop

from bench.books import now_s
from bench.figures import latency_ms
from bench.processes import CpuMeter
from bench.server import Engine, engine
from bench.system import per_message_us

STREAMS = 1000
TOKENS_PER_S = 30
SECONDS = 20
_DECODED = 20  # devices whose parts are read
_TOKEN = "token "
_WRITER = "bench"
_TEXT = 0x81  # the first byte of a whole text frame


class Device(asyncio.Protocol):
    """A WebSocket that takes what comes; `decodes`: it reads its parts."""

    def __init__(self, running: Engine, user: str, decodes: bool) -> None:
        self._user, self._token, self._decodes = user, running.token(user), decodes
        self._rest = b""
        self.frames = self.size = 0
        self.late_s: list[float] = []
        self.made_s: dict[int, float] = {}  # by the size of the text behind a part: when its first token was made
        self.open: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        key = base64.b64encode(self._user.encode()[:16].ljust(16)).decode()
        lines = ("GET /v1/ws HTTP/1.1", "Host: e", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
        lines += (f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Protocol: notify.v1.json", f"Authorization: Bearer {self._token}", "", "")
        cast("asyncio.Transport", transport).write("\r\n".join(lines).encode())

    def data_received(self, data: bytes) -> None:
        if not self.open.done():
            if b'"welcome"' in data:
                self.open.set_result(None)
            return
        self.frames += data.count(b'"type":"part"')
        if self._decodes:
            self._rest += data
            self._decode()

    def _decode(self) -> None:
        while len(self._rest) >= 4:
            size, start = self._rest[1], 2
            if size == 126:
                size, start = int.from_bytes(self._rest[2:4], "big"), 4
            if len(self._rest) < start + size:
                return
            text, payload, self._rest = self._rest[0] == _TEXT, self._rest[start : start + size], self._rest[start + size :]
            if not text:
                continue  # a ping
            frame = json.loads(payload)
            if frame["type"] == "part" and frame["text"]:
                assert frame["offset"] == self.size
                self.size += len(frame["text"])
                for size in [size for size in self.made_s if size <= self.size]:
                    self.late_s.append(now_s() - self.made_s.pop(size))


async def measure(running: Engine, args: Namespace) -> dict[str, Any]:
    """One result."""
    loop, phases = asyncio.get_running_loop(), args.phases
    streams, tokens_per_s, each_s = args.streams, args.tokens, args.each_ms / 1000
    users = [f"reader-{number}" for number in range(streams)]
    devices = []
    with phases.phase("connecting", streams):
        for number, user in enumerate(users):
            decodes = number < _DECODED
            _, device = await loop.create_connection(
                lambda user=user, decodes=decodes: Device(running, user, decodes), "127.0.0.1", running.port
            )
            devices.append(device)
            await device.open
    headers = {"Authorization": f"Bearer {running.token('bench', 'publish')}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", headers=headers, timeout=60, trust_env=False) as client:
        generations = []
        for user in users:
            body = {"writer": _WRITER, "message": {"user": user, "type": "llm.answer", "id": "answer"}}
            begun = await client.post("/v1/growing", json=body)
            begun.raise_for_status()
            generations.append(begun.json()["generation"])
        sent = [0] * streams
        meter, began = CpuMeter(running.processes), now_s()
        requests = 0
        with phases.phase("streaming"):
            while (past_s := now_s() - began) < args.seconds:
                made_s = began + (min(sent) + 1) / tokens_per_s
                await _send(client, users, generations, sent, int(past_s * tokens_per_s), devices, made_s)
                requests += 1
                await asyncio.sleep(max(0.0, began + requests * each_s - now_s()))
        wall_s, spent = now_s() - began, meter.spent_s()
        tokens = sum(sent)
        await asyncio.sleep(0.5)
        wrong = 0
        with phases.phase("ending"):
            for user, generation, count in zip(users, generations, sent, strict=True):
                end = {"user": user, "generation": generation, "size": count * len(_TOKEN)}
                (await client.post("/v1/growing/answer/end", json=end)).raise_for_status()
                read = (await client.get(f"/v1/growing/answer?user={user}")).json()
                wrong += read["text"] != _TOKEN * count
    late = [one for device in devices[:_DECODED] for one in device.late_s]
    return {
        "bench": "stream",
        "system": running.name,
        "case": {"streams": streams, "tokens_per_s": tokens_per_s, "each_ms": args.each_ms, "rollup_ms": args.rollup_ms},
        "tokens_per_s": round(tokens / wall_s),
        "requests_per_s": round(requests / wall_s, 1),
        "tokens_per_frame": round(tokens / max(sum(device.frames for device in devices), 1), 1),
        "latency_ms": latency_ms(late, 0.5, 0.99),
        "wrong": wrong + sum(device.size != sent[number] * len(_TOKEN) for number, device in enumerate(devices[:_DECODED])),
        "cpu_us_per_token": per_message_us(spent, tokens),
        "cores": round(sum(spent.values()) / wall_s, 2),
    }


async def _send(
    client: httpx.AsyncClient, users: list[str], generations: list[int], sent: list[int], wanted: int, devices: list[Device], made_s: float
) -> None:
    """Send each message the tokens that it lacks; the first of them was made at `made_s`."""
    parts = []
    for number, (user, generation, count) in enumerate(zip(users, generations, sent, strict=True)):
        if wanted > count:
            offset, text = count * len(_TOKEN), _TOKEN * (wanted - count)
            parts.append({"user": user, "id": "answer", "generation": generation, "offset": offset, "text": text})
            sent[number] = wanted
            if number < _DECODED:
                devices[number].made_s[offset + len(text)] = made_s
    if parts:
        answer = await client.post("/v1/parts", content=json.dumps({"parts": parts}))
        answer.raise_for_status()
        assert all(one["state"] == "ok" for one in answer.json()["parts"]), answer.text[:300]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=STREAMS, help="messages that grow (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=TOKENS_PER_S, help="tokens a second of each (default %(default)s)")
    parser.add_argument("--each-ms", type=int, default=80, help="from one request of the publisher to the next (default %(default)s)")
    parser.add_argument("--rollup-ms", type=int, default=40, help="growing_rollup_ms of the engine (default %(default)s)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary."""
    with engine(growing_rollup_ms=args.rollup_ms) as running:
        yield uvloop.run(measure(running, args))
