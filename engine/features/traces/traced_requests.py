"""The `publish` spans of a request: one for each sampled item, one for the request if it is slow or fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from engine.core.model.trace_context import TraceContext
from engine.core.wire.records import OVERLOADED, PUBLISH_STATUS, UNAVAILABLE
from engine.errors import Overloaded
from engine.features.traces.spans import Spans
from engine.http.problems import Problem
from engine.publish.request_trace import RequestTrace
from engine.publish.results import ItemResult

_NOT_TAKEN: Final = frozenset((PUBLISH_STATUS[UNAVAILABLE], PUBLISH_STATUS[OVERLOADED]))
_SERVER_ERROR: Final = 500


class _Traced(Struct, gc=False):
    own: TraceContext
    parent: TraceContext | None
    id: str


class TracedRequest(RequestTrace):
    """The contexts of one request, which begins with this object, and its spans.

    Args:
        header: its `traceparent`, "" for none; one that is not valid counts as none.
        tenant: of the publisher.
    """

    __slots__ = ("_spans", "_start_ns", "_tenant", "_traced")

    def __init__(self, spans: Spans, header: str, tenant: str) -> None:
        super().__init__(header)
        self._spans = spans
        self._start_ns = spans.now_ns()
        self._tenant = tenant
        self._traced: list[_Traced] = []

    def context(self, id: str, given: str | None) -> TraceContext | None:
        """That of the span of the item where it is sampled, else what the publisher gave."""
        parent = super().context(id, given)
        own = self._spans.begin(parent)
        if own is not None and own.sampled:
            self._traced.append(_Traced(own, parent, id))
        return own

    def answered(self, results: Sequence[ItemResult]) -> None:
        """End the spans."""
        statuses = {result.id: result for result in results} if self._traced else {}
        for traced in self._traced:
            result = statuses.get(traced.id)
            self._add(traced, result.status if result is not None else "", result.reason if result is not None else "")
        if not self._traced:
            self._spans.add("publish", self._given, self._start_ns, {"engine.tenant": self._tenant, "engine.items": len(results)})

    def failed(self, error: Exception) -> None:
        """End the spans, with the error of what was not taken."""
        known = error.members.get("results") if isinstance(error, Problem) else None
        results = {result["id"]: result for result in known or ()}
        for traced in self._traced:
            result = results.get(traced.id, {})
            status = result.get("status", "")
            failure = "" if status and status not in _NOT_TAKEN else str(error) or type(error).__name__
            self._add(traced, status, result.get("reason", ""), failure)
        refused = isinstance(error, Overloaded) or (isinstance(error, Problem) and error.status < _SERVER_ERROR)
        if not self._traced and not refused:
            self._spans.add("publish", self._given, self._start_ns, {"engine.tenant": self._tenant}, error=str(error))

    def _add(self, traced: _Traced, status: str, reason: str, error: str = "") -> None:
        attributes = {
            "messaging.message.id": traced.id, "engine.tenant": self._tenant, "engine.status": status, "engine.reason": reason,
        }  # fmt: skip
        self._spans.add("publish", traced.parent, self._start_ns, attributes, error=error, own=traced.own)
