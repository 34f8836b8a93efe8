"""The spans of a scheduler, from the records that it gets and sends; see the package's text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.core.model.routing import split_key
from engine.core.model.trace_context import trace_in
from engine.core.wire.records import (
    PUBLISH_STATUS,
    UNAVAILABLE,
    Fire,
    FireAgain,
    FireDone,
    FireFailed,
    Schedule,
    Timer,
    TimerAnswer,
)
from engine.features.traces.spans import OPEN_MAX, Spans


class SchedulerSpans:
    """The spans of one scheduler. A `SchedulerObserver`."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._asked: dict[tuple[str, int], tuple[int, Timer]] = {}  # by session and `ref`: when it arrived
        self._fired: dict[str, tuple[int, Timer]] = {}  # by scheduled id: when it was handed out first

    def received(self, session: str, records: Iterable[Any]) -> None:
        """Records of an edge or a shard, before they are handled."""
        now_ns = self._spans.now_ns()
        for record in records:
            kind = type(record)
            if kind is Schedule:
                if len(self._asked) >= OPEN_MAX:
                    self._asked.clear()
                self._asked[session, record.ref] = now_ns, record.timer
            elif kind is FireDone:
                for sid in record.sids:
                    self._over(sid, "done")
            elif kind is FireAgain:
                for sid, _ in record.moves:
                    self._over(sid, "put off")
            elif kind is FireFailed:
                for sid in record.sids:
                    self._over(sid, "failed", error="its shard could not let it take effect")

    def sent(self, records: Iterable[tuple[str, Any]]) -> None:
        """(session, record) for edges and shards."""
        now_ns = self._spans.now_ns()
        for session, record in records:
            kind = type(record)
            if kind is TimerAnswer:
                found = self._asked.pop((session, record.ref), None)
                if found is not None:
                    self._scheduled(*found, record)
            elif kind is Fire:
                if len(self._fired) >= OPEN_MAX:
                    self._fired.clear()
                for timer in record.timers:
                    self._fired.setdefault(timer.sid, (now_ns, timer))

    def _scheduled(self, start_ns: int, timer: Timer, answer: TimerAnswer) -> None:
        status = PUBLISH_STATUS[answer.status] if answer.status < len(PUBLISH_STATUS) else str(answer.status)
        attributes = {**_about(timer), "engine.status": status, "engine.due_ms": timer.due_ms}
        error = answer.detail or status if answer.status == UNAVAILABLE else ""
        self._spans.add("schedule", trace_in(timer.envelope.body), start_ns, attributes, error=error)

    def _over(self, sid: str, outcome: str, *, error: str = "") -> None:
        found = self._fired.pop(sid, None)
        if found is None:
            return
        handed_ns, timer = found
        due_ns = timer.due_ms * 1_000_000
        attributes = {**_about(timer), "engine.outcome": outcome, "engine.late_ms": max(handed_ns - due_ns, 0) // 1_000_000}
        self._spans.add("fire", trace_in(timer.envelope.body), due_ns, attributes, error=error)


def _about(timer: Timer) -> dict[str, str | int | bool]:
    return {
        "messaging.message.id": timer.envelope.id, "engine.tenant": split_key(timer.key)[0], "engine.scheduled_id": timer.sid,
    }  # fmt: skip
