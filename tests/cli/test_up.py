"""What `engine up` prints while it waits."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cli.up import waiting_for

NOWHERE = {"pid": None, "ready": False}
STARTING = {"pid": 17, "ready": False}
READY = {"pid": 18, "ready": True}


def _status(shards: list[dict[str, Any]], edges: list[dict[str, Any]]) -> dict[str, Any]:
    rows = {"shards": shards, "schedulers": [READY], "edges": edges}
    return {kind: [row | {"role": kind[:-1], "index": index} for index, row in enumerate(group)] for kind, group in rows.items()}


@pytest.mark.parametrize(
    ("shards", "edges", "places", "text"),
    [
        ([STARTING], [READY], {}, "waiting for shard-0"),
        ([READY], [READY], {}, "waiting for Redis"),
        (
            [READY, NOWHERE, NOWHERE],
            [READY],
            {"engine_shard": (1.0, 0.0)},
            "waiting for shard-1, shard-2 (nodes offer 1 `engine_shard`, 0 free; 2 more needed: from the autoscaler, or "
            "`ray start --address=... --resources='{\"engine_shard\": 2}'`)",
        ),
        # Room enough: another engine has it, or the actor is starting.
        ([NOWHERE], [READY], {"engine_shard": (4.0, 0.0)}, "waiting for shard-0 (nodes offer 4 `engine_shard`, 0 free)"),
        # Every part has a place: there is nothing to say about nodes.
        ([STARTING], [STARTING], {"engine_shard": (1.0, 0.0), "engine_edge": (1.0, 0.0)}, "waiting for shard-0, edge-0"),
        ([STARTING], [NOWHERE], {"engine_shard": (1.0, 0.0), "engine_edge": (3.0, 3.0)},
         "waiting for shard-0, edge-0 (nodes offer 3 `engine_edge`, 3 free)"),
    ],
)  # fmt: skip
def test_a_start_names_the_parts_it_waits_for_and_the_places_they_lack(
    shards: list[dict[str, Any]], edges: list[dict[str, Any]], places: dict[str, tuple[float, float]], text: str
) -> None:
    assert waiting_for(_status(shards, edges), places) == text
