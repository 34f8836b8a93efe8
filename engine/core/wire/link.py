"""The link protocol between two actors: one kind of call carries batches of records in both directions, in order.

A Ray call costs about a millisecond of CPU whatever it carries, and calls are not guaranteed to start or finish in
order. So two actors exchange batches, never single records: `exchange(session, seq, batch) -> reply`. The caller's
records are the argument, the callee's the reply (long polling, RFC 6202): one call is always parked at the callee, so that it can reply as
soon as it has records to send.

States of a session
    caller   opening   only request 0 is under way; nothing else is sent before its reply
             open      up to `inflight_max` requests under way
             over      a call failed or timed out, or the reply was RESET; a new Caller with a new session id replaces it
    callee   open      from the first request 0 until `timeout_ms` without a request
             over      discarded; later requests of the session are answered with RESET

Numbers. Requests are numbered by the caller, replies by the callee, each from 0. They may arrive in any order and are applied in order of
their numbers. Every request gets exactly one reply. Request 0 travels alone, so a callee that receives another number for an unknown
session has been restarted since, and replies RESET. And it is empty: one that is held up for long and reaches a later process of the
callee opens a session without records. These would be carried out again, after newer ones.

Pacing. The first record leaves at once, later ones wait until the pacing interval since the last call, or the last reply with records, has
passed; replies of a shard have none of their own. The callee parks up to `_PARKED_MAX` calls, and the caller keeps two under way while
replies with records follow each other: so the result of a request (a commit, a delivery) usually finds a parked call, and needs neither an
empty reply nor a new call. While such replies are rare, one call and those with requests are enough. The last parked call is replied to
only after two intervals. The interval grows with the size of the last batch: under load it adds little to the latency and halves the calls.
It also grows while all links of the actor together exceed their share of a core (`engine.core.wire.pacing`). Records given to `push_latest`
(ACKs) wait for the longer interval `lazy_pacing_ms`, or leave with an earlier batch; only the latest per key is kept.

When a session ends, records queued or under way are lost at both ends. The caller announces its state again under the next session,
and repeats unanswered requests under their ids.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.wire.pacing import CallBudget
from engine.core.wire.records import encode

RESET: Final = b""
"""The reply to a request of an unknown session."""

_HEADER_BYTES: Final = 8
_PARKED_MAX: Final = 3
"""Calls that the callee parks: far enough below `inflight_max` that the caller can make more."""

_FOLLOWS: Final = 0.1
"""Replies with records follow each other when no more than this part of `park_ms` is between them. With two calls under way they may do so
after one interval instead of two, which a lone reply has no use for."""

_RESOLUTION_MS: Final = 0.5
"""What is due within this is due now. The timers of event loops count whole milliseconds: they wait for one in place of less."""

_SHORT_ARRAY: Final = 16
"""MessagePack arrays from this length on have a header of three bytes, shorter ones of one."""

_RUN_RECORDS: Final = 100
"""Records encoded at once: below 65 536, where the header grows again, and a batch or less even with the largest bodies of 64 KiB."""

_encoder = msgspec.msgpack.Encoder()
_EMPTY_BATCH: Final = encode([])
_EMPTY_BYTES: Final = _HEADER_BYTES + len(_EMPTY_BATCH)


class LinkLimits(Struct, frozen=True):
    """Times in milliseconds, sizes in bytes. `pacing_ms` is for eager records, `lazy_pacing_ms` for the rest.

    The interval that follows a batch is a millisecond longer for each `pacing_records` in it, up to `pacing_max_ms`. An exchange takes
    `call_ms` of CPU at one end; while the actor's budget is exceeded, intervals grow to `budget_pacing_max_ms` at most.
    """

    pacing_ms: float
    pacing_max_ms: float
    pacing_records: int
    lazy_pacing_ms: float
    park_ms: float
    timeout_ms: float
    call_ms: float
    budget_pacing_max_ms: float
    inflight_max: int
    batch_bytes_max: int
    queue_bytes_max: int

    def interval_ms(self, records: int, factor: float) -> float:
        """The pacing interval after a batch of this many records, in milliseconds; `factor` is the budget's."""
        grown_ms = min(self.pacing_ms + (records - 1) / self.pacing_records, self.pacing_max_ms)
        budget_ms = min(max(self.pacing_ms, self.call_ms) * factor, self.budget_pacing_max_ms) if factor > 1 else 0.0
        return max(self.pacing_ms, grown_ms, budget_ms)


class LinkOverflow(Exception):
    """More than `queue_bytes_max` is queued at one end: the peer does not keep up, and the session must end."""


