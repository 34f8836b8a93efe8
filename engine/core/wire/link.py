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
session has been restarted since, and replies RESET.

Pacing. The first record leaves at once, later ones wait until the pacing interval since the last call, or the last
reply with records, has passed. The callee parks up to `_PARKED_MAX` calls, and the caller keeps two under way for
`park_ms` after a reply with records: so the result of a request (a commit, a delivery) usually finds a parked call, and needs
neither an empty reply nor a new call. The last parked call is replied to only after two intervals. The interval grows with the
size of the last batch: under load it adds little to the latency and halves the calls. It also grows while all links of the actor
together exceed their share of a core (`engine.core.wire.pacing`). Records given to `push_latest` (ACKs)
wait for the longer interval `lazy_pacing_ms`, or leave with an earlier batch; only the latest per key is kept.

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

_SHORT_ARRAY: Final = 16
"""MessagePack arrays from this length on have a header of three bytes, shorter ones of one."""

_RUN_RECORDS: Final = 100
"""Records encoded at once: below 65 536, where the header grows again, and a batch or less even with the largest bodies of 64 KiB."""

_encoder = msgspec.msgpack.Encoder()
_EMPTY_BATCH: Final = encode([])
_EMPTY_BYTES: Final = _HEADER_BYTES + len(_EMPTY_BATCH)


