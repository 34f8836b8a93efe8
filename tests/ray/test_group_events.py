"""Events of users in Ray jobs, at the session's engine: connects and disconnects, refused messages, and consumers that die."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Forbidden, Refused
from engine.ray import TenantEvent, event_batches, events
from tests.support.running_engine import RunningEngine
from tests.support.taking import take
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TENANT = "watched"
"""Of no other test: users of the others go offline 30 s after their last poll, which would be events of these groups."""


async def come_and_go(engine: RunningEngine, *users: str) -> None:
    for user in users:
        async with engine.connect(user, tenant=TENANT) as socket:
            await engine.receive(socket, "welcome")


async def first(group: str, count: int, **options: Any) -> list[TenantEvent]:
    """So many; the last of them is not acknowledged."""
    return await take(events(group, tenant=TENANT, **options), count)


async def made(group: str) -> None:
    """Make a group, which begins with what happens from now on."""
    async with asyncio.timeout(90):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first(group, 1), 2)


async def test_connects_disconnects_and_refused_messages_come_in_order_and_from_where_the_group_was(
    job: Any, engine: RunningEngine
) -> None:
    await made("board")
    await engine.publish({"user": "evt-ann", "type": "t", "id": "evt-1"}, tenant=TENANT)
    async with engine.connect("evt-ann", tenant=TENANT) as socket:
        await engine.receive(socket, "messages")
        await socket.send('{"type": "nack", "ids": ["evt-1"], "reason": "cannot be shown"}')
        await engine.receive(socket, "nacked")
    found = [event for event in await first("board", 4) if event.user == "evt-ann"]
    assert {event.event for event in found} == {"connect", "disconnect", "offline", "dead_letter"}
    assert [event.event for event in found if event.event != "dead_letter"] == ["connect", "disconnect", "offline"]
    (letter,) = [event for event in found if event.event == "dead_letter"]
    assert (letter.id, letter.type, letter.reason) == ("evt-1", "t", "cannot be shown")
    (last,) = await first("board", 1)
    assert last == found[-1], "it was not acknowledged, those before it were"


async def test_a_consumer_that_is_killed_loses_nothing_and_its_successor_goes_on(job: Any, engine: RunningEngine, tmp_path: Path) -> None:
    await made("killed")
    handled = tmp_path / "handled"

    @job.remote(num_cpus=0)
    class Consumer:
        def pid(self) -> int:
            return os.getpid()

        async def consume(self, path: str) -> None:
            with open(path, "a") as file:
                async for event in events("killed", tenant=TENANT, consumer="collector"):
                    file.write(f"{event.user} {event.event}\n")
                    file.flush()

    consumer = Consumer.remote()
    ending = consumer.consume.remote(os.fspath(handled))
    users = [f"evt-k{number}" for number in range(6)]
    await come_and_go(engine, *users[:3])
    await until(lambda: handled.exists() and "evt-k0 offline" in handled.read_text(), 60)
    os.kill(job.get(consumer.pid.remote(), timeout=30), signal.SIGKILL)
    with pytest.raises(job.exceptions.RayActorError):
        job.get(ending, timeout=30)
    await come_and_go(engine, *users[3:])
    consumer = Consumer.remote()
    consumer.consume.remote(os.fspath(handled))
    expected = {f"{user} {event}" for user in users for event in ("connect", "disconnect", "offline")}
    await until(lambda: expected <= set(handled.read_text().splitlines()), 60)
    lines = handled.read_text().splitlines()
    assert max(lines.count(line) for line in set(lines)) <= 2, "what was acknowledged does not come again"
    job.kill(consumer)


async def test_a_batch_is_acknowledged_as_a_whole(job: Any, engine: RunningEngine) -> None:
    await made("lake")
    await come_and_go(engine, "evt-b0", "evt-b1")
    seen: list[list[str]] = []
    for _ in range(2):
        async with asyncio.timeout(90), aclosing(event_batches("lake", tenant=TENANT, size=100, within_s=1)) as batches:
            batch = await anext(batches)
            seen.append([f"{event.user} {event.event}" for event in batch])
    assert seen[0] == seen[1][: len(seen[0])], "the first was not handled"
    assert "evt-b0 connect" in seen[0]
    assert {"event", "user", "at", "letter"} < batch[0].row().keys()


async def test_another_consumer_waits_and_goes_on_when_the_first_one_leaves(job: Any, engine: RunningEngine) -> None:
    await made("shared")
    await come_and_go(engine, "evt-s0")
    async with asyncio.timeout(90):
        one = events("shared", tenant=TENANT)
        assert (await anext(one)).event == "connect"
        other = asyncio.ensure_future(first("shared", 1))
        assert (await anext(one)).event == "disconnect"
        assert not other.done()
        await one.aclose()  # type: ignore[attr-defined]
        assert [event.event for event in await other] == ["disconnect"]


async def test_a_tenant_that_may_not_listen_and_a_name_that_is_none_are_refused(job: Any, engine: RunningEngine) -> None:
    with pytest.raises(Forbidden, match="ray_listen"):
        await anext(events("g", tenant="quiet"))
    with pytest.raises(Refused, match="404"):
        await anext(events("no group", tenant=TENANT))
    with pytest.raises(ValueError, match="size"):
        await anext(event_batches("g", size=0))