class _Outbox:
    """Records waiting to leave: eager ones encoded in order, lazy ones by key. `waiting`: there are some."""

    def __init__(self, limits: LinkLimits, budget: CallBudget) -> None:
        self._limits = limits
        self._budget = budget
        self._runs: list[bytes] = []  # eager records, each entry some of them one after another
        self._counts: list[int] = []  # how many, for each of these
        self._latest: dict[Hashable, Struct] = {}
        self.waiting = False
        self.bytes = 0
        self.eager_since: float | None = None
        self.latest_since: float | None = None
        self.taken = 0  # records of the last batch
        self.interval_ms = limits.pacing_ms  # that follows the last batch

    def push(self, records: Sequence[Struct], now_ms: float) -> None:
        """Queue records. Raises LinkOverflow when too much waits.

        Encodes runs of records at once, at a third of the cost of encoding each.
        """
        for start in range(0, len(records), _RUN_RECORDS):
            run = records[start : start + _RUN_RECORDS]
            encoded = _encoder.encode(run)[1 if len(run) < _SHORT_ARRAY else 3 :]
            self.waiting = True
            self._runs.append(encoded)
            self._counts.append(len(run))
            self.bytes += len(encoded)
            if self.bytes > self._limits.queue_bytes_max:
                raise LinkOverflow(f"{self.bytes} bytes are waiting, {self._limits.queue_bytes_max} are allowed")
            if self.eager_since is None:
                self.eager_since = now_ms

    def push_latest(self, key: Hashable, record: Struct, now_ms: float) -> None:
        """Queue a record that may wait, in place of an earlier one with this key."""
        self.waiting = True
        self._latest[key] = record
        if self.latest_since is None:
            self.latest_since = now_ms

    def promote(self, key: Hashable, now_ms: float) -> None:
        """Queue the record given to `push_latest` under this key now, before records pushed later. Raises LinkOverflow."""
        record = self._latest.pop(key, None)
        if record is not None:
            self.push((record,), now_ms)

    def take(self) -> bytes:
        """One batch of at most about `batch_bytes_max` bytes; at least one run of records when there is any."""
        limits, factor = self._limits, self._budget.factor
        batch, self.taken = _EMPTY_BATCH, 0
        if self.waiting:
            for record in self._latest.values():
                self._runs.append(_encoder.encode(record))
                self._counts.append(1)
            self._latest.clear()
            self.latest_since = None
            runs, counts = self._runs, self._counts
            if self.bytes <= limits.batch_bytes_max:
                self._runs, self._counts, self.bytes, self.eager_since, self.waiting = [], [], 0, None, False
            else:
                runs, counts = self._part()
            self.taken = sum(counts)
            batch = b"\xdd" + self.taken.to_bytes(4, "big") + b"".join(runs)
        self.interval_ms = limits.pacing_ms if self.taken <= 1 and factor == 1 else limits.interval_ms(self.taken, factor)
        return batch

    def _part(self) -> tuple[list[bytes], list[int]]:
        """Removes and returns the first runs, as many as fit into a batch, and their counts."""
        size = taken = 0
        for run in self._runs:
            if taken and size + len(run) > self._limits.batch_bytes_max:
                break
            size += len(run)
            taken += 1
        runs, counts = self._runs[:taken], self._counts[:taken]
        del self._runs[:taken], self._counts[:taken]
        self.bytes = max(self.bytes - size, 0)
        if not self._runs:
            self.eager_since, self.waiting = None, False
        return runs, counts

    def due_at(self, last_ms: float, intervals: int = 1) -> float:
        """When the next batch may leave; something waits. `last_ms` is when the last one did."""
        if self.eager_since is not None:
            return max(self.eager_since, last_ms + intervals * self.interval_ms)
        assert self.latest_since is not None
        interval_ms, factor = self._limits.lazy_pacing_ms, self._budget.factor
        return max(self.latest_since, last_ms) + (interval_ms if factor == 1 else max(interval_ms, self._limits.interval_ms(1, factor)))


class _InOrder:
    """Reorder buffer: returns numbered payloads in the order of their numbers, each once."""

    __slots__ = ("_early", "next")

    def __init__(self) -> None:
        self._early: dict[int, bytes] = {}
        self.next = 0

    def accept(self, number: int, data: bytes) -> list[bytes] | None:
        """The payloads that are now in order; None when this number was accepted before."""
        if number != self.next:
            if number < self.next or number in self._early:
                return None
            self._early[number] = data
            return []
        ready = [data]
        self.next += 1
        while self._early and (later := self._early.pop(self.next, None)) is not None:
            ready.append(later)
            self.next += 1
        return ready


