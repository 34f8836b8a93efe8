"""`engine preferences`: what a user has chosen, and changes of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url
from engine.errors import EngineError

_NO_CHOICE = "default"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(preferences)


def preferences(
    user: Annotated[str, typer.Argument(help="User whose preferences they are.")],
    category: Annotated[
        list[str] | None, typer.Option("--category", help="NAME=on, inbox, digest, off, or default for no choice; may be repeated.")
    ] = None,
    type: Annotated[list[str] | None, typer.Option("--type", help="The same for a type: post.liked=off, or post.*=digest")] = None,
    target: Annotated[list[str] | None, typer.Option("--target", help="TARGET=off mutes it, TARGET=default does not.")] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option("--channel", help="CATEGORY/CHANNEL=off, on, digest (email) or default: news/email=off; */email=off for all."),
    ] = None,
    mail_digest: Annotated[
        str | None, typer.Option("--mail-digest", help="Digest by mail: a local time, each day; 08:00/mon,thu on some days; off for none.")
    ] = None,
    zone: Annotated[str | None, typer.Option("--zone", help="IANA time zone of the user's quiet hours.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The preferences as JSON, with the quiet hours.")] = False,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print what a user has chosen, after changing what is named, within what the rules leave to users.

    [dim]engine preferences alice
    engine preferences alice --category news=off --type 'forum.*=digest' --channel news/email=off[/dim]
    """
    import msgspec

    from engine.cli.local_engine import find_engine, printable
    from engine.client.client import Client

    maps = {
        "categories": ("--category", category),
        "types": ("--type", type),
        "targets": ("--target", target),
        "channels": ("--channel", channel),
    }
    changes: dict[str, Any] = {name: _choices(option, given) for name, (option, given) in maps.items() if given}
    if zone is not None:
        changes["zone"] = zone
    if mail_digest is not None:
        at, _, days = mail_digest.partition("/")
        changes["mail_digest"] = None if at == "off" else {"at": at, **({"days": days.split(",")} if days else {})}
    found = find_engine(data_dir, url, token, user, ["connect"], tenant)
    client = Client(found.url, found.token)
    try:
        told = asyncio.run(client.set_preferences(**changes) if changes else client.preferences())
    except EngineError as error:
        raise found.explained(error) from error
    if json:
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        return
    for name, one in told.available.items():
        chosen = "" if name in told.categories else " (default)"
        title = f"  {printable(one.title)}" if one.title else ""
        sys.stdout.write(f"category {name}: {one.choice}{chosen}, may be {', '.join(one.may)}{title}\n")
        for by, holds in one.channels.items():
            sys.stdout.write(f"  by {by}: {holds}\n")
    for name, choice in told.types.items():
        sys.stdout.write(f"type {printable(name)}: {choice}\n")
    for name in told.targets:
        sys.stdout.write(f"target {printable(name)}: off\n")
    sys.stdout.write(f"zone {told.zone}, quiet hours: {_hours(told.quiet)}\n")
    for name, quiet in told.quiet_categories.items():
        sys.stdout.write(f"quiet hours for {name}: {_hours(quiet)}\n")
    if told.mail_digest is not None:
        sys.stdout.write(f"digest by mail: {told.mail_digest['at']} {' '.join(told.mail_digest['days'])}\n")


def _hours(quiet: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['from']}-{one['to']} {' '.join(one['days'])}" for one in quiet) or "none"


def _choices(option: str, given: Sequence[str]) -> dict[str, str | None]:
    """The choices of an option's NAME=CHOICE; None for none."""
    choices: dict[str, str | None] = {}
    for text in given:
        name, separator, choice = text.rpartition("=")
        if not separator or not name:
            raise EngineError(f"{option}: {text!r}: NAME=CHOICE is needed, such as news=off")
        choices[name] = None if choice == _NO_CHOICE else choice
    return choices
