"""Data of every kind with bodies or numbers, as an engine stores them, and everything that its readers would deliver from them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from engine.cli.feature_data import FEATURES
from engine.config import Config
from engine.core.journal.journal_records import StoredMessage
from engine.core.journal.stored_formats import decode_timer
from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.model.action import action_of
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.model.routing import SLOTS, partition_of, timer_id
from engine.core.scheduler.scheduler_events import StoreRequest, StoreWork
from engine.core.shard.mailbox_store import DeadLetter, StreamRead
from engine.core.wire.records import UNREADABLE, Detach, Schedule, Timer
from engine.features.actions.store import ActionStreams, append_actions
from engine.features.dead_letters.store import DeadLetterStream, write_dead_letters
from engine.features.snapshots.snapshots import Snapshots
from engine.features.verification.stored_records import Verification
from engine.store.broadcast_stream import BroadcastLog
from engine.store.embedded_redis import EmbeddedRedis
from engine.store.journal import Journal
from engine.store.keys import offline_key, timer_key
from engine.store.offline_streams import OfflineStreams
from engine.store.pages import Pages
from engine.store.redis_client import claim_data_epoch, connect
from engine.store.server_program import ServerProgram
from engine.store.slot_map import claim_slot_map
from engine.store.timer_store import TimerStore
from tests.support.shard_process import shard_process
from tests.support.stored import LAYOUTS, salvage_journal
from tests.support.waiting import until

ABSENT = [f"t:absent{number}" for number in range(6)]
PRESENT = [f"t:present{number}" for number in range(4)]
TIMED = [f"t:timed{number}" for number in range(6)]
TARGET = "ray://jobs/Robot.run"
MESSAGES = 8
"""Of each user."""

Delivered = frozenset[tuple[str, str, int, str, bytes]]
"""(way, user or audience, number, id, body) of each message that readers return, and the numbers of each page under the way `page`."""


class Found(Struct, frozen=True):
    """What readers and the check return: what is deliverable, and what is reported as damaged."""

    delivered: Delivered
    damaged: tuple[str, ...]


class Unguarded:
    """A loss detector of readers that have written nothing."""

    def guard(self, pipeline: Any, _slots: Any) -> Any:
        pipeline.ping()
        return lambda _: None


def body_of(name: str) -> bytes:
    return b'"id":"%b","data":"%b"' % (name.encode(), name.encode() * 12)


def envelope(name: str) -> Envelope:
    return Envelope(name, b"digest..", NORMAL, True, body_of(name))


async def make(config: Config, server: ServerProgram) -> None:
    """Fill the data directory, with a snapshot, a base and an increment of the append-only file."""
    redis = EmbeddedRedis(config, [server])
    await redis.start()
    own = Config(data_dir=config.data_dir, redis_url=redis.url, shards=1, redis_durability="reported", checkpoint_ms=200)
    client = connect(own)
    try:
        await claim_data_epoch(client, 1_700_000_000)
        await claim_slot_map(client, 1, 1)
        async with shard_process(own) as shard:
            for conn, key in enumerate(PRESENT, 1):
                await shard.attach(conn, key)
            for key in ABSENT:
                await _publish(shard, key, 0, MESSAGES // 2)
            await until(lambda: client.exists(offline_key(ABSENT[-1])))
            await Snapshots(config.data_dir).take(client, 1)
            await client.bgrewriteaof()
            await until(lambda: _rewritten(client))
            for key in ABSENT:
                await _publish(shard, key, MESSAGES // 2, MESSAGES)
            for conn, key in enumerate(PRESENT, 1):
                shard.link.send(Detach(conn, 1006))
                await _publish(shard, key, 0, MESSAGES)
            for key in (*ABSENT, *PRESENT):
                await until(lambda key=key: _has_all(client, key))  # type: ignore[misc]
        await _other_kinds(client, own)
        async with shard_process(replace(own, checkpoint_ms=3_600_000)) as shard:  # its journal stays
            for key in PRESENT:
                await _publish(shard, key, MESSAGES, 2 * MESSAGES)
    finally:
        await client.aclose()
        await redis.stop()


async def _publish(shard: Any, key: str, first: int, end: int) -> None:
    for number in range(first, end):
        await shard.post(key, f"{key}-{number}")


async def _has_all(client: Redis, key: str) -> bool:
    return bool(await client.xlen(offline_key(key)) == MESSAGES)


async def _rewritten(client: Redis) -> bool:
    info: Any = await client.info("persistence")
    return not info["aof_rewrite_in_progress"] and not info.get("aof_rewrite_scheduled")


async def _other_kinds(client: Redis, config: Config) -> None:
    for key in TIMED:
        store = TimerStore(client, config, [partition_of(key)], "scheduler-0")
        await store.take_over()
        sid = timer_id(key, "unique")
        timer = Timer(sid, key, int(time.time() * 1000) + 86_400_000, 1_000, 3_600_000, envelope(key))
        await store.apply([StoreWork(partition_of(key), 0, {}, [StoreRequest(Schedule(1, True, timer), False)])], int(time.time() * 1000))
    log = BroadcastLog(client, config)
    for number in range(6):
        await log.append([(BroadcastEntry("t", f"topic{number}", envelope(f"b{number}"), 10**15, 5), f"b{number}")])
    letters = [DeadLetter(key, Message(3, envelope(f"dead-{key}"), 10**15, 5), "no renderer") for key in ABSENT]
    await write_dead_letters(client, letters, 100)
    due = int(time.time() * 1000)
    calls = [
        Timer(timer_id(key, "call"), key, due, 1_000, 3_600_000, envelope(f"call-{key}"), action=action_of(TARGET, key, f"call-{key}"))
        for key in TIMED
    ]
    appended, full = await append_actions(client, config, calls)
    assert (len(appended), full) == (len(calls), [])


async def read(client: Redis, config: Config) -> Found:
    """Everything that the engine's own readers return, and everything that they or `engine verify` report."""
    unguarded: Any = Unguarded()
    pages, offline = Pages(client, unguarded, LAYOUTS, 100), OfflineStreams(client, unguarded, LAYOUTS)
    found: set[tuple[str, str, int, str, bytes]] = set()
    damaged: list[str] = []
    users = [*ABSENT, *PRESENT]
    pages_found = await pages.read(users)
    streams = await offline.read([StreamRead(key, 1, 1 << 52) for key in users])
    for (key, page), messages in zip(pages_found.items(), streams, strict=True):
        found |= {("offline", *_of(stored)) for stored in messages}
        if page is not None and key not in pages.damaged:
            found.add(("page", key, page.head, str(page.floor), b""))
            missing = set(range(page.floor + 1, page.head + 1)) - {stored.seq for stored in messages}
            damaged += [f"gap of {key} at {seq}" for seq in sorted(missing)]  # as a shard announces it
    damaged += [where for where, _ in (*pages.corrupt, *offline.corrupt)]
    journal = Journal(client, 0, 1000)
    heads = {key: page.head for key, page in pages_found.items() if page is not None}
    for slot in range(SLOTS):
        async for entry_id, payload in journal.entries(slot):
            salvaged = salvage_journal(payload)
            for record in salvaged.records:
                if isinstance(record, StoredMessage):
                    found.add(("journal", *_of(record)))
                    if record.seq > heads.get(record.key, 0) + 1:
                        damaged.append(f"gap of {record.key} before {record.seq}")
                    heads[record.key] = max(heads.get(record.key, 0), record.seq)
            if not salvaged.complete:
                damaged.append(f"journal {entry_id.decode(errors='replace')}")
        damaged += [f"journal before {entry_id.decode(errors='replace')}" for entry_id in journal.holes]
    await _read_shared(client, config, found)
    found |= await _timers(client)
    verified = await Verification(client, FEATURES).run()
    damaged += [f"{one.kind} {one.key} {one.place}" for one in verified.damage]
    return Found(frozenset(found), tuple(damaged))


