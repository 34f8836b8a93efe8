"""The trace contexts of the items of one request: a publisher's `traceparent`, or a trace that begins here (`engine.store.traces`).

An item's own `traceparent` comes before that of the request's header. Where the engine makes no spans, or the trace is not sampled, a
context is handed on to clients as it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from engine.core.model.trace_context import TraceContext, parse_traceparent
from engine.core.wire.records import OVERLOADED, PUBLISH_STATUS, UNAVAILABLE
from engine.errors import Invalid, Overloaded
from engine.http.problems import Problem
from engine.store.traces.spans import Spans

if TYPE_CHECKING:
    from engine.publish.results import ItemResult

_NOT_TAKEN: Final = frozenset((PUBLISH_STATUS[UNAVAILABLE], PUBLISH_STATUS[OVERLOADED]))
_SERVER_ERROR: Final = 500


class _Traced(Struct, gc=False):
    own: TraceContext
    parent: TraceContext | None
    id: str


class RequestTrace:
    """The contexts of one request, which begins with this object.

    Args:
        header: its `traceparent`, "" for none; one that is not valid counts as none.
        spans: those of the edge; None: it makes none.
        tenant: of the publisher.
    """

    __slots__ = ("_given", "_spans", "_start_ns", "_tenant", "_traced")

    def __init__(self, header: str, spans: Spans | None, tenant: str) -> None:
        self._given = parse_traceparent(header) if header else None
        self._spans = spans
        self._start_ns = spans.now_ns() if spans is not None else 0
        self._tenant = tenant
        self._traced: list[_Traced] = []

    def context(self, id: str, given: str | None) -> TraceContext | None:
        """What the message of an item hands on. Raises Invalid: its `traceparent` is not valid."""
        parent = self._given
        if given is not None:
            parent = parse_traceparent(given)
            if parent is None:
                raise Invalid("as W3C Trace Context defines it: 00-<32 hexadecimal digits>-<16>-<2>", "$.traceparent")
        if self._spans is None:
            return parent
        own = self._spans.begin(parent)
        if own is not None and own.sampled:
            self._traced.append(_Traced(own, parent, id))
        return own

    def answered(self, results: Sequence[ItemResult]) -> None:
        """Every item was accepted."""
        if self._spans is None:
            return
        statuses = {result.id: result for result in results} if self._traced else {}
        for traced in self._traced:
            result = statuses.get(traced.id)
            self._add(traced, result.status if result is not None else "", result.reason if result is not None else "")
        if not self._traced:
            self._spans.add("publish", self._given, self._start_ns, {"engine.tenant": self._tenant, "engine.items": len(results)})

    def failed(self, error: Exception) -> None:
        """The request was refused, in whole or in part."""
        if self._spans is None:
            return
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
        assert self._spans is not None, "only spans are added"
        attributes = {
            "messaging.message.id": traced.id, "engine.tenant": self._tenant, "engine.status": status, "engine.reason": reason,
        }  # fmt: skip
        self._spans.add("publish", traced.parent, self._start_ns, attributes, error=error, own=traced.own)


def handed_on(given: str | None) -> TraceContext | None:
    """The context of an item whose request has no `RequestTrace`. Raises Invalid."""
    return RequestTrace("", None, "").context("", given)
