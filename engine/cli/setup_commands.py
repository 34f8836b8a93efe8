"""The commands before the first start: `engine init` writes the settings file, `engine doctor` looks for what would keep an engine down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.cli.finding import Finding
from engine.cli.json_output import print_json
from engine.cli.settings import TOML_PATH

_MARKS: Final = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "failed": "[red]failed[/]"}


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (init, doctor):
        app.command()(command)


def init() -> None:
    """Write a commented engine.toml of all settings into this directory, which only you can read.

    Every setting stands in it with its default, behind a `#`. In a git repository it is ignored, as is the data directory: both hold
    secrets. A file that is there is never replaced.

    [dim]engine init
    engine doctor[/dim]
    """
    from engine.cli.settings_file import ignore_in_git, write_settings

    write_settings(Path(TOML_PATH))
    console = Console()
    console.print(f"wrote {TOML_PATH}: remove the `#` before a setting to change it; `engine doctor` checks it", highlight=False)
    for name in ignore_in_git(Path.cwd()):
        console.print(f"added {name} to .gitignore", highlight=False)


def doctor(json: Annotated[bool, typer.Option("--json", help="The findings as JSON, for programs.")] = False) -> None:
    """Check the settings, this machine and every service that the settings name, and say what to do.

    Starts nothing and changes nothing. Exit code 1 when an engine would not start, or not serve; warnings leave it 0.

    [dim]engine doctor
    ENGINE_REDIS_URL=redis://10.0.0.5:6379/0 engine doctor
    engine doctor --json | jq '.findings[] | select(.level != "ok")'[/dim]
    """
    from engine.cli.doctor import examine

    found = examine()
    if json:
        print_json({"findings": found})
    else:
        _print(found)
    raise typer.Exit(int(any(finding.level == "failed" for finding in found)))


def _print(found: Sequence[Finding]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found:
        advice = f"\n[bold]{escape(finding.advice)}[/]" if finding.advice else ""
        table.add_row(_MARKS[finding.level], finding.check, escape(finding.found) + advice)
    console = Console()
    console.print(table)
    counts = {level: sum(finding.level == level for finding in found) for level in ("failed", "warning")}
    if counts["failed"]:
        console.print(f"\n[red]{counts['failed']} to repair[/] before `engine up`", highlight=False)
    else:
        told = f", {counts['warning']} to know of" if counts["warning"] else ""
        console.print(f"\n[green]ready for `engine up`[/]{told}", highlight=False)
