"""Checks every stored record with a checksum or a layout, without changing anything: `engine verify`.

    kind             what is checked
    slot map         version, checksum
    page             version, checksum (which includes the user), slot of the user, no newer message is kept
    offline message  version, checksum, user and number against the stream and the entry
    journal group    version, checksum, the group before; the last one against the head, so that a lost end is found
    timer            version, checksum, scheduled id; an entry in the index for each record, and a record for each entry
    broadcast        version, checksum, audience
    handed events    version, checksum
    accepted id      layout only: a checksum would be half as large as the record. Damage makes a repeat a 409, or an id forgotten
    of features      what each declares (`engine.store.stored_kinds`)
    lost write       none is counted by the server: those that fail while it loads its append-only file

Other keys hold indexes and counts: fences, presence, due times, figures of tenants. They have neither bodies nor numbers of messages, and
Redis replaces each whole. A key that belongs to no kind is reported, since damage may have renamed it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from operator import itemgetter
from typing import Any, Final, TypeVar, cast

import redis.asyncio as redis
from msgspec import Struct
from redis.exceptions import ResponseError

from engine.core.commit.first_result import parse_idempotency_value, unpacked_result
from engine.core.journal.journal_records import AnyPage
from engine.core.journal.salvage import read_page
from engine.core.journal.stored_formats import Layouts, decode_stored, decode_timer, read_entry
from engine.core.mailbox.judge_state import JudgeKinds
from engine.core.model.routing import SLOTS, TIMER_PARTITIONS, slot_of
from engine.core.wire.records import UNREADABLE
from engine.errors import ConfigError, CorruptRecord
from engine.store.external_streams import decode_handed
from engine.store.journal import is_next
from engine.store.keys import (
    BROADCAST_LOG_KEY,
    IDS_PREFIX,
    SLOTS_KEY,
    handed_events_key,
    journal_head_key,
    journal_key,
    offline_key,
    offline_prefix,
    page_key,
    timer_due_key,
    timer_key,
)
from engine.store.slot_map import decode_slot_map
from engine.store.storage_calls import StorageCalls
from engine.store.stored_kinds import FeatureData, StoredKind

T = TypeVar("T")

_KEYS_READ: Final = 1000
_RECORDS_READ: Final = 200
"""Records per read: at most some megabytes, usually a hundred kilobytes."""

_DAMAGE_MAX: Final = 1000
"""Damaged records that are listed; the others are counted."""

_STAMP_BYTES: Final = 4
_HEAD: Final = re.compile(rb"\d{1,16}-\d{1,16}u?")
_INDEXES: Final = re.compile(
    rb"engine:(meta|epoch|replicated|lease|link-key)|trimmed:.*|session:stream|ids:state"
    rb"|s\d{1,2}:(epoch|head|mark|online|windows|looks|floor|held|topics)|shard-\d{1,2}:quarantine"
    rb"|t\d{1,2}:(due|user:.*|collapse|cancelled|quarantine|claimed|young|unpaged|owner|epoch)"
    rb"|broadcasts:(state|parts|dropped|lost|of:.*)|tenants:.*|outcomes:(stream|state)",
    re.DOTALL,
)
"""Of the kernel; those of features are in their `FeatureData`."""

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
    "handed events": "nothing: the shard leaves them out; who is online is found out again",
    "accepted id": "nothing: it ends by itself; a repeat under it may get 409",
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
        advice: what to do.
    """

    kind: str
    key: str
    place: str
    problem: str
    advice: str


class Verified(Struct, frozen=True):
    """The records of each kind that were checked, the first damaged ones, and how many are damaged."""

    checked: dict[str, int]
    damage: list[Damage]
    damaged: int


