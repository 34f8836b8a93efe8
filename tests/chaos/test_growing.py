"""Messages that grow while an edge and the shard are killed: readers that reload, and the message at the end, have the same bytes."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from typing import Any

import httpx
import pytest

from engine import Client, Message, Publisher
from engine.client.growing_messages import GrowingMessage
from engine.store.embedded_redis import dying_with_parent
from tests.support.chaos.breakable_engine import LATE_S, status_when, victim_of
from tests.support.chromium_browser import fresh_page, launched
from tests.support.client_page import events, wait, watch_growing
from tests.support.examples import output_of
from tests.support.hosts import CHECKOUT
from tests.support.missing_programs import missing
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

RELOADS = 5
TOKENS = 2500  # of Ray Serve's example
TOKENS_UNTIL_KILL = 40

ALL_BEGIN = "(whole) => events.every(([type, one]) => type !== 'part' || whole.startsWith(one.text))"
"""Is each text that the page had a beginning of the whole one?"""


def text_of(user: str) -> str:
    return "".join(f"{user} tökén-{number} " for number in range(200))


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
    async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=30, verify=False) as client:
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


async def message_of(engine: RunningEngine, user: str) -> Message:
    async with Client(engine.url, engine.token(user)) as client:
        async for message in client:
            await message.ack()
            return message
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
        assert (await message_of(victim, user)).data["text"] == whole


RUN = """
import contextlib, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
from ray_notifications.ray import RunMessages
with contextlib.ExitStack() as runs:
    for user in sys.argv[2:]:
        run = runs.enter_context(RunMessages("render", "film", [user], id="film-7", after_s=0, every_s=0.05))
        run.progress(0.5)
    sys.stdin.read()
"""
"""A driver with a run for each user, until its input ends."""


async def test_a_killed_driver_is_lost_unless_it_runs_again(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])

    async def started(*users: str, input: int) -> asyncio.subprocess.Process:
        command = dying_with_parent([sys.executable, "-c", RUN, victim.state["ray_address"], *users])
        env = os.environ | {"RAY_AUTH_MODE": "token", "PYTHONPATH": os.fspath(CHECKOUT)}
        return await asyncio.create_subprocess_exec(*command, env=env, stdin=input)

    async with httpx.AsyncClient(base_url=victim.url, timeout=30, verify=False) as client:

        async def asked(user: str, path: str) -> Any:
            answer = await client.get(path, headers={"Authorization": f"Bearer {victim.token(user)}"})
            return answer.json() if answer.status_code == 200 else {}

        async def progressed(user: str) -> bool:
            return (await asked(user, "/v1/growing/film-7")).get("progress") == {"value": 0.5}

        driver = await started("lost", "again", input=asyncio.subprocess.PIPE)
        for user in ("lost", "again"):
            await until(lambda user=user: progressed(user), LATE_S, look_s=0.1)
        driver.kill()
        assert await driver.wait() == -signal.SIGKILL
        # At once, long before it counts as lost.
        assert await (await started("again", input=asyncio.subprocess.DEVNULL)).wait() == 0
        async with asyncio.timeout(LATE_S):
            lost = await message_of(victim, "lost")
        assert (lost.type, lost.data["run"], lost.data["progress"]) == ("render.lost", "film", {"value": 0.5})
        (kept,) = (await asked("again", "/v1/inbox"))["messages"]
        assert (kept["id"], kept["type"]) == ("film-7", "render.done")


async def test_ray_serve_streams_to_chromium_through_reloads_and_a_killed_edge(victim: RunningEngine, headless_shell: str) -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        missing("Ray Serve: install ray[serve]")
    await status_when(victim, lambda status: status["ready"])
    whole = "".join(f"token-{number} " for number in range(TOKENS))  # as the example makes it

    async def open_page() -> None:
        await watch_growing(page, victim.url, "websocket", token=victim.token("reader"))

    async with launched(headless_shell) as browser, fresh_page(browser, LATE_S * 1000) as page, asyncio.TaskGroup() as tasks:
        await open_page()
        example = tasks.create_task(asyncio.to_thread(output_of, victim, "ray_serve_stream.py", str(TOKENS)))
        for happens, far in (("reload", 0.15), ("kill", 0.3), ("reload", 0.5), ("reload", 0.75)):
            await wait(page, f"client.grows[0]?.text.length > {far * len(whole)}")
            assert await page.evaluate(ALL_BEGIN, whole)
            if happens == "kill":
                victim_of(victim).kill("edge")
            else:
                await open_page()
        await wait(page, "events.some(([type]) => type === 'message')")
        assert await page.evaluate(ALL_BEGIN, whole)
        (arrived,) = await events(page, "message")
        assert arrived["data"]["text"] == whole
    assert f"{TOKENS} tokens are message {arrived['seq']} of reader" in example.result()
