"""Ids of messages whose publisher gave none."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from engine.publish.message_ids import MessageIds, short_id


def zeros(size: int) -> bytes:
    return bytes(size)


def ones(size: int) -> bytes:
    return b"\xff" * size


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=50), st.sampled_from([zeros, ones]))
def test_ids_grow_whatever_the_clock_and_the_random_source_do(steps: list[int], entropy: object) -> None:
    times = iter(1_700_000_000_000 + step for step in steps)
    source = MessageIds(lambda: next(times), entropy)  # type: ignore[arg-type]
    made = [source() for _ in steps]
    assert made == sorted(set(made))
    assert {uuid.UUID(text).version for text in made} == {7}


def test_ids_that_use_up_a_millisecond_borrow_the_next_one() -> None:
    source = MessageIds(lambda: 1_700_000_000_000, ones)
    made = [source() for _ in range(100_000)]
    assert made == sorted(set(made))
    assert 1_700_000_000_000 < uuid.UUID(made[-1]).int >> 80 < 1_700_000_000_010


def test_an_id_holds_the_time_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made_ms = uuid.UUID(MessageIds()()).int >> 80
    assert before <= made_ms <= time.time_ns() // 1_000_000


def test_two_sources_make_different_ids_in_the_same_millisecond() -> None:
    def first_ids(source: MessageIds) -> Iterator[str]:
        return (source() for _ in range(100))

    assert not set(first_ids(MessageIds(lambda: 1))) & set(first_ids(MessageIds(lambda: 1)))


@given(st.lists(st.uuids(), min_size=2, max_size=20))
def test_short_ids_sort_as_the_uuids_do_and_each_stands_for_one(uuids: list[uuid.UUID]) -> None:
    texts = [str(one) for one in uuids]
    assert sorted(texts, key=short_id) == sorted(texts)
    assert len({short_id(text) for text in texts}) == len(set(texts))
    assert all(re.fullmatch(r"[-_0-9A-Za-z]{22}", short_id(text)) for text in texts)
