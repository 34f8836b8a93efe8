"""Durable timers in Redis: one scheduler's hold of its partitions.

Per partition (all keys share the hash tag `{t<partition>}`): a sorted set of scheduled ids by due time, a hash with the packed
timers, a sorted set per user for listing, cancelling and the limit, a hash with the collapse keys of timers that have one,
tombstones of fired and cancelled timers, the epoch that fences an older scheduler off, and how far the timers are claimed, with the
exceptions (`engine.core.scheduler.claim_horizon`). The due time in the sorted set is the
one that counts: moving a timer does not touch its record.

A turn is one script run per partition, all partitions in one round trip. Everything in it may be repeated: a scheduled id is
stored once, a cancelled one stays cancelled, removing what is gone changes nothing.

An id given by the caller is one key space with immediate publishing, and lives in the slot of the user, not in the timer
partition, so no script may touch both on a Redis Cluster. Therefore two steps: the id is taken first, with the scheduled id
in the value; then the timer is stored. A crash in between leaves an id that names a timer which does not exist: neither
armed, nor fired, nor cancelled. Whoever repeats that publish finds this out and stores the timer under the scheduled id that
the key already names, so a publish that is repeated until it is answered is stored exactly once. For this the tombstones must
outlive the ids (checked in `engine.config`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError

from engine.config import Config
from engine.core.commit.group import NEVER, idempotency_value
from engine.core.model.constants import AT_MAX_MS
from engine.core.scheduler.scheduler_events import ReadTimers, Request, StoreDone, StoreRequest, StoreWork, TimersRead
from engine.core.wire.records import (
    ALREADY_FIRED,
    CONFLICT,
    DUPLICATE,
    GONE,
    NOT_FOUND,
    OK,
    OVERLOADED,
    SCHEDULED,
    SUPPRESSED,
    UNAVAILABLE,
    UNREADABLE,
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
from engine.store.epoch import take_epoch
from engine.store.keys import (
    idempotency_key,
    timer_cancelled_key,
    timer_claimed_key,
    timer_collapse_key,
    timer_due_key,
    timer_epoch_key,
    timer_fired_key,
    timer_key,
    timer_quarantine_key,
    timer_user_prefix,
    timer_young_key,
)
from engine.store.legacy_ids import LegacyIds
from engine.store.lua import NO_REPLICAS, Replicas, Script

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAKE_OVER = Script("timers_take_over")
_TURN = Script("fenced/timers_turn")
_QUARANTINE = Script("fenced/timers_quarantine")
_RELEASE = Script("idempotency_release")

_ONE_TIMER: Final = {Inspect: "I", Reschedule: "M", Cancel: "C"}

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Timer).decode


@contextmanager
def _storage(what: str) -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise StorageUnavailable(f"{what}: {error}") from error


_TOO_MANY: Final = "as many timers of this user wait as may (timers_per_user_max), those that quiet hours hold back among them"
_TOO_MANY_RETRY_MS: Final = 60_000
"""Until one of them has fired, which storage does not tell: a minute is nothing to a night, and sixty times fewer refusals."""


class _Ask:
    """One request on its way through a turn."""

    __slots__ = ("answer", "repeat", "request", "spared", "taken", "timer")

    def __init__(self, item: StoreRequest) -> None:
        self.request = item.request
        self.repeat = item.repeat
        self.spared = item.spared
        self.timer = item.request.timer if isinstance(item.request, Schedule) else None  # as it is to be stored
        self.taken = b""  # the value this request took its id with
        self.answer: TimerAnswer | None = None  # as soon as it is known

    def settle(self, status: int, timers: Sequence[Timer] = (), detail: str = "", count: int = 0, retry_ms: int = 0) -> None:
        self.answer = TimerAnswer(self.request.ref, status, list(timers), detail, count, retry_ms)


class TimerStore:
    """Writes and reads the timers of some partitions under one epoch. `take_over` first."""

    def __init__(self, client: redis.Redis, config: Config, partitions: Sequence[int]) -> None:
        self._client = client
        self._config = config
        self._replicas = Replicas.wanted(config)
        self._partitions = partitions
        self._legacy_ids = LegacyIds(client, config.idempotency_caller_s * 1000)
        self.epoch = 0
        self.claimed: dict[int, int] = {}
        """How far each partition was claimed at the take-over, ms."""

    async def take_over(self) -> int:
        """Take a new epoch and fence the partitions: from now on older incarnations write nothing. Returns the epoch.

        Each partition's horizon is read with its fence: no older incarnation can advance it any more.

        Raises:
            Fenced: someone took a newer epoch meanwhile.
            StorageUnavailable: Redis does not answer; try again.
        """
        epoch = await take_epoch(self._client)
        of_partition = (timer_epoch_key, timer_claimed_key, timer_young_key)
        calls = [([key_of(partition) for key_of in of_partition], [epoch]) for partition in self._partitions]
        replies = await _TAKE_OVER.run_many(self._client, calls, self._replicas)
        self.claimed = {partition: int(claimed) for partition, (_, claimed) in zip(self._partitions, replies, strict=True)}
        self.epoch = epoch
        return epoch

    async def apply(self, work: Sequence[StoreWork], now_ms: int) -> list[StoreDone]:
        """Do one turn's work; the result has one element per element of `work`, in its order.

        Raises:
            Fenced: this incarnation has been replaced; nothing was written in at least one partition.
            DataLost: storage has lost that this incarnation owns a partition; nothing was written there.
            StorageUnavailable: no answer; it may have been applied in part: repeat it with `repeat` set.
        """
        asks = [[_Ask(item) for item in part.requests] for part in work]
        await self._take_ids([ask for part in asks for ask in part])
        calls = [self._call(part, part_asks, now_ms) for part, part_asks in zip(work, asks, strict=True)]
        # Requests are answered and timers handed out on the strength of this turn; a removal that a fail-over loses only means that
        # a timer fires again.
        replicas = self._replicas if any(part.requests or part.moved or part.claim_ms for part in work) else NO_REPLICAS
        if len(calls) == 1:
            replies = [await _TURN.run(self._client, *calls[0], replicas)]
        else:
            replies = await _TURN.run_many(self._client, calls, replicas)
        done = [self._done(part, part_asks, reply) for part, part_asks, reply in zip(work, asks, replies, strict=True)]
        await self._release_ids([ask for part in asks for ask in part])
        await self._quarantine({part.partition: part.quarantined for part in done if part.quarantined})
        return done

    # -- Ids given by callers. -----------------------------------------------------------------------------------------
    async def _take_ids(self, asks: Sequence[_Ask]) -> None:
        """Take the callers' ids, and settle or redirect the requests whose id is taken by another publish."""
        scheduling = [
            (ask, ask.timer) for ask in asks if isinstance(ask.request, Schedule) and ask.request.idempotent and ask.timer is not None
        ]
        if scheduling and self._legacy_ids.may_exist:
            known = await self._legacy_ids.look_up([(timer.key, timer.id) for _, timer in scheduling])
            for index, value in known.items():
                _redirect(*scheduling[index], value)
            scheduling = [asked for index, asked in enumerate(scheduling) if index not in known]
        if not scheduling:
            return
        with _storage("ids"):
            pipeline = self._client.pipeline(transaction=False)
            for _, timer in scheduling:
                key = idempotency_key(timer.key, timer.id)
                value = idempotency_value(timer.digest, 0, timer.sid)
                pipeline.set(key, value, nx=True, px=self._config.idempotency_caller_s * 1000)
                pipeline.get(key)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        for (ask, timer), taken, value in zip(scheduling, replies[::2], replies[1::2], strict=True):
            if isinstance(taken, ResponseError):
                ask.settle(UNAVAILABLE, detail=f"storage refuses: {taken}")
            elif isinstance(taken, Exception) or isinstance(value, Exception):
                raise StorageUnavailable(f"ids: {taken}")
            elif taken:
                ask.taken = idempotency_value(timer.digest, 0, timer.sid)
            elif value is not None:  # None: it expired between the two commands, the timer is stored under its own id
                _redirect(ask, timer, value)

    async def _release_ids(self, asks: Sequence[_Ask]) -> None:
        """Give ids back that were taken for timers which were then refused, so that the id may be used for something else."""
        calls = [
            ([idempotency_key(ask.timer.key, ask.timer.id)], [ask.taken])
            for ask in asks
            if ask.taken and ask.timer is not None and ask.answer is not None and ask.answer.status in (OVERLOADED, UNAVAILABLE)
        ]
        await _RELEASE.run_many(self._client, calls)

    # -- The script. ---------------------------------------------------------------------------------------------------
    def _call(self, part: StoreWork, asks: Sequence[_Ask], now_ms: int) -> tuple[list[str], list[Any]]:
        keys = [
            timer_epoch_key(part.partition),
            timer_due_key(part.partition),
            timer_key(part.partition),
            timer_fired_key(part.partition),
            timer_cancelled_key(part.partition),
            timer_user_prefix(part.partition),
            timer_collapse_key(part.partition),
            timer_claimed_key(part.partition),
            timer_young_key(part.partition),
        ]
        open_asks = [ask for ask in asks if ask.answer is None]
        forget_at_ms = now_ms + self._config.fired_tombstone_s * 1000
        args: list[Any] = [self.epoch, now_ms, part.claimed_ms, forget_at_ms, self._config.timers_per_user_max]
        args += [part.claim_ms, len(part.fired), len(part.moved), len(open_asks)]
        for pair in part.fired.items():
            args += pair
        for sid, move in part.moved.items():
            args += (sid, *move)
        for ask in open_asks:
            args += _request_args(ask, self._config)
        if part.page is not None:
            args += [*part.page.after, part.page.until_ms, part.page.limit, part.page.bytes_max]
        return keys, args

    def _done(self, part: StoreWork, asks: Sequence[_Ask], reply: list[Any]) -> StoreDone:
        _, stored, replies, page, more, moved, claimed_ms, young = reply
        quarantined: list[str] = []
        for ask, answer in zip((ask for ask in asks if ask.answer is None), replies, strict=True):
            _settle(ask, answer, quarantined)
        answers = [ask.answer for ask in asks if ask.answer is not None]
        assert len(answers) == len(asks)
        read = None if part.page is None else _page_read(part.page, page, bool(more), quarantined)
        there = {sid: bool(found) for sid, found in zip(part.moved, moved, strict=False)}  # shorter where storage refused
        young_sids = [sid.decode() for sid in young]
        return StoreDone(part.partition, answers, read, stored, list(dict.fromkeys(quarantined)), there, claimed_ms, young_sids)

    async def _quarantine(self, sids: dict[int, list[str]]) -> None:
        calls = []
        for partition, unreadable in sids.items():
            of_partition = (timer_epoch_key, timer_due_key, timer_key, timer_quarantine_key, timer_collapse_key)
            keys = [key_of(partition) for key_of in of_partition]
            calls.append((keys, [self.epoch, *unreadable]))
        await _QUARANTINE.run_many(self._client, calls)


