"""The erasure of users from storage, by the task of a shard."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from redis.asyncio import Redis

from engine.actors.shard_tasks.user_erasure import UserErasure
from engine.core.shard.output import SessionEvent, ShardOutput
from engine.store.external_streams import write_session_events
from engine.store.keys import SESSION_STREAM_KEY
from tests.support.waiting import until

KEY = "t:alice"


async def test_session_events_that_wait_for_storage_are_erased_too(redis_client: Redis) -> None:
    output, erased, answered = ShardOutput(), [KEY], list[str]()
    core: Any = SimpleNamespace(
        index=0,
        output=output,
        slot_map=SimpleNamespace(owner=lambda _key: 0),
        mailbox_store=SimpleNamespace(take_erased=lambda: [erased.pop()] if erased else [], is_to_be_erased=lambda _key: False),
        user_requests=SimpleNamespace(erasing={KEY: []}, erased=answered.extend),
    )
    written = asyncio.Event()

    async def write(*, full: bool) -> None:
        written.set()

    checkpoints: Any = SimpleNamespace(write=write)
    erasure = UserErasure(redis_client, redis_client, core, checkpoints, None, lambda: None)
    output.session_events.append(SessionEvent("disconnect", KEY, "s1", "", "edge-0", 0, 1, 1000))
    running = asyncio.ensure_future(erasure.run())
    try:
        erasure.wake()
        await written.wait()
        await asyncio.sleep(0.2)
        assert not answered
        await write_session_events(redis_client, output.take_session_events(9))
        await asyncio.sleep(0.2)
        assert not answered, "it is not known to be written yet"
        assert not output.take_session_events(9)
        await until(lambda: answered)
        assert await redis_client.xlen(SESSION_STREAM_KEY) == 0
    finally:
        running.cancel()
