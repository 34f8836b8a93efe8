"""Durable timers in Redis: one scheduler's access to its partitions.

Per partition (all keys begin with `t<partition>:`): a sorted set of scheduled ids by due time, a hash with the packed timers,
a sorted set per user for listing, cancelling and the limit, a hash with the collapse keys of timers that have one,
tombstones of cancelled timers, the epoch that fences older schedulers, the name of the owner, the claim horizon and its
exceptions (`engine.core.scheduler.claim_horizon`), and what is counted for tenants. The due time in the sorted set is authoritative:
moving a timer does not rewrite its record.

That a timer has fired is remembered for `idempotency_caller_s` by the id of its effect (`engine.store.accepted_ids`), which its shard has
stored with the message. The script that removes the timer stores it where it is not: effects of actions and broadcasts have keys elsewhere.

A turn is one round trip, and a script run for as many partitions as have `_RUN_TIMERS` timers between them. A turn may be repeated: a
scheduled id is stored once, a cancelled one stays cancelled, removing an absent timer changes nothing. One that got no answer may reach
storage late. Then it could move a timer to a time that the scheduler has read past already, and nobody would hand it out. So the next turn
takes another epoch first: what the one before has not written by then, it never does.

Ids given by callers are those of immediate publishing (`engine.store.accepted_ids`). The script that stores a timer for a user stores
its id, with the scheduled id in the value: both or neither. The time of such an id begins when the timer is due, so an id outlives what it
stands for by `idempotency_caller_s`, and so does the tombstone of a cancelled timer. A moved timer takes its id along, in a script of
its own; a crash between the two leaves an id that ends `idempotency_caller_s` after the old due time.

    the script finds                    answer
    no id                               id and timer are stored
    the id of this timer                an earlier attempt: the timer is there, has fired or was cancelled; else it is stored
    the id of another timer, same       that timer, by a second run of the script under its scheduled id
      digest
    the id of a message                 a duplicate of it
    another digest                      a conflict

Ids of broadcasts are where the broadcast log is, which may be another store. Therefore two steps: store the id, with the scheduled id in
its value; then store the timer. A crash in between leaves an id whose timer does not exist: neither armed, nor fired, nor cancelled. A
repeat with a delay detects this and stores the timer under the scheduled id that is stored with the id.

Timers count for their tenants (`engine.store.tenant_usage`) from the turn that stores them to the turn that removes them: cancelled, fired
or erased. A fired timer is removed when the shard's journal has the message, which counts with its page at the next checkpoint: for these
seconds it counts nowhere, and never twice. A user is counted once, for a page or else for timers: first by the turn that stores a timer
for a user without a page; then by the checkpoint that writes the page; by the turns again when the page is deleted before the last timer.
Timers in quarantine count on: they are still stored, and whose they are may not be readable.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import redis.asyncio as redis
from redis.exceptions import ResponseError

from engine.config import Config
from engine.core.commit.first_result import NEVER, idempotency_value, packed_result, unpacked_result
from engine.core.journal.stored_formats import decode_timer, encode_timer
from engine.core.model.constants import AT_MAX_MS
from engine.core.model.message import timer_effect_id
from engine.core.model.routing import slot_of, topic_of
from engine.core.scheduler.scheduler_events import ReadTimers, Request, StoreDone, StoreRequest, StoreWork, TimersRead
from engine.core.wire.records import (
    ALREADY_FIRED,
    CONFLICT,
    DUPLICATE,
    FIRING,
    GONE,
    NOT_FOUND,
    OK,
    OVERLOADED,
    SCHEDULED,
    SUPPRESSED,
    TIMERS_FULL,
    UNAVAILABLE,
    UNREADABLE,
    USERS_FULL,
    USERS_FULL_RETRY_MS,
    Cancel,
    CancelAll,
    Inspect,
    ListTimers,
    Reschedule,
    Schedule,
    Timer,
    TimerAnswer,
)
from engine.errors import CorruptRecord, StorageUnavailable
from engine.store.accepted_ids import KEYS, LIBRARY, AcceptedIds, id_hash, packed_text
from engine.store.epoch import take_epoch
from engine.store.keys import (
    PAGES_PREFIX,
    idempotency_key,
    page_key,
    tenants_key,
    timer_cancelled_key,
    timer_claimed_key,
    timer_collapse_key,
    timer_due_key,
    timer_epoch_key,
    timer_key,
    timer_owner_key,
    timer_quarantine_key,
    timer_unpaged_key,
    timer_user_prefix,
    timer_young_key,
)
from engine.store.lua import NO_REPLICAS, Replicas, Script
from engine.store.storage_calls import StorageCalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

log = logging.getLogger(__name__)

_TAKE_OVER = Script("timers_take_over")
_RENEW = Script("timers_renew")
_TURN = Script("fenced/timers_turn", LIBRARY)
_QUARANTINE = Script("fenced/timers_quarantine")
_RELEASE = Script("fenced/timers_release")
_RELEASE_ID = Script("idempotency_release")

_TENANTS_KEYS: Final = (tenants_key("users"), tenants_key("stored_bytes"))
_ONE_TIMER: Final = {Inspect: "I", Reschedule: "M", Cancel: "C"}


_TIMERS_FULL_RETRY_MS: Final = 60_000
"""Storage does not know when one of them fires. A minute is short against a night of quiet hours, and cuts retries."""


TIMER_BYTES: Final = 256
"""What a timer takes in Redis beside its record, as it is counted: 230 to 310 bytes for its scheduled id in two or three indexes. Fixed for
the life of a cluster: what is subtracted when a timer goes must be what was added when it came."""

_RUN_TIMERS: Final = 250
"""Timers stored, removed, moved or read by a script run of several partitions: it blocks Redis for some 4 ms. A partition with more has a
run of its own, with 2000 timers of some 30 ms (`commit_records_max`, `SETTLED_MAX`). A run for each of 16 partitions costs Python 2 us more
for each of 250 timers, and Redis nothing that shows."""

_REDIRECTS_MAX: Final = 3
"""Runs of the script for an id that names another timer: one, unless that id ends and is stored anew in the same moment."""


class _TurnEntry:
    """One request during a turn."""

    __slots__ = ("answer", "request", "spared", "taken", "timer")

    def __init__(self, item: StoreRequest) -> None:
        self.request = item.request
        self.spared = item.spared
        self.timer = item.request.timer if isinstance(item.request, Schedule) else None  # to be stored
        self.taken = b""  # of a broadcast: the value that this request stored its id with
        self.answer: TimerAnswer | None = None  # once it is decided

    def settle(self, status: int, timers: Sequence[Timer] = (), detail: str = "", count: int = 0, retry_ms: int = 0) -> None:
        self.answer = TimerAnswer(self.request.ref, status, list(timers), detail, count, retry_ms)


_Scheduling = tuple[_TurnEntry, Timer]
"""A request to schedule, and the timer to be stored."""


class TimerStore:
    """Writes and reads the timers of some partitions, all in one store, under one epoch. Call `take_over` first.

    Args:
        name: of the scheduler, the same in every incarnation.
        first: of the store with the broadcast log, which has the ids of broadcasts; `client` when left out.
    """

    def __init__(self, client: redis.Redis, config: Config, partitions: Sequence[int], name: str, first: redis.Redis | None = None) -> None:
        self._name = name
        self._client = client
        self._first = first or client
        self._config = config
        self._replicas = Replicas.wanted(config)
        self._partitions = partitions
        self._claim_keys = [key for partition in partitions for key in (timer_epoch_key(partition), timer_claimed_key(partition))]
        self._ids = AcceptedIds(client, config.idempotency_caller_s * 1000)
        self.epoch = 0
        self._next_epoch = 0  # not 0: it is being taken
        self._unanswered = False  # a turn may reach storage late
        self.inherited_ms = 0
        """The furthest claim horizon of a partition at the take-over, ms."""
        self.reach_ms = 0
        """The nearest claim horizon of a partition, ms, as of the take-over and then of the last turn that claimed."""

    async def is_held_by_others(self) -> bool:
        """Whether a scheduler of another name has taken one of the partitions over and not released it. Raises StorageUnavailable."""
        with StorageCalls("owners of partitions"):
            pipeline = self._client.pipeline(transaction=False)
            for partition in self._partitions:
                pipeline.get(timer_owner_key(partition))
            owners = await pipeline.execute()
        return any(owner is not None and owner.decode() != self._name for owner in owners)

    async def take_over(self, confirm: Callable[[], Awaitable[None]] | None = None) -> int:
        """Take a new epoch and fence the partitions: writes of older ones are rejected from then on. Returns the epoch.

        Each partition's horizon is read together with its fence, so no older incarnation can advance it afterwards.

        Args:
            confirm: awaited when the epoch is taken and nobody fenced; raises when the partitions are not this scheduler's.

        Raises:
            Fenced: a newer epoch has one of the partitions.
            StorageUnavailable: Redis does not answer; retry.
        """
        epoch = await take_epoch(self._client)
        if confirm is not None:
            await confirm()
        of_partition = (timer_epoch_key, timer_claimed_key, timer_young_key, timer_owner_key)
        calls = [([key_of(partition) for key_of in of_partition], [epoch, self._name]) for partition in self._partitions]
        replies = await _TAKE_OVER.run_many(self._client, calls, self._replicas)
        claimed = [int(reply[1]) for reply in replies]
        self.inherited_ms, self.reach_ms = max(claimed, default=0), min(claimed, default=0)
        self.epoch = epoch
        return epoch

    async def release(self) -> None:
        """Let others take the partitions over at once; nothing must be written afterwards. Raises as `apply`."""
        calls = [([timer_epoch_key(partition), timer_owner_key(partition)], [self.epoch]) for partition in self._partitions]
        await _RELEASE.run_many(self._client, calls)

    async def apply(self, work: Sequence[StoreWork], now_ms: int, claim_ms: int = 0) -> list[StoreDone]:
        """Apply one turn; returns one result per element of `work`, in order.

        Args:
            claim_ms: claim what is due until then in every partition (`engine.core.scheduler.claim_horizon`); 0: nothing new.

        Raises:
            Fenced: this incarnation has been replaced; nothing was written in at least one partition.
            DataLost: storage has lost that this incarnation owns a partition; nothing was written there.
            StorageUnavailable: no reply; it may have been applied in part: repeat it.
        """
        if self._unanswered:
            await self._renew_epoch()
        try:
            entries = [[_TurnEntry(item) for item in part.requests] for part in work]
            every = [entry for part in entries for entry in part]
            moved = [part for part in work if part.moved]
            await self._find_owners(work)
            audiences = _for_audiences(every)
            if audiences:
                await self._take_ids_of_audiences(audiences, now_ms)
            # Answers to requests and timers sent to shards rely on this turn. A removal that a fail-over loses only makes a timer fire
            # again.
            replicas = self._replicas if claim_ms or every or moved else NO_REPLICAS
            done = await self._turn(work, entries, now_ms, replicas, claim_ms)
            if _open(every):
                await self._redirected(work, entries, done, now_ms, replicas)
            for result, of_part in zip(done, entries, strict=True):
                result.answers = [entry.answer for entry in of_part if entry.answer is not None]
            await self._extend_ids(every, moved, now_ms)
            if audiences:
                await self._release_ids(audiences)
            quarantined = {part.partition: part.quarantined for part in done if part.quarantined}
            if quarantined:
                await self._quarantine(quarantined)
            return done
        except StorageUnavailable as error:
            self._unanswered = self._unanswered or not _is_answer(error)
            raise

    async def _renew_epoch(self) -> None:
        """Take another epoch in all partitions, in place of this incarnation's own only. Raises as `apply`."""
        keys = [timer_epoch_key(partition) for partition in self._partitions]
        try:
            self._next_epoch = self._next_epoch or await take_epoch(self._client)
            await _RENEW.run(self._client, keys, [self.epoch, self._next_epoch])
        except StorageUnavailable as error:
            if not _is_answer(error):
                raise
            return  # without memory, say: late writes are refused as well, and removals are not
        self.epoch, self._next_epoch, self._unanswered = self._next_epoch, 0, False

    async def _redirected(
        self, work: Sequence[StoreWork], entries: Sequence[Sequence[_TurnEntry]], done: list[StoreDone], now_ms: int, replicas: Replicas
    ) -> None:
        """Repeat the requests whose id names another timer, under its scheduled id, and add the outcome to `done`."""
        for _ in range(_REDIRECTS_MAX):
            again = [(part, still) for part, of_part in zip(work, entries, strict=True) if (still := _open(of_part))]
            if not again:
                return
            parts = [StoreWork(part.partition, part.claimed_ms, {}, []) for part, _ in again]
            later = await self._turn(parts, [of_part for _, of_part in again], now_ms, replicas)
            for repeated in later:
                first = next(result for result in done if result.partition == repeated.partition)
                first.stored = repeated.stored
                first.quarantined = list(dict.fromkeys((*first.quarantined, *repeated.quarantined)))
                first.young = [*first.young, *repeated.young]
        for of_part in entries:
            for entry in _open(of_part):
                entry.settle(UNAVAILABLE, detail="the id changes hands")

    async def _turn(
        self, work: Sequence[StoreWork], entries: Sequence[Sequence[_TurnEntry]], now_ms: int, replicas: Replicas, claim_ms: int = 0
    ) -> list[StoreDone]:
        """Run the script. An entry has no answer afterwards when its id names another timer."""
        calls = self._calls(work, entries, now_ms, claim_ms)
        replies = await _TURN.run_many(self._client, calls, replicas)
        if claim_ms:
            self.reach_ms = replies[-1][1]
        of_parts = [of_part for _, _, *of_run in replies for of_part in of_run]
        return [self._done(part, of_part, reply) for part, of_part, reply in zip(work, entries, of_parts, strict=True)]

    async def _find_owners(self, work: Sequence[StoreWork]) -> None:
        """Read the mailbox keys of fired timers where they are unknown, as far as they can be read. Raises StorageUnavailable."""
        client: Any = self._client
        for part in work:
            if "" in part.fired.values():
                sids = [sid for sid, key in part.fired.items() if not key]
                with StorageCalls("owners of fired timers"):
                    stored = await client.execute_command("HMGET", timer_key(part.partition), *sids)
                for sid, packed in zip(sids, stored, strict=True):
                    with suppress(CorruptRecord):
                        part.fired[sid] = _read(sid, b"0", packed).key

    # -- Ids given by callers. -----------------------------------------------------------------------------------------
    async def _extend_ids(self, entries: Sequence[_TurnEntry], deferred: Sequence[StoreWork], now_ms: int) -> None:
        """Let the ids of timers that were moved, or deferred by a shard, last as long as these. Raises StorageUnavailable."""
        rescheduled = [
            timer
            for entry in entries
            if isinstance(entry.request, Reschedule) and entry.answer is not None and entry.answer.status == OK
            for timer in entry.answer.timers
        ]
        if for_audiences := [timer for timer in rescheduled if topic_of(timer.key) is not None]:
            await self._extend_ids_of_audiences(for_audiences, now_ms)
        moved = [timer for timer in rescheduled if topic_of(timer.key) is None]
        for part in deferred:
            moved += await self._deferred(part)
        if moved:
            pairs = [(timer.key, timer.envelope.id) for timer in moved]
            await self._ids.extend(pairs, [_value(timer) for timer in moved], [-(-timer.due_ms // 1000) for timer in moved])

    async def _deferred(self, part: StoreWork) -> list[Timer]:
        """The timers of users that shards have deferred, as far as they can be read. Raises StorageUnavailable."""
        client: Any = self._client
        with StorageCalls("ids"):
            stored = await client.execute_command("HMGET", timer_key(part.partition), *part.moved)
        found = []
        for (sid, (due_ms, _)), packed in zip(part.moved.items(), stored, strict=True):
            with suppress(CorruptRecord):  # whatever reads it next reports it
                found.append(_read(sid, b"%d" % due_ms, packed))
        return [timer for timer in found if topic_of(timer.key) is None]

    async def _extend_ids_of_audiences(self, timers: Sequence[Timer], now_ms: int) -> None:
        try:
            with StorageCalls("ids"):
                pipeline = self._first.pipeline(transaction=False)
                for timer in timers:
                    pipeline.pexpire(idempotency_key(timer.key, timer.envelope.id), self._kept_ms(timer, now_ms))
                await pipeline.execute()
        except StorageUnavailable as error:
            if self._first is self._client:
                raise
            log.warning("ids of broadcasts that were moved end as before: %s", error)

    def _kept_ms(self, timer: Timer, now_ms: int) -> int:
        """How long the id of a broadcast is kept: its time begins when the broadcast is due."""
        return self._config.idempotency_caller_s * 1000 + max(timer.due_ms - now_ms, 0)

    async def _take_ids_of_audiences(self, scheduling: Sequence[_Scheduling], now_ms: int) -> None:
        """Store the ids of broadcasts, and answer or redirect the requests whose id is stored."""
        try:
            await self._take_ids(scheduling, now_ms)
        except StorageUnavailable as error:
            if self._first is self._client:
                raise
            for entry, _ in scheduling:  # the timers of users go on. A repeat under an id that was stored stores the timer that it names
                entry.settle(UNAVAILABLE, detail=str(error))

    async def _take_ids(self, scheduling: Sequence[_Scheduling], now_ms: int) -> None:
        with StorageCalls("ids"):
            pipeline = self._first.pipeline(transaction=False)
            for _, timer in scheduling:
                key = idempotency_key(timer.key, timer.envelope.id)
                value = idempotency_value(timer.envelope.digest, 0, timer.sid)
                pipeline.set(key, value, nx=True, px=self._kept_ms(timer, now_ms))
                pipeline.get(key)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        for (entry, timer), taken, value in zip(scheduling, replies[::2], replies[1::2], strict=True):
            if isinstance(taken, ResponseError):
                entry.settle(UNAVAILABLE, detail=f"storage refuses: {taken}")
            elif isinstance(taken, Exception) or isinstance(value, Exception):
                raise StorageUnavailable(f"ids: {taken}")
            elif taken:
                entry.taken = _value(timer)
            elif value is not None:  # None: it expired between the two commands; the timer is stored under its own id
                _redirect(entry, timer, packed_text(value))

    async def _release_ids(self, scheduling: Sequence[_Scheduling]) -> None:
        """Delete the ids of broadcasts whose timers were then rejected, so that they can be used again."""
        refused = [
            (entry.timer, entry.taken)
            for entry, _ in scheduling
            if entry.taken and entry.timer is not None and entry.answer is not None and entry.answer.status in (OVERLOADED, UNAVAILABLE)
        ]
        calls = [
            ([idempotency_key(timer.key, timer.envelope.id)], [idempotency_value(*unpacked_result(taken))]) for timer, taken in refused
        ]
        try:
            await _RELEASE_ID.run_many(self._first, calls)
        except StorageUnavailable as error:
            if self._first is self._client:
                raise
            log.warning("ids of refused broadcasts stay taken: %s", error)

    # -- The script. ---------------------------------------------------------------------------------------------------
    def _calls(
        self, work: Sequence[StoreWork], entries: Sequence[Sequence[_TurnEntry]], now_ms: int, claim_ms: int
    ) -> list[tuple[list[str], list[Any]]]:
        """The keys and arguments of each run. The last one claims."""
        config = self._config
        remembered_ms = config.idempotency_caller_s * 1000
        limits = (config.timers_per_user_max, config.tenant_users_max, TIMER_BYTES)
        head = (self.epoch, now_ms, now_ms + remembered_ms, *limits, remembered_ms)
        calls: list[tuple[list[str], list[Any]]] = []
        keys: list[str] = []
        args: list[Any] = [*head, 0, 0]
        timers = 0
        for part, part_entries in zip(work, entries, strict=True):
            part_args, part_timers = self._args(part, part_entries)
            if timers and timers + part_timers > _RUN_TIMERS:
                calls.append(([*keys, *_KEYS_OF_ALL], args))
                keys, args, timers = [], [*head, 0, 0], 0
            keys += _keys_of(part.partition)
            args += part_args
            timers += part_timers
        if claim_ms:
            args[len(head) : len(head) + 2] = len(self._partitions), claim_ms
            keys += self._claim_keys
        calls.append(([*keys, *_KEYS_OF_ALL], args))
        return calls

    def _args(self, part: StoreWork, entries: Sequence[_TurnEntry]) -> tuple[list[Any], int]:
        """The arguments of one partition, and how many timers they are about, at most."""
        open_entries = _open(entries)
        counts = (len(part.fired), len(part.moved), len(open_entries))
        page = part.page
        args: list[Any] = [part.claimed_ms, *counts, int(page is not None)]
        for sid, key in part.fired.items():
            args += (sid, key, id_hash(key, timer_effect_id(sid)))
        for sid, move in part.moved.items():
            args += (sid, *move)
        for entry in open_entries:
            args += _request_args(entry, self._config)
        if page is not None:
            args += (*page.after, page.until_ms, page.limit, page.bytes_max)
        return args, sum(counts) + (0 if page is None else page.limit)

    @staticmethod
    def _done(part: StoreWork, entries: Sequence[_TurnEntry], reply: list[Any]) -> StoreDone:
        """`answers` are set when all runs are done."""
        stored, replies, page, more, moved, young = reply
        quarantined: list[str] = []
        for entry, answer in zip(_open(entries), replies, strict=True):
            _settle(entry, answer, quarantined)
        read = None if part.page is None else _page_read(part.page, page, bool(more), quarantined)
        there = dict(zip(part.moved, map(bool, moved), strict=False))  # shorter where storage refused
        return StoreDone(part.partition, [], read, stored, list(dict.fromkeys(quarantined)), there, list(map(bytes.decode, young)))

    async def _quarantine(self, sids: dict[int, list[str]]) -> None:
        calls = []
        for partition, unreadable in sids.items():
            of_partition = (timer_epoch_key, timer_due_key, timer_key, timer_quarantine_key, timer_collapse_key)
            keys = [key_of(partition) for key_of in of_partition]
            calls.append((keys, [self.epoch, self._config.quarantine_max, *unreadable]))
        await _QUARANTINE.run_many(self._client, calls)


@cache
def _keys_of(partition: int) -> tuple[str, ...]:
    return (
        timer_epoch_key(partition),
        timer_due_key(partition),
        timer_key(partition),
        timer_cancelled_key(partition),
        timer_user_prefix(partition),
        timer_collapse_key(partition),
        timer_young_key(partition),
        timer_unpaged_key(partition),
    )


_KEYS_OF_ALL: Final = (*_TENANTS_KEYS, PAGES_PREFIX, *KEYS)
"""The keys of a turn that are of no partition."""


@cache
def _rest_of_page_key(slot: int) -> str:
    return page_key(slot).removeprefix(PAGES_PREFIX)


def _open(entries: Iterable[_TurnEntry]) -> list[_TurnEntry]:
    """Those that are not decided."""
    return [entry for entry in entries if entry.answer is None]


def _is_answer(error: StorageUnavailable) -> bool:
    """Whether storage has refused, or too few replicas had what it wrote; else what was sent may still reach it."""
    return error.__cause__ is None or isinstance(error.__cause__, ResponseError)


def _for_audiences(entries: Iterable[_TurnEntry]) -> list[_Scheduling]:
    """Those that schedule a broadcast under an id of the caller."""
    return [
        (entry, entry.timer)
        for entry in entries
        if isinstance(entry.request, Schedule) and entry.request.idempotent and entry.timer and topic_of(entry.timer.key) is not None
    ]


def _value(timer: Timer) -> bytes:
    """What is stored with the id of a timer."""
    return packed_result(timer.envelope.digest, 0, timer.sid)


def _redirect(entry: _TurnEntry, timer: Timer, value: bytes) -> None:
    """Handle a stored id: a conflict, the result of an immediate publish, or the scheduled id to store the timer under."""
    try:
        digest, seq, detail = unpacked_result(value)
    except ValueError:
        entry.settle(CONFLICT, detail="the id is taken by a record that cannot be decoded")
        return
    if digest != timer.envelope.digest:
        entry.settle(CONFLICT)
    elif seq == NEVER:
        entry.settle(SUPPRESSED, detail=detail)
    elif not detail:
        entry.settle(DUPLICATE, detail=f"seq={seq}")
    elif detail == timer.sid:
        entry.taken = value  # by an earlier attempt of this request
    else:
        entry.timer = msgspec.structs.replace(timer, sid=detail)


def _id_args(request: Schedule, timer: Timer) -> tuple[bytes, bytes]:
    """Hash and value of the id that the script stores with the timer; none for a broadcast, and for an id that an edge has made."""
    if not request.idempotent or topic_of(timer.key) is not None:
        return b"", b""
    return id_hash(timer.key, timer.envelope.id), _value(timer)


def _request_args(entry: _TurnEntry, config: Config) -> tuple[Any, ...]:
    request: Request = entry.request
    if isinstance(request, Schedule):
        timer = entry.timer
        assert timer is not None
        return (
            "S",
            timer.sid,
            timer.key,
            timer.due_ms,
            encode_timer(timer),
            timer.envelope.collapse,
            _rest_of_page_key(slot_of(timer.key)),
            id_hash(timer.key, timer_effect_id(timer.sid)),
            *_id_args(request, timer),
        )
    if isinstance(request, ListTimers):
        after = f"{request.after_ms} {request.after_sid}" if request.after_sid else ""
        return ("L", request.collapse, request.key, min(request.limit, config.list_timers_max), config.list_timers_bytes, after)
    if isinstance(request, CancelAll):
        return ("A", request.collapse, request.key, " ".join(entry.spared), "", "")
    return (
        _ONE_TIMER[type(request)],
        request.sid,
        request.tenant,
        request.due_ms if isinstance(request, Reschedule) else 0,
        0,
        id_hash(request.tenant, timer_effect_id(request.sid)),
    )


def _settle(entry: _TurnEntry, reply: list[Any], quarantined: list[str]) -> None:
    """Set the answer from the script's reply."""
    word = reply[0]
    if word == b"list":
        timers = _read_all(reply[2:], quarantined)
        entry.settle(OK, timers, "truncated" if reply[1] else "")
    elif word == b"all":
        entry.settle(OK, detail=FIRING if reply[2] else "", count=reply[1])
    elif word == b"refused":
        entry.settle(UNAVAILABLE, detail=f"storage refuses: {reply[1].decode(errors='replace')}")
    elif entry.timer is not None and isinstance(entry.request, Schedule):
        _settle_schedule(entry, entry.request, entry.timer, reply, quarantined)
    else:
        _settle_one(entry, reply, quarantined)


def _settle_schedule(entry: _TurnEntry, request: Schedule, timer: Timer, reply: list[Any], quarantined: list[str]) -> None:
    word = reply[0]
    redirected = timer.sid != request.timer.sid
    status = DUPLICATE if redirected else SCHEDULED
    detail = timer.sid if redirected else ""
    if word == b"stored":
        entry.settle(status, [timer], detail)
    elif word == b"known":
        _redirect(entry, timer, reply[1])
    elif word == b"limit":
        entry.settle(OVERLOADED, detail=TIMERS_FULL, retry_ms=_TIMERS_FULL_RETRY_MS)
    elif word == b"users":
        entry.settle(OVERLOADED, detail=USERS_FULL, retry_ms=USERS_FULL_RETRY_MS)
    elif word == b"present":
        entry.settle(status, _read_all([timer.sid.encode(), *reply[1:]], quarantined), detail)
    else:  # fired or cancelled since: a duplicate of the first
        entry.settle(status, [], detail or GONE)


def _settle_one(entry: _TurnEntry, reply: list[Any], quarantined: list[str]) -> None:
    word = reply[0]
    assert not isinstance(entry.request, Schedule | ListTimers | CancelAll)
    sid = entry.request.sid
    if word == b"fired":
        entry.settle(ALREADY_FIRED)
    elif word == b"cancelled" and isinstance(entry.request, Cancel):
        entry.settle(OK)  # perhaps by an attempt whose answer was lost
    elif word == b"done":
        timers = _read_all([sid.encode(), *reply[1:]], quarantined)
        if timers or isinstance(entry.request, Cancel):
            entry.settle(OK, timers)
        else:
            entry.settle(NOT_FOUND, detail="the timer could not be decoded and was quarantined")
    else:
        if word == b"unreadable":
            quarantined.append(sid)
        entry.settle(NOT_FOUND)


def _read_all(flat: Sequence[Any], quarantined: list[str]) -> list[Timer]:
    """Timers from (scheduled id, due time, packed timer) triples, without those that cannot be decoded."""
    timers = []
    for sid, due_ms, packed in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        try:
            timers.append(_read(sid.decode(), due_ms, packed))
        except CorruptRecord:
            quarantined.append(sid.decode(errors="replace"))
    return timers


def _read(sid: str, due_ms: bytes | None, packed: bytes | None) -> Timer:
    """Raises CorruptRecord."""
    if packed is None or due_ms is None:
        raise CorruptRecord(f"timer {sid} is incomplete")
    try:
        timer = decode_timer(packed)
    except UNREADABLE as error:
        raise CorruptRecord(f"timer {sid}: {error}") from error
    if timer.sid != sid:
        raise CorruptRecord(f"timer {sid} holds the record of {timer.sid}")
    due = float(due_ms)
    if not 0 <= due <= AT_MAX_MS:
        raise CorruptRecord(f"timer {sid} is due at {due}")
    timer.due_ms = int(due)
    return timer


def _page_read(page: ReadTimers, flat: Sequence[Any], more: bool, quarantined: list[str]) -> TimersRead:
    reached = (int(float(flat[-2])), flat[-3].decode()) if more and flat else None
    assert reached is None or reached > page.after
    return TimersRead(_read_all(flat, quarantined), reached)
