"""Spans in a list, in place of a collector."""

from __future__ import annotations

from typing import Any

from engine.config import Config
from engine.core.model.trace_context import TraceContext
from engine.features.traces.spans import FinishedSpan, Spans

SAMPLED = TraceContext("a" * 32, "b" * 16, True)
UNSAMPLED = TraceContext("c" * 32, "d" * 16, False)


class ListedSpans:
    """A sink. `spans` puts into it."""

    def __init__(self, **settings: Any) -> None:
        self.found: list[FinishedSpan] = []
        self.exported = 0
        self.dropped = 0
        self.now_ns = 1_700_000_000_000_000_000
        self.spans = Spans(Config(**settings), self)
        self.spans.now_ns = lambda: self.now_ns

    def add(self, span: FinishedSpan) -> None:
        self.found.append(span)

    def flush(self) -> None:
        pass

    def pass_ms(self, ms: int) -> None:
        self.now_ns += ms * 1_000_000

    def names(self) -> list[str]:
        return [span.name for span in self.found]
