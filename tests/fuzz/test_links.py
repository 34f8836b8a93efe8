"""A batch that cannot be read ends its session at both ends and is applied not at all; the actor and its other sessions live on."""

from __future__ import annotations

import asyncio
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from engine.actors.carrier import RayPeer
from engine.actors.link import LinkCaller, LinkServer
from engine.config import Config
from engine.core.model.routing import spread
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.scheduler import SchedulerCore
from engine.core.scheduler.scheduler_events import Closed, Opened, Received, Ticked
from engine.core.shard.shard import ShardCore
from engine.core.wire import records as wire
from engine.core.wire.link import RESET
from engine.errors import CorruptRecord
from tests.support.background_task import background
from tests.support.edge_world import EdgeWorld
from tests.support.hostile_input import anything, integers
from tests.support.shard_world import small_config
from tests.support.waiting import until

CONFIG = Config(link_park_ms=20, link_timeout_ms=2000)

names = st.sampled_from(["default:u1", "default:u2", "", "x", "default:" + "u" * 300, "0-a", "17-a", "e1", "é"])
by_type: dict[Any, st.SearchStrategy[Any]] = {
    int: integers,
    str: names,
    bool: st.booleans(),
    bytes: st.binary(max_size=12),
    float: st.floats(),
    type(None): st.none(),
}


def records_of(kind: type[Struct]) -> st.SearchStrategy[list[Any]]:
    """Records of a kind as plain arrays: right in shape, with any values a sender could write."""
    fields = get_type_hints(kind)
    values = [of_type(fields[name]) for name in kind.__struct_fields__]
    tag = kind.__struct_config__.tag
    return st.tuples(*values).map(lambda made: ([] if tag is None else [tag]) + list(made))


def of_type(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in by_type:
        return by_type[annotation]
    arguments = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return records_of(annotation)
    if isinstance(annotation, UnionType):
        return st.one_of(*map(of_type, arguments))
    origin = get_origin(annotation)
    if origin is tuple and ... not in arguments:
        return st.tuples(*map(of_type, arguments))
    if origin is dict:
        return st.dictionaries(*map(of_type, arguments), max_size=3)
    return st.lists(of_type(arguments[0]), max_size=3)


def batches_of(*kinds: type[Struct]) -> st.SearchStrategy[bytes]:
    """Batches of these kinds, some of them spoiled."""
    clean = st.lists(st.one_of(*map(records_of, kinds)), max_size=4)
    spoiled = st.tuples(clean, anything).map(lambda parts: [*parts[0], parts[1]])
    packed = st.one_of(clean, clean, spoiled, anything).filter(_packs).map(msgspec.msgpack.encode)
    cut = st.tuples(packed, st.integers(0, 60), st.binary(max_size=3)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + 1 :]
    )
    return st.one_of(packed, packed, packed, cut, st.binary(max_size=20))


def _packs(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return False
    return True


def decoded(decoder: Any, data: bytes) -> list[Any] | None:
    try:
        return list(decoder.decode(data))
    except wire.UNREADABLE:
        event("unreadable")
        return None


TO_SHARD = get_args(wire.ToShard)
FROM_SHARD = get_args(wire.FromShard)
TO_SCHEDULER = (*get_args(wire.EdgeToScheduler), *get_args(wire.ShardToScheduler))
TO_SHARD_FROM_SCHEDULER = get_args(wire.SchedulerToShard)


@settings(max_examples=200, deadline=None)
@given(st.lists(batches_of(*TO_SHARD, *TO_SHARD_FROM_SCHEDULER), min_size=1, max_size=4))
def test_a_shard_takes_every_readable_batch_and_can_write_what_it_made_of_it(batches: list[bytes]) -> None:
    core = ShardCore(0, small_config(), spread(1), "e1")
    core.opened("edge-0/1")
    for number, data in enumerate(batches):
        now_ms = 1_000_000 + number
        records = decoded(wire.to_shard, data)
        if records is not None:
            core.handle("edge-0/1", records, now_ms)
        for record in decoded(wire.scheduler_to_shard, data) or ():
            if isinstance(record, wire.Fire):
                core.fire(record.timers, now_ms)
            else:
                core.delivery.due(record.keys, now_ms)
        core.pages_loaded(dict.fromkeys(core.page_wait.take_pages_wanted()), now_ms)
        while core.take_group(now_ms) is not None:
            core.group_committed(now_ms)
        checkpoint = core.mailbox_store.take_checkpoint(full=True, messages_max=100)
        if checkpoint is not None:
            while core.mailbox_store.fill_checkpoint(2, now_ms):
                pass
            core.mailbox_store.checkpoint_done()
        wire.encode([record for _, record in core.output.to_edges])
        wire.encode([record for _, record in core.output.to_schedulers])
        core.output.to_edges.clear()
    core.closed("edge-0/1", 2_000_000)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["edge-0/1", "shard-0/1"]), batches_of(*TO_SCHEDULER)), min_size=1, max_size=4))
def test_a_scheduler_takes_every_readable_batch_or_refuses_it_whole(batches: list[tuple[str, bytes]]) -> None:
    core = SchedulerCore(CONFIG, 0, spread(1), 1_000_000, ClaimHorizon(CONFIG, 0, 0, 1_000_000))
    for session in ("edge-0/1", "shard-0/1"):
        core.handle(Opened(session), 1_000_000)
    for number, (session, data) in enumerate(batches):
        records = decoded(wire.to_scheduler, data)
        if records is not None:
            before = core.stats()
            try:
                core.handle(Received(session, records), 1_000_001 + number)
            except CorruptRecord:
                assert core.stats() == before
                event("refused whole")
    core.handle(Ticked(), 1 << 47)
    core.handle(Closed("shard-0/1"), 1 << 47)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(batches_of(*FROM_SHARD, wire.TimerAnswer), min_size=1, max_size=4))
