"""The input and output of the scheduler core: events, effects, and the work for timer storage.

Plain records, so that core, store and actor meet nowhere else. One `StoreWork` per partition and turn. Storage applies its
parts in this order: `fired`, `moved`, `requests` one by one, `page`; all of it is safe to apply again when the answer was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from engine.core.model.routing import SlotMap, partition_of, partition_of_timer
from engine.core.wire.records import (
    Arm,
    Cancel,
    CancelAll,
    Due,
    Fire,
    FireAgain,
    FireDone,
    FireFailed,
    Inspect,
    ListTimers,
    Moved,
    Reschedule,
    Schedule,
    Timer,
    TimerAnswer,
)

Request = Schedule | Inspect | Reschedule | Cancel | CancelAll | ListTimers


def partition_for(request: Request) -> int | None:
    """The partition a request is for, None when no timer can have its id."""
    if isinstance(request, ListTimers | CancelAll):
        return partition_of(request.key)
    return partition_of_timer(request.timer.sid if isinstance(request, Schedule) else request.sid)


def shard_of(session: str) -> int | None:
    """The shard whose session this is; None when it is an edge's."""
    role, _, index = session.partition("/")[0].partition("-")
    return int(index) if role == "shard" else None


TimerCursor = tuple[int, str]
"""A position in a partition's timers, ordered by (due time in ms, scheduled id)."""

BEGINNING: Final[TimerCursor] = (0, "")


# -- Work for storage. -------------------------------------------------------------------------------------------------
class StoreRequest(Struct, gc=False):
    """One request from an edge.

    Args:
        spared: timers that a CancelAll leaves alone, because they may have taken effect.
    """

    request: Request
    spared: Sequence[str] = ()


class ReadTimers(Struct, gc=False):
    """Read timers behind `after` that are due at `until_ms` or before, at most `limit` of them and about `bytes_max` bytes."""

    after: TimerCursor
    until_ms: int
    limit: int
    bytes_max: int


class StoreWork(Struct):
    """The work of one partition's storage.

    Args:
        fired: mailbox keys by scheduled id, empty where unknown.
        moved: timers that had no effect yet, with their new due time and their mailbox key.
    """

    partition: int
    claimed_ms: int  # a timer due until then, unless young, may have been handed out by an earlier incarnation: ALREADY_FIRED
    fired: dict[str, str]
    requests: list[StoreRequest]
    page: ReadTimers | None = None
    moved: dict[str, tuple[int, str]] = {}


class Turn(dict[int, StoreWork]):
    """The work of one turn by partition, empty for one that it is asked for the first time.

    Args:
        claimed_ms: see `StoreWork`.
    """

    def __init__(self, claimed_ms: int) -> None:
        super().__init__()
        self._claimed_ms = claimed_ms

    def __missing__(self, partition: int) -> StoreWork:
        work = self[partition] = StoreWork(partition, self._claimed_ms, {}, [], moved={})
        return work


class TimersRead(Struct):
    """Timers in order. `reached` is where the page ended, None when nothing up to `until_ms` is left behind it."""

    timers: list[Timer]
    reached: TimerCursor | None


class StoreDone(Struct):
    """The outcome of a `StoreWork`.

    Args:
        answers: in the order of its requests.
        stored: timers that are in the partition now.
        quarantined: scheduled ids whose stored bytes could not be read, moved aside.
        moved: of those to be moved, whether the timer is there; what storage refused to move now is left out.
        young: of the timers returned or moved those due until `StoreWork.claimed_ms` that were stored or moved under this epoch.
    """

    partition: int
    answers: list[TimerAnswer]
    page: TimersRead | None
    stored: int
    quarantined: list[str]
    moved: dict[str, bool] = {}
    young: Sequence[str] = ()


# -- Events. -----------------------------------------------------------------------------------------------------------
class Opened(Struct):
    """A link session began; its id starts with the caller's name, `shard-1/...` or `edge-0/...`."""

    session: str


class Closed(Struct):
    """A link session ended."""

    session: str


class Received(Struct):
    """Records of one session, in order."""

    session: str
    records: Sequence[Request | Arm | FireDone | FireFailed | FireAgain]


class TimersWritten(Struct):
    """The `WriteTimers` effect that was under way succeeded; every partition is claimed until `reach_ms`."""

    done: list[StoreDone]
    reach_ms: int


class TimersNotWritten(Struct):
    """The `WriteTimers` effect that was under way failed: it may have been applied in part or in whole."""


class SlotsRead(Struct):
    """The slot map as it is in storage now; it gives the scheduler the partitions that it has."""

    slots: SlotMap


class Retired(Struct):
    """The newest slot map gives the scheduler other partitions: finish what waits for storage, and begin nothing else."""


class Ticked(Struct):
    """Nothing but the time has changed."""


Event = Opened | Closed | Received | TimersWritten | TimersNotWritten | SlotsRead | Retired | Ticked


# -- Effects. ----------------------------------------------------------------------------------------------------------
class Send(Struct):
    """Send one record to a session."""

    session: str
    record: TimerAnswer | Moved | Due | Fire


class WriteTimers(Struct):
    """Do this work in storage, then report `TimersWritten` or `TimersNotWritten`. At most one is under way.

    Args:
        claim_ms: claim what is due until then in every partition, before it is handed out (`engine.core.scheduler.claim_horizon`); 0:
            nothing new.
    """

    work: list[StoreWork]
    claim_ms: int


class Quarantined(Struct):
    """Report to the operator: these stored timers could not be read and were quarantined."""

    sids: list[str]


Effect = Send | WriteTimers | Quarantined
