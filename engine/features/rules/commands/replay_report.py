"""The summary of a replay, on the terminal."""

from __future__ import annotations

from collections import Counter
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.cli.local_engine import printable
from engine.features.rules.commands.replay import PUBLISHED, Report

USERS_SHOWN: Final = 10


def print_report(report: Report) -> None:
    """The summary, on standard output."""
    console = Console(highlight=False)
    published = sum(report.statuses[status] for status in PUBLISHED)
    console.print(f"{report.read} deliveries read, {published} of {report.notified.total()} notifications published")
    table = Table("rule", "deliveries", "notifications", box=None, pad_edge=False, header_style="bold")
    for rule, matched in report.matched.most_common():
        table.add_row(escape(rule), str(matched), str(report.notified[rule]))
    if report.matched:
        console.print(table)
    _print_counts(console, "status", report.statuses)
    if report.statuses and set(report.statuses) == {"duplicate"}:
        console.print("all of them were published before and are not delivered again; --fresh publishes them anew")
    _print_counts(console, "users", report.users, USERS_SHOWN)
    _print_counts(console, "skipped", report.skipped)
    if report.malformed:
        console.print(f"[yellow]{report.malformed} malformed lines[/]")
        for number, reason in report.malformed_lines:
            console.print(f"  line {number}: {escape(printable(reason))}", soft_wrap=True)
    if report.rejected:
        console.print(f"[red]{report.rejected} notifications rejected[/]")
        for error in report.rejected_items:
            console.print(f"  {escape(printable(error))}", soft_wrap=True)


def _print_counts(console: Console, title: str, counts: Counter[str], shown: int | None = None) -> None:
    if not counts:
        return
    parts = [f"{escape(printable(name))} {number}" for name, number in counts.most_common(shown)]
    more = len(counts) - len(parts)
    console.print(f"[bold]{title}[/]  {', '.join(parts)}{f', and {more} more' if more else ''}", soft_wrap=True)
