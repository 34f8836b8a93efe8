"""Exchanges over a socket: the real link at both ends, a real socket between them, no Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.actors import socket_carrier
from engine.actors.link import LinkCaller, LinkServer
from engine.actors.socket_carrier import DIRECT_CALL_MS, NOWHERE, RAY_CALL_MS, ActorPeer, CalleeConnection
from engine.config import Config
from engine.core.model.envelope import Envelope
from engine.core.wire import records as wire
from tests.support.waiting import until

CONFIG = Config(link_park_ms=200, link_timeout_ms=20_000)
NODE = "this-node"


class Actor:
    """A callee, listening as an actor does, and its handle as Ray would give it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node = NODE
        self.ready = True
        self.taken: list[Any] = []
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.through_ray = 0
        self.connections: list[CalleeConnection] = []
        self.links = LinkServer(
            wire.to_shard,
            CONFIG,
            on_open=self.opened.append,
            on_records=lambda _session, records: self.taken.extend(records),
            on_close=self.closed.append,
        )
        self.address, self.exchange = _Method(self._address), _Method(self._exchange)

    async def listen(self) -> None:
        self.server = await asyncio.get_running_loop().create_unix_server(self._served, os.fspath(self.path))

    def _served(self) -> CalleeConnection:
        served = CalleeConnection(lambda: self.links, lambda: self.ready)
        self.connections.append(served)
        return served

    async def _address(self) -> socket_carrier.Address:
        return self.node, os.fspath(self.path)

    async def _exchange(self, session: str, seq: int, data: bytes) -> bytes:
        self.through_ray += 1
        return await self.links.exchange(session, seq, data)


class _Method:
    def __init__(self, remote: Callable[..., Any]) -> None:
        self.remote = remote


class Edge:
    """A caller."""

    def __init__(self, name: str = "edge-0") -> None:
        self.heard: list[Any] = []
        self.peer = ActorPeer("shard-0", "engine")
        self.link = LinkCaller(self.peer, name, wire.from_shard, CONFIG, on_records=self.heard.extend, on_reset=lambda: None)


@pytest.fixture
async def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Actor]:
    made = Actor(tmp_path / "shard-0")
    await made.listen()

    async def find(_name: str, _namespace: str) -> Any:
        return made

    monkeypatch.setattr(socket_carrier, "find_actor", find)
    monkeypatch.setattr(socket_carrier, "node_id", lambda: NODE)
    yield made
    made.server.close()
    for connection in made.connections:
        connection._transport.abort()
    await asyncio.sleep(0)


@asynccontextmanager
async def running(edge: Edge) -> AsyncIterator[Edge]:
    task = asyncio.ensure_future(edge.link.run())
    try:
        await until(lambda: edge.link.open)
        yield edge
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_records_go_both_ways_over_the_socket_and_none_of_them_through_ray(actor: Actor) -> None:
    async with running(Edge()) as edge:
        for ref in range(1000):
            edge.link.send(wire.Probe(ref, "t:ann", "", 0))
            actor.links.send(actor.opened[0], wire.Probed(ref, "connected", ref))
            if ref % 50 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(actor.taken) == len(edge.heard) == 1000)
        assert [record.ref for record in actor.taken] == [record.ref for record in edge.heard] == list(range(1000))
        assert actor.through_ray == 0


async def test_a_batch_larger_than_any_socket_buffer_arrives_whole(actor: Actor) -> None:
    body = os.urandom(3 << 20)
    async with running(Edge()) as edge:
        edge.link.send(wire.Post(1, "t:ann", False, 0, Envelope("m", b"", 1, True, body)))
        actor.links.send(actor.opened[0], wire.Deliver(1, [(1, 1, body)]))
        await until(lambda: bool(actor.taken and edge.heard))
        assert actor.taken[0].envelope.body == edge.heard[0].messages[0][2] == body


async def test_a_caller_that_dies_is_noticed_at_once(actor: Actor) -> None:
    async with running(Edge()):
        pass
    await until(lambda: actor.closed == actor.opened)


async def test_when_the_connection_breaks_both_ends_begin_a_new_session_and_nothing_of_the_old_one_comes_late(actor: Actor) -> None:
    async with running(Edge()) as edge:
        for round_ in range(1, 4):
            actor.connections[-1]._transport.abort()
            await until(lambda round_=round_: edge.link.sessions == round_ + 1 and edge.link.open)  # type: ignore[misc]
            assert actor.closed == actor.opened[:-1]
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: actor.taken == [wire.Ack(1, 7)])
        assert actor.through_ray == 0


async def test_an_actor_that_does_not_serve_any_more_takes_nothing_in(actor: Actor) -> None:
    async with running(Edge()) as edge:
        actor.ready = False
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: len(actor.closed) == 1)
        assert actor.taken == []
        actor.ready = True
        await until(lambda: edge.link.open)


async def test_an_actor_of_another_node_is_called_through_ray(actor: Actor) -> None:
    actor.node = "another-node"
    async with running(Edge()) as edge:
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: actor.taken == [wire.Ack(1, 7)])
        assert actor.through_ray > 0
        assert await edge.peer.open() == RAY_CALL_MS


async def test_a_socket_that_is_not_there_any_more_costs_a_detour_and_no_message(actor: Actor) -> None:
    actor.path.unlink()
    async with running(Edge()) as edge:
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: actor.taken == [wire.Ack(1, 7)])
        assert actor.through_ray > 0


async def test_a_direct_exchange_is_paced_as_the_cheap_thing_it_is(actor: Actor) -> None:
    peer = ActorPeer("shard-0", "engine")
    assert await peer.open() == DIRECT_CALL_MS
    peer.close()
    await asyncio.sleep(0)


async def test_without_ray_nobody_listens(tmp_path: Path) -> None:
    assert await socket_carrier.listen("shard-0", "engine", asyncio.Protocol) == NOWHERE


@given(st.lists(st.tuples(st.integers(0, 1 << 60), st.binary(max_size=40)), max_size=8), st.lists(st.integers(0, 400)))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(socket_carrier._frame(number, content) for number, content in frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = socket_carrier._Frames()
    read = [frame for begin, end in pairwise(edges) for frame in reader.feed(stream[begin:end])]
    assert read == frames
