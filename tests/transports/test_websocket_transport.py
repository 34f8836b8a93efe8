"""However a byte stream of frames is cut, the edge's reader sees what the library alone sees."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Sequence
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.routing import RoutingTable, spread
from engine.gateway.connection import NO_CURSOR
from engine.gateway.gateway import Gateway
from engine.gateway.metrics import EdgeMetrics
from engine.gateway.ports import EdgeContext
from engine.transports.websocket_transport import TOO_MANY_FRAGMENTS, DirectWebSocket
from tests.support.edge_world import NoLinks, NoLog, client_frame
from tests.support.process_tree import rss_bytes
from tests.support.running_engine import RunningEngine
from tests.support.written_bytes import Transport

FRAME_BYTES_MAX = 300
CONFIG = Config(frame_bytes_max=FRAME_BYTES_MAX)


class Recorder(DirectWebSocket):
    """Notes the messages instead of understanding them."""

    __slots__ = ("events",)

    def text(self, data: bytes) -> None:
        self.events.append(("text", bytes(data)))

    def binary(self) -> None:
        self.events.append(("binary", b""))

    def _await_close(self) -> None:
        """There is no loop here, and nothing to wait for."""


def by_edge(pieces: Sequence[bytes]) -> tuple[list[tuple[str, bytes]], bytes, bool]:
    context = EdgeContext("e", lambda: 0, lambda: 0, lambda: "id", lambda: "name")
    gateway = Gateway(CONFIG, RoutingTable([spread(1)]), context, NoLinks(), NoLog(), EdgeMetrics("e"))
    recorder = Recorder(gateway, Principal("t", "u", frozenset(), 1 << 30), NO_CURSOR, "", lambda _: None)  # type: ignore[arg-type,return-value]
    recorder.events = []
    transport = Transport()
    recorder.begin(transport, set())  # type: ignore[arg-type]
    for piece in pieces:
        if transport.ended and recorder._library is not None and recorder._library.parser_exc is None:
            break  # the transport was closed: it brings nothing more
        recorder.data_received(piece)
    return recorder.events, transport.written, transport.ended


class Library(ServerProtocol):
    """Takes a close between fragments for one, as RFC 6455 does."""

    def recv_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        super().recv_frame(frame)


def by_library(data: bytes) -> tuple[list[tuple[str, bytes]], bytes, bool]:
    library = Library(state=OPEN, max_size=FRAME_BYTES_MAX)
    library.receive_data(data)
    events: list[tuple[str, bytes]] = []
    parts: list[Any] = []
    for frame in library.events_received():
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):  # type: ignore[union-attr]
            parts.append(frame)
            if frame.fin:  # type: ignore[union-attr]
                text = parts[0].opcode is Opcode.TEXT
                events.append(("text", b"".join(part.data for part in parts)) if text else ("binary", b""))
                parts = []
    written = library.data_to_send()
    return events, b"".join(written), b"" in written


payloads = st.one_of(st.binary(max_size=8), st.integers(120, FRAME_BYTES_MAX + 5).map(lambda size: b"x" * size))
texts = st.one_of(st.text(max_size=4).map(str.encode), st.integers(120, FRAME_BYTES_MAX + 5).map(lambda size: b"x" * size))
"""Payloads of fragments: a text that is none is refused with its fragment (test_rfc_6455), which the library alone does not do."""
masks = st.binary(min_size=4, max_size=4)
frames = st.one_of(
    st.builds(lambda seq, mask: client_frame(b'{"type":"ack","seq":%d}' % seq, mask=mask), st.integers(0, 10**6), masks),
    st.builds(client_frame, texts, st.sampled_from([0, 1, 2, 9, 10]), fin=st.booleans(), mask=masks),
    st.builds(lambda payload, mask: client_frame(payload, 1, mask=mask), payloads, masks),
    st.sampled_from(
        [
            client_frame(struct.pack("!H", 1001) + b"bye", 8),
            client_frame(b"", 8),
            client_frame(b"\x00", 8),
            b"\x81\x05hello",
            b"\xf1\x80mask",
            b"\x87\x80mask",
            b"\x81\xfe\x00\x05mask" + b"hello",  # a length that could be shorter
            b"\x81\xff" + struct.pack("!Q", 1 << 40),
        ]
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(frames, max_size=12), st.lists(st.integers(0, 1500), max_size=40))
def test_any_cut_of_any_stream_of_frames_gives_what_the_library_alone_gives(stream: list[bytes], cuts: list[int]) -> None:
    data = b"".join(stream)
    edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    pieces = [data[start:stop] for start, stop in itertools.pairwise(edges)]
    assert by_edge(pieces) == by_library(data)


def test_byte_by_byte_is_no_different() -> None:
    data = b"".join(
        [
            client_frame(b'{"type":"ack","seq":1}'),
            client_frame(b"part", fin=False),
            client_frame(b"ping", 9),
            client_frame(b"rest", 0),
            client_frame(b"x" * 200),
            client_frame(b"\x03\xe8", 8),
        ]
    )
    assert by_edge([bytes([byte]) for byte in data]) == by_library(data)


# -- A running engine. -----------------------------------------------------------------------------------------------------
EMPTY_FRAGMENTS = 1_000_001
GROWTH_BYTES_MAX = 30 << 20
"""A fifth of what a million fragments took when the edge kept them."""


def test_a_million_empty_fragments_end_the_connection_and_take_no_memory(engine: RunningEngine) -> None:
    (row,) = engine.status()["edges"]
    url = httpx.URL(engine.url)
    before = rss_bytes(row["pid"])
    with socket.create_connection((url.host, url.port), timeout=20) as client:
        head = (
            "GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {engine.token('fragments')}\r\n\r\n"
        )
        client.sendall(head.encode())
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 101")
        client.sendall(client_frame(b"{", fin=False))
        empty, sent = client_frame(b"", 0, fin=False) * 1000, 0
        while sent < EMPTY_FRAGMENTS:
            client.sendall(empty)
            sent += 1000
        client.shutdown(socket.SHUT_WR)
        read = b""
        while data := client.recv(1 << 16):
            read += data
    assert b"\x88" + bytes([2 + len(TOO_MANY_FRAGMENTS)]) + struct.pack("!H", 1008) + TOO_MANY_FRAGMENTS.encode() in read
    assert rss_bytes(row["pid"]) - before < GROWTH_BYTES_MAX
    assert engine.status()["edges"][0]["pid"] == row["pid"]
