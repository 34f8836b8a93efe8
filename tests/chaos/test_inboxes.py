"""Kill the shard between acknowledgements and the checkpoint that stores them: the inbox has every message and every mark."""

from __future__ import annotations

import pytest

from tests.support.chaos.breakable_engine import status_when, victim_of
from tests.support.chaos.judged_run import JudgedRun
from tests.support.chaos.listeners import listening
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 110
MESSAGES = 30


async def test_what_was_acknowledged_and_marked_survives_its_shard(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    users, ids = [f"keeper-{number}" for number in range(5)], [f"kept-{number}" for number in range(MESSAGES)]
    async with JudgedRun(victim) as run, listening(listeners := run.listeners(users)):  # on all shards
        await run.publish(*({"users": users, "type": "test.kept", "id": id, "data": {"id": id}} for id in ids))
        await until(lambda: all(len(one.messages) == MESSAGES for one in listeners), LATE_S)
        before = [await run.mark(user, "read", ids[:10]) for user in users]
        assert [counts["unread"] for counts in before] == [MESSAGES - 10] * len(users)
        victim_of(victim).kill("shard")
        after = [await run.inbox(user) for user in users]
        for found in after:
            assert [message["id"] for message in found["messages"]] == ids[::-1]
            assert [message["data"]["id"] for message in found["messages"]] == ids[::-1]
            assert {message["id"] for message in found["messages"] if message["read"]} == set(ids[:10])
        grown = [now["revision"] - then["revision"] for then, now in zip(before, after, strict=True)]
        assert min(grown) >= 0
        assert max(grown) > 0, "no user was of the shard that was killed"
        for user, found in zip(users, after, strict=True):
            counts = await run.mark(user, "archive", ids[:3], {"upto": found["messages"][-3]["seq"]})
            assert counts["unread"] == MESSAGES - 10
        victim_of(victim).kill("shard")
        for user in users:
            archived = await run.inbox(user, "&archived=true")
            assert [message["id"] for message in archived["messages"]] == ids[2::-1]
        run.complete()
    assert not any(one.renumbered for one in listeners)
