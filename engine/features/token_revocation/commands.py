"""`engine revoke`: tokens end before they expire."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url, local_time
from engine.errors import EngineError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(revoke)


def revoke(
    user: Annotated[str | None, typer.Argument(help="User whose tokens are revoked.", show_default=False)] = None,
    before: Annotated[
        str | None, typer.Option("--before", help="Only those issued before this time, RFC 3339 (default now).", show_default=False)
    ] = None,
    jti: Annotated[str | None, typer.Option("--jti", help="Instead: the token with this `jti`.", show_default=False)] = None,
    bearer: Annotated[
        str | None, typer.Option("--bearer", help="Instead: this token; - reads it from standard input.", show_default=False)
    ] = None,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Revoke the tokens of a user, or one token; connections that use them are closed. Takes effect on every edge within a second.

    Prints when the last of these tokens would have expired by itself. Tokens issued later are accepted.

    [dim]engine revoke alice
    engine revoke alice --before 2026-01-31T12:00:00Z
    engine revoke --bearer - < leaked-token[/dim]
    """
    from engine.cli.local_engine import find_engine
    from engine.cli.operator_request import ask

    given = {"user": user, "jti": jti, "token": bearer}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise EngineError("what to revoke: exactly one of USER, --jti and --bearer is needed")
    if before is not None and user is None:
        raise EngineError("--before: only with USER")
    if bearer == "-":
        named["token"] = sys.stdin.buffer.read().decode(errors="replace").strip()
    if before is not None:
        named["before"] = before
    target = find_engine(data_dir, url, token, "engine-revoke", ["admin"], tenant)
    answer = ask(target, "POST", "/v1/tokens/revoke", named, advice="it may be revoked: repeat it")
    issued = f" issued_before={local_time(answer['before'])}" if "before" in answer else ""
    sys.stdout.write(f"revoked {answer['revoked']}{issued} expired_by={local_time(answer['until'])}\n")
