"""Applies rules to recorded events and publishes the results, one line at a time: a file may be larger than memory.

A line is `{"event": name, "payload": {...}}`, optionally with `delivery`, the recorder's own id of it (GitHub's
`X-GitHub-Delivery`); without one, a digest of the content identifies it. Ids of notifications are derived from it, so replaying a file
again publishes duplicates only, and an interrupted replay is finished by running it again.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.client.publish_results import ItemError, PublishError, Result
from engine.client.publisher import Publisher
from engine.errors import EngineError
from engine.features.rules.core.rules import NAME_CHARS_MAX, Rules, delivery_id

LINE_BYTES_MAX: Final = 26 << 20  # GitHub delivers at most 25 MB
EXAMPLES_KEPT: Final = 20  # malformed lines and rejected items that the summary can show
GZIP_MAGIC: Final = b"\x1f\x8b"
NO_RULE: Final = "no rule for this event"
ACTS: Final = "the rule acts, which a replay does not"
CONDITIONS: Final = "the rule has conditions, which publishers cannot give"
PUBLISHED: Final = ("accepted", "scheduled", "merged")
"""Statuses of what was not published before, and was not suppressed."""


class _Line(Struct):
    event: str
    payload: dict[str, Any]
    delivery: str = ""


_decoder: Final = msgspec.json.Decoder(_Line)


class Report(Struct):
    """Counters of a replay, by name; the lists hold the first `EXAMPLES_KEPT` of each kind."""

    read: int = 0
    malformed: int = 0
    malformed_lines: list[tuple[int, str]] = []
    matched: Counter[str] = msgspec.field(default_factory=Counter)  # rule -> deliveries
    notified: Counter[str] = msgspec.field(default_factory=Counter)  # rule -> notifications
    statuses: Counter[str] = msgspec.field(default_factory=Counter)
    users: Counter[str] = msgspec.field(default_factory=Counter)
    skipped: Counter[str] = msgspec.field(default_factory=Counter)
    rejected: int = 0
    rejected_items: list[ItemError] = []


class Recording:
    """An open recording: its lines, and the position of the reader.

    Args:
        file: the recording, plain or gzip.
        size_bytes: of the file on disk, 0 when unknown.
    """

    def __init__(self, file: io.BufferedReader, size_bytes: int) -> None:
        self._file = file
        self.size_bytes = size_bytes

    def position_bytes(self) -> int:
        """Bytes of the file that are read; 0 when the file is not seekable."""
        return self._file.tell() if self._file.seekable() else 0

    def lines(self) -> Iterator[bytes | None]:
        """The lines, decompressed when the content is gzip; None for one longer than `LINE_BYTES_MAX`.

        Raises:
            EngineError: the file is truncated or corrupt.
        """
        packed = self._file.peek(2)[:2] == GZIP_MAGIC
        text: io.BufferedIOBase = gzip.GzipFile(fileobj=self._file) if packed else self._file
        try:
            while line := text.readline(LINE_BYTES_MAX + 1):
                fits = len(line) <= LINE_BYTES_MAX
                while not fits and line and not line.endswith(b"\n"):
                    line = text.readline(LINE_BYTES_MAX)
                yield line if fits else None
        except (OSError, EOFError, zlib.error) as error:
            raise EngineError(f"the recording cannot be read to its end: {error}") from error


@contextmanager
def open_recording(path: str) -> Iterator[Recording]:
    """A recording by its path, `-` for standard input.

    Raises:
        EngineError: it cannot be opened.
    """
    if path == "-":
        with open(sys.stdin.fileno(), "rb", closefd=False) as stdin:
            yield Recording(stdin, 0)
        return
    try:
        raw = Path(path).open("rb")  # noqa: SIM115 (entered below: what fails inside is not a file that cannot be opened)
    except OSError as error:
        raise EngineError(f"{path}: {error.strerror or error}") from error
    with raw:
        yield Recording(raw, Path(path).stat().st_size)


class Replay:
    """One run over one recording.

    Args:
        publisher: makes the publisher; its argument is called with every result.
        rate_per_s: deliveries per second, 0 for as fast as the engine accepts them.
        user_prefix: prepended to every user's name.
        id_prefix: prepended to every id; with a new one nothing is a duplicate.
        on_progress: called after each line.
    """

    def __init__(
        self,
        rules: Rules,
        publisher: Callable[[Callable[[Result], object]], Publisher],
        *,
        rate_per_s: float = 0,
        user_prefix: str = "",
        id_prefix: str = "",
        on_progress: Callable[[], object] = lambda: None,
    ) -> None:
        self.report = Report()
        self._rules = rules
        self._make_publisher = publisher
        self._interval_s = 1 / rate_per_s if rate_per_s else 0.0
        self._user_prefix = user_prefix
        self._id_prefix = id_prefix
        self._on_progress = on_progress

    async def run(self, recording: Recording) -> Report:
        """Publish everything. The report is complete when this returns; when it raises, it has what was done so far."""
        async with self._make_publisher(self._count) as publisher:
            async for number, line in self._paced(recording.lines()):
                await self._publish(number, line, publisher)
                self._on_progress()
            try:
                await publisher.flush()
            except PublishError as error:
                self.report.rejected = error.count
                self.report.rejected_items = error.errors[:EXAMPLES_KEPT]
        return self.report

    async def _paced(self, lines: Iterator[bytes | None]) -> AsyncIterator[tuple[int, bytes]]:
        """Lines with their numbers, from 1, at the configured rate, without blank ones."""
        due = time.monotonic()
        for number, line in enumerate(lines, 1):
            if line is None:
                self._reject_line(number, f"longer than {LINE_BYTES_MAX} bytes")
                continue
            if not line.strip():
                continue
            if self._interval_s:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                due = max(due + self._interval_s, time.monotonic() - 1)  # catches up at most the last second
            yield number, line

    async def _publish(self, number: int, line: bytes, publisher: Publisher) -> None:
        report = self.report
        try:
            recorded = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._reject_line(number, str(error))
            return
        report.read += 1
        outcome = self._rules.apply(recorded.event, recorded.payload, recorded.delivery or delivery_id(recorded.event, recorded.payload))
        report.matched.update(outcome.matched)
        report.skipped.update(skip.reason for skip in outcome.skipped)
        if not outcome.matched:
            report.skipped[NO_RULE] += 1
        for notification in outcome.notifications:
            if notification.do:  # only the engine acts, when it gets the event
                report.skipped[ACTS] += 1
                continue
            if notification.conditions is not None:  # without them, each event of a user would be a message about their absence
                report.skipped[CONDITIONS] += 1
                continue
            report.notified[notification.rule] += 1
            item = notification.item()
            if notification.topic is None:
                item["user"] = f"{self._user_prefix}{item['user']}"
            item["id"] = self._id(item["id"])
            await publisher.post(**item)

    def _id(self, id_: str) -> str:
        whole = f"{self._id_prefix}{id_}"
        return whole if len(whole) <= NAME_CHARS_MAX else hashlib.sha256(whole.encode()).hexdigest()

    def _reject_line(self, number: int, reason: str) -> None:
        self.report.malformed += 1
        if len(self.report.malformed_lines) < EXAMPLES_KEPT:
            self.report.malformed_lines.append((number, reason))

    def _count(self, result: Result) -> None:
        self.report.statuses[result.status] += 1
        if result.status in PUBLISHED:
            self.report.users[result.user or ""] += 1