def _redirect(ask: _Ask, timer: Timer, value: bytes) -> None:
    """The id is taken: conflict, what became of an immediate publish, or the scheduled id under which the timer belongs."""
    parts = value.split(b"|", 2)
    if len(parts) != 3:
        ask.settle(CONFLICT, detail="the id is taken by a record that cannot be read")
    elif parts[0] != timer.digest.hex().encode():
        ask.settle(CONFLICT)
    elif parts[1] == b"%d" % NEVER:
        ask.settle(SUPPRESSED, detail=parts[2].decode(errors="replace"))
    elif not parts[2]:
        ask.settle(DUPLICATE, detail=f"seq={parts[1].decode()}")
    elif parts[2] == timer.sid.encode():
        ask.taken = value  # by an earlier sending of this request
    else:
        ask.timer = msgspec.structs.replace(timer, sid=parts[2].decode())


def _request_args(ask: _Ask, config: Config) -> tuple[Any, ...]:
    request: Request = ask.request
    if isinstance(request, Schedule):
        timer = ask.timer
        assert timer is not None
        return ("S", timer.sid, timer.key, timer.due_ms, _pack(timer), timer.collapse)
    if isinstance(request, ListTimers):
        return ("L", request.collapse, request.key, min(request.limit, config.list_timers_max), config.list_timers_bytes, "")
    if isinstance(request, CancelAll):
        return ("A", request.collapse, request.key, " ".join(ask.spared), "", "")
    return (_ONE_TIMER[type(request)], request.sid, request.tenant, request.due_ms if isinstance(request, Reschedule) else 0, 0, "")


