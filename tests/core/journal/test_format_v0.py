"""What commit 65fafe9 wrote (`data/format_v0.json`, encoded by its own code) is decoded into the structs of today."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from engine.core.journal.journal_records import Handled, Kept, StoredMessage
from engine.core.journal.salvage import salvage_journal
from engine.core.journal.stored_formats import decode_journal, decode_page, decode_stored, decode_timer, encode_timer, read_entry
from engine.core.mailbox.aggregation_window import AggregationWindow, Counted, WindowItem, Windows
from engine.core.model.category import Category, PolicyTerms
from engine.core.model.envelope import Envelope, Merge
from engine.core.policy.conditions import Conditions
from engine.core.wire.records import UNREADABLE, Timer

OLD = {
    name: bytes.fromhex(text) for name, text in json.loads((Path(__file__).parent / "data" / "format_v0.json").read_text("utf-8")).items()
}
TERMS = PolicyTerms("touch", Category(cap=2), 7)
STORED = StoredMessage(
    "t:u", 5, Envelope("m5", b"digest05", 0, False, b'"id":"m5"', "likes", None, TERMS), 9_000_000, 1_000, 2, "3-abc", 4, 3
)
ITEM = WindowItem(Envelope("m8", b"digest08", 0, True, b'"id":"m8"', "likes", Merge(300, True, "{count}"), TERMS), 9_000_000, 1_000, "3-x")


def check_windows(windows: Windows | None) -> None:
    assert windows is not None
    assert windows.applied == 2
    window: AggregationWindow = windows.open["likes"]
    assert window.envelope == Envelope("m8", b"digest08", 0, True, b'"id":"m9"', "likes", Merge(300, True, "{count}"), TERMS)
    assert (window.opened_ms, window.closes_ms, window.expires_ms, window.first_seq, window.count) == (1_000, 1_300, 9_500_000, 8, 2)
    assert (window.first_ms, window.last_ms, len(window.marks), window.marks[0]) == (1_000, 1_100, 2, ITEM.mark)


def test_an_offline_message_of_version_0_is_read() -> None:
    assert decode_stored(OLD["stored"]) == STORED
    assert decode_stored(OLD["spilled"]) == StoredMessage("t:u", 7, Envelope("b7", b"", 2, True, b""), 9_000_000, 1_000, pos=77)


def test_a_journal_entry_of_version_0_is_read_record_by_record() -> None:
    plain = StoredMessage("t:u", 6, Envelope("m6", b"", 1, True, b'"id":"m6"'), 9_000_000, 1_000)
    stored, other, counted, kept, handled = decode_journal(OLD["journal"])
    assert (stored, other, counted, handled) == (STORED, plain, Counted("t:u", 1, ITEM, 8), Handled("t:u", 3, [5], 6))
    assert isinstance(kept, Kept)
    check_windows(kept.windows)


def test_a_page_of_version_0_is_read_with_its_windows() -> None:
    page = decode_page(OLD["page"])
    assert (page.head, page.floor) == (0, 0)
    check_windows(page.windows)


def test_a_timer_of_version_0_is_read_and_written_again_in_the_newest_version() -> None:
    envelope = Envelope("m1", b"digest01", 2, False, b'"id":"m1"', "cart", Merge(300, True, "x"), TERMS)
    timer = Timer("3-abc", "t:u", 5_000, 1_000, 60_000, envelope, Conditions(1000, True, ("paid",)))
    assert decode_timer(OLD["timer"]) == timer
    assert decode_timer(encode_timer(timer)) == timer
    assert encode_timer(timer)[0] < 0x80 <= OLD["timer"][0]


def test_a_broadcast_of_version_0_is_read() -> None:
    broadcast = read_entry(9, OLD["broadcast"])
    assert (broadcast.tenant, broadcast.topic, broadcast.expires_ms, broadcast.accepted_ms) == ("t", "news", 9_000_000, 1_000)
    assert broadcast.envelope == Envelope("b1", b"", 2, False, b'"id":"b1"')
    assert broadcast.envelope.body.pos == 9  # type: ignore[attr-defined]  # a SharedBody


def test_of_a_damaged_entry_of_version_0_the_whole_records_are_kept() -> None:
    salvaged = salvage_journal(OLD["journal"][:-3])
    assert not salvaged.complete
    assert salvaged.records[0] == STORED


@pytest.mark.parametrize("first", [0, 2, 0x7F])
def test_a_value_of_an_unknown_version_is_unreadable(first: int) -> None:
    value = bytes([first]) + encode_timer(decode_timer(OLD["timer"]))[1:]
    with pytest.raises(UNREADABLE):
        decode_timer(value)
    with pytest.raises(msgspec.DecodeError):
        decode_journal(b"")
