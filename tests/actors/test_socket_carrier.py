"""Frames of links on a stream, and what is none."""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from engine.actors import socket_carrier
from engine.actors.socket_carrier import FRAME_BYTES_MAX, CalleeConnection, CallerConnection, MalformedFrame, anyone


class Transport:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: bytes) -> None:
        """Sent."""


class Links:
    def __init__(self) -> None:
        self.requests: list[tuple[str, int, bytes]] = []

    def request(self, session: str, seq: int, batch: bytes, _answer: Any, _call_ms: float) -> None:
        self.requests.append((session, seq, batch))

    def lost(self, session: str) -> None:
        """Not here."""


def callee() -> tuple[CalleeConnection, Links, Transport]:
    links, transport = Links(), Transport()
    connection = CalleeConnection(lambda: links, lambda: True, anyone)
    connection.connection_made(transport)
    return connection, links, transport


def test_an_actor_goes_on_listening_when_garbage_is_collected(tmp_path: Path) -> None:
    """On the event loop of Ray's actors."""

    async def connects() -> None:
        path = await socket_carrier.listen(tmp_path, "shard-0", "engine", lambda _vouched: callee()[0])
        try:
            gc.collect()
            (await socket_carrier.connect(path)).close()
        finally:
            socket_carrier._listening.pop().close()

    uvloop.run(connects())


@given(st.lists(st.tuples(st.integers(0, 1 << 60), st.binary(max_size=40)), max_size=8), st.lists(st.integers(0, 400)))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(socket_carrier._frame(number, content) for number, content in frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = socket_carrier._Frames()
    read = [frame for begin, end in pairwise(edges) for frame in reader.feed(stream[begin:end])]
    assert read == frames


def test_a_frame_that_no_link_sends_ends_the_connection_before_it_is_received() -> None:
    connection, links, transport = callee()
    connection.data_received(socket_carrier._frame(0, b"edge-0/1") + socket_carrier._HEAD.pack(FRAME_BYTES_MAX + 1, 0))
    assert transport.aborted
    assert links.requests == []


@pytest.mark.parametrize("session", [b"x" * 201, b"edge-1/0"], ids=["too long", "of somebody else"])
def test_a_first_frame_that_is_no_session_of_the_caller_ends_the_connection(session: bytes) -> None:
    links, transport = Links(), Transport()
    connection = CalleeConnection(lambda: links, lambda: True, lambda name: name == "edge-0")
    connection.connection_made(transport)
    connection.data_received(socket_carrier._frame(0, session) + socket_carrier._frame(0, b"\x90"))
    assert transport.aborted
    assert links.requests == []


async def test_a_reply_that_is_no_frame_ends_the_connection_of_the_caller() -> None:
    transport: Any = Transport()
    connection = CallerConnection()
    connection.connection_made(transport)
    reply = connection.exchange("edge-0/1", 0, b"\x90")
    connection.data_received(socket_carrier._HEAD.pack(FRAME_BYTES_MAX + 1, 0))
    assert transport.aborted
    connection.connection_lost(MalformedFrame())
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(reply, 10)
