"""Messages that grow while an edge and the shard are killed: readers that reload, and the message at the end, have the same bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from engine import Client, Publisher
from engine.client.growing_messages import GrowingMessage
from tests.support.chaos.breakable_engine import LATE_S, status_when, victim_of
from tests.support.running_engine import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]

RELOADS = 5
TOKENS_UNTIL_KILL = 40


def text_of(user: str) -> str:
    return "".join(f"{user} tökén-{number} " for number in range(400))


async def grow(publisher: Publisher, user: str, whole: str, far: asyncio.Event) -> None:
    """The tokens of a text, at the pace of a model."""
    stream: GrowingMessage = publisher.stream(user=user, type="llm.answer", id="answer")
    async with stream as message:
        for number, token in enumerate(whole.split(" ")[:-1]):
            await message.append(token + " ")
            await asyncio.sleep(0.02)
            if number == TOKENS_UNTIL_KILL:
                far.set()


async def read(engine: RunningEngine, user: str, whole: bytes) -> None:
    """Read until it has ended, from the beginning a few times, as a page that is reloaded."""
    headers = {"Authorization": f"Bearer {engine.token(user)}"}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=30) as client:
        have, reads = b"", 0
        while True:
            try:
                answer = await client.get("/v1/growing/answer", params={"offset": len(have), "wait": 5})
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code in (404, 503):  # it has not begun, or an edge starts
                await asyncio.sleep(0.05)
                continue
            found: dict[str, Any] = answer.json()
            have = have[: found["offset"]] + found["text"].encode()
            assert whole.startswith(have)
            if found["state"] == "ended":
                assert have == whole
                return
            reads += 1
            if reads % 10 == 0 and reads < 10 * RELOADS:
                have = b""


async def message_of(engine: RunningEngine, user: str) -> str:
    async with Client(engine.url, engine.token(user)) as client:
        async for message in client:
            await message.ack()
            return str(message.data["text"])
    raise AssertionError("no message")


async def test_a_killed_edge_and_shard_change_no_byte(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    texts = {user: text_of(user) for user in ("grower-1", "grower-2")}
    far = asyncio.Event()
    async with (
        Publisher(victim.url, victim.token("job", "publish"), retry_for_s=LATE_S) as publisher,
        asyncio.timeout(2 * LATE_S),
        asyncio.TaskGroup() as tasks,
    ):
        for user, whole in texts.items():
            tasks.create_task(grow(publisher, user, whole, far))
            tasks.create_task(read(victim, user, whole.encode()))
        await far.wait()
        victim_of(victim).kill("edge")
        victim_of(victim).kill("shard")
    for user, whole in texts.items():
        assert await message_of(victim, user) == whole