async def _read_shared(client: Redis, config: Config, found: set[tuple[str, str, int, str, bytes]]) -> None:
    log, after = BroadcastLog(client, config), 0
    while True:
        broadcasts, reached, dropped = await log.read(after, wait=False)
        found |= {("broadcast", f"{b.tenant} {b.topic}", 0, b.envelope.id, bytes(b.envelope.body)) for b in broadcasts}
        if reached == after and dropped is None:
            break
        after = reached
    page = await DeadLetterStream(client, config).page("t", count=100)
    found |= {("dead letter", letter.user, letter.seq, letter.id, letter.body) for letter in page.letters if letter.body}
    streams = ActionStreams(client, config, "edge-0")
    for target in await streams.targets():
        for action in (*await streams.read(target, 100, again=True), *await streams.read(target, 100)):
            if not action.damaged:
                found.add(("action", f"{action.tenant}:{action.user} {target}", 0, action.id, action.body))


async def _timers(client: Redis) -> set[tuple[str, str, int, str, bytes]]:
    found = set()
    for key in TIMED:
        sid = timer_id(key, "unique")
        packed: Any = await client.hget(timer_key(partition_of(key)), sid)
        try:
            timer = None if packed is None else decode_timer(packed)
        except UNREADABLE:
            continue
        if timer is not None and timer.sid == sid:
            found.add(("timer", timer.key, 0, timer.envelope.id, bytes(timer.envelope.body)))
    return found


def _of(stored: StoredMessage) -> tuple[str, int, str, bytes]:
    return stored.key, stored.seq, stored.envelope.id, bytes(stored.envelope.body)


def files_of(data_dir: Path) -> list[Path]:
    """The files of the append-only file."""
    return sorted(path for path in (data_dir / "redis" / "appendonlydir").iterdir() if path.suffix in (".aof", ".rdb"))
