"""An ingester without Ray that publishes by HTTP: in this process, or as a program that tests kill.

python -m tests.support.ingesting SOURCES URL TOKEN
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx

from engine.api.actor_feature import ActorPorts, EdgeAnswer
from engine.config import Config
from engine.errors import Unavailable
from engine.features.sources.ingester import Ingester


class HttpEdge:
    """Publishes through the HTTP of an edge, as `engine.api.actor_feature` says."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url
        self._http = http

    async def publish(self, tenant: str, path: str, bodies: Sequence[bytes]) -> list[EdgeAnswer]:
        answers: list[EdgeAnswer] = []
        for body in bodies:
            try:
                answer = await self._http.post(self._url + path, content=body)
            except httpx.TransportError as error:
                raise Unavailable("no edge answers") from error
            answers.append((answer.status_code, dict(answer.headers), answer.content))
            if answer.status_code == 429 or answer.status_code >= 500:
                break
        return answers


async def ingest(ingester: Ingester, sources: str, url: str, token: str) -> None:
    """Run until cancelled."""
    redis: Any = None  # it keeps nothing in the engine's Redis
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    async with httpx.AsyncClient(headers=headers, trust_env=False, verify=False) as http:
        await ingester.run(ActorPorts(Config(sources=sources), 0, redis, HttpEdge(url, http)))


if __name__ == "__main__":
    asyncio.run(ingest(Ingester(lambda: time.time_ns() // 1_000_000), *sys.argv[1:]))
