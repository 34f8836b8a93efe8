"""Load rises and falls: actors and nodes come and go, by the engine's policy and Ray's autoscaler, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.autoscaled_cluster import AutoscaledCluster, autoscaled_cluster
from tests.support.chaos.traffic import Traffic
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

PATIENCE_S = 180
CONNECTIONS = 3  # of each kind of load: the edge answers requests of one in turn
ROLES = ("shards", "schedulers", "edges")
SETTINGS = {f"ENGINE_AUTOSCALE_{role.upper()}": "1-2" for role in ROLES} | {
    f"ENGINE_INTERNAL_{name}": value
    for name, value in {
        "AUTOSCALE_UP_MS": "2000",
        "AUTOSCALE_DOWN_MS": "6000",
        # The load rises until it is above the first, whatever the machine can do. Processes with next to nothing to do stay below half of
        # the second in each second of `AUTOSCALE_DOWN_MS`, also on a slow machine: with 0.07 and 8 s some did not for minutes.
        "AUTOSCALE_UP_SHARE": "0.09",
        "AUTOSCALE_TARGET_SHARE": "0.088",
        "AUTOSCALE_DOWN_SHARE": "0.044",
        "CONNECTION_MOVES_MIN": "2",
    }.items()
}


@pytest.fixture
def autoscaled() -> Iterator[AutoscaledCluster]:
    folder = Path(tempfile.mkdtemp(prefix="engine-autoscaled-"))
    try:
        with autoscaled_cluster(folder) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def elastic(autoscaled: AutoscaledCluster) -> Iterator[RunningEngine]:
    """An engine of one actor of each kind, on the head."""
    engine = autoscaled.engine("autoscaled", database=0, **SETTINGS)
    engine.start()
    yield engine
    assert engine.stop() == 0


def nodes_of(rows: list[dict[str, Any]]) -> set[str]:
    return {row["node_id"] for row in rows if row["ready"]}


def has_grown(status: dict[str, Any]) -> bool:
    """Whether there are two of each kind on two nodes, and all of them have something to do."""
    return (
        all(len(nodes_of(status[role])) == 2 for role in ROLES)
        and all(row["slots"] for row in status["shards"])
        and all(row["connections"]["websocket"] >= 6 for row in status["edges"])
    )


def has_shrunk(status: dict[str, Any]) -> bool:
    return all(len(status[role]) == 1 for role in ROLES) and bool(status["scaling"]["settled"])


def decided(status: dict[str, Any]) -> set[tuple[str, int]]:
    """The numbers of actors that the policy has wanted: (role, how many)."""
    return {(decision["role"], decision["wanted"]) for decision in status["scaling"]["decisions"] if decision["action"] == "scale"}


class Load:
    """Requests that cost their sender little and one role much: more and more, until the policy has decided to add to that role.

    Where other programs have the cores, the engine refuses some of everybody's requests meanwhile, as it should: careful publishers repeat
    theirs.
    """

    def __init__(self, engine: RunningEngine) -> None:
        url = httpx.URL(engine.url)
        self._address = (url.host, url.port)
        host = f"Host: {url.netloc.decode()}\r\n"
        self._requests: dict[str, bytes] = {}
        for role, members in {"schedulers": {"delay": 1}, "shards": {}}.items():
            users = [f"load-{n}" for n in range(200)]  # in one item, which costs the edge little
            items = [{"users": users, "type": "test.load", "priority": "low", "collapse": {"key": "newest"}, **members}]
            headers = f"{host}Authorization: Bearer {engine.token('app', 'publish')}\r\nContent-Type: application/json\r\n"
            body = json.dumps(items)
            self._requests[role] = f"POST /v1/notifications HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        self._requests["edges"] = f"GET /healthz HTTP/1.1\r\n{host}\r\n".encode() * 40
        self._period_s = dict.fromkeys(ROLES, 0.8)

    def press(self, status: dict[str, Any]) -> None:
        """Raise the load of one role that is not to grow yet: what is refused for the load of the others is none of its own.

        While actors start or slots move, the policy decides nothing, however high the load is.
        """
        for role in self._requests:
            if status["scaling"]["settled"] and (role, 2) not in decided(status):
                self._period_s[role] *= 0.8
                break

    async def send(self, role: str) -> None:
        """Send until cancelled. What is answered interests nobody; an edge that is behind stops reading."""
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(reader))
                while True:
                    writer.write(self._requests[role])
                    await writer.drain()
                    await asyncio.sleep(self._period_s[role])
        finally:
            writer.transport.abort()  # what it has not sent yet is to be lost
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 16):
            pass
        raise ConnectionError("the edge has closed the connection")


@contextlib.asynccontextmanager
async def loaded(engine: RunningEngine) -> AsyncIterator[Load]:
    """A load that lasts as long as the block."""
    load = Load(engine)
    sending = [asyncio.ensure_future(load.send(role)) for role in ROLES for _ in range(CONNECTIONS)]
    try:
        yield load
        for task in sending:
            assert not task.done(), task.exception()
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


def prefer(status: dict[str, Any], redis_pid: int) -> None:
    """Give the actors and their Redis the cores before other programs, as far as that is allowed.

    The time for which they wait for one counts as load when the numbers fall. While they rise, an actor without a core does not get busy
    enough to be added to, however high the load is, and an edge whose storage has none refuses the load of the others.
    """
    with contextlib.suppress(OSError):
        for pid in [redis_pid, *(row["pid"] for role in ROLES for row in status[role] if row["ready"])]:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), -15)
            Path(f"/proc/{pid}/autogroup").write_text("-15")  # where Linux shares a core among sessions, and not among processes


async def test_node_comes_and_goes_with_load_without_losses(autoscaled: AutoscaledCluster, elastic: RunningEngine) -> None:
    books = []
    async with (
        Traffic(elastic.url, elastic.token, "always", online=24, away=2, rate=120) as always,
        Traffic(elastic.url, elastic.token, "later", online=4, away=0, rate=60, delay=1) as later,
    ):
        async with loaded(elastic) as load:

            def grows(status: dict[str, Any]) -> bool:
                prefer(status, autoscaled.redis.pid)
                load.press(status)
                return has_grown(status)

            grown = await until(elastic.status, PATIENCE_S, holds=grows, look_s=0.5)
            assert autoscaled.nodes() == 2
        books.append(await later.finish())
        always.rate = 4
        prefer(elastic.status(), autoscaled.redis.pid)
        await until(elastic.status, PATIENCE_S, holds=has_shrunk, look_s=0.5)
        await until(autoscaled.nodes, PATIENCE_S, holds=lambda nodes: nodes == 1, look_s=0.2)
        books.append(await always.finish())
    assert decided(grown) == {(role, 2) for role in ROLES}
    for book in books:
        assert book["accepted"] > 0
        assert (book["lost"], book["out_of_order"], book["wrong"]) == (0, 0, [])
