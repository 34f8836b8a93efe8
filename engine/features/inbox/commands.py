"""`engine inbox list | mark`: what a user has got, and which of it is read, seen, archived or pinned."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url
from engine.errors import EngineError

inbox = typer.Typer(no_args_is_help=True, help="A user's inbox: list it, and mark messages of it.", rich_markup_mode="rich")

InboxUser = Annotated[str, typer.Argument(help="User whose inbox it is.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(inbox, name="inbox")


@inbox.command("list")
def list_(
    user: InboxUser,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="The newest so many.")] = 20,
    before: Annotated[int | None, typer.Option("--before", min=1, help="Only those with a lower number: the next page.")] = None,
    unread: Annotated[bool, typer.Option("--unread", help="Only those that are not read.")] = False,
    archived: Annotated[bool, typer.Option("--archived", help="The archived ones, which are not among the others.")] = False,
    type: Annotated[str | None, typer.Option("--type", help="Only of this type: post.liked, or post.*")] = None,
    text: Annotated[str | None, typer.Option("--text", help="Only those that have this text in a value, in any case.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print a user's inbox, newest first: * is unread, ^ pinned. Acknowledges nothing.

    [dim]engine inbox list alice --unread
    engine inbox list alice --type 'post.*' --json | jq .data[/dim]
    """
    import msgspec
    from rich.console import Console

    from engine.cli.listen import message_line

    page = _ask(
        (data_dir, url, token, user, tenant),
        lambda client: client.inbox(before=before, limit=limit, unread=unread, archived=archived, type=type, text=text),
    )
    console = Console(highlight=False)
    for message in page.messages:
        if json:
            sys.stdout.write(msgspec.json.encode(message).decode() + "\n")
        else:
            mark = f"{' ' if message.read else '*'}{'^' if message.pinned else ' '}"
            console.print(f"{mark} {message_line(message)} [dim]{message.id}[/]", soft_wrap=True)
    if not json:
        more = f"; more: --before {page.before}" if page.before else ""
        sys.stdout.write(f"{page.unread} unread, {page.unseen} unseen{more}\n")


@inbox.command()
def mark(
    user: InboxUser,
    mark: Annotated[str, typer.Argument(help="read, unread, seen, archive, unarchive, pin or unpin.")],
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of messages.", show_default=False)] = None,
    upto: Annotated[str | None, typer.Option("--upto", help="Instead of ids: all up to this number, or event_id of list --json.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Instead of ids: all messages.")] = False,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Mark messages. read and archive also acknowledge them, on all devices of the user.

    [dim]engine inbox mark alice read --all
    engine inbox mark alice pin order-17
    engine inbox mark alice read --upto EVENT_ID[/dim]

    A number alone is of another message after the engine has lost its data. An event_id of before is refused then.
    """
    from engine.cli.local_engine import printable
    from engine.client.user_inbox import MARKS

    known = [name for name in MARKS if name == mark]
    if not known:
        raise EngineError(f"{mark}: a mark is one of {', '.join(MARKS)}")
    if (bool(ids), upto is not None, all).count(True) != 1:
        raise EngineError("what to mark: exactly one of IDS, --upto and --all is needed")
    end = upto if upto is None else _end_of(upto)
    found = _ask((data_dir, url, token, user, tenant), lambda client: client.mark(known[0], ids=ids or None, upto=end, all=all))
    sys.stdout.write(f"{found.unread} unread, {found.unseen} unseen\n")
    if found.unknown:
        raise EngineError(f"not in the inbox: {printable(', '.join(found.unknown))}")


def _end_of(upto: str) -> int | str:
    from engine.cli.local_engine import printable
    from engine.client.protocol import split_cursor

    if upto.isdecimal():
        return int(upto)
    try:
        split_cursor(upto)
    except ValueError as error:
        raise EngineError(f"{printable(upto)}: neither a number nor an event_id") from error
    return upto


def _ask(of: tuple[str | None, str | None, str | None, str, str], question: Callable[[Any], Awaitable[Any]]) -> Any:
    """What the engine answers the client of a user. `of`: data directory, URL, token, user, tenant."""
    from engine.cli.local_engine import find_engine
    from engine.client.client import Client

    data_dir, url, token, user, tenant = of
    target = find_engine(data_dir, url, token, user, ["connect"], tenant)

    async def run() -> Any:
        return await question(Client(target.url, target.token))

    try:
        return asyncio.run(run())
    except EngineError as error:
        raise target.explained(error) from error