class LinkLimits(Struct, frozen=True):
    """Times in milliseconds, sizes in bytes. `pacing_ms` is for eager records, `lazy_pacing_ms` for the rest.

    `pacing_records` more in a batch double the interval that follows it; it stretches to `pacing_max_ms` at most. An exchange takes
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
        grown_ms = min(self.pacing_ms * (1 + (records - 1) / self.pacing_records), self.pacing_max_ms)
        return max(self.pacing_ms, grown_ms, self.budget_ms(factor))

    def budget_ms(self, factor: float) -> float:
        """The interval that the budget calls for."""
        return min(self.pacing_ms * factor, self.budget_pacing_max_ms)


class LinkOverflow(Exception):
    """More than `queue_bytes_max` is queued at one end: the peer does not keep up, and the session must end."""


class _Outbox:
    """Records waiting to leave: eager ones encoded in order, lazy ones by key."""

    __slots__ = ("_budget", "_counts", "_latest", "_limits", "_runs", "bytes", "eager_since", "interval_ms", "latest_since", "taken")

    def __init__(self, limits: LinkLimits, budget: CallBudget) -> None:
        self._limits = limits
        self._budget = budget
        self._runs: list[bytes] = []  # eager records, each entry some of them one after another
        self._counts: list[int] = []  # how many, for each of these
        self._latest: dict[Hashable, Struct] = {}
        self.bytes = 0
        self.eager_since: float | None = None
        self.latest_since: float | None = None
        self.taken = 0  # records of the last batch
        self.interval_ms = limits.pacing_ms  # that follows the last batch

    def push(self, record: Struct, now_ms: float) -> None:
        self._grown(_encoder.encode(record), 1, now_ms)

    def push_all(self, records: Sequence[Struct], now_ms: float) -> None:
        """Encodes runs of records at once, at a third of the cost of encoding each."""
        for start in range(0, len(records), _RUN_RECORDS):
            run = records[start : start + _RUN_RECORDS]
            self._grown(_encoder.encode(run)[1 if len(run) < _SHORT_ARRAY else 3 :], len(run), now_ms)

    def _grown(self, run: bytes, count: int, now_ms: float) -> None:
        self._runs.append(run)
        self._counts.append(count)
        self.bytes += len(run)
        if self.bytes > self._limits.queue_bytes_max:
            raise LinkOverflow(f"{self.bytes} bytes are waiting, {self._limits.queue_bytes_max} are allowed")
        if self.eager_since is None:
            self.eager_since = now_ms

    def push_latest(self, key: Hashable, record: Struct, now_ms: float) -> None:
        self._latest[key] = record
        if self.latest_since is None:
            self.latest_since = now_ms

    def promote(self, key: Hashable, now_ms: float) -> None:
        record = self._latest.pop(key, None)
        if record is not None:
            self.push(record, now_ms)

    def take(self) -> bytes:
        """One batch of at most about `batch_bytes_max` bytes; at least one run of records when there is any."""
        if not self._runs and not self._latest:
            self._took(0)
            return _EMPTY_BATCH
        for record in self._latest.values():
            self._runs.append(_encoder.encode(record))
            self._counts.append(1)
        self._latest.clear()
        self.latest_since = None
        runs, counts = self._runs, self._counts
        if self.bytes <= self._limits.batch_bytes_max:
            self._runs, self._counts, self.bytes, self.eager_since = [], [], 0, None
        else:
            runs, counts = self._part()
        self._took(sum(counts))
        return b"\xdd" + self.taken.to_bytes(4, "big") + b"".join(runs)

    def _took(self, records: int) -> None:
        limits, factor = self._limits, self._budget.factor
        self.taken = records
        self.interval_ms = limits.pacing_ms if records <= 1 and factor == 1 else limits.interval_ms(records, factor)

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
            self.eager_since = None
        return runs, counts

    def due_at(self, last_ms: float, intervals: int = 1) -> float:
        """When the next batch may leave, infinity when nothing waits. `last_ms` is when the last one did."""
        if self.eager_since is not None:
            return max(self.eager_since, last_ms + intervals * self.interval_ms)
        if self.latest_since is not None:
            return max(self.latest_since, last_ms) + max(self._limits.lazy_pacing_ms, self._limits.budget_ms(self._budget.factor))
        return inf


class _InOrder:
    """Reorder buffer: returns numbered payloads in the order of their numbers, each once."""

    __slots__ = ("_early", "next")

    def __init__(self) -> None:
        self._early: dict[int, bytes] = {}
        self.next = 0

    def seen(self, number: int) -> bool:
        return number < self.next or number in self._early

    def accept(self, number: int, data: bytes) -> list[bytes]:
        if number != self.next:
            if number > self.next:
                self._early[number] = data
            return []
        ready = [data]
        self.next += 1
        while self._early and (later := self._early.pop(self.next, None)) is not None:
            ready.append(later)
            self.next += 1
        return ready


class Caller:
    """The calling end of one session. After each event, make the calls that `call` returns. Times are monotonic milliseconds.

    Args:
        budget: of the actor, shared by its links.
    """

    __slots__ = (
        "_budget",
        "_inflight",
        "_last_ms",
        "_last_records_ms",
        "_limits",
        "_next",
        "_open",
        "_outbox",
        "_replies",
        "over",
        "session",
    )

    def __init__(self, session: str, limits: LinkLimits, now_ms: float, budget: CallBudget) -> None:
        self.session = session
        self.over = False
        self._open = False  # request 0 is answered
        self._limits = limits
        self._budget = budget
        self._outbox = _Outbox(limits, budget)
        self._replies = _InOrder()
        self._inflight: dict[int, float] = {}
        self._next = 0
        self._last_ms = -inf
        self._last_records_ms = -inf  # when a reply last had records

    def push(self, record: Struct, now_ms: float) -> None:
        """Queue a record. Raises LinkOverflow when too much waits."""
        self._outbox.push(record, now_ms)

    def push_all(self, records: Sequence[Struct], now_ms: float) -> None:
        """Queue several. Raises LinkOverflow when too much waits."""
        self._outbox.push_all(records, now_ms)

    def push_latest(self, key: Hashable, record: Struct, now_ms: float) -> None:
        """Queue a record that may wait, in place of an earlier one with this key."""
        self._outbox.push_latest(key, record, now_ms)

    def promote(self, key: Hashable, now_ms: float) -> None:
        """Queue the record given to `push_latest` under this key now, before records pushed later. Raises LinkOverflow."""
        self._outbox.promote(key, now_ms)

    def call(self, now_ms: float) -> tuple[int, bytes] | None:
        """Returns the next call that is due, (seq, batch), or None. To be called until it returns None."""
        if self.over or self._due_at(now_ms) > now_ms:
            return None
        seq, self._next = self._next, self._next + 1
        self._inflight[seq] = now_ms
        self._last_ms = now_ms
        self._budget.spend(self._limits.call_ms, now_ms)
        return seq, self._outbox.take()

    def reply(self, seq: int, data: bytes, now_ms: float) -> list[bytes]:
        """Accept the reply to request `seq`; returns the batches that are now in order, none if the session is over."""
        if len(data) < _HEADER_BYTES:  # RESET, or no reply at all
            self.over = True
        if self.over or self._inflight.pop(seq, None) is None:
            return []
        self._open = True
        if len(data) > _EMPTY_BYTES:
            self._last_records_ms = now_ms
        return self._replies.accept(int.from_bytes(data[:_HEADER_BYTES], "big"), data[_HEADER_BYTES:])

    def _due_at(self, now_ms: float) -> float:
        """When the next call is due: at once while fewer are under way than are kept there, also with empty batches; infinity for none."""
        under_way, limits = len(self._inflight), self._limits
        if under_way < (2 if self._open and now_ms - self._last_records_ms < limits.park_ms else 1):
            return now_ms
        return self._outbox.due_at(self._last_ms) if self._open and under_way < limits.inflight_max else inf

    def check(self, now_ms: float) -> bool:
        """Whether the session is alive. It ends when a request has no reply for `timeout_ms` + `park_ms`."""
        if self._inflight and now_ms - min(self._inflight.values()) > self._limits.timeout_ms + self._limits.park_ms:
            self.over = True
        return not self.over

    def wake_at(self, now_ms: float) -> float:
        """The time at which `call` and `check` are to be called again, if no event comes before."""
        due = self._due_at(now_ms)
        if not self._inflight:
            return due
        return min(due, min(self._inflight.values()) + self._limits.timeout_ms + self._limits.park_ms + 1)


class Callee:
    """The called end of one session. After each event, send the replies that `reply` returns. Times are monotonic milliseconds.

    Args:
        budget: of the actor, shared by its links.
    """

    __slots__ = ("_budget", "_last_ms", "_last_request_ms", "_limits", "_next", "_outbox", "_parked", "_requests", "session")

    def __init__(self, session: str, limits: LinkLimits, now_ms: float, budget: CallBudget) -> None:
        self.session = session
        self._limits = limits
        self._budget = budget
        self._outbox = _Outbox(limits, budget)
        self._requests = _InOrder()
        self._parked: dict[int, float] = {}
        self._next = 0
        self._last_ms = -inf
        self._last_request_ms = now_ms

    def push(self, record: Struct, now_ms: float) -> None:
        """Queue a record. Raises LinkOverflow when too much waits."""
        self._outbox.push(record, now_ms)

    def push_all(self, records: Sequence[Struct], now_ms: float) -> None:
        """Queue several. Raises LinkOverflow when too much waits."""
        self._outbox.push_all(records, now_ms)

    def request(self, seq: int, batch: bytes, now_ms: float) -> list[bytes]:
        """Accept and park a request; returns the batches that are now in order. A repeated request is ignored."""
        self._last_request_ms = now_ms
        if self._requests.seen(seq):
            return []
        self._parked[seq] = now_ms
        return self._requests.accept(seq, batch)

    def reply(self, now_ms: float) -> tuple[int, bytes] | None:
        """Returns the next reply that is due, (request seq, data), or None. To be called until it returns None.

        Request 0 is answered at once: until then the caller may send nothing else.
        """
        if not self._parked:
            return None
        seq = next(iter(self._parked))
        kept = self._next and len(self._parked) <= _PARKED_MAX and now_ms - self._parked[seq] < self._limits.park_ms
        if kept and self._due_at() > now_ms:
            return None
        del self._parked[seq]
        self._budget.spend(self._limits.call_ms, now_ms)
        number, self._next = self._next, self._next + 1
        batch = self._outbox.take()
        if self._outbox.taken:
            self._last_ms = now_ms
        return seq, number.to_bytes(_HEADER_BYTES, "big") + batch

    def _due_at(self) -> float:
        """When the next reply with records is due, infinity if nothing is queued. The last parked call is kept for two intervals."""
        return self._outbox.due_at(self._last_ms, 1 if len(self._parked) > 1 else 2)

    def open_at(self, now_ms: float) -> float:
        """About when records leave that are pushed after those that are waiting now: with them, or an interval behind them."""
        interval_ms = self._outbox.interval_ms
        open_ms = self._last_ms + (1 if len(self._parked) > 1 else 2) * interval_ms
        return now_ms + interval_ms if self._outbox.eager_since is not None and open_ms <= now_ms else open_ms

    @property
    def queued_bytes(self) -> int:
        """Bytes of eager records that wait to leave."""
        return self._outbox.bytes

    def alive(self, now_ms: float) -> bool:
        """Whether a request arrived within the last `timeout_ms` + `park_ms`."""
        return now_ms - self._last_request_ms <= self._limits.timeout_ms + self._limits.park_ms

    def wake_at(self, now_ms: float) -> float:
        """The time at which `reply` and `alive` are to be called again, if no event comes before."""
        deadline = self._last_request_ms + self._limits.timeout_ms + self._limits.park_ms + 1
        if not self._parked:
            return deadline
        lease = next(iter(self._parked.values())) + self._limits.park_ms
        return min(self._due_at(), lease, deadline)
