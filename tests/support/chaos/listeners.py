"""Users of an engine that is being broken: they acknowledge everything, reconnect with their cursor, and book what came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from engine.check import Recorder
from tests.support.running_engine import RunningEngine


class Listener:
    """One user.

    Args:
        now_ms: the clock that `arrived_ms` is by.
        recorder: is told what comes, and what is acknowledged.
    """

    def __init__(
        self,
        engine: RunningEngine,
        user: str,
        tenant: str = "default",
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
        recorder: Recorder | None = None,
    ) -> None:
        self.user = user
        self.messages: dict[str, dict[str, Any]] = {}  # by id, as they came first
        self.arrived_ms: dict[str, float] = {}
        self.renumbered: list[dict[str, Any]] = []  # came again under another number
        self._engine = engine
        self._tenant = tenant
        self._now_ms = now_ms
        self._recorder = recorder or Recorder(lambda _event: None)

    @property
    def seqs(self) -> list[int]:
        """The numbers, in the order of their first arrival."""
        return [message["seq"] for message in self.messages.values()]

    async def run(self) -> None:
        """Until cancelled."""
        cursor = None
        while True:
            try:
                async with self._engine.connect(self.user, cursor=cursor, tenant=self._tenant) as socket:
                    connection = self._recorder.connected(self.user, cursor, json.loads(await socket.recv()))
                    async for text in socket:
                        frame: dict[str, Any] = json.loads(text)
                        self._recorder.received(connection, frame)
                        if frame["type"] == "messages":
                            for message in frame["messages"]:
                                self._book(message)
                            cursor = frame["messages"][-1]["event_id"]
                            self._recorder.acknowledged(self.user, cursor)
                            await socket.send(json.dumps({"type": "ack", "seq": frame["messages"][-1]["seq"]}))
            except Exception:  # whatever a dying engine answers: connect again
                await asyncio.sleep(0.1)

    def _book(self, message: dict[str, Any]) -> None:
        if message["id"] not in self.messages:
            self.arrived_ms[message["id"]] = self._now_ms()
        if self.messages.setdefault(message["id"], message)["seq"] != message["seq"]:
            self.renumbered.append(message)


@asynccontextmanager
async def listening(listeners: Iterable[Listener]) -> AsyncIterator[None]:
    """They listen for the time of the `with`."""
    tasks = [asyncio.create_task(listener.run()) for listener in listeners]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
