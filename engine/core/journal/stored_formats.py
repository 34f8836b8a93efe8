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

from functools import reduce
from operator import or_
from typing import Any, Final, TypeVar

import msgspec

from engine.core.journal.journal_records import AnyPage, KernelRecord, MailboxPage, Record, StoredMessage
from engine.core.mailbox.broadcast_log import Broadcast, BroadcastEntry, broadcast_of
from engine.core.mailbox.judge_state import JudgeKinds
from engine.core.model.sealed import sealed, unsealed
from engine.core.wire.records import Timer

T = TypeVar("T")

_encode: Final = msgspec.msgpack.Encoder().encode
_stored: Final = msgspec.msgpack.Decoder(StoredMessage)
_timer: Final = msgspec.msgpack.Decoder(Timer)
_entry: Final = msgspec.msgpack.Decoder(BroadcastEntry)


class Layouts:
    """Reads journal entries and pages, with what the judge stores in them.

    A record of another kind makes its entry unreadable. Without a state those in pages are dropped.

    Attributes:
        record, page: the types.
    """

    def __init__(self, kinds: JudgeKinds) -> None:
        record: Any = reduce(or_, kinds.records, KernelRecord)
        page: Any = MailboxPage[kinds.state or Any]  # type: ignore[misc]
        self.record, self.page = record, page
        self._is_stateless = kinds.state is None
        self._record: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(record)
        self._journal: msgspec.msgpack.Decoder[list[Record]] = msgspec.msgpack.Decoder(list[record])
        self._page: msgspec.msgpack.Decoder[AnyPage] = msgspec.msgpack.Decoder(page)

    def decode_journal(self, entry: bytes) -> list[Record]:
        """The records of one journal entry."""
        return self._journal.decode(unsealed(entry))

    def decode_record(self, raw: bytes) -> Record:
        """One record, cut out of a journal entry."""
        return self._record.decode(raw)

    def decode_page(self, key: str, blob: bytes) -> AnyPage:
        """The page of a mailbox."""
        page = self._page.decode(unsealed(blob, key.encode(errors="replace")))
        if self._is_stateless:
            page.windows = None
        return page


def decode_stored(blob: bytes) -> StoredMessage:
    """One entry of an offline stream."""
    return _stored.decode(unsealed(blob))


def encode_timer(timer: Timer) -> bytes:
    """A durable timer as storage keeps it."""
    return sealed(_encode(timer))


def decode_timer(blob: bytes) -> Timer:
    """A durable timer."""
    return _timer.decode(unsealed(blob))


def read_entry(pos: int, blob: bytes) -> Broadcast:
    """The entry of the broadcast log at a position."""
    return broadcast_of(pos, _entry.decode(unsealed(blob)))
