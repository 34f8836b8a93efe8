"""Stored bytes that were damaged: nothing crashes, no number is forgotten in silence, what is whole is kept."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from engine.core.commit.first_result import parse_idempotency_value, unpacked_result
from engine.core.journal.journal_records import Handled, MailboxPage, StoredMessage, page_of, restore
from engine.core.journal.salvage import salvage_page
from engine.core.journal.stored_formats import decode_stored, decode_timer, encode_timer, read_entry
from engine.core.mailbox.broadcast_log import BroadcastEntry, encode_entry
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import SEQ_MAX
from engine.core.model.envelope import Envelope
from engine.core.model.sealed import sealed
from engine.core.wire.records import UNREADABLE, Timer
from engine.errors import CorruptRecord
from tests.support.hostile_input import anything
from tests.support.stored import decode_journal, decode_page, read_page, salvage_journal


def pack(value: Any) -> bytes:
    return sealed(msgspec.msgpack.encode(value))


KEY = "t:u"


def pack_page(page: Any) -> bytes:
    return sealed(msgspec.msgpack.encode(page), KEY.encode())


keys = st.sampled_from(["t:u1", "t:u2", "t:" + "é" * 40])
seqs = st.one_of(st.integers(1, 200), st.just(SEQ_MAX))
digests = st.binary(min_size=8, max_size=8)
envelopes = st.builds(Envelope, st.text(max_size=40), digests, st.integers(0, 2), st.booleans(), st.binary(max_size=300))
instants = st.integers(0, 1 << 44)
stored = st.builds(StoredMessage, keys, seqs, envelopes, instants, instants, st.integers(0, 3), st.sampled_from(["", "3-abc"]))
handled = st.builds(Handled, keys, st.integers(0, 200), st.lists(st.integers(0, 300), max_size=20))
entries = st.lists(st.one_of(stored, handled), min_size=1, max_size=20)


def used(records: list[Any]) -> dict[str, int]:
    """The highest number of each user that these records speak of as given out."""
    highest: dict[str, int] = {}
    for record in records:
        seq = record.seq if isinstance(record, StoredMessage) else record.head
        highest[record.key] = max(highest.get(record.key, 0), seq)
    return highest


def covers(found: dict[str, int], wanted: dict[str, int]) -> bool:
    return all(found.get(key, 0) >= seq for key, seq in wanted.items())


@settings(max_examples=200, deadline=None)
@given(entries)
def test_an_entry_that_is_whole_is_read_whole(records: list[Any]) -> None:
    salvaged = salvage_journal(pack(records))
    assert salvaged.complete
    assert salvaged.records == records


@settings(max_examples=200, deadline=None)
@given(entries, st.data())
def test_of_an_entry_that_was_cut_off_numbers_are_left_and_no_message(records: list[Any], data: st.DataObject) -> None:
    entry = pack(records)
    salvaged = salvage_journal(entry[: data.draw(st.integers(0, len(entry) - 1))])
    assert not salvaged.complete
    assert all(isinstance(record, Handled) and not record.floor and not record.acked for record in salvaged.records)
    assert all(covers(used(records), {record.key: record.head}) for record in salvaged.records if isinstance(record, Handled))


@pytest.mark.parametrize("name", ["journal", "stored", "page", "timer", "broadcast"])
def test_a_value_with_one_bit_another_is_never_read(name: str) -> None:
    """Every bit of each kind: some 14 000."""
    envelope = Envelope("m1", b"digest01", 1, True, b'"id":"m1","data":"' + b"x" * 200 + b'"')
    message = StoredMessage("t:u1", 5, envelope, 9_000_000, 1_000)
    decode, value = {
        "journal": (decode_journal, pack([message, Handled("t:u1", 3, [5], 6)])),
        "stored": (decode_stored, pack(message)),
        "page": (partial(decode_page, KEY), pack_page(page(90, 5, [1], cold=True))),
        "timer": (decode_timer, encode_timer(Timer("3-abc", "t:u1", 5_000, 1_000, 60_000, envelope))),
        "broadcast": (partial(read_entry, 9), encode_entry(BroadcastEntry("t", "news", envelope, 9_000_000, 1_000))),
    }[name]
    decode(value)
    for bit in range(8 * len(value)):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(UNREADABLE):
            decode(bytes(damaged))
    for torn in (value[: len(value) // 2], value[: len(value) // 2] + bytes(len(value) - len(value) // 2), bytes(len(value))):
        with pytest.raises(UNREADABLE):
            decode(torn)


@settings(max_examples=200, deadline=None)
@given(entries, st.integers(0, 19), st.integers(3, 10), st.one_of(st.none(), st.integers(0, 7)), anything)
def test_a_value_of_a_wrong_kind_costs_one_message_and_its_number_stays_used(
    records: list[Any], at: int, field: int, inside: int | None, value: Any
) -> None:
    """`inside`: the field of a message's envelope, None for one beside it."""
    at %= len(records)
    spoiled = [msgspec.to_builtins(record, builtin_types=(bytes,)) for record in records]
    if inside is not None and isinstance(records[at], StoredMessage):
        field = 3
        spoiled[at][field][inside] = value
    else:
        spoiled[at][field % len(spoiled[at])] = value
    try:
        entry = pack(spoiled)
    except (OverflowError, UnicodeEncodeError):
        return
    salvaged = salvage_journal(entry)
    others = records[:at] + records[at + 1 :]
    event("complete" if salvaged.complete else "incomplete")
    assert covers(used(salvaged.records), used(others))
    if field % len(spoiled[at]) > 2:
        assert salvaged.complete
        assert covers(used(salvaged.records), used(records))


