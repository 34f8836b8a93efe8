"""Holds of pending requests on the timers they may cancel or move: a held timer must not fire before the request has its outcome.

A request holds one timer by its id, or all timers of a mailbox. A held timer in memory is frozen, one read from storage meanwhile is
added frozen, and each thaws when the last request that holds it has its outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.core.scheduler.firing import Firing
from engine.core.scheduler.scheduler_events import Request
from engine.core.wire.records import Cancel, CancelAll, Reschedule, Timer


class Waiting:
    """A request waiting for storage."""

    __slots__ = ("partition", "received_ms", "request", "session", "spared", "tried")

    def __init__(self, session: str, request: Request, partition: int, received_ms: int, spared: Sequence[str]) -> None:
        self.session = session
        self.request = request
        self.partition = partition
        self.received_ms = received_ms
        self.spared = spared
        self.tried = False


class RequestHolds:
    """The holds of one scheduler's requests on the timers of `firing`."""

    def __init__(self, firing: Firing) -> None:
        self._firing = firing
        self._sids: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()

    def __contains__(self, timer: object) -> bool:
        if not self._sids and not self._keys:  # nearly always
            return False
        return isinstance(timer, Timer) and (timer.sid in self._sids or timer.key in self._keys)

    def begin(self, request: Request) -> None:
        """Add the holds of a queued request; a read-only request has none."""
        if isinstance(request, Cancel | CancelAll | Reschedule):
            holds, name, sids = self._held_by(request)
            holds[name] += 1
            for sid in sids:
                self._firing.freeze(sid)

    def end(self, request: Request, now_ms: int) -> None:
        """Release the holds of a request that has its outcome or was abandoned; timers without a hold thaw."""
        if isinstance(request, Cancel | CancelAll | Reschedule):
            holds, name, sids = self._held_by(request)
            holds[name] -= 1
            if not holds[name]:
                del holds[name]
                for sid in sids:
                    self._thaw(sid, now_ms)

    def forget(self, request: Request, now_ms: int) -> None:
        """Release a request abandoned after sending, and evict its unclaimed timers: storage must be read for their due times first."""
        self.end(request, now_ms)
        if isinstance(request, Cancel | CancelAll | Reschedule):
            for sid in self._held_by(request)[2]:
                if not self._firing.is_claimed(sid):
                    self._firing.forget(sid)

    def _held_by(self, request: Cancel | CancelAll | Reschedule) -> tuple[Counter[str], str, list[str]]:
        """Where its hold is counted, under which name, and the timers that it concerns."""
        if isinstance(request, CancelAll):
            return self._keys, request.key, list(self._firing.of(request.key))
        return self._sids, request.sid, [request.sid]

    def _thaw(self, sid: str, now_ms: int) -> None:
        timer = self._firing.get(sid)
        if timer is not None and timer not in self:
            self._firing.thaw(sid, now_ms)
