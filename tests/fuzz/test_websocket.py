"""Whatever bytes a WebSocket client sends, the edge stays whole: well-formed answers, bounded memory, sane records for the shard."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.wire import records as wire
from engine.gateway.connection import NO_CURSOR
from engine.http.problems import unauthorized
from engine.transports.websocket_transport import DirectWebSocket
from tests.support.edge_world import EdgeWorld, client_frame
from tests.support.hostile_frames import client_messages, frames_for
from tests.support.hostile_input import mutated
from tests.support.websocket_bytes import written_messages
from tests.support.written_bytes import Transport

FRAME_BYTES_MAX = 1000
CONFIG = Config(frame_bytes_max=FRAME_BYTES_MAX)
HEADER_BYTES_MAX = 14
SAID_BY_CLIENTS = (wire.Ack, wire.AckIds, wire.Nack, wire.Detach, wire.Attach)


class Edge:
    """A gateway that keeps what it would send, and one attached client."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        world = EdgeWorld(CONFIG, 1)
        world.shard.take = self.records.append  # type: ignore[method-assign]
        self.gateway = world.gateway
        self.transport = Transport()
        self.client = DirectWebSocket(self.gateway, Principal("t", "u", frozenset(), 1 << 40), NO_CURSOR, "", self.verify)
        self.client.begin(self.transport, set())  # type: ignore[arg-type]
        self.gateway.from_shard(0, [wire.Welcome(self.client.id, 5, "new", 1, "e1")])

    def verify(self, _token: str) -> Principal:
        raise unauthorized("the token is malformed")


@pytest.fixture(scope="module", autouse=True)
def loop() -> Iterator[None]:
    """A loop for the timers of closing handshakes."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        asyncio.events._set_running_loop(runner.get_loop())
        yield
        asyncio.events._set_running_loop(None)
        asyncio.set_event_loop(None)


def check_written(written: bytes) -> list[Any]:
    """What the edge wrote is valid frames of valid JSON, as an independent client reads it."""
    told = written_messages(written)
    assert {message["type"] for message in told} <= {"welcome", "pong", "error"}, told
    return told


@settings(max_examples=200, deadline=None)
@given(st.lists(frames_for(FRAME_BYTES_MAX), min_size=1, max_size=8), st.lists(st.integers(0, 2000), max_size=10))
def test_any_bytes_leave_the_edge_whole(stream: list[bytes], cuts: list[int]) -> None:
    edge = Edge()
    data = b"".join(stream)
    edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    for start, stop in itertools.pairwise(edges):
        edge.client.data_received(data[start:stop])
        assert len(edge.client._tail) <= FRAME_BYTES_MAX + HEADER_BYTES_MAX
        assert sum(len(frame.data) for frame in edge.client._fragments) <= FRAME_BYTES_MAX
    told = check_written(edge.transport.written)
    malformed = sum(frame["type"] == "error" and frame["code"] == "malformed" for frame in told)
    assert malformed <= CONFIG.malformed_frames_max
    for record in edge.records:
        assert type(record) in SAID_BY_CLIENTS
        if isinstance(record, wire.Ack):
            assert 0 <= record.seq < 1 << 63
    wire.to_shard.decode(wire.encode(edge.records))
    assert edge.client.ended == (edge.client.id not in edge.gateway.connections)
    event("ended" if edge.client.ended else "goes on")
    edge.client.connection_lost(None)


@settings(max_examples=200, deadline=None)
@given(st.lists(mutated(client_messages), min_size=1, max_size=12))
def test_any_text_frames_are_understood_ignored_or_told_to_be_malformed(messages: list[bytes]) -> None:
    edge = Edge()
    for message in messages:
        if len(message) <= FRAME_BYTES_MAX:
            edge.client.data_received(client_frame(message))
    check_written(edge.transport.written)
    for record in edge.records:
        if isinstance(record, wire.AckIds | wire.Nack):
            assert all(isinstance(id_, str) for id_ in record.ids)
        msgspec.msgpack.decode(wire.encode([record]))
    edge.client.connection_lost(None)
