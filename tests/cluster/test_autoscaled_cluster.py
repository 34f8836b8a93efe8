"""Load rises and falls: actors and nodes come and go, by the engine's policy and Ray's autoscaler, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.support.autoscaled_cluster import AutoscaledCluster, autoscaled_cluster
from tests.support.chaos.traffic import Traffic
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

PATIENCE_S = 120
ROLES = ("shards", "schedulers", "edges")
SETTINGS = {f"ENGINE_AUTOSCALE_{role.upper()}": "1-2" for role in ROLES} | {
    f"ENGINE_INTERNAL_{name}": value
    for name, value in {
        "AUTOSCALE_UP_MS": "2000",
        "AUTOSCALE_DOWN_MS": "8000",
        # A load that leaves two cores to everything else that runs meanwhile.
        "AUTOSCALE_UP_SHARE": "0.092",
        "AUTOSCALE_TARGET_SHARE": "0.06",
        "AUTOSCALE_DOWN_SHARE": "0.045",
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


def prefer(status: dict[str, Any]) -> None:
    """Give the actors the cores before other programs, as far as that is allowed: the time for which they wait for one counts as load."""
    with contextlib.suppress(OSError):
        for row in chain.from_iterable(status[role] for role in ROLES):
            for thread in Path(f"/proc/{row['pid']}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), -15)


async def test_node_comes_and_goes_with_load_without_losses(autoscaled: AutoscaledCluster, elastic: RunningEngine) -> None:
    books = []
    async with Traffic(elastic.url, elastic.token, "always", online=4, away=2, rate=12) as always:
        async with (
            Traffic(elastic.url, elastic.token, "rush", online=24, away=0, rate=900) as rush,
            Traffic(elastic.url, elastic.token, "later", online=2, away=0, rate=900, delay=1) as later,
        ):
            grown = await until(elastic.status, PATIENCE_S, holds=has_grown, look_s=0.5)
            assert autoscaled.nodes() == 2
            books += [await rush.finish(), await later.finish()]
        prefer(elastic.status())
        await until(elastic.status, PATIENCE_S, holds=has_shrunk, look_s=0.5)
        await until(autoscaled.nodes, PATIENCE_S, holds=lambda nodes: nodes == 1, look_s=0.2)
        books.append(await always.finish())
    decided = {(decision["role"], decision["wanted"]) for decision in grown["scaling"]["decisions"] if decision["action"] == "scale"}
    assert decided == {(role, 2) for role in ROLES}
    for book in books:
        assert book["accepted"] > 0
        assert (book["lost"], book["out_of_order"], book["wrong"], book["refused"]) == (0, 0, [], 0)
