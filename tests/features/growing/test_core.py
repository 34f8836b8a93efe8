"""A message that grows, in memory: parts by offset, whatever their order, repeats and losses of an edge."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.features.growing.core import BEHIND, FULL, IDLE, OK, Growth, Head, item_at_end, values_of

CONFIG = Config(json_depth_max=9)


def growth(text: bytes = b"") -> Growth:
    return Growth("t:u", "m1", 7, text)


@given(
    st.text(max_size=30), st.lists(st.tuples(st.sampled_from(["part", "repeat", "show", "store", "die"]), st.integers(0, 6)), max_size=30)
)
def test_parts_shown_and_stored_are_the_text(whole: str, steps: list[tuple[str, int]]) -> None:
    """Through any repeats, and through edges that die with what they had not stored."""
    text = whole.encode()
    stored, device, one = b"", bytearray(), growth()
    for step, number in [*steps, ("part", len(text)), ("show", 0), ("store", 0)]:
        if step in ("part", "repeat"):
            offset = one.size if step == "part" else len(text[: one.size // 2].decode(errors="ignore").encode())
            assert one.take(offset, text[offset:].decode()[:number], b"", 1000) == OK
        elif step == "show":
            frame = json.loads(one.part())
            device += stored[len(device) : frame["offset"]]  # what an edge showed to nobody before it died, it had stored
            device[frame["offset"] : frame["offset"] + len(frame["text"].encode())] = frame["text"].encode()
        elif step == "store":
            offset, chunk, _ = one.chunk()
            assert offset == len(stored)
            stored += chunk
            assert one.chunk_stored(len(stored))
        else:
            one = growth(stored)
        assert bytes(device) == text[: len(device)]
    assert stored == bytes(device) == text


def test_a_part_behind_a_hole_is_sent_again() -> None:
    one = growth("hé".encode())
    assert one.take(4, "y", b"", 100) == BEHIND
    assert one.take(2, "y", b"", 100) == OK  # what is there already
    assert one.size == 3


def test_a_part_cut_inside_a_character_is_refused() -> None:
    one = growth(b"h\xc3")
    assert one.take(1, "é", b"", 100) == BEHIND


def test_a_text_is_bounded_by_its_size_in_json() -> None:
    one = growth()
    assert one.take(0, "\n" * 5, b"", 10) == OK
    assert one.take(5, "a", b"", 10) == FULL
    assert one.size == 5


def test_a_chunk_that_failed_is_stored_again_with_what_came_meanwhile() -> None:
    one = growth()
    one.take(0, "ab", b"", 100)
    assert one.chunk() == (0, b"ab", b"")
    one.take(2, "c", b"", 100)
    one.chunk_failed()
    assert one.chunk() == (0, b"abc", b"")
    assert one.chunk_stored(3)
    assert not one.waits_for_storage


def test_progress_under_way_is_not_stored_yet() -> None:
    one = growth()
    one.take(0, "", b'{"value":0.5}', 100)
    assert one.chunk() == (0, b"", b'{"value":0.5}')
    assert not one.is_stored
    one.chunk_failed()
    assert one.chunk() == (0, b"", b'{"value":0.5}')
    assert one.chunk_stored(0)
    assert one.is_stored


def test_storage_that_lost_text_ends_the_copy_of_the_edge() -> None:
    one = growth(b"abc")
    one.take(3, "d", b"", 100)
    one.chunk()
    assert not one.chunk_stored(0)


def test_the_same_progress_is_shown_once() -> None:
    one = growth()
    one.take(0, "", b'{"value":0.5}', 100)
    assert json.loads(one.part())["progress"] == {"value": 0.5}
    one.take(0, "", b'{"value":0.5}', 100)
    assert not one.waits_for_devices


def test_the_message_at_the_end_has_text_progress_and_reason() -> None:
    head = Head(b'{"user":"u","type":"t","data":{"build":1}}', b"")
    item = json.loads(item_at_end(head, "hé".encode(), b'{"value":1.0}', IDLE, CONFIG))
    assert item == {"user": "u", "type": "t", "data": {"build": 1, "text": "hé", "progress": {"value": 1.0}, "ended": "idle"}}
    listed = msgspec.structs.replace(head, list=True)
    assert json.loads(item_at_end(listed, b'{"a":1}\n2\n', b"", "", CONFIG))["data"] == {"build": 1, "items": [{"a": 1}, 2]}


@pytest.mark.parametrize(("text", "values"), [(b"", []), (b"1\n\nno json\n", [1, "no json"])])
def test_a_line_that_is_no_json_is_a_text(text: bytes, values: list[object]) -> None:
    assert json.loads(msgspec.json.encode(values_of(text, 9))) == values
