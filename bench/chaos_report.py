"""The tables of `docs/RELIABILITY.md`, made by runs and by nothing else.

Scenarios take from half a minute to ten minutes each, so a run replaces the rows of what it ran, and each row names its commit.
"""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.machine import machine, versions

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "RELIABILITY.md"
BEGIN: Final = "<!-- chaos: made by `python -m bench chaos --report`, do not edit -->"
END: Final = "<!-- chaos: end -->"
HOSTS_BEGIN: Final = "<!-- chaos on hosts: made by `python -m bench chaos --report`, do not edit -->"
HOSTS_END: Final = "<!-- chaos on hosts: end -->"

_Columns = tuple[tuple[str, Callable[[dict[str, Any]], object]], ...]

_COUNTS: Final[_Columns] = (
    ("fault", lambda r: r["what"]),
    ("accepted", lambda r: r["accepted"]),
    ("lost", lambda r: r["lost"]),
    ("out of order", lambda r: r["out_of_order"]),
    ("repeated", lambda r: r["repeated"]),
)

_COLUMNS: Final[_Columns] = (
    *_COUNTS,
    ("back after, s", lambda r: r["back_s"]),
    ("longest silence, s", lambda r: r["silence_s"]),
    ("of users of other stores", lambda r: r.get("others_silence_s", "")),
    ("p99 before, ms", lambda r: r["p99_before_ms"]),
    ("p99 meanwhile, ms", lambda r: r["p99_during_ms"]),
    ("requests repeated", lambda r: r["publisher_retries"]),
    ("old process", lambda r: r.get("old_process", "")),
    ("commit", lambda r: r["commit"]),
)


def _remarks(result: dict[str, Any]) -> str:
    found = [f"old processes: {result['old_process']}"] if "old_process" in result else []
    if "engine_up" in result:
        found.append(f"longest silence while the head was away {result['silence_meanwhile_s']} s; `engine up` {result['engine_up']}")
    return "; ".join(found)


_HOSTS_COLUMNS: Final[_Columns] = (
    *_COUNTS,
    ("fault, s", lambda r: r["fault_s"]),
    ("back after, s", lambda r: r["back_s"]),
    ("whole after, s", lambda r: "-" if r["whole_s"] is None else r["whole_s"]),
    ("longest silence of b's users / c's, s", lambda r: f"{r['silence_b_s']} / {r['silence_c_s']}"),
    ("requests refused / unanswered, then repeated", lambda r: f"{r['refused']} / {r['publisher_retries'] - r['refused']}"),
    (
        "not repeated: 202 / refused / unanswered",
        lambda r: " / ".join(str(r["once"][name]) for name in ("accepted", "refused", "unanswered")),
    ),
    ("false answers", lambda r: r["once"]["false_answers"]),
    ("remarks", _remarks),
    ("commit", lambda r: r["commit"]),
)


def write_tables(results: Sequence[dict[str, Any]], page: Path = PAGE) -> None:
    """Put each result into the table of its kind.

    Raises:
        ValueError: the page lacks the markers of a table.
    """
    on_hosts = [result for result in results if "hosts" in result["case"]]
    on_one_machine = [result for result in results if result not in on_hosts]
    for found, columns, begin, end in ((on_one_machine, _COLUMNS, BEGIN, END), (on_hosts, _HOSTS_COLUMNS, HOSTS_BEGIN, HOSTS_END)):
        if found:
            _put(page, begin, end, partial(_table, found, columns))


def _table(results: Sequence[dict[str, Any]], columns: _Columns, before: str) -> str:
    """The results as rows, in the place of those of the same faults, under the machine that they come from."""
    used = versions("ray", "redis")
    commit = used.pop("commit", "")
    rows = {line.split(" | ", 1)[0]: line for line in before.splitlines() if line.startswith("| ")}
    head = _head(columns)
    rows.pop(head[0].split(" | ", 1)[0], None)
    for result in results:
        row = _row(columns, {**result, "commit": commit})
        rows[row.split(" | ", 1)[0]] = row
    return "\n".join([_origin(used), "", *head, *rows.values(), *_wrong(results, before)])


def _origin(used: dict[str, str]) -> str:
    """The command, and of its last run the day, the machine and the versions, in lines of a page."""
    host = machine()
    text = (
        f"`python -m bench chaos --scenario ... --report`, {dt.datetime.now(dt.UTC):%Y-%m-%d}, {host['cores']} cores of {host['cpu']}, "
        f"Linux {host['kernel']}, Python {host['python']}, " + ", ".join(f"{name} {version}" for name, version in used.items())
    )
    return textwrap.fill(f"{text}.", 100, break_long_words=False, break_on_hyphens=False)


def _head(columns: Sequence[tuple[str, Any]]) -> list[str]:
    return ["| " + " | ".join(name for name, _ in columns) + " |", "|" + "---|" * len(columns)]


def _row(columns: Sequence[tuple[str, Any]], result: dict[str, Any]) -> str:
    return "| " + " | ".join(str(value(result)) for _, value in columns) + " |"


def _wrong(results: Sequence[dict[str, Any]], before: str) -> list[str]:
    """What is wrong with the rows, of those that stay too."""
    anew = tuple(f"- {result['what']}: " for result in results)
    sentences = [line for line in before.splitlines() if line.startswith("- ") and not line.startswith(anew)]
    sentences += [f"- {result['what']}: {sentence}" for result in results for sentence in result["wrong"][:3]]
    return ["", "Not as it should be:", "", *sentences] if sentences else []


def _put(page: Path, begin: str, end: str, made: Callable[[str], str]) -> None:
    """Replace what is between the page's markers by what is made of it."""
    text = page.read_text("utf-8")
    before, found, rest = text.partition(begin)
    old, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} lacks the markers {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{made(old)}\n\n{end}{after}", "utf-8")