class Verification:
    """One pass over the data of a Redis. It reads, and changes nothing; an engine may run meanwhile.

    Redis may give keys and fields twice while others are deleted. Each is checked once: the names of all keys, some 100 bytes each, and of
    the fields of one key are in memory.

    Args:
        features: whose data may be there.
    """

    def __init__(self, client: redis.Redis, features: Iterable[FeatureData]) -> None:
        self.client = client
        self._kinds = Kinds(features)
        self._layouts = Layouts(self._kinds.of_judge)
        self._checked: Counter[str] = Counter()
        self._damage: dict[Damage, None] = {}
        self._damaged = 0
        self._checks: dict[str, Callable[[bytes, int], Awaitable[None]]] = {
            "slot map": self._slot_map,
            "page": self._pages,
            "offline message": self._offline,
            "journal group": self._journal,
            "timer": self._timers,
            "broadcast": self._broadcasts,
            "handed events": self._handed,
            "accepted id": self._bucket,
            "accepted id of an audience": self._single_id,
            "unknown key": self._unknown,
        }

    async def run(self) -> Verified:
        """Check all records. Raises StorageUnavailable."""
        with StorageCalls("verify"):
            async for key in _once(self.client.scan_iter(count=_KEYS_READ), lambda key: key):
                await self._key(key)
            for partition in range(TIMER_PARTITIONS):
                await self._timer_index(partition)
            await self._lost_writes()
        return Verified(dict(self._checked), list(self._damage), self._damaged)

    async def _key(self, key: bytes) -> None:
        try:
            key.decode()
        except UnicodeDecodeError:
            self.found("unknown key", key, b"", "its name is not UTF-8")
            return
        kind, part = self._kinds.of(key)
        try:
            if isinstance(kind, StoredKind):
                await kind.check(self, key)
            elif kind:
                await self._checks[kind](key, part)
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            self.found("unknown key", key, b"", "its value is of another type than its name says")

    # -- Reading in bounded pieces. ------------------------------------------------------------------------------------
    async def fields(self, key: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        async for field, value in _once(self.client.hscan_iter(key, count=_RECORDS_READ), itemgetter(0)):
            yield field, value

    async def entries(self, key: bytes) -> AsyncIterator[tuple[bytes, dict[bytes, bytes]]]:
        start: bytes = b"-"
        while True:
            entries: Any = await self.client.xrange(key, min=start, count=_RECORDS_READ)
            for entry in entries:
                yield entry
            if len(entries) < _RECORDS_READ:
                return
            start = b"(" + entries[-1][0]

    # -- One kind each. ------------------------------------------------------------------------------------------------
    async def _lost_writes(self) -> None:
        """Redis leaves out writes of the append-only file, or of its primary, that fail; it counts them until it ends."""
        stats: Any = await self.client.info("stats")
        if lost := stats.get("unexpected_error_replies", 0):
            self.found("lost write", b"", b"", f"{lost} writes failed since the server started: their records were damaged")

    async def _unknown(self, key: bytes, _: int) -> None:
        self.found("unknown key", key, b"", "belongs to no kind of record")

    async def _slot_map(self, key: bytes, _: int) -> None:
        self.look("slot map")
        packed: Any = await self.client.get(key)
        try:
            decode_slot_map(packed or b"")
        except (ConfigError, CorruptRecord, *UNREADABLE) as error:
            self.found("slot map", key, b"", error)

    async def _handed(self, key: bytes, _: int) -> None:
        async for version, stored in self.fields(key):
            self.look("handed events")
            try:
                decode_handed(stored)
            except UNREADABLE as error:
                self.found("handed events", key, version, error)

    async def _pages(self, key: bytes, slot: int) -> None:
        async for field, blob in self.fields(key):
            page = self._page(key, slot, field, blob)
            if page is not None and page.head < await self._last_kept(field):
                again: Any = await self.client.hget(key.decode(), field.decode())  # page and messages may have been written meanwhile
                if again == blob:
                    self.found("page", key, field, f"it ends at {page.head}, and newer messages of the user are kept")

    async def _last_kept(self, field: bytes) -> int:
        """The number of the newest message of a user's offline stream."""
        newest: Any = await self.client.xrevrange(offline_key(field.decode()), count=1)
        return int(newest[0][0].partition(b"-")[0]) if newest else 0

    def _page(self, key: bytes, slot: int, field: bytes, blob: bytes) -> AnyPage | None:
        self.look("page")
        mailbox = field.decode(errors="replace")
        if slot_of(mailbox) != slot:
            self.found("page", key, field, f"the user belongs to slot {slot_of(mailbox)}")
            return None
        try:
            return read_page(mailbox, blob, self._layouts)
        except CorruptRecord as error:
            self.found("page", key, field, error)
            return None

    async def _offline(self, key: bytes, _: int) -> None:
        mailbox = key.partition(b":offline:uid:")[2].decode(errors="replace")
        if key.decode(errors="replace") != offline_prefix(slot_of(mailbox)) + mailbox:
            self.found("unknown key", key, b"", f"the user belongs to slot {slot_of(mailbox)}")
            return
        async for entry, fields in self.entries(key):
            self.look("offline message")
            try:
                stored = decode_stored(fields.get(b"m", b""))
                if (stored.key, b"%d-0" % stored.seq) != (mailbox, entry):
                    self.found("offline message", key, entry, f"it is message {stored.seq} of {stored.key}")
            except UNREADABLE as error:
                self.found("offline message", key, entry, error)

    async def _journal(self, key: bytes, slot: int) -> None:
        # Before the entries: groups that are appended meanwhile are newer.
        head: Any = await self.client.get(journal_head_key(slot))
        last = b""
        async for entry, fields in self.entries(key):
            self.look("journal group")
            if last and not is_next(last, entry, fields) and await self._is_kept(key, last):
                self.found("journal group", key, entry, f"the group before is missing: {last.decode()} precedes it")
            last = entry
            try:
                self._layouts.decode_journal(fields.get(b"b", b""))
            except UNREADABLE as error:
                self.found("journal group", key, entry, error)
        if head is None or not _HEAD.fullmatch(head):
            if last:
                self.found("journal head", journal_head_key(slot).encode(), b"", "it is no number of a group")
        elif last and not head.endswith((b"-0", b"u")) and _group(last) < _group(head):
            again: Any = await self.client.get(journal_head_key(slot))
            if again == head and await self._is_kept(key, last):
                self.found("journal end", key, last, f"the last group is {head.decode()}: those between are missing")

    async def _is_kept(self, key: bytes, entry: bytes) -> bool:
        """Whether a journal still has an entry: else a checkpoint has trimmed it meanwhile, and what follows it."""
        return bool(await self.client.xrange(key.decode(), min=entry, max=entry))

    async def _timers(self, key: bytes, _: int) -> None:
        async for sid, blob in self.fields(key):
            self._timer(key, sid, blob)

    def _timer(self, key: bytes, sid: bytes, blob: bytes) -> None:
        self.look("timer")
        try:
            timer = decode_timer(blob)
            if timer.sid.encode() != sid:
                self.found("timer", key, sid, f"it is the record of {timer.sid}")
        except UNREADABLE as error:
            self.found("timer", key, sid, error)

    async def _timer_index(self, partition: int) -> None:
        """Timers that never fire, and entries without a timer."""
        for key, index, problem in (
            (timer_key(partition), timer_due_key(partition), "it has no due time, so it never fires"),
            (timer_due_key(partition), timer_key(partition), "its record is missing"),
        ):
            scan = self.client.hscan_iter if key == timer_key(partition) else self.client.zscan_iter
            sids = [sid async for sid, _ in scan(key, count=_RECORDS_READ)]
            for start in range(0, len(sids), _RECORDS_READ):
                some = sids[start : start + _RECORDS_READ]
                for sid in [sid for sid in some if not await self._is_in(index, sid)]:
                    if await self._is_in(key, sid):  # it has neither fired nor been cancelled meanwhile
                        self.found("timer", key.encode(), sid, problem)

    async def _is_in(self, key: str, sid: bytes) -> bool:
        if key.endswith("due"):
            return await self.client.zscore(key, sid) is not None
        return bool(await cast(Any, self.client).hexists(key, sid))

    async def _broadcasts(self, key: bytes, _: int) -> None:
        async for entry, fields in self.entries(key):
            self._broadcast(key, entry, fields)

    def _broadcast(self, key: bytes, entry: bytes, fields: dict[bytes, bytes]) -> None:
        self.look("broadcast")
        try:
            broadcast = read_entry(int(entry.partition(b"-")[0]), fields.get(b"b", b""))
        except UNREADABLE as error:
            self.found("broadcast", key, entry, error)
            return
        if fields.get(b"a") and fields[b"a"].decode(errors="replace") != f"{broadcast.tenant} {broadcast.topic}":
            self.found("broadcast", key, entry, f"its audience is {broadcast.tenant} {broadcast.topic}")

    async def _bucket(self, key: bytes, _: int) -> None:
        async for field, value in self.fields(key):
            self._accepted_id(unpacked_result, key, field.hex().encode(), value[_STAMP_BYTES:])

    async def _single_id(self, key: bytes, _: int) -> None:
        value: Any = await self.client.get(key)
        if value is not None:
            self._accepted_id(parse_idempotency_value, key, b"", value)

    def _accepted_id(self, read: Callable[[bytes], object], key: bytes, place: bytes, value: bytes) -> None:
        self.look("accepted id")
        try:
            read(value)
        except ValueError as error:
            self.found("accepted id", key, place, error)

    # -- What checks tell. ---------------------------------------------------------------------------------------------
    def look(self, kind: str) -> None:
        self._checked[kind] += 1

    def found(self, kind: str, key: bytes, place: bytes, problem: object) -> None:
        where, at = (name.decode(errors="backslashreplace") for name in (key, place))
        damage = Damage(kind, where, at, str(problem), self._kinds.advice[kind])
        if damage in self._damage:
            return
        self._damaged += 1
        if len(self._damage) < _DAMAGE_MAX:
            self._damage[damage] = None


_EXACT: Final = {
    SLOTS_KEY.encode(): ("slot map", 0),
    BROADCAST_LOG_KEY.encode(): ("broadcast", 0),
    **{page_key(slot).encode(): ("page", slot) for slot in range(SLOTS)},
    **{journal_key(slot).encode(): ("journal group", slot) for slot in range(SLOTS)},
    **{timer_key(partition).encode(): ("timer", partition) for partition in range(TIMER_PARTITIONS)},
    **{handed_events_key(shard).encode(): ("handed events", shard) for shard in range(SLOTS)},
}
_BEGINNINGS: Final = (
    (re.compile(rb"s\d+:offline:uid:"), "offline message"),
    (re.compile(rb"s\d+:id:"), "accepted id of an audience"),
    (re.compile(re.escape(IDS_PREFIX.encode()) + rb"\d+$"), "accepted id"),
)


class Kinds:
    """Of keys: those of the kernel, and what the features declare.

    Attributes:
        advice: what an operator does about a damaged record, by the name of its kind.
        of_judge: in journal and pages.
    """

    def __init__(self, features: Iterable[FeatureData]) -> None:
        features = tuple(features)
        kinds = [kind for feature in features for kind in feature.kinds]
        self._beginnings: list[tuple[re.Pattern[bytes], StoredKind | str]] = [
            *_BEGINNINGS,
            *((re.compile(kind.keys), kind) for kind in kinds),
        ]
        self._indexes = [_INDEXES, *(re.compile(feature.indexes, re.DOTALL) for feature in features if feature.indexes)]
        self.of_judge = next((feature.judge_kinds for feature in features if feature.judge_kinds is not None), JudgeKinds())
        self.advice = {**_ADVICE, **{kind.name: kind.advice for kind in kinds}}

    def of(self, key: bytes) -> tuple[StoredKind | str, int]:
        """The kind of a key's records, and the part of the data; "" where nothing is checked."""
        if key in _EXACT:
            return _EXACT[key]
        kind = next((kind for beginning, kind in self._beginnings if beginning.match(key)), "")
        return kind or ("" if any(indexes.fullmatch(key) for indexes in self._indexes) else "unknown key"), 0


async def _once(scanned: AsyncIterator[T], name: Callable[[T], bytes]) -> AsyncIterator[T]:
    """What a scan gives, each name once."""
    names = set()
    async for one in scanned:
        if name(one) not in names:
            names.add(name(one))
            yield one


def _group(entry: bytes) -> tuple[int, int]:
    epoch, _, number = entry.partition(b"-")
    return int(epoch), int(number)
