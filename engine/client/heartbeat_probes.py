"""Heartbeat probes while no connection can be made (docs/PROTOCOL-RECEIVING.md, "Heartbeat probe"): the user stays suspect."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Final
from urllib.parse import quote

from engine.client.http_connection import HttpConnection
from engine.client.links.transport_link import LinkEnded, LinkOptions
from engine.client.protocol import split_cursor
from engine.client.retried_requests import retry_after_s

PROBES_PER_HEARTBEAT: Final = 3
JITTER: Final = 0.3
_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F)))


class HeartbeatProbes:
    """The probes of one client, from each `begin` to the next `end`. Both are idempotent."""

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self._client = quote(options.device, safe=_PRINTABLE) if options.device else uuid.uuid4().hex
        self._task: asyncio.Task[None] | None = None

    def begin(self, heartbeat_ms: int) -> None:
        """The connection is lost: probe, first after a while. `heartbeat_ms`: of the welcome."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(heartbeat_ms / PROBES_PER_HEARTBEAT / 1000), name="engine-client-prober")

    def end(self) -> None:
        """There is a connection again, or none is wanted."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, every_s: float) -> None:
        http = HttpConnection(self._options.address, connections_max=1, ssl=self._options.ssl)
        asked_s = 0.0
        try:
            while True:
                await asyncio.sleep(max(asked_s, every_s * (1 + JITTER * (2 * random.random() - 1))))
                asked_s = await self._probe(http)
        finally:
            http.close()

    async def _probe(self, http: HttpConnection) -> float:
        """Send one; returns for how long the engine wants no other."""
        cursor = self._options.cursor()
        about = {"X-Client-ID": self._client, "X-Last-Seq": str(split_cursor(cursor)[1] if cursor else 0)}
        try:
            headers = await self._options.authorization() | about
            answer = await http.request("GET", "/v1/heartbeat", headers, timeout_s=self._options.timeout_s)
        except (OSError, LinkEnded):
            return 0.0  # the next one may get through; why nothing does is told by the attempts to connect
        return retry_after_s(answer.headers.get("retry-after")) or 0.0
