"""The stored formats and their versions: journal entries, pages, entries of offline streams and of the broadcast log, durable timers.

Each value is MessagePack behind a version byte and a checksum (`engine.core.model.sealed`). A value of any other version is reported as
unreadable and quarantined, like a damaged one.

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

from engine.core.journal.journal_records import KernelRecord, MailboxPage, Record, StoredMessage
from engine.core.mailbox.aggregation_window import Counted, Ended, Extended, Kept
from engine.core.mailbox.broadcast_log import Broadcast, BroadcastEntry, broadcast_of
from engine.core.model.sealed import sealed, unsealed
from engine.core.wire.records import Timer

T = TypeVar("T")

AnyRecord = KernelRecord | Counted | Ended | Extended | Kept
"""Every kind of record of the journal, those of features included: a shard without a feature reads them too."""

_encode: Final = msgspec.msgpack.Encoder().encode
_record: Final[msgspec.msgpack.Decoder[AnyRecord]] = msgspec.msgpack.Decoder(AnyRecord)
_journal: Final[msgspec.msgpack.Decoder[list[Record]]] = msgspec.msgpack.Decoder(list[AnyRecord])
_stored: Final = msgspec.msgpack.Decoder(StoredMessage)
_page: Final = msgspec.msgpack.Decoder(MailboxPage)
_timer: Final = msgspec.msgpack.Decoder(Timer)
_entry: Final = msgspec.msgpack.Decoder(BroadcastEntry)


def decode_journal(entry: bytes) -> list[Record]:
    """The records of one journal entry."""
    return _journal.decode(unsealed(entry))


def decode_record(raw: bytes) -> Record:
    """One record, cut out of a journal entry."""
    return _record.decode(raw)


def decode_stored(blob: bytes) -> StoredMessage:
    """One entry of an offline stream."""
    return _stored.decode(unsealed(blob))


def decode_page(key: str, blob: bytes) -> MailboxPage:
    """The page of a mailbox."""
    return _page.decode(unsealed(blob, key.encode(errors="replace")))


def encode_timer(timer: Timer) -> bytes:
    """A durable timer as storage keeps it."""
    return sealed(_encode(timer))


def decode_timer(blob: bytes) -> Timer:
    """A durable timer."""
    return _timer.decode(unsealed(blob))


def read_entry(pos: int, blob: bytes) -> Broadcast:
    """The entry of the broadcast log at a position."""
    return broadcast_of(pos, _entry.decode(unsealed(blob)))
