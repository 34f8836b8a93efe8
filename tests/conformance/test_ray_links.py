"""An engine whose actors talk by Ray calls only keeps the same promises, and loses nothing with an actor."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.conformance.server_promises import broken_promises
from tests.support.chaos.breakable_engine import status_when
from tests.support.chaos.traffic import Traffic
from tests.support.running_engine import RunningEngine, running_engine

pytestmark = [pytest.mark.slow, pytest.mark.engine]


@pytest.fixture(scope="module")
def by_ray_calls() -> Iterator[RunningEngine]:
    with running_engine(env={"ENGINE_LINK_TRANSPORT": "ray"}) as engine:
        yield engine


def test_every_link_is_ray_calls(by_ray_calls: RunningEngine) -> None:
    status = by_ray_calls.status()
    carriers = {carrier for row in (*status["shards"], *status["edges"]) for carrier in row["links"].values()}
    assert carriers == {"ray"}


async def test_the_promises_of_a_server_hold(by_ray_calls: RunningEngine) -> None:
    assert await broken_promises(by_ray_calls.url, (by_ray_calls.data_dir / "jwt-secret").read_text().strip()) == {}


async def test_a_killed_shard_and_a_killed_edge_lose_nothing(by_ray_calls: RunningEngine) -> None:
    async with Traffic(by_ray_calls.url, by_ray_calls.token, "by-ray", online=6, away=2, rate=60) as traffic:
        for role in ("shards", "edges"):
            pid = (await status_when(by_ray_calls, lambda status: status["ready"]))[role][0]["pid"]
            os.kill(pid, signal.SIGKILL)
            await status_when(by_ray_calls, lambda status, role=role, pid=pid: status["ready"] and status[role][0]["pid"] != pid)
        books = await traffic.finish()
    assert books["accepted"] > 0
    assert (books["lost"], books["out_of_order"], books["wrong"]) == (0, 0, [])
