"""The load of the last hour on a real Redis."""

from __future__ import annotations

import json

import pytest
from redis.asyncio import Redis

from engine.errors import StorageUnavailable
from engine.features.inspection.core import LoadPoint
from engine.features.inspection.load_history import LoadHistory


async def test_the_newest_points_are_kept_and_read_oldest_first(redis_client: Redis) -> None:
    history = LoadHistory(redis_client, 3)
    assert await history.read() == []
    for at in range(5):
        await history.add(LoadPoint(at, 10, published=at))
    assert [json.loads(point)["at"] for point in await history.read()] == [2, 3, 4]
    assert json.loads((await history.read())[-1]) == {"at": 4, "over_ms": 10, "published": 4}


async def test_storage_that_does_not_answer_is_said_so() -> None:
    nobody = LoadHistory(Redis(host="127.0.0.1", port=1), 3)
    with pytest.raises(StorageUnavailable):
        await nobody.read()
    with pytest.raises(StorageUnavailable):
        await nobody.add(LoadPoint(1, 1))
