"""Bodies of pending messages, read from the offline streams of a real Redis."""

from __future__ import annotations

import time

import msgspec
import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.journal.journal_records import spill_of
from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.message import SharedBody
from engine.core.model.routing import slot_of
from engine.errors import StorageUnavailable
from engine.store import pending_bodies
from engine.store.broadcast_stream import BroadcastLog
from engine.store.journal import Journal
from engine.store.keys import offline_key
from engine.store.pages import Pages
from engine.store.pending_bodies import PendingBodies
from tests.support.mailboxes import KEY, mailbox
from tests.support.stored import LAYOUTS

NOW_MS = int(time.time() * 1000)


async def spill(client: Redis, count: int) -> PendingBodies:
    journal = Journal(client, 0, 1000)
    await journal.take_over((slot_of(KEY),))
    await Pages(client, journal.loss_detector, LAYOUTS, 10_000).write([spill_of(mailbox(NOW_MS, count))], NOW_MS)
    return PendingBodies(client)


async def test_ranges_are_read_newest_first_over_pages(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_bodies, "_PAGE", 3)
    bodies = await spill(redis_client, 20)
    found = (await bodies.read(KEY, [(15, 19), (1, 4)], 1 << 20)).messages
    assert [stored.seq for stored in found] == [19, 18, 17, 16, 15, 4, 3, 2, 1]
    assert found[0].envelope.body == b'"id":"m19"'


async def test_reading_ends_at_the_bytes_that_are_allowed(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_bodies, "_PAGE", 3)
    bodies = await spill(redis_client, 20)
    found, more = await bodies.read(KEY, [(1, 20)], 1)
    assert (len(found), more) == (3, True)
    assert not (await bodies.read(KEY, [(1, 20)], 1 << 20)).more


async def test_what_is_not_there_or_cannot_be_decoded_is_left_out(redis_client: Redis) -> None:
    bodies = await spill(redis_client, 3)
    await redis_client.xdel(offline_key(KEY), "2-0")
    await redis_client.xadd(offline_key(KEY), {b"m": b"\xc1"}, id="9-0")
    assert [stored.seq for stored in (await bodies.read(KEY, [(1, 9)], 1 << 20)).messages] == [3, 1]
    assert (await bodies.read("t:nobody", [(1, 9)], 1 << 20)).messages == []


async def test_bodies_of_broadcasts_are_read_from_the_log_while_it_has_them(redis_client: Redis) -> None:
    broadcasts = BroadcastLog(redis_client, Config())
    envelope = Envelope("b", b"d" * 8, NORMAL, True, b'"id":"b"')
    (appended,) = await broadcasts.append([(BroadcastEntry("t", "news", envelope, NOW_MS + 60_000, NOW_MS), "b")])
    box = mailbox(NOW_MS, 3)
    for seq, pos in ((1, appended.pos), (3, appended.pos + 1)):
        box.hot[seq].envelope = msgspec.structs.replace(envelope, body=SharedBody.at(pos, envelope.body))
    journal = Journal(redis_client, 0, 1000)
    await journal.take_over((slot_of(KEY),))
    await Pages(redis_client, journal.loss_detector, LAYOUTS, 10_000).write([spill_of(box)], NOW_MS)
    found = (await PendingBodies(redis_client).read(KEY, [(1, 3)], 1 << 20)).messages
    assert [(stored.seq, stored.envelope.body) for stored in found] == [(2, b'"id":"m2"'), (1, b'"id":"b"')]
    await broadcasts.drop([appended.pos])
    assert [stored.seq for stored in (await PendingBodies(redis_client).read(KEY, [(1, 3)], 1 << 20)).messages] == [2]


async def test_a_redis_that_does_not_answer_is_reported(redis_client: Redis) -> None:
    class Away(msgspec.Struct):
        async def xrevrange(self, *_: object, **__: object) -> None:
            raise ConnectionResetError

    with pytest.raises(StorageUnavailable):
        await PendingBodies(Away()).read(KEY, [(1, 2)], 1)  # type: ignore[arg-type]
