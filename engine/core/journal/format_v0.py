"""Decodes version 0 of the stored formats (commit 65fafe9) into the current structs. Nothing is written in it any more.

Version 0 had no version byte: its records begin with a MessagePack array header. Every layout held a message's fields themselves, where
an envelope is nested now. Records that are not listed here are the same in both versions.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from engine.core.journal.journal_records import (
    Adopted,
    Decided,
    Handled,
    Kept,
    MailboxPage,
    Noticed,
    Profiled,
    Record,
    Remembered,
    StoredMessage,
    Topics,
)
from engine.core.mailbox.aggregation_window import AggregationWindow, Counted, Ended, Extended, WindowItem, Windows
from engine.core.mailbox.broadcast_log import BroadcastEntry
from engine.core.model.category import Instant, PolicyTerms, Span
from engine.core.model.envelope import Envelope, Merge, Priority
from engine.core.model.message import Collapsing
from engine.core.policy.conditions import Conditions
from engine.core.policy.user_state import UserState
from engine.core.wire.records import ScheduledId, Timer


class _StoredMessage(Struct, array_like=True, tag=1, gc=False):
    key: str
    seq: int
    id: str
    digest: bytes
    priority: Priority
    expires_ms: int
    retain: bool
    accepted_ms: int
    body: bytes
    attempts: int = 0
    timer: str = ""
    collapse: str = ""
    supersedes: int = 0
    count: int = 1
    pos: int = 0
    policy_terms: PolicyTerms | None = None


class _WindowItem(Struct, array_like=True, gc=False):
    collapse: str
    window_ms: int
    leading: bool
    text: str
    at_ms: int
    id: str
    timer: str
    digest: bytes
    priority: Priority
    expires_ms: int
    retain: bool
    body: bytes
    policy_terms: PolicyTerms | None = None


class _Counted(Struct, array_like=True, tag=11, gc=False):
    key: str
    number: int
    item: _WindowItem
    seq: int = 0


class _Window(Struct, array_like=True):
    opened_ms: int
    closes_ms: int
    leading: bool
    text: str
    first_id: str
    first_seq: int
    first_digest: bytes
    count: int
    first_ms: int
    last_ms: int
    priority: Priority
    expires_ms: int
    retain: bool
    actors: list[bytes]
    marks: list[bytes]
    body: bytes
    policy_terms: PolicyTerms | None = None
    types: dict[str, int] = {}


class _Windows(Struct, array_like=True):
    applied: int = 0
    open: dict[str, _Window] = {}


class _Kept(Struct, array_like=True, tag=13, gc=False):
    key: str
    windows: _Windows


class _MailboxPage(Struct, array_like=True, gc=False):
    head: int
    floor: int
    acked: list[int]
    gone: list[tuple[int, int]]
    cold: tuple[int, int] | None
    attempts: dict[int, int]
    recent: list[tuple[str, int, bytes]]
    oldest_expires_ms: int
    newest_above_low: int = -1
    collapsing: list[tuple[str, Collapsing]] = []
    log_pos: int = 0
    topics: dict[str, int] = {}
    windows: _Windows | None = None
    user_state: UserState | None = None
    seen_ms: int = 0


class _Timer(Struct, array_like=True, gc=False):
    sid: ScheduledId
    key: str
    due_ms: Instant
    created_ms: Instant
    id: str
    digest: bytes
    priority: Priority
    ttl_ms: Span
    retain: bool
    body: bytes
    collapse: str = ""
    merge: Merge | None = None
    policy_terms: PolicyTerms | None = None
    conditions: Conditions | None = None


class _BroadcastEntry(Struct, array_like=True, gc=False):
    tenant: str
    topic: str
    id: str
    priority: Priority
    expires_ms: int
    retain: bool
    accepted_ms: int
    body: bytes


_Record = _StoredMessage | Handled | Adopted | Topics | Profiled | Noticed | Decided | Remembered | _Counted | Ended | Extended | _Kept

_record: Final = msgspec.msgpack.Decoder(_Record)
_journal: Final = msgspec.msgpack.Decoder(list[_Record])
_stored: Final = msgspec.msgpack.Decoder(_StoredMessage)
_page: Final = msgspec.msgpack.Decoder(_MailboxPage)
_timer: Final = msgspec.msgpack.Decoder(_Timer)
_entry: Final = msgspec.msgpack.Decoder(_BroadcastEntry)


def decode_journal(entry: bytes) -> list[Record]:
    """The records of one journal entry."""
    return [_record_of(record) for record in _journal.decode(entry)]


def decode_record(raw: bytes) -> Record:
    """One record of a journal entry."""
    return _record_of(_record.decode(raw))


def decode_stored(blob: bytes) -> StoredMessage:
    """One entry of an offline stream. It had no digest, collapse key nor terms."""
    return _stored_of(_stored.decode(blob))


def decode_page(blob: bytes) -> MailboxPage:
    """A page."""
    page = _page.decode(blob)
    windows = None if page.windows is None else _windows_of(page.windows)
    names = [name for name in page.__struct_fields__ if name != "windows"]
    return MailboxPage(**{name: getattr(page, name) for name in names}, windows=windows)


def decode_timer(blob: bytes) -> Timer:
    """A durable timer."""
    old = _timer.decode(blob)
    envelope = Envelope(old.id, old.digest, old.priority, old.retain, old.body, old.collapse, old.merge, old.policy_terms)
    return Timer(old.sid, old.key, old.due_ms, old.created_ms, old.ttl_ms, envelope, old.conditions)


def decode_entry(blob: bytes) -> BroadcastEntry:
    """An entry of the broadcast log. It had no digest."""
    old = _entry.decode(blob)
    envelope = Envelope(old.id, b"", old.priority, old.retain, old.body)
    return BroadcastEntry(old.tenant, old.topic, envelope, old.expires_ms, old.accepted_ms)


def _record_of(record: _Record) -> Record:
    if isinstance(record, _StoredMessage):
        return _stored_of(record)
    if isinstance(record, _Counted):
        return Counted(record.key, record.number, _item_of(record.item), record.seq)
    if isinstance(record, _Kept):
        return Kept(record.key, _windows_of(record.windows))
    return record


def _stored_of(old: _StoredMessage) -> StoredMessage:
    envelope = Envelope(old.id, old.digest, old.priority, old.retain, old.body, old.collapse, None, old.policy_terms)
    count = old.count if old.collapse else 0
    return StoredMessage(
        old.key, old.seq, envelope, old.expires_ms, old.accepted_ms, old.attempts, old.timer, old.supersedes, count, old.pos
    )


def _item_of(old: _WindowItem) -> WindowItem:
    merge = Merge(max(old.window_ms, 1), old.leading, old.text)
    envelope = Envelope(old.id, old.digest, old.priority, old.retain, old.body, old.collapse, merge, old.policy_terms)
    return WindowItem(envelope, old.expires_ms, old.at_ms, old.timer)


def _windows_of(old: _Windows) -> Windows:
    return Windows(old.applied, {collapse: _window_of(collapse, window) for collapse, window in old.open.items()})


def _window_of(collapse: str, old: _Window) -> AggregationWindow:
    merge = Merge(max(old.closes_ms - old.opened_ms, 1), old.leading, old.text)
    return AggregationWindow(
        opened_ms=old.opened_ms,
        closes_ms=old.closes_ms,
        envelope=Envelope(old.first_id, old.first_digest, old.priority, old.retain, old.body, collapse, merge, old.policy_terms),
        expires_ms=old.expires_ms,
        first_seq=old.first_seq,
        count=old.count,
        first_ms=old.first_ms,
        last_ms=old.last_ms,
        actors=old.actors,
        marks=old.marks,
        types=old.types,
    )
