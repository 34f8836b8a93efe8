"""The stored formats and their versions: journal entries, pages, entries of offline streams and of the broadcast log, durable timers.

Each value begins with one version byte (`FORMAT_VERSION`), followed by MessagePack. Version 0 had no such byte; it begins with an array
header, 0x80 or above, which no version byte is. It is still decoded (`engine.core.journal.format_v0`). A value of any other version is
reported as unreadable and quarantined, like a damaged one.

While an engine is upgraded, processes of two versions read what the other writes, in storage and on links. So a change appends fields with
a default to a record, which the version before ignores. A record of a new kind, or a new version of the layouts, belongs to the next
formats (`engine.core.model.formats`): it is read at once, and written when every process reads it (tests/core/wire/test_records.py holds
the layouts of the last release).

A new version: keep the old layouts in a module of their own that only decodes, dispatch to it here, and write the byte before until
`SlotMap.formats` allows the new one.

Every function here raises the exceptions of `engine.core.wire.records.UNREADABLE` when the bytes do not match the format.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from engine.core.journal import format_v0
from engine.core.journal.journal_records import MailboxPage, Record, StoredMessage
from engine.core.mailbox.broadcast_log import Broadcast, BroadcastEntry, broadcast_of
from engine.core.model.constants import FORMAT_VERSION
from engine.core.wire.records import Timer

T = TypeVar("T")

_encode: Final = msgspec.msgpack.Encoder().encode
_record: Final = msgspec.msgpack.Decoder(Record)
_journal: Final = msgspec.msgpack.Decoder(list[Record])
_stored: Final = msgspec.msgpack.Decoder(StoredMessage)
_page: Final = msgspec.msgpack.Decoder(MailboxPage)
_timer: Final = msgspec.msgpack.Decoder(Timer)
_entry: Final = msgspec.msgpack.Decoder(BroadcastEntry)


def decode_journal(entry: bytes) -> list[Record]:
    """The records of one journal entry."""
    return format_v0.decode_journal(entry) if is_v0(entry) else _journal.decode(_content(entry))


def decode_record(raw: bytes, *, v0: bool) -> Record:
    """One record, cut out of a journal entry."""
    return format_v0.decode_record(raw) if v0 else _record.decode(raw)


def decode_stored(blob: bytes) -> StoredMessage:
    """One entry of an offline stream."""
    return format_v0.decode_stored(blob) if is_v0(blob) else _stored.decode(_content(blob))


def decode_page(blob: bytes) -> MailboxPage:
    """A page."""
    return format_v0.decode_page(blob) if is_v0(blob) else _page.decode(_content(blob))


def encode_timer(timer: Timer) -> bytes:
    """A durable timer as storage keeps it."""
    return FORMAT_VERSION + _encode(timer)


def decode_timer(blob: bytes) -> Timer:
    """A durable timer."""
    return format_v0.decode_timer(blob) if is_v0(blob) else _timer.decode(_content(blob))


def read_entry(pos: int, blob: bytes) -> Broadcast:
    """The entry of the broadcast log at a position."""
    return broadcast_of(pos, format_v0.decode_entry(blob) if is_v0(blob) else _entry.decode(_content(blob)))


def is_v0(blob: bytes) -> bool:
    """Whether the value begins like one of version 0."""
    return bool(blob) and blob[0] >= 0x80


def _content(blob: bytes) -> memoryview:
    if blob[:1] != FORMAT_VERSION:
        raise msgspec.DecodeError(f"version {blob[0]} of the stored formats is unknown" if blob else "the value is empty")
    return memoryview(blob)[1:]
