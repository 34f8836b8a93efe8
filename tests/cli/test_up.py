"""What `engine up` decides before it creates the actors, and what it prints while it waits."""

from __future__ import annotations

import io
from typing import Any

import pytest
from redis.asyncio import Redis
from rich.console import Console

from engine.cli.up import _Run, waiting_for
from engine.config import Config
from engine.core.model.routing import shards_for
from engine.store.slot_map import claim_slot_map
from tests.support.redis_server import RedisServer

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


async def chosen(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, shards: int, cores: float = 8.0) -> tuple[int, str]:
    """The number of shards on a machine with so many cores, and what is printed."""
    printed = io.StringIO()
    run = _Run(Config(redis_url=redis_server.url, shards=shards), Console(file=printed))
    monkeypatch.setattr(run._cluster, "cores", lambda: cores)
    monkeypatch.setattr(run._cluster, "places", lambda: {"engine_shard": (1024, 1024)})
    await run._choose_shards()
    return run._config.shards, printed.getvalue()


async def test_new_data_gets_as_many_shards_as_the_cores_call_for(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await chosen(redis_server, monkeypatch, 0) == (shards_for(8, 1024), "2 shards, for 8 cores; --shards sets another number\n")
    assert await chosen(redis_server, monkeypatch, 0, 2.0) == (1, "1 shard, for 2 cores; --shards sets another number\n")


async def test_stored_data_keeps_its_number_of_shards_whatever_the_cores(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claim_slot_map(redis_client, 3)
    assert await chosen(redis_server, monkeypatch, 0) == (3, "3 shards, as the stored data has; --shards sets another number\n")


async def test_a_number_that_is_given_is_taken(redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    await claim_slot_map(redis_client, 3)
    assert await chosen(redis_server, monkeypatch, 5) == (5, "")