def _settle(ask: _Ask, reply: list[Any], quarantined: list[str]) -> None:
    """Turn the script's reply into the answer."""
    word = reply[0]
    if word == b"list":
        timers = _read_all(reply[2:], quarantined)
        ask.settle(OK, timers, "truncated" if reply[1] else "")
    elif word == b"all":
        ask.settle(OK, count=reply[1])
    elif word == b"refused":
        ask.settle(UNAVAILABLE, detail=f"storage refuses: {reply[1].decode(errors='replace')}")
    elif ask.timer is not None and isinstance(ask.request, Schedule):
        _settle_schedule(ask, ask.request, ask.timer, reply, quarantined)
    else:
        _settle_one(ask, reply, quarantined)


def _settle_schedule(ask: _Ask, request: Schedule, timer: Timer, reply: list[Any], quarantined: list[str]) -> None:
    word = reply[0]
    redirected = timer.sid != request.timer.sid
    status = DUPLICATE if redirected else SCHEDULED
    detail = timer.sid if redirected else ""
    if word == b"stored":
        ask.settle(status, [timer], detail)
    elif word == b"limit":
        ask.settle(OVERLOADED, detail=_TOO_MANY, retry_ms=_TOO_MANY_RETRY_MS)
    elif word == b"present":
        ask.settle(status, _read_all([timer.sid.encode(), *reply[1:]], quarantined), detail)
    else:  # fired or cancelled since; the first answer stands
        ask.settle(status, [], detail or GONE)


def _settle_one(ask: _Ask, reply: list[Any], quarantined: list[str]) -> None:
    word = reply[0]
    assert not isinstance(ask.request, Schedule | ListTimers | CancelAll)
    sid = ask.request.sid
    if word == b"fired":
        ask.settle(ALREADY_FIRED)
    elif word == b"cancelled" and ask.repeat and isinstance(ask.request, Cancel):
        ask.settle(OK)  # by the first sending, whose answer was lost
    elif word == b"done":
        timers = _read_all([sid.encode(), *reply[1:]], quarantined)
        if timers or isinstance(ask.request, Cancel):
            ask.settle(OK, timers)
        else:
            ask.settle(NOT_FOUND, detail="the timer could not be read and was moved aside")
    else:
        if word == b"unreadable":
            quarantined.append(sid)
        ask.settle(NOT_FOUND)


def _read_all(flat: Sequence[Any], quarantined: list[str]) -> list[Timer]:
    """Timers from (scheduled id, due time, packed timer) triples, without those that cannot be read."""
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
        timer = _unpack(packed)
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
