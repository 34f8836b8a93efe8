"""The mirror of the broadcast log, and the bodies both ends of a link hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.journal.stored_formats import read_entry
from engine.core.mailbox.broadcast_log import BodyCache, Broadcast, BroadcastEntry, BroadcastMirror, encode_entry
from engine.core.model.constants import LOW
from engine.core.model.envelope import Envelope
from engine.core.model.message import SharedBody


def entry(tenant: str = "t", topic: str = "", expires_ms: int = 100) -> bytes:
    return encode_entry(BroadcastEntry(tenant, topic, Envelope("id", b"", LOW, True, b"{}"), expires_ms, 0))


@given(
    st.lists(st.tuples(st.sampled_from(["t", "u"]), st.sampled_from(["", "x", "y"]), st.integers(0, 9)), max_size=30),
    st.integers(0, 320),
    st.sets(st.integers(0, 40)),
    st.integers(0, 320),
)
def test_the_mirror_finds_what_a_list_finds(entries: list[tuple[str, str, int]], after: int, dropped: set[int], first: int) -> None:
    log = BroadcastMirror()
    model = [(number * 10, *fields) for number, fields in enumerate(entries, 1)]
    read = [read_entry(pos, entry(tenant, topic, expires_ms)) for pos, tenant, topic, expires_ms in model]
    assert log.add(read) == read
    assert log.add(read) == []  # what was read before
    log.drop(pos * 10 for pos in dropped)
    log.drop_before(first)
    model = [row for row in model if row[0] // 10 not in dropped and row[0] >= first]
    assert len(log) == len(model)
    for tenant in ("t", "u"):
        for topic in ("", "x", "y", "z"):
            expected = [row[0] for row in model if row[1:3] == (tenant, topic) and row[0] > after]
            assert [broadcast.pos for broadcast in log.after(tenant, topic, after)] == expected
    assert log.expired(5) == [row[0] for row in model if row[3] <= 5]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=40))
def test_both_ends_of_a_link_agree_on_what_the_edge_has_and_the_newest_is_always_there(puts: list[tuple[int, int]]) -> None:
    shard, edge = BodyCache(100), BodyCache(100)
    for pos, size in puts:
        if pos not in shard:
            shard.put(pos, b"x" * size)
            edge.put(pos, b"x" * size)
        assert edge[pos] == shard[pos]
        held = [number for number in range(10) if number in shard]
        assert held == [number for number in range(10) if number in edge]
        assert sum(len(shard[number]) for number in held) <= 100 or held == [pos]


def held(pos: int, topic: str = "") -> Broadcast:
    return read_entry(pos, entry(topic=topic))


def test_an_entry_is_read_as_it_was_written_with_a_body_that_knows_its_position() -> None:
    written = BroadcastEntry("t", "news", Envelope("b1", b"d" * 8, LOW, False, b'"id":"b1"'), 900, 100)
    read = read_entry(7, encode_entry(written))
    assert (read.pos, read.tenant, read.topic) == (7, "t", "news")
    assert (read.envelope, read.expires_ms, read.accepted_ms) == (written.envelope, 900, 100)
    assert isinstance(read.envelope.body, SharedBody)
    assert read.envelope.body.pos == 7


def test_a_dropped_entry_is_found_no_more_and_its_position_stays_passed() -> None:
    mirror = BroadcastMirror()
    mirror.add([held(10), held(20)])
    mirror.drop([20, 99])
    assert mirror.head == 20
    assert mirror.get(20) is None
    assert mirror.get(10) is not None
    assert mirror.add([held(20)]) == [], "the log gives no position out again"
    assert mirror.add([held(30)]) == mirror.after("t", "", 10)


def test_a_body_put_again_counts_once_and_is_the_newest() -> None:
    cache = BodyCache(10)
    cache.put(1, b"x" * 4)
    cache.put(2, b"x" * 4)
    cache.put(1, b"y" * 6)
    assert cache[1] == b"y" * 6
    assert 2 in cache, "6 and 4 bytes fit"
    cache.put(3, b"x")
    assert 2 not in cache, "it is the oldest now"
    assert cache[1] == b"y" * 6
    with pytest.raises(KeyError):
        cache[2]


def test_the_entry_the_log_begins_with_is_kept_and_one_that_expires_now_is_expired() -> None:
    mirror = BroadcastMirror()
    mirror.add([held(10), held(20), held(30)])
    mirror.drop_before(20)
    assert [broadcast.pos for broadcast in mirror.after("t", "", 0)] == [20, 30]
    assert mirror.expired(99) == []
    assert mirror.expired(100) == [20, 30]
