"""`engine digest`: what a user has missed, in a few lines."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url, local_time
from engine.errors import EngineError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(digest)


def digest(
    user: Annotated[str, typer.Argument(help="User whose missed notifications to tell.")],
    lines: Annotated[int, typer.Option("--lines", min=1, help="Lines at most.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="The digest as JSON, with the messages of each line.")] = False,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Tell what a user has missed, in a few lines. Acknowledges nothing.

    [dim]engine digest alice
    engine digest alice --json | jq '.lines[].messages'[/dim]
    """
    import msgspec

    from engine.cli.local_engine import find_engine, printable
    from engine.client.client import Client

    target = find_engine(data_dir, url, token, user, ["connect"], tenant)
    try:
        found = asyncio.run(Client(target.url, target.token).digest(limit=lines))
    except EngineError as error:
        raise target.explained(error) from error
    if json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return
    for line in found.lines:
        mark = "! " if line.priority == "high" else ""
        sys.stdout.write(f"{local_time(line.to)}  {mark}{printable(line.text)}  (#{', #'.join(str(one.seq) for one in line.messages)})\n")
    skipped = ", ".join(f"{count} {reason}" for reason, count in found.skipped.items())
    older = "; there are older ones" if found.older else ""
    sys.stdout.write(f"{found.messages} missed{f'; left out: {skipped}' if skipped else ''}{older}\n")
