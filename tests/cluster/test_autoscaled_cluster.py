"""Ray's own autoscaler in the loop: it starts nodes for shards that have no place, and ends those that scaling in has emptied."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.cli.status_report import scaling_lines
from tests.support.autoscaled_cluster import HEAD, WORKER, AutoscaledCluster, autoscaled_cluster
from tests.support.chaos.traffic import Traffic
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

PATIENCE_S = 90
SHARDS = HEAD["engine_shard"] + WORKER["engine_shard"]


@pytest.fixture
def autoscaled() -> Iterator[AutoscaledCluster]:
    folder = Path(tempfile.mkdtemp(prefix="engine-autoscaled-"))
    try:
        with autoscaled_cluster(folder) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def growing(autoscaled: AutoscaledCluster) -> Iterator[RunningEngine]:
    """An engine that fits on the head."""
    engine = autoscaled.engine("autoscaled", database=0)
    engine.options = (*engine.options, "--shards", str(HEAD["engine_shard"]))
    engine.start()
    yield engine
    assert engine.stop() == 0


async def test_a_node_comes_for_shards_without_a_place_and_goes_when_they_have_left_and_nothing_is_lost(
    autoscaled: AutoscaledCluster, growing: RunningEngine
) -> None:
    async with Traffic(growing.url, growing.token, "autoscaled", online=8, away=2, rate=60) as traffic:
        await scale(growing, SHARDS + 1)
        await until(growing.status, PATIENCE_S, holds=lambda status: status["scaling"]["have"]["shards"] == SHARDS, look_s=0.2)
        found = await until(growing.status, PATIENCE_S, holds=lambda status: bool(status["scaling"]["waiting"]), look_s=0.2)
        assert found["scaling"]["waiting"] == [{"actor": f"shard-{SHARDS}", "resource": "engine_shard", "offered": SHARDS}]
        needs = f"[yellow]shard-{SHARDS} waits for a node with a free `engine_shard`[/]; the nodes offer {SHARDS}, all taken"
        assert needs in scaling_lines(found["scaling"])
        assert autoscaled.nodes() == 2
        assert sorted(Counter(row["node_id"] for row in found["shards"][:SHARDS]).values()) == [2, 2]
        await until(growing.status, PATIENCE_S, holds=lambda status: all(row["slots"] for row in status["shards"][:SHARDS]), look_s=0.2)
        await scale(growing, HEAD["engine_shard"])
        await until(growing.status, PATIENCE_S, holds=lambda status: status["scaling"]["settled"], look_s=0.2)
        await until(autoscaled.nodes, PATIENCE_S, holds=lambda nodes: nodes == 1, look_s=0.2)
        books = await traffic.finish()
    assert books["accepted"] > 0
    assert (books["lost"], books["out_of_order"], books["wrong"]) == (0, 0, [])


async def scale(engine: RunningEngine, shards: int) -> None:
    headers = {"Authorization": f"Bearer {engine.token(scopes='operator')}"}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers, trust_env=False, timeout=20) as client:
        answer = await client.post("/v1/scale", json={"shards": shards, "force": True})
    assert answer.status_code == 202, answer.text
