"""Events of a stream, whatever the pieces in which it arrives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.links.event_stream_parser import EventStreamParser, ServerEvent

STREAM = (
    b": comment\n"
    b"retry: 1000\nevent: welcome\ndata: {}\n\n"
    b'id: 7-1\r\nevent: message\r\ndata: {"a":\r\ndata:  "\xc3\xa4"}\r\n\r\n'
    b"data\r\rdata: cr\r\r"
    b"event: no data\n\n"
    b"data: last\n\ndata: never ends"
)
EVENTS = [
    ServerEvent("welcome", b"{}"),
    ServerEvent("message", b'{"a":\n "\xc3\xa4"}'),
    ServerEvent("message", b""),
    ServerEvent("message", b"cr"),
    ServerEvent("message", b"last"),
]


def test_events_are_read_as_the_standard_says() -> None:
    assert list(EventStreamParser().feed(STREAM)) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_the_pieces_do_not_matter(cuts: list[int]) -> None:
    parser = EventStreamParser()
    places = [0, *sorted(cuts), len(STREAM)]
    assert [event for a, b in itertools.pairwise(places) for event in parser.feed(STREAM[a:b])] == EVENTS


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 100, b"data: " + b"x" * 94 + b"\n"])
def test_the_size_of_what_has_not_ended_is_known(piece: bytes) -> None:
    parser = EventStreamParser()
    assert not list(parser.feed(piece))
    assert parser.size >= 94
