"""Pushes read by the push service of npm, `web-push-testing`: its own check of the signature (RFC 8292), its own decryption (RFC 8291)."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.actors.edge import wall_ms
from engine.config import Config
from engine.core.model.constants import NORMAL
from engine.errors import ActionFailed
from engine.features.actions.store import QueuedAction
from engine.features.reach.core.addresses import PushKeys, PushSubscription
from engine.features.reach.push_channel import PushChannel, public_key_of
from tests.support.free_port import free_port
from tests.support.missing_programs import missing
from tests.support.waiting import until

PACKAGE = Path(__file__).parents[2] / "clients" / "js"
SERVE = """
const { PushApiModel } = require("web-push-testing/src/PushApiModel");
const Server = require("web-push-testing/src/server");
new Server(new PushApiModel(), Number(process.argv[1])).startServer();
"""
SECRET = b"k" * 32


class Service:
    """The service. `subscription`: of its one browser."""

    def __init__(self, client: httpx.AsyncClient, client_hash: str, subscription: PushSubscription) -> None:
        self._client = client
        self._hash = client_hash
        self.subscription = subscription

    async def shown(self) -> list[Any]:
        answer = await self._client.post("/get-notifications", data={"clientHash": self._hash})
        return [json.loads(message) for message in answer.json()["data"]["messages"]]

    async def expire(self) -> None:
        (await self._client.post(f"/expire-subscription/{self._hash}")).raise_for_status()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    if shutil.which("node") is None or not (PACKAGE / "node_modules" / "web-push-testing").exists():
        missing("no Node.js, or no npm package `web-push-testing` (`make typescript`): its push service was not tried")
    port = free_port()
    process = await asyncio.create_subprocess_exec("node", "-e", SERVE, str(port), cwd=PACKAGE, stdout=asyncio.subprocess.DEVNULL)
    try:
        async with httpx.AsyncClient(base_url=f"http://localhost:{port}", trust_env=False) as client:

            async def answers() -> bool:
                try:
                    return (await client.post("/status")).is_success
                except httpx.TransportError:
                    return False

            await until(answers)
            wanted = {"userVisibleOnly": "true", "applicationServerKey": public_key_of(SECRET)}
            made = (await client.post("/subscribe", data=wanted)).json()["data"]
            keys = PushKeys(made["keys"]["p256dh"], made["keys"]["auth"])
            yield Service(client, made["clientHash"], PushSubscription(made["endpoint"], keys))
    finally:
        process.kill()
        await process.wait()


async def secret() -> bytes:
    return SECRET


async def other_secret() -> bytes:
    return b"o" * 32


def channel(key: Any = secret) -> PushChannel:
    return PushChannel(Config(push_hosts=("localhost",), webhook_networks=("127.0.0.0/8", "::1/128")), key, wall_ms)


def step() -> QueuedAction:
    body = b'{"id":"m1","type":"alert","data":{"title":"Disk full","body":"On db1"}}'
    return QueuedAction("1-0", "channel://push/localhost", "acme", "ann", "m1", "k1", wall_ms(), NORMAL, body, 60_000)


async def test_the_npm_push_service_reads_a_push_until_its_browser_unsubscribes(service: Service) -> None:
    assert await channel().send(step(), service.subscription)
    (shown,) = await service.shown()
    assert (shown["id"], shown["title"], shown["body"]) == ("m1", "Disk full", "On db1")
    await service.expire()
    assert not await channel().send(step(), service.subscription)


async def test_the_npm_push_service_refuses_a_push_of_another_key(service: Service) -> None:
    with pytest.raises(ActionFailed, match="400"):
        await channel(other_secret).send(step(), service.subscription)
    assert await service.shown() == []
