"""Recovers the sequence numbers that a damaged stored record had assigned.

The content of a damaged record is lost; its reader quarantines and reports it. Its sequence numbers must not be lost with it: a number
assigned twice would name two messages, and a client that has seen the first would take the second for a repeat (invariant 5). So a damaged
record is parsed as far as possible.

Journal entry: an array of records, each `[tag, key, seq, ...]`. With the right checksum it is what was written, by a process that was
wrong: records that can be read are recovered. A message that cannot be, with a readable key and number, becomes a `Handled` with that
`head`: the number counts as used, and a gap is announced to its user. An acknowledgement that cannot be read only causes a repeat; a change
of subscriptions or of a profile, or an event, has no numbers, and neither has a record of the judge: its count is short by one, or what it
sends is sent twice. When the owner of a number remains unknown, `complete` is False: numbers may be assigned again, and only a new data
epoch distinguishes them.

With a wrong checksum nothing in it is known to be true, so no content is recovered, and `complete` is False. Numbers that can be read count
as used all the same, since most of them are right.

Page: an array that begins with `head` and `floor`. With the right checksum, and both readable, the mailbox is restored: everything above
`floor` is read from the offline stream, and what is missing there is announced as a gap; messages acknowledged out of order are delivered
again. Without them a new data epoch is needed.

The MessagePack reader here (https://github.com/msgpack/msgpack/blob/master/spec.md) only finds where values end. It runs after damage only,
never on a message's normal path.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.journal.journal_records import Adopted, AnyPage, Handled, MailboxPage, Record, StoredMessage
from engine.core.journal.stored_formats import Layouts
from engine.core.model.constants import FORMAT_VERSION, SEQ_MAX
from engine.core.model.sealed import CONTENT_AT, unsealed
from engine.core.wire.records import UNREADABLE
from engine.errors import CorruptRecord

_DEPTH_MAX: Final = 32
_KEY_CHARS_MAX: Final = 4096
_TAG_STORED: Final = 1
_TAGS_UNNUMBERED: Final = (2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17)
"""Of records that give no sequence number: acknowledgements, changes of users, records of the judge."""

_value: Final = msgspec.msgpack.Decoder()

_FIXED: Final = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
                 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # fmt: skip
"""First byte -> bytes that follow it, where that is all."""
_SIZED: Final = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
"""First byte -> (bytes of the length that follows, bytes besides), for strings, binaries and extensions."""
_COUNTED: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First byte -> (bytes of the count that follows, values per element), for arrays and maps."""


class Salvaged(Struct):
    """What replay may apply of a journal entry, in order. `complete`: no number of the entry is unaccounted for."""

    records: list[Record]
    complete: bool


class _Damaged(Exception):
    """No value ends where this one should."""


def salvage_journal(entry: bytes, layouts: Layouts) -> Salvaged:
    """What is left of a journal entry. Never raises, whatever the bytes are."""
    records: list[Record] = []
    try:
        records.extend(layouts.decode_journal(entry))
        return Salvaged(records, True)
    except UNREADABLE:
        pass
    if entry[:1] != FORMAT_VERSION:
        return Salvaged(records, False)
    salvaged = _salvaged(entry[CONTENT_AT:], layouts)
    if _is_whole(entry):
        return salvaged
    return Salvaged([used for record in salvaged.records for used in _numbers_of(record)], False)


def _is_whole(blob: bytes, owner: bytes = b"") -> bool:
    """Whether the value is what was written."""
    try:
        unsealed(blob, owner)
    except msgspec.DecodeError:
        return False
    return True


def _numbers_of(record: Record) -> list[Handled]:
    """What marks the numbers of the record as used, and nothing else."""
    if isinstance(record, StoredMessage):
        return [Handled(record.key, 0, [], record.seq)]
    if isinstance(record, Adopted):
        return [Handled(key, 0, [], seq) for key, seq in record.numbers]
    if isinstance(record, Handled):
        return [Handled(record.key, 0, [], record.head)]
    return []


def _salvaged(entry: bytes, layouts: Layouts) -> Salvaged:
    """What is left of the content of an entry."""
    records: list[Record] = []
    try:
        count, position = _array(entry)
    except _Damaged:
        return Salvaged(records, False)
    complete = True
    for _ in range(min(count, len(entry))):
        try:
            end = _end(entry, position)
        except _Damaged:
            # Where this record ends, and so where the others are, is unknown; its beginning may tell the last number.
            _accounted(entry[position:], records)
            return Salvaged(records, False)
        complete &= _take(entry[position:end], records, layouts)
        position = end
    return Salvaged(records, complete and count <= len(entry) and position == len(entry))


def _take(raw: bytes, records: list[Record], layouts: Layouts) -> bool:
    """Append the record, or what stands for it. Returns whether every number in it is accounted for."""
    try:
        record = layouts.decode_record(raw)
    except UNREADABLE:
        return _accounted(raw, records)
    seqs = [record.seq] if isinstance(record, StoredMessage) else [seq for _, seq in record.numbers] if isinstance(record, Adopted) else []
    if not all(0 < seq <= SEQ_MAX for seq in seqs):
        return False
    records.append(record)
    return True


