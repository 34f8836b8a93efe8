"""The spans of a shard, from the records that it gets and sends; see the package's text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from engine.core.journal.journal_records import Decided
from engine.core.model.routing import split_key
from engine.core.model.trace_context import trace_in
from engine.core.wire.records import (
    PUBLISH_STATUS,
    UNAVAILABLE,
    FireAgain,
    FireDone,
    FireFailed,
    Moved,
    Post,
    Posted,
    Timer,
)
from engine.features.traces.spans import OPEN_MAX, Spans

_DEFERRED: Final = "deferred"


class ShardSpans:
    """The spans of one shard. A `ShardObserver`."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._posts: dict[str, dict[int, tuple[int, Post]]] = {}  # by session and `ref`: when it arrived
        self._fired: dict[str, tuple[int, Timer]] = {}  # by scheduled id: when it arrived
        self._reasons: dict[tuple[str, str], str] = {}  # by mailbox key and message id, of those that have fired

    def received(self, session: str, records: Iterable[Any]) -> None:
        """Records of an edge, before they are handled."""
        posts = self._posts.get(session)
        if posts is None or len(posts) >= OPEN_MAX:
            posts = self._posts[session] = {}
        now_ns = self._spans.now_ns()
        for record in records:
            if type(record) is Post:
                posts[record.ref] = now_ns, record

    def closed(self, session: str) -> None:
        """A session of an edge has ended: nothing of it is answered any more."""
        self._posts.pop(session, None)

    def sent(self, to_edges: Iterable[tuple[str, Any]], to_schedulers: Iterable[tuple[int, Any]]) -> None:
        """What posts and timers are answered with ends their spans."""
        self._answered(to_edges)
        self._told(to_schedulers)

    def _answered(self, records: Iterable[tuple[str, Any]]) -> None:
        for session, record in records:
            kind = type(record)
            if kind is not Posted and kind is not Moved:
                continue
            posts = self._posts.get(session)
            found = None if posts is None else posts.pop(record.ref, None)
            if found is None or kind is Moved:
                continue
            start_ns, post = found
            status = PUBLISH_STATUS[record.status] if record.status < len(PUBLISH_STATUS) else _DEFERRED
            attributes = {
                "messaging.message.id": post.envelope.id, "engine.tenant": split_key(post.key)[0], "engine.status": status,
                "engine.seq": record.seq, "engine.reason": record.detail,
            }  # fmt: skip
            error = record.detail or status if record.status == UNAVAILABLE else ""
            self._spans.add("journal", trace_in(post.envelope.body), start_ns, attributes, error=error)

    def fired(self, timers: Iterable[Timer]) -> None:
        """Timers of a scheduler, before they are handled."""
        now_ns = self._spans.now_ns()
        if len(self._fired) >= OPEN_MAX:
            self._fired.clear()
            self._reasons.clear()
        for timer in timers:
            self._fired.setdefault(timer.sid, (now_ns, timer))
            self._reasons.setdefault((timer.key, timer.envelope.id), "")

    def decided(self, records: Sequence[Any]) -> None:
        """Records of a group that is about to be written: the reasons of decisions about timers are among them."""
        if not self._reasons:
            return
        for record in records:
            if type(record) is Decided and (record.key, record.entry.id) in self._reasons:
                self._reasons[record.key, record.entry.id] = f"{record.entry.event}: {record.entry.reason}"

    def _told(self, records: Iterable[tuple[int, Any]]) -> None:
        for _, record in records:
            kind = type(record)
            if kind is FireDone:
                for sid in record.sids:
                    self._judged(sid, "done")
            elif kind is FireAgain:
                for sid, _ in record.moves:
                    self._judged(sid, "put off")
            elif kind is FireFailed:
                for sid in record.sids:
                    self._judged(sid, "failed", error="it could not take effect now")

    def _judged(self, sid: str, outcome: str, *, error: str = "") -> None:
        found = self._fired.pop(sid, None)
        if found is None:
            return
        start_ns, timer = found
        attributes = {
            "messaging.message.id": timer.envelope.id, "engine.tenant": split_key(timer.key)[0], "engine.scheduled_id": sid,
            "engine.outcome": outcome, "engine.reason": self._reasons.pop((timer.key, timer.envelope.id), ""),
        }  # fmt: skip
        self._spans.add("judge", trace_in(timer.envelope.body), start_ns, attributes, error=error)
