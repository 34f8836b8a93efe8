"""A wall clock that steps when it is told to, for every Python process of an engine.

The engine reads its clocks through Python's `time` only. A `sitecustomize` on the path of its processes puts an offset between
`time.time` and the kernel; the monotonic clock goes on, as in a real step. Redis and Ray's own processes keep the true time,
as other machines would. (libfaketime cannot do it: it breaks `time.sleep` of Python 3.11.)
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_VARIABLE: Final = "BENCH_CLOCK_OFFSET"
_OFFSET: Final = struct.Struct("q")
_SITE: Final = f"""
import mmap, os, struct, time

with open(os.environ["{_VARIABLE}"], "rb") as file:
    page = mmap.mmap(file.fileno(), {_OFFSET.size}, prot=mmap.PROT_READ)
offset_s = struct.Struct("q").unpack_from
true_s, true_ns = time.time, time.time_ns

def wall_s():  # functions with names: Ray pickles what refers to them
    return true_s() + offset_s(page)[0]

def wall_ns():
    return true_ns() + offset_s(page)[0] * 1_000_000_000

time.time, time.time_ns = wall_s, wall_ns
"""


class MovableClock:
    """The clock of the processes that are started inside `running`, or with `environment`. `offset_s`: how far it is ahead.

    Args:
        folder: where its files are.
        also: Python source that these processes run as well when they start: there is one `sitecustomize` only.
    """

    def __init__(self, folder: Path, also: str = "") -> None:
        self._folder = folder / "clock"
        self._folder.mkdir()
        self._page = self._folder / "offset_s"
        self.offset_s = 0
        self.step_to(0)
        (self._folder / "sitecustomize.py").write_text(_SITE + also, "utf-8")

    def step_to(self, offset_s: int) -> None:
        """From now on the wall clock is this far from the true time."""
        with self._page.open("r+b" if self._page.exists() else "wb") as page:
            page.write(_OFFSET.pack(offset_s))
        self.offset_s = offset_s

    def now_ms(self) -> int:
        """What it says, in milliseconds since the epoch."""
        return int(time.time() * 1000) + self.offset_s * 1000

    def step_until(self, at_ms: int) -> None:
        """A step ahead, to less than a second before that time; none when it is over already."""
        self.step_to(self.offset_s + max(0, at_ms - self.now_ms()) // 1000)

    def environment(self) -> dict[str, str]:
        """What a process is started with that shall have this clock, and its children."""
        return {
            _VARIABLE: str(self._page),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self._folder), os.environ.get("PYTHONPATH")))),
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Processes started while the block runs, and their children, have this clock."""
        before = dict(os.environ)
        os.environ.update(self.environment())
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
