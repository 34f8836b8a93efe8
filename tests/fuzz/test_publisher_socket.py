"""Whatever bytes a publisher sends on its connection, every frame that is one is answered once, and nothing else is published."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.publish_endpoint import PATH
from engine.core.wire import client_frames
from engine.errors import Invalid
from engine.transports.publisher_socket import PublisherSocket
from tests.support.edge_in_process import EdgeInProcess
from tests.support.edge_world import client_frame
from tests.support.hostile_frames import frames_for, publisher_messages
from tests.support.hostile_input import mutated
from tests.support.waiting import until
from tests.support.websocket_bytes import written_messages
from tests.support.written_bytes import Transport


@pytest.fixture(scope="module")
def edge() -> Iterator[EdgeInProcess]:
    """One for all examples."""
    made = EdgeInProcess()
    yield made
    made.close()


def exchange(edge: EdgeInProcess, pieces: list[bytes]) -> list[Any]:
    """Send the pieces one after another; what was written once everything under way has ended."""
    transport = Transport()

    async def send() -> None:
        headers = [(b"authorization", f"Bearer {edge.world.token('app', 'publish')}".encode())]
        socket = edge.open_socket(PATH, headers, b"", ())
        assert isinstance(socket, PublisherSocket)
        socket.begin(transport, set())  # type: ignore[arg-type]
        for piece in pieces:
            socket.data_received(piece)
        await until(lambda: not (socket._unanswered or socket._results or socket._unhandled))
        assert socket._unanswered_bytes == 0
        assert not socket._held
        assert len(socket._tail) <= socket.frame_bytes_max + 14
        socket.connection_lost(None)

    edge.run(send)
    return written_messages(transport.written)


def is_publish(message: bytes) -> bool:
    try:
        return type(client_frames.parse_publisher(message)) is client_frames.ClientPublish
    except UnicodeDecodeError:
        return False
    except Invalid:
        return client_frames.publish_ref(message) is not None


@settings(max_examples=150, deadline=None)
@given(st.lists(frames_for(2000), min_size=1, max_size=8), st.lists(st.integers(0, 2000), max_size=10))
def test_any_bytes_leave_the_edge_whole(edge: EdgeInProcess, stream: list[bytes], cuts: list[int]) -> None:
    data = b"".join(stream)
    places = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    told = exchange(edge, [data[start:stop] for start, stop in itertools.pairwise(places)])
    assert {message["type"] for message in told} <= {"publish_result", "pong", "error"}


@settings(max_examples=150, deadline=None)
@given(st.lists(mutated(publisher_messages), min_size=1, max_size=9), st.integers(1, 50))
def test_every_publish_frame_has_one_result_however_it_is_cut(edge: EdgeInProcess, messages: list[bytes], piece: int) -> None:
    data = b"".join(map(client_frame, messages))
    told = exchange(edge, [data[at : at + piece] for at in range(0, len(data), piece)])
    answers = [message for message in told if message["type"] == "publish_result"]
    assert all(answer["status"] in (202, 400, 409, 413, 422, 429, 503) for answer in answers)
    assert all(("results" in answer) == (answer["status"] == 202) for answer in answers)
    try:
        for message in messages:
            message.decode()
    except UnicodeDecodeError:
        return  # which ends the connection
    assert len(answers) == sum(map(is_publish, messages))
