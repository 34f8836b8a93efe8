"""Users of a running engine who get messages and acknowledge none, so that all that was accepted stays to be seen."""

from __future__ import annotations

from typing import Final

import httpx

from tests.support.running_engine import RunningEngine

USERS: Final = tuple(f"reader-{number}" for number in range(16))
"""So many that each store and each shard has some."""


async def accepted(engine: RunningEngine, id: str) -> bool:
    """Whether the engine takes a message of this name for each user. What it took before counts."""
    try:
        await engine.publish(*({"user": user, "type": "test.event", "id": f"{id}-{user}"} for user in USERS))
    except (AssertionError, httpx.HTTPError):
        return False
    return True


async def assert_kept(engine: RunningEngine, *ids: str) -> None:
    """Each user has the messages of these names, in this order."""
    for user in USERS:
        async with engine.connect(user) as socket:
            found: list[str] = []
            while len(set(found)) < len(ids):
                found += [message["id"] for message in (await engine.receive(socket, "messages"))["messages"]]
        assert list(dict.fromkeys(found)) == [f"{id}-{user}" for id in ids]
