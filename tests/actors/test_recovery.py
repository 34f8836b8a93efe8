"""A shard whose stored records were damaged: nothing crashes, no number is given out twice, who is concerned is told of a gap."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.actors.actor_process import ProcessContext
from engine.actors.carrier import RayPeer
from engine.actors.link import LinkCaller
from engine.actors.shard import Shard
from engine.config import Config
from engine.core.journal.journal_records import StoredMessage
from engine.core.model.envelope import Envelope
from engine.core.model.routing import slot_of
from engine.core.model.sealed import sealed, unsealed
from engine.core.wire import records as wire
from engine.core.wire.records import Attach, Deliver, GapRange, Post, Posted, Welcome
from engine.errors import StorageUnavailable
from engine.store.keys import journal_key, journal_quarantine_key, offline_key, page_key
from engine.store.pages import Pages
from engine.store.redis_client import claim_data_epoch, connect
from engine.store.slot_map import claim_slot_map
from tests.support.link_peers import Nobody
from tests.support.vitals import vitals_without_ray
from tests.support.waiting import until

FAR_MS = int(time.time() * 1000) + 3_600_000
ANN, BOB = "t:ann", "t:bob"


class Process:
    """One incarnation of the shard on a real Redis, and the edge that talks to it; Ray is replaced by function calls."""

    def __init__(self, config: Config) -> None:
        self.client = connect(config)
        context = ProcessContext(
            connect=lambda _config: self.client,
            peer=lambda _name, _namespace: Nobody(),
            tune_memory=lambda: None,
            lasting=contextlib.nullcontext,
            vitals=vitals_without_ray,
        )
        self.shard = Shard(config, 0, context)
        self.shard.begin()
        self.records: list[Any] = []
        self.exchange = self
        self.link = LinkCaller(RayPeer(self), "edge-0", wire.from_shard, config, on_records=self.records.extend, on_reset=lambda: None)
        self._running = asyncio.ensure_future(self.link.run())
        self._refs = 0

    def remote(self, session: str, seq: int, data: bytes) -> Any:
        return self.shard.exchange(session, seq, data)

    async def kill(self) -> None:
        """As kill -9 would: nothing is written on the way out."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.aclose()

    async def heard(self, holds: Callable[[Any], bool]) -> Any:
        """The first record for which this holds."""
        return await until(lambda: next(filter(holds, self.records), None))

    async def post(self, key: str, id: str) -> int:
        """Publish; the number the message got."""
        await until(lambda: self.link.open)
        self._refs += 1
        ref = self._refs
        self.link.send(Post(ref, key, True, FAR_MS, Envelope(id, b"digest..", 1, True, b'"id":"%b"' % id.encode())))
        answer = await self.heard(lambda record: isinstance(record, Posted) and record.ref == ref)
        assert answer.status == wire.ACCEPTED, answer
        return int(answer.seq)

    async def attach(self, conn: int, key: str, epoch: str = "", seq: int = 0) -> Welcome:
        await until(lambda: self.link.open)
        self.link.send(Attach(conn, key, wire.WEBSOCKET, epoch, seq, f"c{conn}", ""))
        welcome: Welcome = await self.heard(lambda record: isinstance(record, Welcome) and record.conn == conn)
        return welcome

    def delivered(self, conn: int) -> list[int]:
        return [seq for record in self.records if isinstance(record, Deliver) and record.conn == conn for seq, _, _ in record.messages]


Start = Callable[[], Process]


@pytest.fixture
async def start(redis_client: Redis, redis_server_url: str) -> AsyncIterator[Start]:
    """Starts an incarnation; checkpoints come only when a user goes offline."""
    await claim_data_epoch(redis_client, 1_700_000_000)
    await claim_slot_map(redis_client, 1, 1)
    config = Config(redis_url=redis_server_url, shards=1, checkpoint_ms=3_600_000)
    started: list[Process] = []

    def start_one() -> Process:
        started.append(Process(config))
        return started[-1]

    yield start_one
    for process in started:
        with contextlib.suppress(asyncio.CancelledError):
            await process.kill()


def journal_of(key: str) -> str:
    return journal_key(slot_of(key))


