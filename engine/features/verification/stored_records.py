"""Checks every stored record with a checksum or a layout, without changing anything: `engine verify`.

    kind             what is checked
    slot map         version, checksum
    page             version, checksum (which includes the user), slot of the user, no newer message is kept
    offline message  version, checksum, user and number against the stream and the entry
    journal group    version, checksum, the group before; the last one against the head, so that a lost end is found
    timer            version, checksum, scheduled id; an entry in the index for each record, and a record for each entry
    broadcast        version, checksum, audience
    dead letter      checksum
    action           checksum
    question         layout only, of its answer too: an edge reads both whole, or not
    growing message  layout only, of its head: the text in its chunks becomes a message at its end
    accepted id      layout only: a checksum would be half as large as the record. Damage makes a repeat a 409, or an id forgotten
    rules            layout only: edges parse and validate a text before they use it
    lost write       none is counted by the server: those that fail while it loads its append-only file

Other keys hold indexes and counts: fences, presence, due times, figures of tenants. They have neither bodies nor numbers of messages, and
Redis replaces each whole. A key that belongs to no kind is reported, since damage may have renamed it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

import msgspec
import redis.asyncio as redis
from msgspec import Struct

from engine.core.commit.first_result import parse_idempotency_value, unpacked_result
from engine.core.journal.journal_records import MailboxPage
from engine.core.journal.salvage import read_page
from engine.core.journal.stored_formats import decode_journal, decode_stored, decode_timer, read_entry
from engine.core.model.routing import SLOTS, TIMER_PARTITIONS, mailbox_key, slot_of
from engine.core.model.sealed import unsealed
from engine.core.wire.records import UNREADABLE
from engine.errors import ConfigError, CorruptRecord
from engine.store.journal import is_next
from engine.store.keys import (
    BROADCAST_LOG_KEY,
    IDS_PREFIX,
    SLOTS_KEY,
    action_stream_key,
    channels_key,
    dead_letter_key,
    journal_head_key,
    journal_key,
    offline_key,
    offline_prefix,
    page_key,
    rules_state_key,
    rules_texts_key,
    timer_due_key,
    timer_key,
)
from engine.store.sealed_fields import is_whole
from engine.store.slot_map import decode_slot_map
from engine.store.storage_calls import StorageCalls

_KEYS_READ: Final = 1000
_RECORDS_READ: Final = 200
"""Records per read: at most some megabytes, usually a hundred kilobytes."""

_DAMAGE_MAX: Final = 1000
"""Damaged records that are listed; the others are counted."""

_STAMP_BYTES: Final = 4
_HEAD: Final = re.compile(rb"\d{1,16}-\d{1,16}u?")
_UNCHECKED: Final = re.compile(
    rb"engine:(meta|epoch|replicated|lease|link-key|load|unsubscribe-key|push-key)|\{rules\}(events|tenants)|\{[^{}]{1,200}\}trimmed"
    rb"|events?:.*|session:stream|actions:targets"
    rb"|\{s\d{1,2}\}(epoch|head|mark|online|windows|looks|floor|held|topics|growing:.*)|\{shard-\d{1,2}\}(quarantine|events)"
    rb"|\{t\d{1,2}\}(due|user:.*|collapse|cancelled|quarantine|claimed|young|unpaged|owner|epoch)"
    rb"|\{broadcasts\}(state|parts|dropped|lost|of:.*)|\{revoked\}(log|entries|expiries|state|tenants|useless)"
    rb"|\{audit\}acts|\{questions\}due|\{growing\}(due|tenants)|\{channels\}((asked|erased|told):.*|caught)|\{signals\}.*|\{tenants\}.*|\{outcomes\}(stream|state)|\{ids\}state|\{ray\}(state|told|running|deaths|unhealthy)",
    re.DOTALL,
)

_GAP: Final = "nothing: its reader quarantines it and announces a gap to the user"
_EPOCH: Final = "nothing: the shard quarantines it, and every client gets a gap, since numbers may be missing; or restore a snapshot"
_LOST: Final = "restore a snapshot, or go on: what is missing is lost"
_ADVICE: Final = {
    "slot map": "restore a snapshot: the engine refuses to start",
    "page": "nothing: the shard restores the user from the offline stream and announces gaps",
    "offline message": _GAP,
    "journal group": _EPOCH,
    "journal end": _LOST,
    "journal head": "restart the engine: its next group writes it anew",
    "timer": "nothing: the scheduler quarantines it, and it does not fire; publish it again",
    "broadcast": "nothing: its audience gets a gap; broadcast it again",
    "dead letter": "`engine dead-letters drop` it: it is not redriven",
    "action": "nothing: it becomes a dead letter and is not carried out",
    "question": "nothing: it has no answer for its asker, who asks again under another id",
    "growing message": "nothing: it does not end; its publisher begins it anew",
    "accepted id": "nothing: it ends by itself; a repeat under it may get 409",
    "addresses": "nothing: the user has none until the application sets them again",
    "rules": "`engine rules apply` the rules again",
    "lost write": "nothing, if the engine started this server: clients were told of a gap. Else restore a backup",
    "unknown key": "look at it: damage may have renamed it; a snapshot has the true one",
}
"""What an operator does about a damaged record of each kind."""


class Damage(Struct, frozen=True):
    """A damaged record.

    Attributes:
        kind: of record, as in the table above.
        key: of Redis.
        place: the field or entry in it, "" for the key itself.
        problem: what is wrong.
    """

    kind: str
    key: str
    place: str
    problem: str

    @property
    def advice(self) -> str:
        """What to do."""
        return _ADVICE[self.kind]


class Verified(Struct, frozen=True):
    """The records of each kind that were checked, the first damaged ones, and how many are damaged."""

    checked: dict[str, int]
    damage: list[Damage]
    damaged: int


class Verification:
    """One pass over the data of a Redis. It reads, and changes nothing; an engine may run meanwhile.

    Args:
        client: of the Redis.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._checked: Counter[str] = Counter()
        self._damage: list[Damage] = []
        self._damaged = 0
        self._checks: dict[str, Callable[[bytes, int], Awaitable[None]]] = {
            "slot map": self._slot_map,
            "page": self._pages,
            "offline message": self._offline,
            "journal group": self._journal,
            "timer": self._timers,
            "broadcast": self._broadcasts,
            "dead letter": partial(self._read_by_fields, "dead letter"),
            "action": partial(self._read_by_fields, "action"),
            "question": self._questions,
            "growing message": self._growing,
            "accepted id": self._bucket,
            "accepted id of an audience": self._single_id,
            "rules": self._rules_state,
            "texts of rules": self._rules_texts,
            "addresses": self._addresses,
            "unknown key": self._unknown,
        }

    async def run(self) -> Verified:
        """Check all records. Raises StorageUnavailable."""
        with StorageCalls("verify"):
            async for key in self._client.scan_iter(count=_KEYS_READ):
                await self._key(key)
            for partition in range(TIMER_PARTITIONS):
                await self._timer_index(partition)
            await self._lost_writes()
        return Verified(dict(self._checked), self._damage, self._damaged)

    async def _key(self, key: bytes) -> None:
        kind, part = kind_of(key)
        if kind:
            await self._checks[kind](key, part)

    # -- Reading in bounded pieces. ------------------------------------------------------------------------------------
    async def _fields(self, key: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        async for field, value in self._client.hscan_iter(key, count=_RECORDS_READ):
            yield field, value

    async def _entries(self, key: bytes) -> AsyncIterator[tuple[bytes, dict[bytes, bytes]]]:
        start: bytes = b"-"
        while True:
            entries: Any = await self._client.xrange(key, min=start, count=_RECORDS_READ)
            for entry in entries:
                yield entry
            if len(entries) < _RECORDS_READ:
                return
            start = b"(" + entries[-1][0]

    # -- One kind each. ------------------------------------------------------------------------------------------------
    async def _lost_writes(self) -> None:
        """Redis leaves out writes of the append-only file, or of its primary, that fail; it counts them until it ends."""
        stats: Any = await self._client.info("stats")
        if lost := stats.get("unexpected_error_replies", 0):
            self._found("lost write", b"", b"", f"{lost} writes failed since the server started: their records were damaged")

    async def _unknown(self, key: bytes, _: int) -> None:
        self._found("unknown key", key, b"", "belongs to no kind of record")

    async def _slot_map(self, key: bytes, _: int) -> None:
        self._checked["slot map"] += 1
        packed: Any = await self._client.get(key)
        try:
            decode_slot_map(packed or b"")
        except (ConfigError, CorruptRecord, *UNREADABLE) as error:
            self._found("slot map", key, b"", error)

    async def _pages(self, key: bytes, slot: int) -> None:
        async for field, blob in self._fields(key):
            page = self._page(key, slot, field, blob)
            if page is not None and page.head < await self._last_kept(field):
                again: Any = await self._client.hget(key.decode(), field.decode())  # page and messages may have been written meanwhile
                if again == blob:
                    self._found("page", key, field, f"it ends at {page.head}, and newer messages of the user are kept")

    async def _last_kept(self, field: bytes) -> int:
        """The number of the newest message of a user's offline stream."""
        newest: Any = await self._client.xrevrange(offline_key(field.decode()), count=1)
        return int(newest[0][0].partition(b"-")[0]) if newest else 0

    def _page(self, key: bytes, slot: int, field: bytes, blob: bytes) -> MailboxPage | None:
        self._checked["page"] += 1
        mailbox = field.decode(errors="replace")
        if slot_of(mailbox) != slot:
            self._found("page", key, field, f"the user belongs to slot {slot_of(mailbox)}")
            return None
        try:
            return read_page(mailbox, blob)
        except CorruptRecord as error:
            self._found("page", key, field, error)
            return None

    async def _offline(self, key: bytes, _: int) -> None:
        mailbox = key.partition(b"}offline:uid:")[2].decode(errors="replace")
        if key.decode(errors="replace") != offline_prefix(slot_of(mailbox)) + mailbox:
            self._found("unknown key", key, b"", f"the user belongs to slot {slot_of(mailbox)}")
            return
        async for entry, fields in self._entries(key):
            self._checked["offline message"] += 1
            try:
                stored = decode_stored(fields.get(b"m", b""))
                if (stored.key, b"%d-0" % stored.seq) != (mailbox, entry):
                    self._found("offline message", key, entry, f"it is message {stored.seq} of {stored.key}")
            except UNREADABLE as error:
                self._found("offline message", key, entry, error)

    async def _journal(self, key: bytes, slot: int) -> None:
        # Before the entries: groups that are appended meanwhile are newer.
        head: Any = await self._client.get(journal_head_key(slot))
        last = b""
        async for entry, fields in self._entries(key):
            self._checked["journal group"] += 1
            if last and not is_next(last, entry, fields) and await self._is_kept(key, last):
                self._found("journal group", key, entry, f"the group before is missing: {last.decode()} precedes it")
            last = entry
            try:
                decode_journal(fields.get(b"b", b""))
            except UNREADABLE as error:
                self._found("journal group", key, entry, error)
        if head is None or not _HEAD.fullmatch(head):
            if last:
                self._found("journal head", journal_head_key(slot).encode(), b"", "it is no number of a group")
        elif last and not head.endswith((b"-0", b"u")) and _group(last) < _group(head):
            again: Any = await self._client.get(journal_head_key(slot))
            if again == head and await self._is_kept(key, last):
                self._found("journal end", key, last, f"the last group is {head.decode()}: those between are missing")

    async def _is_kept(self, key: bytes, entry: bytes) -> bool:
        """Whether a journal still has an entry: else a checkpoint has trimmed it meanwhile, and what follows it."""
        return bool(await self._client.xrange(key.decode(), min=entry, max=entry))

    async def _timers(self, key: bytes, _: int) -> None:
        async for sid, blob in self._fields(key):
            self._timer(key, sid, blob)

    def _timer(self, key: bytes, sid: bytes, blob: bytes) -> None:
        self._checked["timer"] += 1
        try:
            timer = decode_timer(blob)
            if timer.sid.encode() != sid:
                self._found("timer", key, sid, f"it is the record of {timer.sid}")
        except UNREADABLE as error:
            self._found("timer", key, sid, error)

    async def _timer_index(self, partition: int) -> None:
        """Timers that never fire, and entries without a timer."""
        for key, index, problem in (
            (timer_key(partition), timer_due_key(partition), "it has no due time, so it never fires"),
            (timer_due_key(partition), timer_key(partition), "its record is missing"),
        ):
            scan = self._client.hscan_iter if key == timer_key(partition) else self._client.zscan_iter
            sids = [sid async for sid, _ in scan(key, count=_RECORDS_READ)]
            for start in range(0, len(sids), _RECORDS_READ):
                some = sids[start : start + _RECORDS_READ]
                for sid in [sid for sid in some if not await self._is_in(index, sid)]:
                    if await self._is_in(key, sid):  # it has neither fired nor been cancelled meanwhile
                        self._found("timer", key.encode(), sid, problem)

    async def _is_in(self, key: str, sid: bytes) -> bool:
        if key.endswith("due"):
            return await self._client.zscore(key, sid) is not None
        return bool(await cast(Any, self._client).hexists(key, sid))

    async def _broadcasts(self, key: bytes, _: int) -> None:
        async for entry, fields in self._entries(key):
            self._broadcast(key, entry, fields)

    def _broadcast(self, key: bytes, entry: bytes, fields: dict[bytes, bytes]) -> None:
        self._checked["broadcast"] += 1
        try:
            broadcast = read_entry(int(entry.partition(b"-")[0]), fields.get(b"b", b""))
        except UNREADABLE as error:
            self._found("broadcast", key, entry, error)
            return
        if fields.get(b"a") and fields[b"a"].decode(errors="replace") != f"{broadcast.tenant} {broadcast.topic}":
            self._found("broadcast", key, entry, f"its audience is {broadcast.tenant} {broadcast.topic}")

    async def _read_by_fields(self, kind: str, key: bytes, _: int) -> None:
        async for entry, fields in self._entries(key):
            self._checked[kind] += 1
            if not is_whole(fields):
                self._found(kind, key, entry, "the checksum is another: the value is damaged")

    async def _questions(self, key: bytes, _: int) -> None:
        async for id, value in self._fields(key):
            self._checked["question"] += 1
            try:
                msgspec.msgpack.decode(value)
            except UNREADABLE as error:
                self._found("question", key, id, error)

    async def _growing(self, key: bytes, _: int) -> None:
        self._checked["growing message"] += 1
        try:
            head: Any = await self._client.hget(key.decode(), "head")
            if head is not None:  # else it has expired meanwhile
                msgspec.msgpack.decode(head)
        except UNREADABLE as error:
            self._found("growing message", key, b"head", error)

    async def _bucket(self, key: bytes, _: int) -> None:
        async for field, value in self._fields(key):
            self._accepted_id(unpacked_result, key, field.hex().encode(), value[_STAMP_BYTES:])

    async def _single_id(self, key: bytes, _: int) -> None:
        value: Any = await self._client.get(key)
        if value is not None:
            self._accepted_id(parse_idempotency_value, key, b"", value)

    def _accepted_id(self, read: Callable[[bytes], object], key: bytes, place: bytes, value: bytes) -> None:
        self._checked["accepted id"] += 1
        try:
            read(value)
        except ValueError as error:
            self._found("accepted id", key, place, error)

    async def _rules_state(self, key: bytes, _: int) -> None:
        self._checked["rules"] += 1
        state: Any = await self._client.hget(key.decode(), "state")
        try:
            if state is not None:
                msgspec.json.decode(state)
        except UNREADABLE as error:
            self._found("rules", key, b"state", error)

    async def _rules_texts(self, key: bytes, _: int) -> None:
        async for version, text in self._fields(key):
            self._checked["rules"] += 1
            try:
                int(version)
                text.decode()
            except ValueError as error:
                self._found("rules", key, version, error)

    async def _addresses(self, key: bytes, _: int) -> None:
        tenant = key.decode().removeprefix(channels_key(""))
        async for user, value in self._fields(key):
            self._checked["addresses"] += 1
            try:
                unsealed(value, mailbox_key(tenant, user.decode()).encode())
            except UNREADABLE as error:
                self._found("addresses", key, user, error)

    def _found(self, kind: str, key: bytes, place: bytes, problem: object) -> None:
        self._damaged += 1
        if len(self._damage) < _DAMAGE_MAX:
            self._damage.append(Damage(kind, key.decode(errors="backslashreplace"), place.decode(errors="backslashreplace"), str(problem)))


_EXACT: Final = {
    SLOTS_KEY.encode(): ("slot map", 0),
    BROADCAST_LOG_KEY.encode(): ("broadcast", 0),
    rules_state_key().encode(): ("rules", 0),
    rules_texts_key().encode(): ("texts of rules", 0),
    **{page_key(slot).encode(): ("page", slot) for slot in range(SLOTS)},
    **{journal_key(slot).encode(): ("journal group", slot) for slot in range(SLOTS)},
    **{timer_key(partition).encode(): ("timer", partition) for partition in range(TIMER_PARTITIONS)},
}
_BEGINNINGS: Final = (
    (re.compile(rb"\{s\d+\}offline:uid:"), "offline message"),
    (re.compile(rb"\{s\d+\}(questions|answers|votes):"), "question"),
    (re.compile(rb"\{s\d+\}growth:"), "growing message"),
    (re.compile(rb"\{s\d+\}id:"), "accepted id of an audience"),
    (re.compile(re.escape(IDS_PREFIX.encode()) + rb"\d+$"), "accepted id"),
    (re.compile(re.escape(dead_letter_key("").encode())), "dead letter"),
    (re.compile(re.escape(action_stream_key("").encode())), "action"),
    (re.compile(re.escape(channels_key("").encode())), "addresses"),
    (re.compile(rb"\{rules\}state:"), "rules"),
    (re.compile(rb"\{rules\}texts:"), "texts of rules"),
)


def kind_of(key: bytes) -> tuple[str, int]:
    """The kind of a key's records, and the part of the data; "" where nothing is checked."""
    if key in _EXACT:
        return _EXACT[key]
    kind = next((kind for beginning, kind in _BEGINNINGS if beginning.match(key)), "")
    return kind or ("" if _UNCHECKED.fullmatch(key) else "unknown key"), 0


def _group(entry: bytes) -> tuple[int, int]:
    epoch, _, number = entry.partition(b"-")
    return int(epoch), int(number)
