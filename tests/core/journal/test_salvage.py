"""What is left of damaged entries and pages. Random damage is in `tests/fuzz/test_records.py`; here is one example of each kind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.core.inbox.inbox import Inbox
from engine.core.journal.journal_records import Adopted, Handled, Inboxed, MailboxPage, Marked, StoredMessage, Topics
from engine.core.journal.salvage import page_with, salvage_page
from engine.core.model.constants import SEQ_MAX
from engine.core.model.envelope import Envelope
from engine.core.model.sealed import sealed
from engine.errors import CorruptRecord
from tests.support.stored import read_page, salvage_journal

FIRST = StoredMessage("t:ann", 1, Envelope("m1", b"d" * 8, 1, True, b'"id":"m1"'), 9000, 100)
SECOND = StoredMessage("t:bob", 7, Envelope("m2", b"d" * 8, 1, True, b'"id":"m2"'), 9000, 100)
SETTLED = Handled("t:ann", 1, [])


def entry(*records: Any) -> bytes:
    return sealed(msgspec.msgpack.encode(records))


def spoiled(record: Any, field: int, value: object) -> list[Any]:
    """The record with a value of a wrong kind; field 0 is its tag."""
    fields: list[Any] = msgspec.to_builtins(record, builtin_types=(bytes,))
    fields[field] = value
    return fields


def test_a_whole_entry_is_complete() -> None:
    salvaged = salvage_journal(entry(FIRST, SETTLED, SECOND))
    assert (salvaged.records, salvaged.complete) == ([FIRST, SETTLED, SECOND], True)


def test_a_damaged_message_costs_its_content_and_its_number_stays_used() -> None:
    salvaged = salvage_journal(entry(FIRST, spoiled(SECOND, 4, "soon"), SETTLED))
    assert salvaged.records == [FIRST, Handled("t:bob", 0, [], 7), SETTLED]
    assert salvaged.complete


@pytest.mark.parametrize(("field", "value"), [(0, 99), (1, 5), (1, "no colon"), (2, "x"), (2, 0), (2, SEQ_MAX + 1), (2, True)])
def test_a_damaged_message_whose_owner_or_number_is_unknown_leaves_numbers_unaccounted_for(field: int, value: object) -> None:
    damaged = spoiled(SECOND, field, value)
    damaged[4] = "soon"
    salvaged = salvage_journal(entry(FIRST, damaged, SETTLED))
    assert (salvaged.records, salvaged.complete) == ([FIRST, SETTLED], False)


@pytest.mark.parametrize("record", [SETTLED, Marked("t:ann", 1, True, [1]), Inboxed("t:ann", Inbox(1).to_stored())])
def test_a_damaged_record_without_a_number_is_left_out(record: Any) -> None:
    salvaged = salvage_journal(entry(FIRST, spoiled(record, 2, "x"), SECOND))
    assert (salvaged.records, salvaged.complete) == ([FIRST, SECOND], True)


def test_of_an_entry_cut_off_inside_a_message_the_numbers_that_can_be_read_are_used() -> None:
    salvaged = salvage_journal(entry(FIRST, SECOND)[:-4])
    assert (salvaged.records, salvaged.complete) == ([Handled("t:ann", 0, [], 1), Handled("t:bob", 0, [], 7)], False)


def test_nothing_but_numbers_is_taken_from_an_entry_with_a_wrong_checksum() -> None:
    adopted = Adopted(5, 100, [("t:ann", 2), ("t:bob", 8)])
    topics = Topics("t:ann", {"news": 1})
    whole = entry(FIRST, SETTLED, adopted, topics)
    at = whole.index(b'"m1"') + 1
    salvaged = salvage_journal(whole[:at] + b"x" + whole[at + 1 :])
    numbers = [Handled("t:ann", 0, [], 1), Handled("t:ann", 0, [], 0), Handled("t:ann", 0, [], 2), Handled("t:bob", 0, [], 8)]
    assert (salvaged.records, salvaged.complete) == (numbers, False)


def test_bytes_behind_an_entry_or_of_another_version_are_not_taken_for_whole() -> None:
    behind = msgspec.msgpack.encode([spoiled(FIRST, 4, "soon")]) + b"\x00"
    assert salvage_journal(sealed(behind)).complete is False
    unknown = salvage_journal(b"\x7f" + entry(FIRST)[1:])
    assert (unknown.records, unknown.complete) == ([], False)


def page(**changes: Any) -> bytes:
    return sealed(msgspec.msgpack.encode(msgspec.structs.replace(page_with(8, 2), cold=None, **changes)), b"t:u")


@pytest.mark.parametrize(
    "changes",
    [
        {"head": 1},
        {"floor": -1},
        {"head": SEQ_MAX + 1},
        {"acked": [2]},
        {"acked": [9]},
        {"gone": [(2, 3)]},
        {"gone": [(5, 4)]},
        {"gone": [(7, 9)]},
        {"gone": [(3, 5), (5, 6)]},
        {"gone": [(6, 7), (3, 4)]},
    ],
)
def test_a_page_that_cannot_be_true_is_damaged(changes: dict[str, Any]) -> None:
    read_page("t:u", page())
    with pytest.raises(CorruptRecord):
        read_page("t:u", page(**changes))


def test_of_a_damaged_page_the_numbers_are_kept_and_everything_above_the_floor_is_looked_for() -> None:
    found = salvage_page("t:u", page(acked=[99]))
    assert found == page_with(8, 2)
    assert found is not None
    assert found.cold == (3, 8)
    assert page_with(8, 8).cold is None


@pytest.mark.parametrize("changes", [{"head": 1}, {"floor": -1}, {"head": "x"}, {"floor": None}, {"head": SEQ_MAX + 1}])
def test_a_page_whose_numbers_are_damaged_is_not_replaced(changes: dict[str, Any]) -> None:
    assert salvage_page("t:u", page(**changes)) is None
    assert salvage_page("t:u", b"\x7f" + page()[1:]) is None


def test_no_number_of_a_page_with_a_wrong_checksum_is_believed() -> None:
    whole = page()
    assert salvage_page("t:u", whole) == page_with(8, 2)
    assert salvage_page("t:u", whole[:-1] + b"\x01") is None


@pytest.mark.parametrize("cold", [(5, 9), (4, 3), (0, 1), (1, 4)])
def test_a_page_whose_cold_range_cannot_be_is_damaged(cold: tuple[int, int]) -> None:
    page: MailboxPage = msgspec.structs.replace(page_with(8, 2), cold=cold)
    with pytest.raises(CorruptRecord):
        read_page("t:u", sealed(msgspec.msgpack.encode(page), b"t:u"))
