"""The trace contexts of the items of one request, which are handed on to clients as the publisher gave them.

An item's own `traceparent` comes before that of the request's header. A feature may begin contexts where there are none, and record what
becomes of the items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.core.model.trace_context import TraceContext, parse_traceparent
from engine.errors import Invalid

if TYPE_CHECKING:
    from engine.publish.results import ItemResult


class RequestTrace:
    """The contexts of one request.

    Args:
        header: its `traceparent`, "" for none; one that is not valid counts as none.
    """

    __slots__ = ("_given",)

    def __init__(self, header: str) -> None:
        self._given = parse_traceparent(header) if header else None

    def context(self, id: str, given: str | None) -> TraceContext | None:
        """The context that the message of an item hands on. Raises Invalid: its `traceparent` is not valid."""
        if given is None:
            return self._given
        own = parse_traceparent(given)
        if own is None:
            raise Invalid("as W3C Trace Context defines it: 00-<32 hexadecimal digits>-<16>-<2>", "$.traceparent")
        return own

    def answered(self, results: Sequence[ItemResult]) -> None:
        """Every item was accepted."""

    def failed(self, error: Exception) -> None:
        """The request was refused, in whole or in part."""


def handed_on(given: str | None) -> TraceContext | None:
    """The context of an item whose request has no `RequestTrace`. Raises Invalid."""
    return RequestTrace("").context("", given)
