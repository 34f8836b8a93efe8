"""`engine history`: what has become of a user's messages, as a timeline for people or as lines for programs."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url, duration_s

_PAGE: Final = 500
_OMITTED: Final = ("at", "user", "event", "id", "type", "session", "sent", "client_ts")
_SHOWN: Final = {"rtt_ms": "round trip {} ms", "read_ms": "read after {} ms", "skew_ms": "client clock off by {} ms", "seq": "#{}"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(history)


def history(
    user: Annotated[str, typer.Argument(help="User whose history to print.")],
    id: Annotated[str | None, typer.Option("--id", help="Only of this message or event.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only the last 15m, 2h, 7d.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_PAGE, help="The newest so many.")] = 100,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print what has become of a user's messages, events and connections, oldest first. Needs the setting `history_url`.

    [dim]engine history alice
    engine history alice --since 1d --json | jq 'select(.event == "suppressed") | .reason'[/dim]
    """
    from engine.cli.local_engine import DEFAULT_TENANT, find_engine
    from engine.cli.operator_request import ask

    wanted: dict[str, Any] = {"user": user, "limit": limit}
    if tenant != DEFAULT_TENANT:  # else it is the token's
        wanted["tenant"] = tenant
    if id is not None:
        wanted["id"] = id
    if since is not None:
        wanted["since"] = max(0, int((time.time() - duration_s(since, "--since")) * 1000))
    target = find_engine(data_dir, url, token, "engine-history", ["admin"], tenant, names_tenant=True)
    rows = ask(target, "GET", f"/v1/history?{urlencode(wanted)}")["history"]
    for row in reversed(rows):
        sys.stdout.write((msgspec.json.encode(row).decode() if json else line_of(row)) + "\n")


def line_of(row: dict[str, Any]) -> str:
    """A row for people: when, what, of which message, and the rest."""
    from engine.cli.local_engine import printable

    at = datetime.fromtimestamp(row["at"] / 1000).astimezone()
    parts = [at.strftime("%Y-%m-%d %H:%M:%S.") + f"{row['at'] % 1000:03d}", f"{row['event']:<13}"]
    parts += [str(row[name]) for name in ("id", "type") if name in row]
    for name, value in row.items():
        if name == "until":
            parts.append(datetime.fromtimestamp(value / 1000).astimezone().strftime("until %Y-%m-%d %H:%M:%S"))
        elif name == "skew_ms" and not value:
            continue
        elif name not in _OMITTED:
            parts.append(_SHOWN.get(name, f"{name} {{}}" if name in ("attempt", "rule", "scheduled_id") else "{}").format(value))
    return printable("  ".join(parts))
