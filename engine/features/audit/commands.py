"""`engine audit`: what operators and admins did."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
import typer

from engine.cli.options import DataDir, GivenToken, Url
from engine.errors import EngineError

_PAGE: Final = 500
_LOOK_S: Final = 1.0
"""Between two looks for further acts."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(audit)


def audit(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then print further acts as they happen, until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_PAGE, help="The newest so many.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print what operators and admins did, oldest first: rules, revocations, scaling, redrives, exports, erasures.

    [dim]engine audit --limit 10
    engine audit --follow --json >> acts.jsonl
    engine audit --json | jq 'select(.act == "erase_user") | .on'[/dim]
    """
    from engine.cli.local_engine import find_engine
    from engine.cli.operator_request import ask

    def acts_of(query: str) -> list[dict[str, Any]]:
        target = find_engine(data_dir, url, token, "engine-audit", ["operator"], "default")
        found: list[dict[str, Any]] = ask(target, "GET", f"/v1/audit?{query}")["acts"]
        return found

    def print_all(acts: Sequence[dict[str, Any]], last: str) -> str:
        """Returns the entry of the last one."""
        for act in acts:
            sys.stdout.write((msgspec.json.encode(act).decode() if json else line_of(act)) + "\n")
        sys.stdout.flush()
        return acts[-1]["entry"] if acts else last

    last, fault = print_all(acts_of(f"limit={limit}")[::-1], "0-0"), ""
    while follow:
        time.sleep(_LOOK_S)
        try:
            last, fault = print_all(acts_of(f"limit={_PAGE}&after={last}"), last), ""
        except EngineError as error:  # it restarts, say
            if str(error) != fault:
                fault = str(error)
                sys.stderr.write(f"{fault}\n")


def line_of(act: dict[str, Any]) -> str:
    """An act for people: when, who, what, and on which path."""
    from engine.cli.local_engine import printable

    at = datetime.fromtimestamp(act["at"] / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    details = " ".join(f"{name}={value}" for name, value in act.get("details", {}).items())
    return printable(f"{at} {act['tenant']}/{act['by']:<16} {act['act']:<20} {act['on']} {details}".rstrip())
