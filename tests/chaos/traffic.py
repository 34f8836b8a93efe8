"""Steady traffic with books: what was accepted, what each user saw, in which order.

The publisher gives every message an id and repeats a request until it is answered 202, as any careful publisher does. The
receivers are an independent WebSocket library; they acknowledge what they get and come back with their cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import httpx
from websockets.exceptions import WebSocketException

from tests.conftest import RunningEngine


class Receiver:
    """One user's device. Asserts order, and one id per number, as it goes."""

    def __init__(self, engine: RunningEngine, user: str) -> None:
        self.engine = engine
        self.user = user
        self.cursor: str | None = None
        self.newest = 0
        self.ids: dict[int, str] = {}  # by sequence number
        self.repeated = 0
        self.connects = 0
        self.wrong: list[str] = []

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                await self.once()
            await asyncio.sleep(0.1)

    async def once(self) -> None:
        async with self.engine.connect(self.user, cursor=self.cursor, open_timeout=5) as socket:
            self.connects += 1
            async for text in socket:
                frame = json.loads(text)
                if frame["type"] == "gap":
                    self.wrong.append(f"gap {frame}: nothing expired and nothing was trimmed")
                if frame["type"] != "messages":
                    continue
                for message in frame["messages"]:
                    self.take(message)
                await socket.send(json.dumps({"type": "ack", "seq": self.newest}))

    def take(self, message: dict[str, Any]) -> None:
        seq = message["seq"]
        if self.ids.setdefault(seq, message["id"]) != message["id"]:
            self.wrong.append(f"number {seq} is both {self.ids[seq]} and {message['id']}")
        if seq <= self.newest:
            self.repeated += 1
            return
        if seq != self.newest + 1:
            self.wrong.append(f"{seq} came after {self.newest}")
        self.newest = seq
        self.cursor = message["event_id"]


class Traffic:
    """Publishes to `online` and `offline` users until stopped; `finish` brings the offline ones in and checks the books."""

    def __init__(self, engine: RunningEngine, name: str, online: int = 12, offline: int = 3) -> None:
        self.engine = engine
        self.receivers = [Receiver(engine, f"{name}-{n}") for n in range(online)]
        self.absent = [Receiver(engine, f"{name}-away-{n}") for n in range(offline)]
        self.accepted: dict[str, set[str]] = {}
        self.requests = self.retries = 0
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Traffic:
        self._tasks = [asyncio.create_task(receiver.run()) for receiver in self.receivers]
        self._publishing = asyncio.create_task(self._publish())
        await self.flowing()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in [*self._tasks, self._publishing]:
            task.cancel()
        await asyncio.gather(*self._tasks, self._publishing, return_exceptions=True)

    async def _publish(self) -> None:
        users = [receiver.user for receiver in [*self.receivers, *self.absent]]
        dice = random.Random(1)
        number = 0
        while not self._stop.is_set():
            items = []
            for _ in range(10):
                number += 1
                user = dice.choice(users)
                items.append({"user": user, "type": "test.message", "id": f"{user}:{number}", "data": {"n": number}})
            await self._until_accepted(items)
            for item in items:
                self.accepted.setdefault(str(item["user"]), set()).add(str(item["id"]))
            self.requests += 1
            await asyncio.sleep(0.01)

    async def _until_accepted(self, items: list[dict[str, Any]]) -> None:
        token = self.engine.token("app", "publish")
        while True:
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
                    answer = await http.post(
                        f"{self.engine.url}/v1/notifications", json=items, headers={"Authorization": f"Bearer {token}"}
                    )
                if answer.status_code == 202:
                    return
                assert answer.status_code in (429, 503), answer.text
            self.retries += 1
            await asyncio.sleep(0.1)

    async def flowing(self, within_s: float = 60) -> float:
        """Wait until every online user has received something published from now on; returns how long it took, in seconds."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        seen = {receiver.user: receiver.newest for receiver in self.receivers}
        while any(receiver.newest <= seen[receiver.user] for receiver in self.receivers):
            assert not self._publishing.done(), self._publishing.exception()
            assert loop.time() - start < within_s, "service does not come back"
            await asyncio.sleep(0.02)
        return loop.time() - start

    async def finish(self, within_s: float = 60) -> None:
        """Stop publishing; everything accepted must arrive, each number once, in order."""
        self._stop.set()
        await asyncio.wait_for(self._publishing, within_s)
        self._tasks += [asyncio.create_task(receiver.run()) for receiver in self.absent]
        everyone = [*self.receivers, *self.absent]
        deadline = asyncio.get_running_loop().time() + within_s
        while any(set(r.ids.values()) != self.accepted.get(r.user, set()) for r in everyone):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.05)
        for receiver in everyone:
            accepted = self.accepted.get(receiver.user, set())
            assert not accepted - set(receiver.ids.values()), f"{receiver.user} has lost {accepted - set(receiver.ids.values())}"
            assert set(receiver.ids.values()) == accepted, f"{receiver.user} got what nobody published"
            assert len(receiver.ids) == len(accepted), f"{receiver.user} got one message under two numbers"
            assert receiver.wrong == []
