"""One shard on a real Redis, with an edge's link to it, in the process of the test: Ray is replaced by function calls."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from redis.asyncio import Redis

from engine.actors.actor_process import ProcessContext
from engine.actors.carrier import RayPeer
from engine.actors.link import LinkCaller
from engine.actors.shard import Shard
from engine.config import Config
from engine.core.model.envelope import Envelope
from engine.core.wire import records as wire
from engine.core.wire.records import Attach, Deliver, Post, Posted, Welcome
from engine.store.redis_client import connect
from tests.support.link_peers import Nobody
from tests.support.vitals import vitals_without_ray
from tests.support.waiting import until

FAR_MS = int(time.time() * 1000) + 3_600_000


PATIENT_MS = 60_000
"""A session that ends has overflowed, and was not merely late: what is sent is sent once."""


class ShardProcess:
    """A shard, the edge that talks to it, and whether its process has ended itself."""

    def __init__(self, config: Config, index: int = 0) -> None:
        self.ended = asyncio.Event()
        self._clients: dict[str, Redis] = {}
        context = ProcessContext(
            connect=self._connect,
            peer=lambda _name, _namespace: Nobody(),
            tune_memory=lambda: None,
            lasting=contextlib.nullcontext,
            end_process=self._end,
            vitals=vitals_without_ray,
        )
        self.shard = Shard(config, index, context)
        self.shard.begin()
        self.records: list[Any] = []
        self.exchange = self
        self.link = LinkCaller(RayPeer(self), "edge-0", wire.from_shard, config, on_records=self.records.extend, on_reset=lambda: None)
        self._task = asyncio.create_task(self.link.run())
        self._ref = 0

    def _connect(self, config: Config) -> Redis:
        """One client for each store."""
        return self._clients.setdefault(config.redis_url, connect(config))

    def _end(self) -> None:
        self.ended.set()
        raise asyncio.CancelledError  # nothing runs behind this call

    def remote(self, session: str, seq: int, data: bytes) -> Any:
        return self.shard.exchange(session, seq, data)

    async def close(self) -> None:
        """End it as a crash does: nothing is written any more."""
        tasks = [task for task in (self._task, self.shard._serving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.aclose()

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def send_post(self, key: str, id: str) -> int:
        self._ref += 1
        self.link.send(Post(self._ref, key, True, FAR_MS, Envelope(id, b"digest..", 1, True, b'"id":"%b"' % id.encode())))
        return self._ref

    async def post(self, key: str, id: str) -> Posted:
        ref = self.send_post(key, id)
        answers = await until(lambda: [record for record in self.of(Posted) if record.ref == ref])
        answer: Posted = answers[0]
        return answer

    async def attach(self, conn: int, key: str, epoch: str = "", seq: int = 0) -> Welcome:
        self.link.send(Attach(conn, key, wire.WEBSOCKET, epoch, seq, f"c{conn}", "phone"))
        answers = await until(lambda: [record for record in self.of(Welcome) if record.conn == conn])
        answer: Welcome = answers[0]
        return answer

    def delivered(self, conn: int) -> list[int]:
        return sorted({seq for record in self.of(Deliver) if record.conn == conn for seq, _, _ in record.messages})


@asynccontextmanager
async def shard_process(config: Config, index: int = 0) -> AsyncIterator[ShardProcess]:
    running = ShardProcess(msgspec.structs.replace(config, link_timeout_ms=PATIENT_MS), index)
    try:
        await until(lambda: running.link.open)
        yield running
    finally:
        await running.close()
