"""What becomes a span, in one process; see the package's text."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

from engine.config import Config
from engine.core.edge.token_bucket import TokenBucket
from engine.core.model.trace_context import TraceContext

SPANS_OF_ITEM: Final = 10
"""Of a kind, in one process: enough to see how a broadcast spreads."""

OPEN_MAX: Final = 50_000
"""Things whose span is not over, of a kind in one process; beyond it they are forgotten, and have no span."""

_ITEMS_MAX: Final = 4096
"""Items whose spans are counted."""

_FLUSH_S: Final = 2.0

Attributes = Mapping[str, str | int | bool]


class FinishedSpan(Struct, gc=False):
    """A span. Times in ns since the epoch; `parent_id` is "" for the first one of a trace; `error` is "" for none."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str = ""


class SpanSink(Protocol):
    """Takes spans away."""

    @property
    def exported(self) -> int: ...

    @property
    def dropped(self) -> int: ...

    def add(self, span: FinishedSpan) -> None:
        """Take one, without waiting."""

    def flush(self) -> None:
        """Export what waits. Blocks, also for long while the collector does not answer."""


class Spans:
    """Makes the spans of one process."""

    def __init__(self, config: Config, sink: SpanSink) -> None:
        self.sink = sink
        self.now_ns = time.time_ns
        self._bound = int(config.trace_ratio * (1 << 64))
        self._slow_ns = config.trace_slow_ms * 1_000_000
        self._forced = TokenBucket(config.trace_forced_per_s, config.trace_forced_per_s, time.time_ns() // 1_000_000)
        self._made: dict[tuple[str, str], int] = {}

    def begin(self, given: TraceContext | None) -> TraceContext | None:
        """The context of a new item: that of its `publish` span when it is sampled, else what the publisher gave."""
        if given is not None:
            return TraceContext(given.trace_id, _span_id(), True) if given.sampled else given
        trace_id = random.getrandbits(128) or 1
        if trace_id & ((1 << 64) - 1) >= self._bound:
            return None
        return TraceContext(f"{trace_id:032x}", _span_id(), True)

    def add(
        self,
        name: str,
        parent: TraceContext | None,
        start_ns: int,
        attributes: Attributes,
        *,
        end_ns: int = 0,
        error: str = "",
        own: TraceContext | None = None,
    ) -> None:
        """A span is over: export it if its trace is sampled, if it failed, or if it took too long.

        Args:
            parent: the context that the message has, or None.
            end_ns: 0 for now.
            own: the context of the span itself, where others refer to it.
        """
        end_ns = end_ns or self.now_ns()
        if own is None and (parent is None or not parent.sampled):
            if not error and end_ns - start_ns < self._slow_ns:
                return
            if not self._forced.take(end_ns // 1_000_000):
                return
        elif own is None and parent is not None and not self._is_among_the_first(parent.span_id, name):
            return
        context = own or TraceContext(parent.trace_id if parent else f"{random.getrandbits(128) or 1:032x}", _span_id(), True)
        parent_id = parent.span_id if parent else ""
        self.sink.add(FinishedSpan(name, context.trace_id, context.span_id, parent_id, start_ns, end_ns, attributes, error))

    def counts(self) -> dict[str, int]:
        """Since the start."""
        return {"spans_exported": self.sink.exported, "spans_dropped": self.sink.dropped}

    async def flush(self) -> None:
        """Export what waits, before the process ends; gives up after a moment."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def export() -> None:
            self.sink.flush()
            with contextlib.suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=export, name="spans", daemon=True).start()  # of no pool: the end of the process must not wait for it
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                await done.wait()

    def _is_among_the_first(self, span_id: str, name: str) -> bool:
        made = self._made.get((span_id, name), 0) + 1
        if made == 1 and len(self._made) >= _ITEMS_MAX:
            del self._made[next(iter(self._made))]
        self._made[span_id, name] = made
        return made <= SPANS_OF_ITEM


def _span_id() -> str:
    return f"{random.getrandbits(64) or 1:016x}"


def spans_of(config: Config, process: str) -> Spans | None:
    """Those of a process, such as `shard-0`; None where `trace_url` is empty. Raises ConfigError: the exporter is not installed."""
    if not config.trace_url:
        return None
    from engine.features.traces.otlp import OtlpSink  # here: it takes 0.1 s of each process

    return Spans(config, OtlpSink(config, process))
