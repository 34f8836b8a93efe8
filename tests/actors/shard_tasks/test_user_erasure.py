"""The erasure of users from storage, by the task of a shard."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from redis.asyncio import Redis

from engine.actors.shard_tasks.user_erasure import UserErasure
from engine.config import Config
from engine.core.mailbox.broadcast_log import BroadcastMirror
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.shard.mailbox_store import DeadLetter, MailboxStore
from engine.core.shard.output import SessionEvent, ShardOutput
from engine.features.dead_letters.store import write_dead_letters
from engine.store.external_streams import write_session_events
from engine.store.keys import SESSION_STREAM_KEY, dead_letter_key
from tests.support.background_task import background
from tests.support.waiting import until

KEY = "t:alice"


def core_that_erases(output: ShardOutput, is_writing_letters_of: Any, answered: list[str]) -> Any:
    """A shard that has erased the user: neither its pages nor its journal have anything."""
    erased = [KEY]
    return SimpleNamespace(
        index=0,
        output=output,
        slot_map=SimpleNamespace(owner=lambda _key: 0),
        mailbox_store=SimpleNamespace(
            take_erased=lambda: [erased.pop()] if erased else [],
            is_to_be_erased=lambda _key: False,
            is_writing_letters_of=is_writing_letters_of,
        ),
        user_requests=SimpleNamespace(erasing={KEY: []}, erased=answered.extend),
    )


async def test_session_events_that_wait_for_storage_are_erased_too(redis_client: Redis) -> None:
    output, answered = ShardOutput(), list[str]()
    core = core_that_erases(output, lambda _keys: False, answered)
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


async def test_dead_letters_that_are_being_written_are_erased_too(redis_client: Redis) -> None:
    store, answered, looks = MailboxStore(Config(), BroadcastMirror()), list[str](), list[bool]()
    store.dead_letters.append(DeadLetter(KEY, Message(1, Envelope("m1", b"", NORMAL, True, b'"id":"m1"'), 0, 9), "cannot"))
    letters = store.take_dead_letters()

    def look(keys: Collection[str]) -> bool:
        looks.append(store.is_writing_letters_of(keys))
        return looks[-1]

    async def write(*, full: bool) -> None:
        """There is nothing to write."""

    checkpoints: Any = SimpleNamespace(write=write)
    core = core_that_erases(ShardOutput(), look, answered)
    erasure = UserErasure(redis_client, redis_client, core, checkpoints, None, lambda: None)
    async with background(erasure.run()):
        erasure.wake()
        await until(lambda: looks)
        await write_dead_letters(redis_client, letters, 100)
        assert not answered
        store.dead_lettered(letters)
        await until(lambda: answered)
        assert await redis_client.xlen(dead_letter_key("t")) == 0
