"""Kill a shard or Redis in the middle of broadcasts: whoever is connected, and whoever comes later, gets each once, under one number."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.chaos.breakable_engine import victim_of
from tests.support.chaos.listeners import Listener, listening
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 90
CONNECTED = 100
AWAY = 10
BROADCASTS = 20


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
    everyone = [f"{role}-{number}" for number in range(BROADCASTS)] + [f"{role}-later"]
    expected = {listener.user: {*everyone, *([f"{role}-topic"] if listener in subscribers else [])} for listener in listeners}
    async with asyncio.timeout(LATE_S), listening(listeners[:CONNECTED]):
        await publish_until_taken(victim, tenant, broadcast=True, type="t", id=f"{role}-later", delay=2)
        for number in range(BROADCASTS):
            if number == BROADCASTS // 2:  # some of it is through, some is not
                await until(lambda: sum(len(listener.messages) for listener in listeners) >= CONNECTED, LATE_S)
                victim_of(victim).kill(role)
            await publish_until_taken(victim, tenant, broadcast=True, type="t", id=f"{role}-{number}")
        await publish_until_taken(victim, tenant, topic="repo:a/b", type="t", id=f"{role}-topic")
        async with listening(listeners[CONNECTED:]):
            await until(lambda: all(listener.messages.keys() == expected[listener.user] for listener in listeners), LATE_S)
    for listener in listeners:
        assert not listener.renumbered
        assert listener.seqs == list(range(1, len(expected[listener.user]) + 1))