async def damage_last_entry(redis_client: Redis, key: str, damage: Callable[[bytes], bytes]) -> None:
    """Replace the newest journal entry of this user by what `damage` makes of it."""
    entries: Any = await redis_client.xrange(journal_of(key))
    await redis_client.delete(journal_of(key))
    entries[-1][1][b"b"] = damage(entries[-1][1][b"b"])
    for entry_id, fields in entries:
        await redis_client.xadd(journal_of(key), fields, id=entry_id)


def with_another_bit(blob: bytes, text: bytes) -> bytes:
    """The stored value with one bit of this text another, which MessagePack and JSON take for true."""
    at = blob.index(text)
    return blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]


def of_a_wrong_type(entry: bytes) -> bytes:
    """The entry with a text as the body of its first message, where bytes belong."""
    records = msgspec.msgpack.decode(unsealed(entry))
    envelope = records[0][1 + StoredMessage.__struct_fields__.index("envelope")]  # behind the tag
    envelope[Envelope.__struct_fields__.index("body")] = "a text"
    return sealed(msgspec.msgpack.encode(records))


async def test_the_number_of_a_message_that_cannot_be_read_is_not_given_again_and_its_user_is_told(
    start: Start, redis_client: Redis
) -> None:
    first = start()
    assert [await first.post(ANN, "a"), await first.post(BOB, "b"), await first.post(ANN, "c")] == [1, 1, 2]
    await first.kill()
    await damage_last_entry(redis_client, ANN, of_a_wrong_type)
    second = start()
    assert await second.post(ANN, "d") == 3
    assert await second.post(BOB, "e") == 2
    welcome = await second.attach(1, ANN)
    gap = await second.heard(lambda record: isinstance(record, GapRange))
    assert (gap.conn, gap.first, gap.last) == (1, 2, 2)
    assert second.delivered(1) == [1, 3]
    assert (await second.attach(2, BOB, welcome.epoch, 0)).resumed == "ok", "nothing of this user was lost"
    assert await redis_client.xlen(journal_quarantine_key(0)) == 1
    assert (await second.shard.stats())["quarantined"] == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry[:-20],
        lambda entry: with_another_bit(entry, b'"id":"b"'),
        lambda _: b"",
        lambda entry: b"\xc1" + entry,
        lambda entry: b"\x7f" + entry[1:],
        lambda _: b"\xdd\xff\xff\xff\xff",
    ],
)
async def test_an_entry_that_hides_whose_numbers_it_held_changes_the_data_epoch(
    start: Start, redis_client: Redis, damage: Callable[[bytes], bytes]
) -> None:
    first = start()
    await first.post(ANN, "a")
    before = await first.attach(1, ANN)
    await first.post(BOB, "b")
    await first.kill()
    await damage_last_entry(redis_client, BOB, damage)
    second = start()
    after = await second.attach(2, ANN, before.epoch, 1)
    assert after.epoch != before.epoch
    assert after.resumed == "gap"
    await second.heard(lambda record: isinstance(record, Deliver) and record.conn == 2)
    assert (await second.shard.stats())["quarantined"] == 1


async def spilled(process: Process, redis_client: Redis, key: str) -> None:
    """The user's messages are in the offline stream, and the page says so."""
    await process.attach(9, key)
    await process.heard(lambda record: isinstance(record, Deliver) and record.conn == 9)
    process.link.send(wire.Detach(9, 1006))
    await until(lambda: redis_client.hexists(page_key(slot_of(key)), key))


@pytest.mark.parametrize("known", [True, False])
async def test_a_page_that_cannot_be_read_costs_no_number_and_no_message(start: Start, redis_client: Redis, known: bool) -> None:
    first = start()
    for id in ("a", "b", "c"):
        await first.post(ANN, id)
    await spilled(first, redis_client, ANN)
    before = await first.attach(3, BOB)
    await first.kill()
    await redis_client.delete(journal_of(ANN))
    page = await redis_client.hget(page_key(slot_of(ANN)), ANN)
    assert page is not None
    await redis_client.hset(
        page_key(slot_of(ANN)), ANN, sealed(unsealed(page, ANN.encode())[:6], ANN.encode()) if known else b"\xffgarbage"
    )
    second = start()
    after = await second.attach(1, ANN, before.epoch, 0)
    await second.heard(lambda record: isinstance(record, Deliver))
    assert second.delivered(1) == [1, 2, 3]
    assert await second.post(ANN, "d") == 4
    assert after.resumed == ("ok" if known else "gap")
    assert (after.epoch == before.epoch) is known
    await spilled_again(second, redis_client)


