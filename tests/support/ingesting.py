"""An ingester without Ray that publishes by HTTP, in this process or as a program that tests kill; rows for it, and what users get of them.

python -m tests.support.ingesting SOURCES URL TOKEN
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import jwt

from engine.api.actor_feature import ActorPorts, EdgeAnswer
from engine.config import Config
from engine.errors import Unavailable
from engine.features.sources.ingester import Ingester
from engine.features.sources.readers import SourceReader
from tests.support.background_task import background
from tests.support.waiting import until


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


async def ingest(ingester: Ingester, sources: str, url: str, bearer: str) -> None:
    """Run until cancelled."""
    redis: Any = None  # it keeps nothing in the engine's Redis
    headers = {"authorization": f"Bearer {bearer}", "content-type": "application/json"}
    async with httpx.AsyncClient(headers=headers, trust_env=False, verify=False) as http:
        await ingester.run(ActorPorts(Config(sources=sources), 0, redis, HttpEdge(url, http)))


SECRET = "secret of the ingester's tests, long enough"
USERS = 8
"""That rows are for, in turn."""


def token(user: str, scope: str) -> str:
    return jwt.encode({"sub": user, "scope": scope, "tenant": "default", "exp": time.time() + 600}, SECRET, "HS256")


def table(**members: Any) -> str:
    return json.dumps([{"name": "orders", "rows_max": 50, **members}])


def note(number: int) -> dict[str, Any]:
    return {"user": f"user-{number % USERS}", "type": "order.paid", "data": {"n": number}}


@asynccontextmanager
async def ingesting(sources: str, url: str) -> AsyncIterator[Ingester]:
    ingester = Ingester(lambda: time.time_ns() // 1_000_000)
    async with background(ingest(ingester, sources, url, token("source", "publish"))):
        yield ingester


async def received(url: str) -> Counter[int]:
    """How often each number is in what the users are sent. The cursor of a poll acknowledges."""
    numbers = Counter[int]()
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=20) as http:
        for user in (f"user-{number}" for number in range(USERS)):
            headers = {"authorization": f"Bearer {token(user, 'connect')}"}
            cursor = ""
            while True:
                query = {"wait": "0", **({"last_event_id": cursor} if cursor else {})}
                answer = await http.get(f"{url}/v1/poll", params=query, headers=headers)
                assert answer.status_code == 200, answer.text
                found = answer.json()
                messages = [message for message in found["messages"] if message["type"] != "gap"]
                if not messages:
                    break
                numbers.update(message["data"]["n"] for message in messages)
                cursor = found["last_event_id"]
    return numbers


async def lag_of(reader: SourceReader) -> int:
    return (await reader.lag()).waiting


async def emptied_by_the_ingester(reader: SourceReader, within_s: float = 20) -> None:
    """Sooner than NATS delivers again what was not settled, which is after 30 s."""
    await until(lambda: lag_of(reader), within_s, holds=lambda waiting: waiting == 0)


if __name__ == "__main__":
    asyncio.run(ingest(Ingester(lambda: time.time_ns() // 1_000_000), *sys.argv[1:]))