async def test_an_edge_takes_every_readable_batch_or_ends_the_session(batches: list[bytes]) -> None:
    gateway = EdgeWorld(Config(), 1).gateway
    for data in batches:
        records = decoded(wire.from_shard, data)
        if records is not None:
            try:
                gateway.from_shard(0, records)
            except CorruptRecord:  # a broadcast without its body
                gateway.shard_reset(0)
                event("session ended")
        answers = decoded(wire.scheduler_to_edge, data)
        if answers is not None:
            gateway.from_scheduler(0, answers)


# -- Both ends of a real link. -----------------------------------------------------------------------------------------
class Peer:
    """A link server, and a handle to it whose requests or replies can be spoiled on the way."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Any]] = []
        self.closed: list[str] = []
        self.opened: list[str] = []
        self.server = LinkServer(
            wire.to_shard,
            CONFIG,
            on_open=self.opened.append,
            on_records=lambda session, records: self.taken.extend((session, record) for record in records),
            on_close=self.closed.append,
        )
        self.exchange = self
        self.request: bytes | None = None  # what the next request with records becomes
        self.reply: bytes | None = None

    async def remote(self, session: str, seq: int, data: bytes) -> bytes:
        if self.request is not None and len(data) > 5:
            data, self.request = self.request, None
        answer = await self.server.exchange(session, seq, data)
        if self.reply is not None and len(answer) > 13:
            answer, self.reply = answer[:8] + self.reply, None
        return answer


UNREADABLE_BATCHES = (
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    wire.encode([wire.Ack(1, 7)])[:-1],
    wire.encode([wire.Ack(1, 7), wire.Welcome(1, 1, "new", 1, "e")]),  # the first could be applied, the second is nobody's here
    msgspec.msgpack.encode([[4, 1, 7], [4, 1, "seven"]]),
    msgspec.msgpack.encode([[4, 1, 7], [2, 1, "default:u", 9, "", 0, "", "", False, 0]]),  # an unknown kind of connection
    b"\x92" + wire.encode([wire.Ack(1, 7)])[5:] + b"\x94\x06\x01\x90\xa1\xff",  # no UTF-8
    b"\x91" * 10_000,
)


@pytest.mark.parametrize("spoiled", UNREADABLE_BATCHES)
async def test_a_request_that_cannot_be_read_ends_that_session_only(spoiled: bytes) -> None:
    peer = Peer()
    links = [
        LinkCaller(RayPeer(peer), name, wire.from_shard, CONFIG, on_records=lambda _: None, on_reset=lambda: None)
        for name in ("edge-0", "edge-1")
    ]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(link.run()) for link in links]
        await until(lambda: all(link.open for link in links))
        first, other = peer.opened
        peer.request = spoiled
        links[0].send(wire.Ack(1, 1))
        await until(lambda: links[0].sessions == 2 and links[0].open)
        assert peer.closed == [first]
        assert peer.taken == [], "a part of the batch was applied"
        links[0].send(wire.Ack(1, 2))
        links[1].send(wire.Ack(1, 3))
        await until(lambda: len(peer.taken) == 2)
        assert other in peer.server.sessions()
        assert links[1].sessions == 1
        for task in running:
            task.cancel()


@pytest.mark.parametrize(
    "spoiled", [b"\xc1", wire.encode([wire.Probed(1, "connected", 1), wire.Ack(1, 1)]), msgspec.msgpack.encode([[33, 1, []]])]
)
async def test_a_reply_that_cannot_be_read_ends_the_session_and_a_new_one_begins(spoiled: bytes) -> None:
    peer = Peer()
    got: list[Any] = []
    link = LinkCaller(RayPeer(peer), "edge-0", wire.from_shard, CONFIG, on_records=got.extend, on_reset=lambda: None)
    async with background(link.run()):
        await until(lambda: link.open)
        peer.reply = spoiled
        peer.server.send_all([(peer.opened[0], wire.Probed(1, "connected", 1))])
        await until(lambda: link.sessions == 2 and link.open)
        assert got == []
        peer.server.send_all([(peer.opened[1], wire.Probed(2, "connected", 1))])
        await until(lambda: got == [wire.Probed(2, "connected", 1)])


async def test_a_batch_that_its_receiver_cannot_apply_ends_the_session_at_both_ends() -> None:
    peer = Peer()
    failing = iter([True])

    def refuse(_records: list[Any]) -> None:
        if next(failing, False):
            raise KeyError("a bug")

    link = LinkCaller(RayPeer(peer), "edge-0", wire.from_shard, CONFIG, on_records=refuse, on_reset=lambda: None)
    async with background(link.run()):
        await until(lambda: link.open)
        peer.server.send_all([(peer.opened[0], wire.Probed(1, "connected", 1))])
        await until(lambda: link.sessions == 2 and link.open)


async def test_a_reply_shorter_than_its_number_ends_the_session() -> None:
    class Short:
        def __init__(self) -> None:
            self.exchange = self
            self.answers = iter([b"\x00\x00", RESET])

        async def remote(self, _session: str, _seq: int, _data: bytes) -> bytes:
            return next(self.answers, b"\x00")

    link = LinkCaller(RayPeer(Short()), "edge-0", wire.from_shard, CONFIG, on_records=lambda _: None, on_reset=lambda: None)
    async with background(link.run()):
        await until(lambda: link.sessions >= 3)
        assert not link.open