async def test_a_group_that_storage_has_lost_in_the_middle_changes_the_data_epoch(start: Start, redis_client: Redis) -> None:
    first = start()
    for id in "abc":
        await first.post(ANN, id)
    before = await first.attach(1, BOB)
    await first.kill()
    entries = await redis_client.xrange(journal_of(ANN))
    await redis_client.xdel(journal_of(ANN), entries[-2][0])
    second = start()
    after = await second.attach(1, ANN, before.epoch, 0)
    assert after.resumed == "gap"
    assert after.epoch != before.epoch


async def spilled_again(process: Process, redis_client: Redis) -> None:
    """What comes after the damage is written, not taken for written already."""
    process.link.send(wire.Detach(1, 1006))
    await until(lambda: redis_client.xlen(offline_key(ANN)), holds=lambda length: length == 4)
    assert (await process.shard.stats())["quarantined"] == 1


async def test_what_was_read_before_storage_failed_on_the_way_counts_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start()
    for id in ("a", "b", "c"):
        await first.post(ANN, id)
    await first.kill()
    deadlines, failures = Pages.deadlines, [StorageUnavailable("not now")]

    async def failing_once(pages: Pages, slots: Sequence[int]) -> dict[int, list[tuple[str, int]]]:
        if failures:
            raise failures.pop()
        return await deadlines(pages, slots)

    monkeypatch.setattr(Pages, "deadlines", failing_once)
    second = start()
    assert await second.post(ANN, "d") == 4
    core = second.shard._core
    assert not failures
    assert core.mailbox_store.memory.messages == len(core.mailboxes[ANN].hot) == 4


async def test_a_kept_message_with_another_bit_is_a_gap_and_its_neighbours_come(start: Start, redis_client: Redis) -> None:
    first = start()
    for id in ("first", "second", "third"):
        await first.post(ANN, id)
    await spilled(first, redis_client, ANN)
    await first.kill()
    await redis_client.delete(journal_of(ANN))
    entries: Any = await redis_client.xrange(offline_key(ANN))
    await redis_client.delete(offline_key(ANN))
    for entry_id, fields in entries:
        blob = fields[b"m"]
        await redis_client.xadd(offline_key(ANN), {"m": with_another_bit(blob, b"second") if entry_id == b"2-0" else blob}, id=entry_id)
    second = start()
    await second.attach(1, ANN)
    gap = await second.heard(lambda record: isinstance(record, GapRange))
    assert (gap.first, gap.last) == (2, 2)
    await until(lambda: second.delivered(1), holds=lambda seqs: len(seqs) == 2)
    assert second.delivered(1) == [1, 3]
    await until(lambda: redis_client.xlen(journal_quarantine_key(0)))


async def test_a_stored_message_under_another_users_name_is_not_delivered(start: Start, redis_client: Redis) -> None:
    """The key of a value has no checksum: a damaged one may be another user's."""
    first = start()
    for key, id in ((ANN, "of ann"), (BOB, "of bob")):
        await first.post(key, id)
        await spilled(first, redis_client, key)
    await first.kill()
    await redis_client.delete(journal_of(ANN), journal_of(BOB))
    await redis_client.rename(offline_key(ANN), offline_key(BOB))
    second = start()
    await second.attach(1, BOB)
    gap = await second.heard(lambda record: isinstance(record, GapRange))
    assert (gap.first, gap.last) == (1, 1)
    assert second.delivered(1) == []
    await until(lambda: redis_client.xlen(journal_quarantine_key(0)))


async def test_no_garbage_is_collected_while_a_journal_is_read(start: Start) -> None:
    first = start()
    await first.post(ANN, "one")
    await first.kill()
    seen, process = [], start()

    @contextlib.contextmanager
    def lasting() -> Iterator[None]:
        seen.append(list(process.shard._core.mailboxes))
        yield
        seen.append(list(process.shard._core.mailboxes))

    process.shard._context = dataclasses.replace(process.shard._context, lasting=lasting)
    await until(lambda: process.link.open)
    assert seen == [[], [ANN]]
