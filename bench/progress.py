"""What a benchmark is doing, on stderr while it runs; silent where stderr is no terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class _Bars(Progress):
    """Asks how far a phase is when it draws, so that the load generator tells nobody anything."""

    def get_renderables(self) -> Iterator[RenderableType]:
        for task in self.tasks:
            if (done := task.fields.get("done")) is not None:
                task.completed = done()
        yield from super().get_renderables()


class Phases:
    """The phases of a benchmark, one after the other.

    Args:
        title: shown in front of each.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._console = Console(file=sys.stderr)

    @contextlib.contextmanager
    def phase(self, text: str, total: float | None = None, done: Callable[[], float] | None = None) -> Iterator[None]:
        """Show `text` while the block runs, with a bar when `total` is known; `done` says how much of it is."""
        if not self._console.is_terminal:
            yield
            return
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        # Two pictures a second: drawing takes CPU from what is measured.
        with _Bars(*columns, console=self._console, transient=True, refresh_per_second=2) as bars:
            bars.add_task(f"{self._title}: {text}", total=total, done=done)
            yield
