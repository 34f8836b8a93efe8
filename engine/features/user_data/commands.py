"""`engine export` and `engine erase`: everything that is kept of a user.

An export is copied while it arrives, so it may be larger than memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url
from engine.errors import EngineError

_RETRY_S: Final = 5.0
"""Someone waits at the terminal; an engine that restarts is back by then."""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (export, erase):
        app.command()(command)


def export(
    user: Annotated[str, typer.Argument(help="User to export.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write, which only you may read.")] = None,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print everything that is kept of a user, as JSON: messages, inbox, profile, subscriptions, dead letters, session events, history.

    [dim]engine export alice --output alice.json
    engine export alice | jq '.profile, (.messages | length)'[/dim]
    """
    from engine.cli.local_engine import find_engine
    from engine.cli.operator_request import pieces

    target = find_engine(data_dir, url, token, "engine-export", ["admin"], tenant)
    incomplete = f"the export of {user} is not complete"
    arriving = pieces(target, f"/v1/users/{quote(user, safe='')}/export", advice=incomplete)
    if output is None:
        sys.stdout.buffer.writelines(arriving)
        sys.stdout.write("\n")
        return
    whole = os.path.realpath(output)
    unfinished = Path(f"{whole}.part")
    try:
        if os.path.exists(whole) and not os.path.isfile(whole):  # a terminal, a pipe: the file would replace it
            raise EngineError(f"{output} is no file; without --output the export is printed")
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(arriving)
        unfinished.replace(whole)
    except OSError as error:
        raise EngineError(f"{output}: {error.strerror}; {incomplete}") from error


def erase(
    user: Annotated[str, typer.Argument(help="User to erase.")],
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Erase a user: messages, timers, profile, subscriptions, timeline, dead letters, session events. Returns when nothing is left.

    A token of the user that is still valid could connect again, so revoke it first.

    [dim]engine erase alice[/dim]
    """
    from engine.cli.local_engine import find_engine
    from engine.client.publisher import Publisher

    target = find_engine(data_dir, url, token, "engine-erase", ["admin"], tenant)

    async def run() -> None:
        async with Publisher(target.url, target.token, retry_for_s=_RETRY_S) as publisher:
            await publisher.erase_user(user)

    try:
        asyncio.run(run())
    except EngineError as error:
        raise target.explained(error) from error
    sys.stdout.write("erased\n")
