"""An engine is upgraded under load from one version of the code to another: nobody but clients whose connections move notices.

First half of it, and back: while a single process runs the older code, everybody writes what that reads, and it can be installed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.chaos.breakable_engine import ask
from tests.support.chaos.traffic import Traffic
from tests.support.code_versions import NEWER, OLDER, CodeVersions
from tests.support.running_engine import RunningEngine, running_engine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 150


@pytest.fixture
def versions(tmp_path: Path) -> CodeVersions:
    return CodeVersions(tmp_path)


@pytest.fixture
def victim(versions: CodeVersions) -> Iterator[RunningEngine]:
    """An engine that runs the older version."""
    with running_engine(env={**versions.environment, "ENGINE_DRAIN_SPREAD_MS": "1000"}) as running:
        yield running


def processes(status: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """When the process of each actor started, and which formats it reads."""
    rows = {f"{row['role']}-{row['index']}": row for kind in ("shards", "schedulers", "edges") for row in status[kind]}
    return {name: (row.get("started_ms", 0), row.get("formats", 0)) for name, row in {**rows, "controller": status["controller"]}.items()}


class Inbox:
    """A user who looks at the inbox and marks everything as read, all the time: the requests whose records only the newer version reads."""

    def __init__(self, engine: RunningEngine) -> None:
        self._engine = engine
        self.answers: list[int] = []
        self.advised = True
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Inbox:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with httpx.AsyncClient(base_url=self._engine.url, timeout=10, trust_env=False, verify=False) as client:
            while True:
                headers = {"Authorization": f"Bearer {self._engine.token('reader')}"}
                for method, path, body in (("GET", "/v1/inbox", None), ("POST", "/v1/inbox/read", {"all": True})):
                    try:
                        answer = await client.request(method, path, json=body, headers=headers)
                    except httpx.HTTPError:
                        continue  # an edge that ends closes its connections
                    self.answers.append(answer.status_code)
                    self.advised &= answer.status_code == 200 or "Retry-After" in answer.headers
                await asyncio.sleep(0.2)


@pytest.fixture
async def inbox(victim: RunningEngine) -> AsyncIterator[Inbox]:
    await victim.publish(*({"user": "reader", "type": "note.new", "data": {"n": number}} for number in range(5)))
    async with Inbox(victim) as reading:
        yield reading


async def test_processes_of_two_versions_serve_side_by_side_and_an_upgrade_is_undone_or_completed_without_loss(
    victim: RunningEngine, versions: CodeVersions, inbox: Inbox
) -> None:
    async def when(holds: Any) -> dict[str, Any]:
        return await asyncio.to_thread(victim.status_when, holds, LATE_S)

    def shards(status: dict[str, Any]) -> list[int]:
        """Which formats each of them reads, once all serve."""
        found = processes(status)
        return [found[name][1] for name in ("shard-0", "shard-1")] if status["ready"] else []

    older, newer = versions.formats(OLDER), versions.formats(NEWER)
    first = await when(lambda status: status["ready"] and status["scaling"]["settled"])
    order = {"user": "buyer", "type": "order.paid", "id": "order-1", "data": {}}
    (accepted,) = await victim.publish(order)
    async with Traffic(victim.url, victim.token, "versions", online=12, away=2, rate=150) as traffic:
        versions.install(NEWER)
        await ask(victim, "POST", "/v1/upgrade", scope="operator")
        await when(lambda status: processes(status)["shard-0"][1] == newer)  # the next one follows within two seconds
        versions.install(OLDER)
        await ask(victim, "POST", "/v1/upgrade", scope="operator")
        undone = await when(lambda status: shards(status) == [older, older])
        assert undone["scaling"]["formats"] == older
        assert set(inbox.answers) == {503}
        assert inbox.advised

        versions.install(NEWER)
        await ask(victim, "POST", "/v1/upgrade", scope="operator")
        last = await when(lambda status: status["ready"] and status["scaling"]["settled"] and status["scaling"]["formats"] == newer)
        books = await traffic.finish()
    print(books)
    assert processes(last).keys() == processes(first).keys()
    assert not set(processes(last).values()) & set(processes(first).values())
    assert {formats for _, formats in processes(last).values()} == {newer}
    assert (books["lost"], books["out_of_order"], books["wrong"], books["unavailable"]) == (0, 0, [], 0)
    assert books["accepted"] > 0
    (again,) = await victim.publish(order)
    assert (again["status"], again["seq"]) == ("duplicate", accepted["seq"])
    read = await ask_user(victim, "reader", "/v1/inbox/read", {"all": True})
    assert read["unread"] == 0, "what needs the newer formats works"


async def ask_user(engine: RunningEngine, user: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer, as soon as the edge that is asked has followed the slot map, too."""
    async with httpx.AsyncClient(base_url=engine.url, timeout=10, trust_env=False, verify=False) as client:
        headers = {"Authorization": f"Bearer {engine.token(user)}"}
        answer = await until(
            lambda: client.post(path, json=body, headers=headers), holds=lambda answer: answer.status_code != 503, look_s=0.1
        )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
