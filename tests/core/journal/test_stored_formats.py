"""Every stored value carries the version of its layout. A value of another version is unreadable, never misread."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from engine.core.journal.journal_records import Handled, MailboxPage, StoredMessage
from engine.core.journal.stored_formats import Layouts, decode_stored, decode_timer, encode_timer, read_entry
from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.mailbox.judge_state import JudgeKinds
from engine.core.model.envelope import Envelope
from engine.core.model.sealed import sealed
from engine.core.wire.records import UNREADABLE, Timer
from engine.features.windows.core.aggregation_window import Ended, Windows
from tests.support.stored import decode_journal, decode_page, decode_record

ENVELOPE = Envelope("m1", b"digest01", 1, True, b'"id":"m1"')
STORED = StoredMessage("t:u", 5, ENVELOPE, 9_000_000, 1_000)
TIMER = Timer("3-abc", "t:u", 5_000, 1_000, 60_000, ENVELOPE)
VALUES = {
    decode_journal: sealed(msgspec.msgpack.encode([STORED, Handled("t:u", 3, [5], 6)])),
    decode_stored: sealed(msgspec.msgpack.encode(STORED)),
    partial(decode_page, "t:u"): sealed(msgspec.msgpack.encode(MailboxPage(6, 3, [5], [], None, {}, [], 0, 6)), b"t:u"),
    decode_timer: encode_timer(TIMER),
    (lambda blob: read_entry(9, blob)): sealed(msgspec.msgpack.encode(BroadcastEntry("t", "news", ENVELOPE, 9_000_000, 1_000))),
}
"""Decoder -> a value that it reads."""


def test_stored_values_are_read_as_they_were_written() -> None:
    assert decode_timer(encode_timer(TIMER)) == TIMER
    assert decode_record(msgspec.msgpack.encode(STORED)) == STORED
    for decode, value in VALUES.items():
        decode(value)


@pytest.mark.parametrize("version", [0, 2, 4, 0x7F, 0x91])
def test_a_value_of_another_version_is_unreadable(version: int) -> None:
    for decode, value in VALUES.items():
        with pytest.raises(UNREADABLE):
            decode(bytes([version]) + value[1:])
        with pytest.raises(UNREADABLE):
            decode(b"")


def test_records_of_the_judge_are_unreadable_without_their_kinds() -> None:
    entry = sealed(msgspec.msgpack.encode([STORED, Ended("t:u", 1, "likes")]))
    assert decode_journal(entry) == [STORED, Ended("t:u", 1, "likes")]
    with pytest.raises(UNREADABLE):
        Layouts(JudgeKinds()).decode_journal(entry)


def test_a_page_is_read_with_the_judges_state_or_without() -> None:
    page = MailboxPage(6, 3, [5], [], None, {}, [], 0, 6, windows=Windows(2), seen_ms=7)
    blob = sealed(msgspec.msgpack.encode(page), b"t:u")
    assert decode_page("t:u", blob) == page
    assert Layouts(JudgeKinds()).decode_page("t:u", blob) == msgspec.structs.replace(page, windows=None)


def test_a_state_that_the_judge_cannot_have_written_is_unreadable() -> None:
    page = MailboxPage(6, 3, [5], [], None, {}, [], 0, 6, windows={"not": "windows"})
    with pytest.raises(UNREADABLE):
        decode_page("t:u", sealed(msgspec.msgpack.encode(page), b"t:u"))
