"""A message that ends every shard that takes it: the shard is restarted, the message put into quarantine, and all others are delivered."""

from __future__ import annotations

from operator import ge
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.store.keys import journal_quarantine_key
from tests.support.chaos.breakable_engine import ask, status_when
from tests.support.chaos.listeners import Listener, listening
from tests.support.chaos.movable_clock import MovableClock
from tests.support.chaos.poison import POISON_ID
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 110


async def test_a_message_that_ends_its_shard_twice_is_in_quarantine_and_costs_nobody_else_anything(
    victim: RunningEngine, clock: MovableClock
) -> None:
    # The status names the process of a shard that was seen last, which another test may have killed.
    before = await status_when(
        victim, lambda status: status["ready"] and all(Path(f"/proc/{row['pid']}").exists() for row in status["shards"])
    )
    user = "poisoned"
    item: dict[str, Any] = {"user": user, "type": "test.message"}
    (taken,) = (await ask(victim, "POST", "/v1/notifications", [item | {"id": "before"}]))["results"]
    assert taken["status"] == "accepted"
    # By a timer: the scheduler sends it until a shard is done with it, however long a restart takes.
    due_ms = clock.now_ms() + 10_000
    (scheduled,) = (await ask(victim, "POST", "/v1/notifications", [item | {"id": POISON_ID, "at": due_ms}]))["results"]
    assert scheduled["status"] == "scheduled"
    clock.step_until(due_ms)
    async with Redis.from_url(victim.state["redis_url"]) as redis:

        async def quarantined() -> list[int]:
            return [await redis.xlen(journal_quarantine_key(row["index"])) for row in before["shards"]]

        counts = await until(quarantined, LATE_S, holds=lambda counts: sum(counts) == 2, look_s=0.1)
        # The shard's next process may not be seen yet.
        # Where the next process takes longer than the shard's slots are kept for, another shard gets the record, and ends too.
        expected = [count > 0 for count in counts]

        def ended(status: dict[str, Any]) -> list[bool]:
            pairs = zip(before["shards"], status["shards"], strict=True)
            return [now["pid"] != then["pid"] for then, now in pairs]

        after = await status_when(victim, lambda status: status["ready"] and all(map(ge, ended(status), expected)))
        assert ended(after) == expected, "who got it ended, and no other"
        (taken,) = (await ask(victim, "POST", "/v1/notifications", [item | {"id": "after"}]))["results"]
        listener = Listener(victim, user)
        async with listening([listener]):
            await until(lambda: len(listener.messages) == 2, LATE_S)
        assert [*listener.messages] == ["before", "after"]
        assert listener.seqs == [1, 2], "it took no number"
        scheduled_now = await ask(victim, "GET", f"/v1/scheduled?user={user}")
        assert scheduled_now["scheduled"] == []
        assert sum(await quarantined()) == 2, "it was refused the third time"
