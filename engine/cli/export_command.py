"""`engine export`: everything that is kept of a user, as JSON. It is copied while it arrives, so it may be larger than memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from engine.cli.operator_commands import GivenToken, setting_option
from engine.errors import EngineError

DataDir = Annotated[str | None, setting_option("data_dir")]
Url = Annotated[str | None, typer.Option("--url", envvar="ENGINE_URL", help="Address of the engine, if not the one that runs here.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Tenant of the user.")]


def export(
    user: Annotated[str, typer.Argument(help="User to export.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write, which only you may read.")] = None,
    tenant: Tenant = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print everything that is kept of a user, as JSON: messages, inbox, profile, subscriptions, dead letters, session events, history.

    [dim]engine export alice --output alice.json
    engine export alice | jq '.profile, (.messages | length)'[/dim]
    """
    from engine.cli.local_engine import find_engine
    from engine.cli.operator_request import NoAnswer, copy, reason_of

    target = find_engine(data_dir, url, token, "engine-export", ["admin"], tenant)
    path = f"/v1/users/{quote(user, safe='')}/export"
    try:
        if output is None:
            copy(target, path, sys.stdout.buffer)
            sys.stdout.write("\n")
            return
        unfinished = output.with_name(f"{output.name}.part")
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            copy(target, path, file)
        unfinished.replace(output)
    except NoAnswer as error:
        raise EngineError(f"the export of {user} is not complete: {reason_of(error)}") from error
    except EngineError as error:
        raise target.explained(error) from error