def _accounted(raw: bytes, records: list[Record]) -> bool:
    """A damaged record: mark its number as used. Returns whether nothing else was in it."""
    tag, key, seq = _values(raw, 3)
    if tag in _TAGS_UNNUMBERED:
        return True
    if tag != _TAG_STORED or not _is_key(key) or type(seq) is not int or not 0 < seq <= SEQ_MAX:
        return False
    records.append(Handled(key, 0, [], seq))
    return True


def _is_key(value: object) -> bool:
    return isinstance(value, str) and ":" in value and len(value) <= _KEY_CHARS_MAX


def read_page(key: str, blob: bytes, layouts: Layouts) -> AnyPage:
    """The page of a mailbox.

    Raises:
        CorruptRecord: it cannot be read, or cannot be true.
    """
    try:
        page = layouts.decode_page(key, blob)
    except UNREADABLE as error:
        raise CorruptRecord(str(error)) from error
    if not 0 <= page.floor <= page.head <= SEQ_MAX:
        raise CorruptRecord(f"floor {page.floor} and head {page.head}")
    ranges = [*page.gone, *([page.cold] if page.cold else [])]
    if any(not page.floor < first <= last <= page.head for first, last in ranges):
        raise CorruptRecord("numbers outside of the mailbox's")
    if any(not page.floor < seq <= page.head for seq in page.acked):
        raise CorruptRecord("acknowledged numbers outside of the mailbox's")
    if any(later[0] <= earlier[1] for earlier, later in zip(page.gone, page.gone[1:], strict=False)):
        raise CorruptRecord("lost ranges that are not in order")
    return page


def salvage_page(key: str, blob: bytes) -> AnyPage | None:
    """The page that stands for one that `read_page` refuses, None when not even its numbers are known."""
    if not _is_whole(blob, key.encode(errors="replace")):
        return None
    head, floor = _values(blob[CONTENT_AT:], 2)
    if type(head) is not int or type(floor) is not int or not 0 <= floor <= head <= SEQ_MAX:
        return None
    return page_with(head, floor)


def page_with(head: int, floor: int) -> AnyPage:
    """A page of which nothing but these numbers is known: what is above `floor` is to be looked for in the offline stream."""
    return MailboxPage(head, floor, [], [], (floor + 1, head) if head > floor else None, {}, [], 0, head)


# -- MessagePack, as far as needed. --------------------------------------------------------------------------------------
def _values(raw: bytes, count: int) -> list[Any]:
    """The first `count` elements of an array, None where one is missing or damaged."""
    found: list[Any] = []
    try:
        elements, position = _array(raw)
        for _ in range(min(count, elements)):
            end = _end(raw, position)
            found.append(_value.decode(raw[position:end]))
            position = end
    except (_Damaged, *UNREADABLE):
        pass
    return found + [None] * (count - len(found))


def _array(raw: bytes) -> tuple[int, int]:
    """The number of elements of an array, and where the first begins. Raises _Damaged."""
    first = _byte(raw, 0)
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, 1
    if first in (0xDC, 0xDD):
        return _length(raw, 1, _COUNTED[first][0])
    raise _Damaged


def _end(raw: bytes, position: int) -> int:
    """Where the value at `position` ends. Raises _Damaged."""
    left = [1]  # values still to pass, per open container
    while left:
        left[-1] -= 1
        position, inside = _step(raw, position)
        if inside:
            if len(left) > _DEPTH_MAX or inside > len(raw):
                raise _Damaged
            left.append(inside)
        while left and not left[-1]:
            left.pop()
    return position


def _step(raw: bytes, position: int) -> tuple[int, int]:
    """Behind the head of a value (a scalar is all head), and how many values are inside it."""
    first = _byte(raw, position)
    end, inside = position + 1, 0
    if 0x80 <= first <= 0x9F:
        inside = (first & 0x0F) * (2 if first < 0x90 else 1)
    elif 0xA0 <= first <= 0xBF:
        end += first & 0x1F
    elif first in _FIXED:
        end += _FIXED[first]
    elif first in _SIZED:
        width, besides = _SIZED[first]
        size, end = _length(raw, end, width)
        end += size + besides
    elif first in _COUNTED:
        width, values = _COUNTED[first]
        count, end = _length(raw, end, width)
        inside = count * values
    elif 0x80 <= first < 0xE0:
        raise _Damaged  # 0xC1 is never used
    if end > len(raw):
        raise _Damaged
    return end, inside


def _byte(raw: bytes, position: int) -> int:
    if position >= len(raw):
        raise _Damaged
    return raw[position]


def _length(raw: bytes, position: int, width: int) -> tuple[int, int]:
    if position + width > len(raw):
        raise _Damaged
    return int.from_bytes(raw[position : position + width], "big"), position + width