class Caller:
    """The calling end of one session. After each event, make the calls that `calls` returns. Times are monotonic milliseconds.

    Args:
        budget: of the actor, shared by its links.

    Attributes:
        outbox: the records for the callee.
        over: whether the session has ended.
        wake_ms: when to ask for `calls` again if no event comes before.
    """

    def __init__(self, session: str, limits: LinkLimits, now_ms: float, budget: CallBudget) -> None:
        self.session = session
        self.over = False
        self.outbox = _Outbox(limits, budget)
        self.wake_ms = now_ms
        self._open = False  # request 0 is answered
        self._limits = limits
        self._budget = budget
        self._replies = _InOrder()
        self._inflight: dict[int, float] = {}
        self._next = 0
        self._last_ms = -inf
        self._last_records_ms = -inf  # when a reply last had records
        self._lively = False  # soon behind another one

    def calls(self, now_ms: float) -> list[tuple[int, bytes]]:
        """The calls that are due, (seq, batch). The session ends when a request has had no reply for `timeout_ms` + `park_ms`."""
        inflight, limits = self._inflight, self._limits
        lease_ms = limits.timeout_ms + limits.park_ms
        if inflight and now_ms > next(iter(inflight.values())) + lease_ms:
            self.over = True
        if self.over:
            return []
        kept = 2 if self._lively and now_ms - self._last_records_ms < limits.park_ms else 1  # under way, also with empty batches
        calls: list[tuple[int, bytes]] = []
        due_ms = now_ms
        while True:
            if len(inflight) >= kept:
                may = self.outbox.waiting and self._open and len(inflight) < limits.inflight_max
                due_ms = self.outbox.due_at(self._last_ms) if may else inf
                if due_ms > now_ms + _RESOLUTION_MS:
                    break
            self._budget.spend(limits.call_ms, now_ms)
            if self._open:
                calls.append((self._next, self.outbox.take()))
                self._last_ms = now_ms
            else:
                calls.append((self._next, _EMPTY_BATCH))
            inflight[self._next] = now_ms
            self._next += 1
        self.wake_ms = min(due_ms, next(iter(inflight.values())) + lease_ms + 1)
        return calls

    def reply(self, seq: int, data: bytes, now_ms: float) -> list[bytes]:
        """Accept the reply to request `seq`; returns the batches that are now in order, none if the session is over."""
        if len(data) < _HEADER_BYTES:  # RESET, or no reply at all
            self.over = True
        if self.over or self._inflight.pop(seq, None) is None:
            return []
        self._open = True
        if len(data) > _EMPTY_BYTES:
            self._lively = now_ms - self._last_records_ms < _FOLLOWS * self._limits.park_ms
            self._last_records_ms = now_ms
        return self._replies.accept(int.from_bytes(data[:_HEADER_BYTES], "big"), data[_HEADER_BYTES:]) or []


class Callee:
    """The called end of one session. After each event, send the replies that `replies` returns. Times are monotonic milliseconds.

    Args:
        budget: of the actor, shared by its links.

    Attributes:
        outbox: the records for the caller.
        over: whether the session has ended.
        wake_ms: when to ask for `replies` again if no event comes before.
    """

    def __init__(self, session: str, limits: LinkLimits, now_ms: float, budget: CallBudget) -> None:
        self.session = session
        self.over = False
        self.outbox = _Outbox(limits, budget)
        self.wake_ms = now_ms
        self._limits = limits
        self._budget = budget
        self._requests = _InOrder()
        self._parked: dict[int, float] = {}
        self._next = 0
        self._last_ms = -inf
        self._last_request_ms = now_ms

    def request(self, seq: int, batch: bytes, now_ms: float) -> list[bytes]:
        """Accept and park a request; returns the batches that are now in order. A repeated request is ignored."""
        self._last_request_ms = now_ms
        batches = self._requests.accept(seq, batch)
        if batches is None:
            return []
        self._parked[seq] = now_ms
        return batches

    def replies(self, now_ms: float) -> list[tuple[int, bytes]]:
        """The replies that are due, (request seq, data). The session ends without a request for `timeout_ms` + `park_ms`.

        Request 0 is answered at once: until then the caller may send nothing else.
        """
        parked, limits = self._parked, self._limits
        deadline_ms = self._last_request_ms + limits.timeout_ms + limits.park_ms
        self.wake_ms = deadline_ms + 1
        self.over = now_ms > deadline_ms
        replies: list[tuple[int, bytes]] = []
        while parked and not self.over:
            seq, parked_ms = next(iter(parked.items()))
            if self._next and len(parked) <= _PARKED_MAX:
                # The last parked call is kept for two intervals.
                due_ms = parked_ms + limits.park_ms
                if self.outbox.waiting:
                    due_ms = min(due_ms, self.outbox.due_at(self._last_ms, 1 if len(parked) > 1 else 2))
                if due_ms > now_ms + _RESOLUTION_MS:
                    self.wake_ms = min(self.wake_ms, due_ms)
                    break
            del parked[seq]
            self._budget.spend(limits.call_ms, now_ms)
            replies.append((seq, self._next.to_bytes(_HEADER_BYTES, "big") + self.outbox.take()))
            self._next += 1
            if self.outbox.taken:
                self._last_ms = now_ms
        return replies

    def open_at(self, now_ms: float) -> float:
        """About when records leave that are pushed after those that are waiting now: with them, or an interval behind them."""
        interval_ms = self.outbox.interval_ms
        open_ms = self._last_ms + (1 if len(self._parked) > 1 else 2) * interval_ms
        return now_ms + interval_ms if self.outbox.eager_since is not None and open_ms <= now_ms else open_ms

    @property
    def queued_bytes(self) -> int:
        """Bytes of eager records that wait to leave."""
        return self.outbox.bytes
