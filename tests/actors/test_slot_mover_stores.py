"""Slots of the second of two stores of a real Redis Cluster move while the first one, which has what all shards share, is away."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.mailbox.broadcast_log import EVERYONE, BroadcastEntry
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.routing import slot_of, spread
from engine.core.wire import records
from engine.core.wire import records as wire
from engine.errors import StorageUnavailable
from engine.store.broadcast_stream import BroadcastLog
from engine.store.keys import SESSION_STREAM_KEY, dead_letter_key, handed_events_key
from engine.store.redis_client import claim_data_epoch, connect
from engine.store.slot_map import claim_slot_map, require_slot_map
from engine.store.stores import each_store
from tests.support.chaos.cluster_group import ClusterGroup
from tests.support.shard_process import FAR_MS, ShardProcess, shard_process
from tests.support.waiting import until

SOURCE, TARGET = 1, 3
ANN = next(f"t:ann{n}" for n in range(99) if spread(4, store=1, stores=2).owner(f"t:ann{n}") == SOURCE)
BOB = next(
    f"t:bob{n}" for n in range(99) if slot_of(f"t:bob{n}") == slot_of(ANN) or spread(4, store=1, stores=2).owner(f"t:bob{n}") == SOURCE
)
SETUP_TIMEOUT_MS = 20_000
"""Before the servers are broken on purpose, they may be as slow as the machine."""
MOVED = sorted({slot_of(ANN), slot_of(BOB)})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterGroup]:
    """Masters without replicas: what is away stays away until it is started again."""
    with ClusterGroup(tmp_path, stores=2) as group:
        yield group


@pytest.fixture
async def config(cluster: ClusterGroup) -> Config:
    config = Config(
        redis_url=cluster.url,
        shards=4,
        schedulers=2,
        redis_timeout_ms=400,
        checkpoint_ms=600_000,
        ack_journal_ms=10,
        log_level="CRITICAL",
    )
    for index, one in enumerate(each_store(msgspec.structs.replace(config, redis_timeout_ms=SETUP_TIMEOUT_MS))):
        client = connect(one)
        await claim_data_epoch(client, int(time.time()))
        await claim_slot_map(client, 4, 2, index, 2)
        await client.aclose()
    return config


class Two:
    """The source, the target, and the clients of the two stores."""

    def __init__(self, config: Config, cluster: ClusterGroup, source: ShardProcess, target: ShardProcess, clients: list[Redis]) -> None:
        self.source, self.target = source, target
        self.server = cluster.master(0)
        self.first, self.second = clients
        self._log = BroadcastLog(clients[0], config)

    async def broadcast(self, id: str) -> int:
        envelope = Envelope(id, b"digest..", NORMAL, True, b'"id":"%b"' % id.encode())
        ((_, pos),) = [(one.status, one.pos) for one in await self._log.append([(BroadcastEntry("t", EVERYONE, envelope, FAR_MS, 1), id)])]
        return pos

    async def move(self) -> None:
        await self.target.shard.adopt(await self.source.shard.hand_over(MOVED, TARGET))
        assert (await require_slot_map(self.second)).owner(ANN) == TARGET

    async def attach_again(self, conn: int, key: str, seq: int, sent: int) -> None:
        """As the edge does whose connection has moved. It knows the epoch of the data from its welcome."""
        epoch = next(record.epoch for record in self.source.of(wire.Welcome) if record.conn == conn)
        self.target.link.send(records.Attach(conn, key, wire.WEBSOCKET, epoch, seq, f"c{conn}", "phone", resume=True, sent=sent))

    async def events(self) -> list[tuple[str, str]]:
        """Of the session stream: event and connection."""
        entries: Any = await self.first.xrange(SESSION_STREAM_KEY)
        return [(fields[b"event"].decode(), fields[b"session"].decode()) for _, fields in entries]

    async def letters(self) -> list[str]:
        entries: Any = await self.first.xrange(dead_letter_key("t"))
        return [fields[b"id"].decode() for _, fields in entries]


@asynccontextmanager
async def two_shards(config: Config, cluster: ClusterGroup) -> AsyncIterator[Two]:
    clients = [connect(one) for one in each_store(config)]
    async with shard_process(config, SOURCE) as source, shard_process(config, TARGET) as target:
        yield Two(config, cluster, source, target, clients)
    for client in clients:
        await client.aclose()


@pytest.fixture
async def two(config: Config, cluster: ClusterGroup) -> AsyncIterator[Two]:
    async with two_shards(config, cluster) as found:
        yield found


def shown(process: ShardProcess, conn: int) -> list[int]:
    """The numbers that the connection was sent, each as it came first; repeats are left out."""
    numbers: list[int] = []
    for record in process.records:
        if isinstance(record, records.Deliver) and record.conn == conn:
            numbers += [seq for seq, _, _ in record.messages]
        elif isinstance(record, records.DeliverShared):
            numbers += [seq for number, seq, _ in record.deliveries if number == conn]
    return list(dict.fromkeys(numbers))


async def test_slots_of_another_store_move_while_the_first_is_away(two: Two) -> None:
    source, target = two.source, two.target
    await source.attach(1, ANN)
    assert (await source.post(ANN, "handled")).seq == 1
    assert (await source.post(ANN, "refused")).seq == 2
    await two.broadcast("early")
    await until(lambda: source.shard._core.mailboxes[ANN].head == 3)
    await until(lambda: len(target.shard._core.mailbox_store.log) == 1)
    await until(two.events, holds=lambda events: events == [("connect", "c1")])
    two.server.kill()
    source.link.send(records.Ack(1, 1))
    source.link.send(records.Nack(1, ["refused"], "cannot"))
    await source.attach(2, BOB)
    source.link.send(records.Detach(2, 1000))
    await until(lambda: len(source.shard._core.output.session_events) + len(source.shard._core.output._taken_events) >= 3)
    await until(lambda: source.shard._core.mailboxes[ANN].dying)

    await two.move()
    assert [record.conn for record in source.of(records.Moved)] == [1]
    assert await two.second.hlen(handed_events_key(TARGET)) == 0, "the target has them in memory"
    await two.attach_again(1, ANN, 1, 3)
    target.link.send(records.Nack(1, ["refused"], "cannot"))  # its edge has no answer
    assert (await target.post(ANN, "late")).seq == 4
    await until(lambda: 4 in shown(target, 1))
    assert not target.of(records.NacksStored)

    two.server.start()
    await until(lambda: target.of(records.NacksStored))
    assert await until(two.letters) == ["refused"]
    events = await until(two.events, holds=lambda events: len(events) >= 5)
    assert [event for event in events if event[1] == "c2"] == [("connect", "c2"), ("disconnect", "c2"), ("offline", "c2")]
    assert [event for event in events if event[1] == "c1"] == [("connect", "c1"), ("connect", "c1")], "of the source, and of the target"
    await two.broadcast("late")
    await until(lambda: 5 in shown(target, 1))
    target.link.send(records.Ack(1, 5))
    mailbox = target.shard._core.mailboxes[ANN]
    await until(lambda: mailbox.floor == 5)
    assert mailbox.head == 5, "neither broadcast was adopted twice"
    assert await two.letters() == ["refused"]


async def test_a_broadcast_the_target_has_not_read_comes_once_in_order(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = two.source, two.target
    broadcasts = target.shard._follower._broadcasts
    dropped = broadcasts.dropped

    async def away(since: int) -> Any:
        raise StorageUnavailable("the first server went away between two reads of this shard")

    monkeypatch.setattr(broadcasts, "dropped", away)
    await source.attach(1, ANN)
    assert (await source.post(ANN, "before")).seq == 1
    pos = await two.broadcast("unseen")
    await until(lambda: source.shard._core.mailboxes[ANN].head == 2)
    assert (await source.post(ANN, "after")).seq == 3
    await until(lambda: shown(source, 1) == [1, 2, 3])
    two.server.kill()

    await two.move()
    assert target.shard._core.mailbox_store.log.head < pos
    await target.attach(7, ANN)  # another connection: it is sent what is pending, from storage
    await target.attach(8, BOB)
    assert (await target.post(BOB, "goes on")).status == records.ACCEPTED
    await until(lambda: shown(target, 8) == [1])
    assert (await target.post(ANN, "late")).seq == 4
    assert shown(target, 7) == [], "nothing may pass what is not readable yet"

    two.server.start()
    monkeypatch.setattr(broadcasts, "dropped", dropped)
    await until(lambda: shown(target, 7) == [1, 2, 3, 4])
    assert not target.of(wire.GapRange)
    await until(lambda: target.shard._core.mailbox_store.log.head == pos)
    await two.broadcast("next")
    await until(lambda: shown(target, 7) == [1, 2, 3, 4, 5])
    assert target.shard._core.mailboxes[ANN].head == 5, "the broadcast before the move was not adopted again"


async def test_a_first_store_that_hangs_delays_slots_by_its_timeout(two: Two) -> None:
    source, target = two.source, two.target
    await source.attach(1, ANN)
    assert (await source.post(ANN, "refused")).seq == 1
    await until(two.events, holds=lambda events: len(events) == 1)
    two.server.signal(signal.SIGSTOP)
    source.link.send(records.Nack(1, ["refused"], "cannot"))
    await source.attach(2, BOB)
    await until(lambda: source.shard._core.output._taken_events)
    began_s = time.monotonic()
    await two.move()
    assert time.monotonic() - began_s < 8
    await two.attach_again(1, ANN, 0, 1)
    target.link.send(records.Nack(1, ["refused"], "cannot"))
    assert (await target.post(ANN, "late")).seq == 2
    two.server.signal(signal.SIGCONT)
    await until(lambda: target.of(records.NacksStored))
    assert set(await two.letters()) == {"refused"}
    await until(two.events, holds=lambda events: ("connect", "c2") in events)


async def test_an_erasure_goes_on_at_the_target(two: Two) -> None:
    source, target = two.source, two.target
    assert (await source.post(ANN, "one")).seq == 1
    two.server.kill()
    source.link.send(records.Erase(50, ANN))
    await until(lambda: ANN in source.shard._core.user_requests.erasing)
    await two.move()
    assert [record.ref for record in source.of(records.Moved)] == [50], "its edge is to ask the target"
    assert not source.of(records.ErasureDone)
    target.link.send(records.Erase(51, ANN))
    await until(lambda: ANN in target.shard._core.user_requests.erasing)
    two.server.start()
    await until(lambda: target.of(records.ErasureDone))
    assert (await target.post(ANN, "two")).seq == 2, "no number is given twice"


async def test_a_target_that_dies_after_the_map_leaves_events_to_its_successor(config: Config, cluster: ClusterGroup) -> None:
    clients = [connect(one) for one in each_store(config)]
    async with shard_process(config, SOURCE) as source:
        two = Two(config, cluster, source, source, clients)
        two.server.kill()
        await source.attach(2, BOB)
        await until(lambda: source.shard._core.output.session_events or source.shard._core.output._taken_events)
        await source.shard.hand_over(MOVED, TARGET)
    assert await two.second.hlen(handed_events_key(TARGET)) == 1
    two.server.start()
    async with shard_process(config, TARGET) as successor:
        await until(two.events, holds=lambda events: events == [("connect", "c2")])
        assert await two.second.hlen(handed_events_key(TARGET)) == 0
        assert successor.shard._core.connections.presence.state(BOB) == "suspect"
    for client in clients:
        await client.aclose()