@settings(max_examples=200, deadline=None)
@given(entries, st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damaged_bytes_are_survived_in_bounded_time(records: list[Any], flips: list[tuple[int, int]]) -> None:
    entry = bytearray(pack(records))
    for at, value in flips:
        entry[at % len(entry)] = value
    salvaged = salvage_journal(bytes(entry))
    pack(salvaged.records)  # what replay makes of it can be written again
    assert len(salvaged.records) <= len(entry)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=60), anything))
def test_bytes_that_never_were_an_entry_are_survived(value: Any) -> None:
    try:
        raw = value if isinstance(value, bytes) else pack(value)
    except (OverflowError, UnicodeEncodeError):
        return
    salvage_journal(raw)
    salvage_page(KEY, raw)


@pytest.mark.parametrize("raw", [b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff\x01", b"\xdb\xff\xff\xff\xff", b""])
def test_bytes_that_announce_more_than_they_hold_are_no_entry(raw: bytes) -> None:
    salvaged = salvage_journal(raw)
    assert salvaged.records == []
    assert not salvaged.complete
    assert salvage_page(KEY, raw) is None


def page(head: int, below: int, acked: list[int], cold: bool) -> MailboxPage:
    """A page that can be true."""
    floor = head - below
    return MailboxPage(
        head,
        floor,
        sorted({floor + 1 + seq for seq in acked if seq < below}),
        [],
        (floor + 1, head) if cold and below else None,
        {head: 2} if cold else {},
        [("id", head, b"d" * 8)],
        5,
        head,
    )


pages = st.builds(page, st.integers(50, 10_000), st.integers(0, 50), st.lists(st.integers(0, 49), max_size=5), st.booleans())


@settings(max_examples=200, deadline=None)
@given(pages)
def test_a_page_that_is_whole_is_read_and_restored(page: MailboxPage) -> None:
    assert read_page(KEY, pack_page(page)) == page
    assert page_of(restore("t:u", read_page(KEY, pack_page(page)), 0)).head == page.head


@settings(max_examples=200, deadline=None)
@given(pages)
def test_the_page_of_another_user_is_never_read(page: MailboxPage) -> None:
    with pytest.raises(CorruptRecord):
        read_page("t:v", pack_page(page))
    assert salvage_page("t:v", pack_page(page)) is None


@settings(max_examples=200, deadline=None)
@given(pages, st.integers(0, 7), st.one_of(anything, st.integers(-1, 1 << 63), st.lists(st.integers(0, 20_000), min_size=2, max_size=2)))
def test_a_damaged_page_never_gives_a_used_number_again(page: MailboxPage, field: int, value: Any) -> None:
    spoiled = msgspec.to_builtins(page, builtin_types=(bytes,))
    spoiled[field] = value
    try:
        blob = pack_page(spoiled)
    except (OverflowError, UnicodeEncodeError):
        return
    found: MailboxPage | None
    try:
        found = read_page(KEY, blob)
    except CorruptRecord:
        found = salvage_page(KEY, blob)
        event("salvaged" if found else "unknown")
    if found is not None:
        mailbox: Mailbox = restore("t:u", found, 0)
        assert 0 <= mailbox.floor <= mailbox.head <= SEQ_MAX
        assert mailbox.head == page.head or field == 0
        pack(page_of(mailbox))


@settings(max_examples=200, deadline=None)
@given(pages, st.integers(0, 200), st.binary(max_size=5))
def test_a_page_cut_off_behind_its_numbers_still_tells_them(page: MailboxPage, cut: int, junk: bytes) -> None:
    content = msgspec.msgpack.encode(page)
    numbers = len(msgspec.msgpack.encode(page.head)) + len(msgspec.msgpack.encode(page.floor)) + 3  # the header of the array
    cut = min(numbers + cut, len(content) - 1)
    found = salvage_page(KEY, sealed(content[:cut] + junk, KEY.encode()))
    assert found is not None
    assert (found.head, found.floor) == (page.head, page.floor)
    if page.head > page.floor:
        assert found.cold == (page.floor + 1, page.head)


@settings(max_examples=200, deadline=None)
@given(stored, st.integers(0, 400), st.binary(max_size=4))
def test_a_damaged_offline_message_is_one_error_of_a_known_kind(message: StoredMessage, at: int, junk: bytes) -> None:
    raw = pack(message)
    at %= len(raw)
    try:
        decode_stored(raw[:at] + junk + raw[at + len(junk) :])
    except UNREADABLE:
        event("unreadable")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_a_damaged_idempotency_value_is_a_value_error(value: bytes) -> None:
    for read in (parse_idempotency_value, unpacked_result):
        try:
            read(value)
        except ValueError:
            event("unreadable")
