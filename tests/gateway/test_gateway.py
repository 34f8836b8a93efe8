"""What comes with the welcome leaves with it, in the order it came, whatever else happens in the same batch; and what depends on time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.routing import SLOTS, spread
from engine.core.wire import records as wire
from engine.errors import CorruptRecord
from engine.gateway.connection import NO_CURSOR
from engine.gateway.gateway import TICK_MS, Gateway
from engine.transports.websocket_transport import DirectWebSocket
from tests.support.background_task import background
from tests.support.edge_world import EdgeWorld, client_frame
from tests.support.waiting import until
from tests.support.written_bytes import Transport


class Client:
    """An attached connection, and what each write to its transport held."""

    def __init__(self, world: EdgeWorld | None = None) -> None:
        self.world = world or EdgeWorld(Config(), 1)
        self.world.shard.take = lambda _record: None  # type: ignore[method-assign]
        self.gateway = self.world.gateway
        self.writes: list[bytes] = []
        self.transport = Transport()
        self.transport.write = self.writes.append  # type: ignore[method-assign]
        self.socket = Once(self.gateway, Principal("t", "u", frozenset(), 1 << 40), NO_CURSOR, "", lambda _: None)  # type: ignore[arg-type,return-value]
        self.socket.begin(self.transport, set())  # type: ignore[arg-type]

    def told(self, *records: Any) -> list[list[str]]:
        """What each write brought of these words, after one batch of the shard."""
        self.gateway.from_shard(0, records)
        words = ("welcome", "revoke", '"seq":1,', '"seq":2,')
        seen = [
            sorted((word for word in words if word.encode() in data), key=lambda word: data.find(word.encode())) for data in self.writes
        ]
        self.writes.clear()
        return seen

    @property
    def welcome(self) -> wire.Welcome:
        return wire.Welcome(self.socket.id, 9, "ok", 1, "e1")

    def deliver(self, seq: int) -> wire.Deliver:
        return wire.Deliver(self.socket.id, [(seq, 1, b'"id":"m"')])


class Once(DirectWebSocket):
    """There is no loop here, and nothing to wait for."""

    __slots__ = ()

    def _await_close(self) -> None:
        pass


def test_a_welcome_and_what_comes_with_it_are_one_write() -> None:
    client = Client()
    assert client.told(client.welcome, client.deliver(1), wire.Revoke(client.socket.id, ["x"]), client.deliver(2)) == [
        ["welcome", '"seq":1,', "revoke", '"seq":2,']
    ]
    assert client.told(client.deliver(2), wire.Revoke(client.socket.id, ["x"])) == [['"seq":2,'], ["revoke"]]


def test_a_welcome_that_brings_nothing_does_not_wait() -> None:
    client = Client()
    assert client.told(client.welcome) == [["welcome"]]
    assert client.told(client.deliver(1)) == [['"seq":1,']]


def test_a_hangup_in_the_same_batch_comes_after_everything_before_it() -> None:
    client = Client()
    client.gateway.from_shard(0, [client.welcome, client.deliver(1), wire.Hangup(client.socket.id, 4409, "too many")])
    assert [write[:1] for write in client.writes] == [b"\x81", b"\x88"]
    assert b"welcome" in client.writes[0]
    assert b'"seq":1,' in client.writes[0]
    assert b"too many" in client.writes[1]


def test_a_client_that_has_left_is_written_nothing() -> None:
    client = Client()
    client.socket.data_received(client_frame(b"\x03\xe8", 8))
    client.writes.clear()
    assert client.told(client.welcome, client.deliver(1)) == []


def test_a_batch_that_breaks_off_delays_what_it_brought_and_loses_nothing() -> None:
    client = Client()
    with pytest.raises(CorruptRecord):
        client.told(client.welcome, wire.DeliverShared(7, [(client.socket.id, 1, 1)]))
    assert client.told() == [["welcome"]]


# -- Messages that come again. ---------------------------------------------------------------------------------------------
def sent_twice() -> Client:
    """A client that was sent a message, and whose shard has no acknowledgement of it in time."""
    client = Client()
    client.told(client.welcome, client.deliver(1))
    assert client.told(wire.Deliver(client.socket.id, [(1, 2, b'"id":"m"')])) == []
    return client


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_message_comes_again_when_what_its_client_had_sent_is_read() -> None:
    client = sent_twice()
    await turns()
    assert client.told() == [['"seq":1,']]
    assert client.gateway.metrics.retries_spared == 0


async def test_a_message_whose_acknowledgement_had_arrived_does_not_come_again() -> None:
    client = sent_twice()
    client.gateway.ack(client.socket, 1)
    await turns()
    assert client.told() == []
    assert client.gateway.metrics.retries_spared == 1


async def test_a_number_that_was_never_sent_replaces_no_acknowledgement() -> None:
    """The link sends the latest lazy record of a connection: an eager one leaves behind the lazy one that waits."""
    client = Client()
    client.told(client.welcome, client.deliver(1))
    sent: list[tuple[int, bool]] = []
    client.world.send_shard = lambda _index, record, eager: sent.append((record.seq, eager))  # type: ignore[method-assign]
    client.gateway.ack(client.socket, 1)
    client.gateway.ack(client.socket, 99)
    assert sent == [(1, False), (99, True)]


async def test_a_lower_acknowledgement_takes_no_higher_ones_place_behind_a_refusal() -> None:
    client = Client()
    client.told(client.welcome, client.deliver(1), client.deliver(2))
    records: list[Any] = []
    client.world.shard.take = records.append  # type: ignore[method-assign]
    client.gateway.nack(client.socket, ["m"], "no")
    client.gateway.ack(client.socket, 2)
    client.gateway.ack(client.socket, 1)
    assert [record.seq for record in records if isinstance(record, wire.Ack)] == [2]


async def test_new_messages_do_not_wait_for_one_that_comes_again() -> None:
    client = Client()
    client.told(client.welcome, client.deliver(1))
    assert client.told(wire.Deliver(client.socket.id, [(1, 2, b'"id":"m"')]), client.deliver(2)) == [['"seq":2,']]
    await turns()
    assert client.told() == [['"seq":1,']]


def test_a_new_message_before_one_that_comes_again_was_sent() -> None:
    client = Client()
    client.told(client.welcome, client.deliver(1))
    assert client.told(client.deliver(2), client.deliver(1)) == [['"seq":2,', '"seq":1,']]
    assert client.socket.sent == 2


async def test_what_the_shard_says_after_a_message_that_comes_again_stays_behind_it() -> None:
    client = sent_twice()
    assert client.told(wire.Revoke(client.socket.id, ["m"])) == [['"seq":1,'], ["revoke"]]
    await turns()
    assert client.told() == []


async def test_a_reset_of_the_link_session_forgets_what_waited_to_come_again() -> None:
    client = sent_twice()
    client.gateway.shard_reset(0)
    await turns()
    assert client.told() == []


async def test_a_plain_event_stream_is_written_nothing_twice() -> None:
    client = Client()
    client.socket.kind = wire.SSE
    client.told(client.welcome, client.deliver(1))
    assert client.told(client.deliver(1)) == []
    assert client.told(client.deliver(1), client.deliver(2)) == [['"seq":2,']]


# -- Slots that move. ------------------------------------------------------------------------------------------------------
async def test_records_of_a_slot_about_to_be_adopted_are_soon_sent_again() -> None:
    world = EdgeWorld(Config(), 1)
    client = Client(world)  # no ticker runs
    taken: list[Any] = []
    world.shard.take = taken.append  # type: ignore[method-assign]
    for times in range(1, 5):
        client.gateway.from_shard(0, [wire.Moved(-1, client.socket.id, 0)] * 3)
        await until(lambda times=times: len(taken) == times)
    client.gateway.from_shard(0, [wire.Moved(-1, client.socket.id, 0)])
    assert not client.gateway._routing_soon, "the next tick sends what waits for so long"
    client.gateway.tick()
    assert len(taken) == 5
    world.move_all_to(0, version=2)
    client.gateway.from_shard(0, [wire.Moved(-1, client.socket.id, 2)])
    await until(lambda: len(taken) == 6)


# -- Time. -----------------------------------------------------------------------------------------------------------------
async def test_broadcasts_of_the_shard_before_do_not_hold_those_of_the_next() -> None:
    """They wait for their turn when the user moves."""
    world = EdgeWorld(Config(fan_out_max=1), 2)
    world.shards[1].take = lambda _record: None  # type: ignore[method-assign]
    gateway, clients = world.gateway, (Client(world), Client(world))
    shared = [wire.Shared(7, b'"id":"m"'), wire.DeliverShared(7, [(client.socket.id, 1, 1) for client in clients])]
    gateway.from_shard(0, [*(client.welcome for client in clients), *shared])
    gateway.set_slots(msgspec.structs.replace(spread(2), version=2, owners=(1,) * SLOTS))
    gateway.from_shard(1, [shared[0], wire.DeliverShared(7, [(clients[1].socket.id, 1, 1)])])
    await turns()
    assert [sum(data.count(b'"seq":1,') for data in client.writes) for client in clients] == [1, 1]


async def test_late_broadcasts_of_the_shard_before_take_none_along() -> None:
    """They come when the user has moved, and wait for their turn with those of the next shard."""
    world = EdgeWorld(Config(fan_out_max=1), 2)
    world.shards[1].take = lambda _record: None  # type: ignore[method-assign]
    gateway, clients = world.gateway, (Client(world), Client(world))
    gateway.from_shard(0, [client.welcome for client in clients])
    gateway.set_slots(msgspec.structs.replace(spread(2), version=2, owners=(1,) * SLOTS))
    shared = [wire.Shared(7, b'"id":"m"'), wire.DeliverShared(7, [(client.socket.id, 1, 1) for client in clients])]
    gateway.from_shard(0, shared)
    gateway.from_shard(1, shared)
    await turns()
    assert [sum(data.count(b'"seq":1,') for data in client.writes) for client in clients] == [1, 1]


def test_connections_of_the_same_second_are_pinged_in_one_tick_and_at_most_a_thirtieth_late() -> None:
    world = EdgeWorld(Config(), 1)
    world.shard.take = lambda _record: None  # type: ignore[method-assign]
    gateway, now_ms = world.gateway, [world.gateway.clock()]
    gateway.clock = lambda: now_ms[0]
    gateway.tick()
    began: dict[int, int] = {}
    pinged: dict[int, int] = {}
    for number in range(40):
        now_ms[0] += 20
        transport = Transport()
        transport.write = lambda data, number=number: pinged.setdefault(number, now_ms[0]) if data[0] == 0x89 else None  # type: ignore[method-assign,assign]
        socket = Once(gateway, Principal("t", "u", frozenset(), 1 << 40), NO_CURSOR, "", lambda _: None)  # type: ignore[arg-type,return-value]
        socket.begin(transport, set())  # type: ignore[arg-type]
        began[number] = now_ms[0]

    for _ in range(320):
        now_ms[0] += TICK_MS
        gateway.tick()

    assert pinged.keys() == began.keys()
    assert len(set(pinged.values())) <= 2
    assert all(30_000 <= pinged[number] - began[number] <= 31_000 + TICK_MS for number in began)


async def test_an_edge_at_rest_is_woken_by_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.gateway.gateway._REST_MS", 3_600_000)
    ticks: list[int] = []
    monkeypatch.setattr(Gateway, "tick", lambda gateway: ticks.append(gateway.clock()))
    gateway = EdgeWorld(Config(), 1).gateway
    async with background(gateway.run()):
        await turns()
        gateway.pending_calls.begin(0, lambda _first: [])
        await until(lambda: ticks)


async def test_an_edge_whose_rest_is_disturbed_again_and_again_still_notices_that_its_event_loop_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.gateway.gateway._REST_MS", 3_600_000)
    gateway = EdgeWorld(Config(), 1).gateway
    late_ms: list[int] = []
    monkeypatch.setattr(gateway.request_queue, "tick", lambda _now_ms, late: late_ms.append(late))
    async with background(gateway.run()):
        await turns()
        gateway._stirred.set()
        await turns()
        time.sleep(0.3)
        await until(lambda: late_ms)
        assert late_ms[0] >= 100


# -- Connections that another edge may have. -------------------------------------------------------------------------------
async def test_edge_releases_its_oldest_connections_one_by_one() -> None:
    world = EdgeWorld(Config(connection_moves_per_s=20), 1)
    clients = [Client(world) for _ in range(5)]
    clients[0].socket.kind = wire.POLL
    seen: set[tuple[int, ...]] = set()

    def released() -> tuple[int, ...]:
        found = tuple(at for at, client in enumerate(clients) if any(b'"drain"' in write for write in client.writes))
        seen.add(found)
        return found

    releasing = asyncio.ensure_future(world.gateway.release(3))
    await until(lambda: len(released()) == 3, 10)
    await releasing
    assert released() == (1, 2, 3)
    assert (1,) in seen, "a twentieth of a second lies between two"


async def test_an_edge_that_drains_releases_nothing_beside_it() -> None:
    client = Client()
    client.gateway.draining = True
    await client.gateway.release(1)
    assert client.writes == []
