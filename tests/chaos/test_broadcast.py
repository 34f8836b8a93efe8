"""Kill a shard or Redis in the middle of broadcasts: whoever is connected, and whoever comes later, gets each once, under one number."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.chaos.test_faults import victim_of
from tests.conftest import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 90
CONNECTED = 200
AWAY = 20
BROADCASTS = 20


class Listener:
    """A user that acknowledges everything and reconnects with its cursor. Books what came, by id."""

    def __init__(self, engine: RunningEngine, user: str, tenant: str) -> None:
        self.engine = engine
        self.user = user
        self.tenant = tenant
        self.cursor: str | None = None
        self.seqs: dict[str, set[int]] = {}
        self.order: list[int] = []  # first arrivals

    async def run(self) -> None:
        while True:
            try:
                async with self.engine.connect(self.user, cursor=self.cursor, tenant=self.tenant) as socket:
                    async for text in socket:
                        frame: dict[str, Any] = json.loads(text)
                        if frame["type"] == "messages":
                            self.take(frame["messages"])
                            await socket.send(json.dumps({"type": "ack", "seq": frame["messages"][-1]["seq"]}))
            except Exception:  # whatever a dying engine answers: connect again
                await asyncio.sleep(0.1)

    def take(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            if message["id"] not in self.seqs:
                self.order.append(message["seq"])
            self.seqs.setdefault(message["id"], set()).add(message["seq"])
            self.cursor = message["event_id"]


async def publish_until_taken(engine: RunningEngine, tenant: str, **item: Any) -> None:
    """Under one id, as PROTOCOL asks of publishers that get no answer, or a 503."""
    headers = {"Authorization": f"Bearer {engine.token('app', 'publish', tenant=tenant)}"}
    async with httpx.AsyncClient(timeout=20, trust_env=False, verify=False) as http:
        while True:
            try:
                answer = await http.post(f"{engine.url}/v1/notifications", json=item, headers=headers)
            except httpx.HTTPError:
                continue
            if answer.status_code == 202:
                assert answer.json()["results"][0]["status"] in ("accepted", "scheduled", "duplicate")
                return
            assert answer.status_code in (429, 503), answer.text
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("role", ["shard", "redis"])
async def test_everyone_gets_every_broadcast_once(victim: RunningEngine, role: str) -> None:
    tenant = f"broadcast-{role}"  # nobody else's users hear it
    listeners = [Listener(victim, f"u{number}", tenant) for number in range(CONNECTED + AWAY)]
    subscribers = listeners[::7]
    for listener in subscribers:
        headers = {"Authorization": f"Bearer {victim.token(listener.user, tenant=tenant)}"}
        async with httpx.AsyncClient(timeout=20, trust_env=False, verify=False) as http:
            assert (await http.put(f"{victim.url}/v1/subscriptions/repo:a/b", headers=headers)).status_code == 200
    tasks = [asyncio.create_task(listener.run()) for listener in listeners[:CONNECTED]]
    everyone = [f"{role}-{number}" for number in range(BROADCASTS)] + [f"{role}-later"]
    try:
        async with asyncio.timeout(LATE_S):
            await publish_until_taken(victim, tenant, broadcast=True, type="t", id=f"{role}-later", delay=2)
            for number in range(BROADCASTS):
                if number == BROADCASTS // 2:
                    while sum(len(listener.seqs) for listener in listeners) < CONNECTED:  # some of it is through, some is not
                        await asyncio.sleep(0.01)
                    victim_of(victim).kill(role)
                await publish_until_taken(victim, tenant, broadcast=True, type="t", id=f"{role}-{number}")
            await publish_until_taken(victim, tenant, topic="repo:a/b", type="t", id=f"{role}-topic")
            tasks += [asyncio.create_task(listener.run()) for listener in listeners[CONNECTED:]]
            expected = {listener.user: {*everyone, *([f"{role}-topic"] if listener in subscribers else [])} for listener in listeners}
            while any(listener.seqs.keys() != expected[listener.user] for listener in listeners):
                await asyncio.sleep(0.05)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for listener in listeners:
        assert listener.seqs.keys() == expected[listener.user]
        assert all(len(seqs) == 1 for seqs in listener.seqs.values())
        assert listener.order == list(range(1, len(listener.order) + 1))
