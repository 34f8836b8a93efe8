"""The table of `docs/RELIABILITY.md`, made by a run and by nothing else."""

from __future__ import annotations

import datetime as dt
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.machine import machine, versions

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "RELIABILITY.md"
BEGIN: Final = "<!-- chaos: made by `python -m bench chaos --report`, do not edit -->"
END: Final = "<!-- chaos: end -->"

_COLUMNS: Final = (
    ("fault", lambda r: r["what"]),
    ("accepted", lambda r: r["accepted"]),
    ("lost", lambda r: r["lost"]),
    ("out of order", lambda r: r["out_of_order"]),
    ("repeated", lambda r: r["repeated"]),
    ("back after, s", lambda r: r["back_s"]),
    ("longest silence, s", lambda r: r["silence_s"]),
    ("p99 before, ms", lambda r: r["p99_before_ms"]),
    ("p99 meanwhile, ms", lambda r: r["p99_during_ms"]),
    ("requests repeated", lambda r: r["publisher_retries"]),
    ("old process", lambda r: r.get("old_process", "")),
)


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a table, under the command and the machine they come from."""
    host, used = machine(), versions("ray", "redis")
    lines = [
        f"`python -m bench {shlex.join(sys.argv[1:])}`, {dt.datetime.now(dt.UTC):%Y-%m-%d}, {host['cores']} cores of "
        f"{host['cpu']}, Linux {host['kernel']}, Python {host['python']}, "
        + ", ".join(f"{name} {version}" for name, version in used.items())
        + ".",
        "",
        "| " + " | ".join(name for name, _ in _COLUMNS) + " |",
        "|" + "---|" * len(_COLUMNS),
        *("| " + " | ".join(str(value(result)) for _, value in _COLUMNS) + " |" for result in results),
    ]
    wrong = [f"- {result['what']}: {sentence}" for result in results for sentence in result["wrong"][:3]]
    return "\n".join([*lines, *(["", "Not as it should be:", "", *wrong] if wrong else [])])


def write_table(results: Sequence[dict[str, Any]], page: Path = PAGE) -> None:
    """Put it between the page's markers.

    Raises:
        ValueError: the page lacks them.
    """
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}", "utf-8")
