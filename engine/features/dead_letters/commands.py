"""`engine dead-letters list | show | redrive | drop`: the messages that clients refused, and what becomes of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url
from engine.errors import EngineError, Refused

if TYPE_CHECKING:
    from engine.cli.local_engine import EngineTarget

_PAGE: Final = 100

_OF_A_LETTER: Final = (409, 429)
"""Refusals of a redrive of which some letters may be the reason: those of the same request that were accepted are redriven."""

dead_letters = typer.Typer(no_args_is_help=True, help="List, look at, redrive and drop dead letters.", rich_markup_mode="rich")

DeadLetterUser = Annotated[str | None, typer.Option("--user", help="Only those of this user.")]
Letters = Annotated[list[str] | None, typer.Argument(help="Ids of dead letters, as `list` prints them.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="Instead of ids: all there are when the command begins, oldest first.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(dead_letters, name="dead-letters")


@dead_letters.command("list")
def list_(
    user: DeadLetterUser = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest so many.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print dead letters, newest first.

    [dim]engine dead-letters list
    engine dead-letters list --user alice --json | jq .reason[/dim]
    """
    import msgspec

    from engine.cli.local_engine import printable

    target = _target(data_dir, url, token, tenant)
    for letter in islice(chain.from_iterable(_pages(target, tenant, user, "newest")), limit):
        if json:
            sys.stdout.write(msgspec.json.encode(letter).decode() + "\n")
        else:
            at = datetime.fromtimestamp(letter["at"] / 1000, UTC).astimezone().isoformat(timespec="seconds")
            words = (letter["letter"], at, letter["user"], letter["type"], f"id={letter['id']}", letter["reason"])
            sys.stdout.write("  ".join(printable(word) for word in words) + "\n")


@dead_letters.command()
def show(
    letter: Annotated[str, typer.Argument(help="Id of the dead letter.")],
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print a dead letter and its message as JSON."""
    from engine.cli.json_output import print_json

    target = _target(data_dir, url, token, tenant)
    found = _ask(target, "GET", f"/v1/dead-letters/{quote(letter, safe='')}", {"tenant": tenant})
    print_json(found)


@dead_letters.command()
def redrive(
    letters: Letters = None,
    all: All = False,
    user: DeadLetterUser = None,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Publish dead letters again, and remove those that are accepted. Repeating it, after any failure, delivers each once.

    [dim]engine dead-letters redrive 1700000000000-0
    engine dead-letters redrive --all --user alice[/dim]
    """
    from engine.cli.local_engine import printable

    target = _target(data_dir, url, token, tenant)
    stays, refused = 0, None
    for some in _chosen(target, tenant, letters, user, all=all):
        try:
            results = _ask(target, "POST", "/v1/dead-letters/redrive", {"tenant": tenant}, {"letters": some})["results"]
        except Refused as error:
            if error.status not in _OF_A_LETTER:
                raise
            refused = error  # a letter that stays refused holds up no others
            continue
        for result in results:
            words = [f"{name}={result[name]}" for name in ("id", "user", "seq", "reason") if name in result]
            sys.stdout.write(" ".join(printable(word) for word in (result["letter"], result["status"], *words)) + "\n")
            stays += result["status"] in ("suppressed", "unreadable")
    if refused is not None:
        raise refused
    if stays:
        raise typer.Exit(1)


@dead_letters.command()
def drop(
    letters: Letters = None,
    all: All = False,
    user: DeadLetterUser = None,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Delete dead letters.

    [dim]engine dead-letters drop 1700000000000-0
    engine dead-letters drop --all[/dim]
    """
    target = _target(data_dir, url, token, tenant)
    dropped = sum(
        int(_ask(target, "POST", "/v1/dead-letters/drop", {"tenant": tenant}, {"letters": some})["dropped"])
        for some in _chosen(target, tenant, letters, user, all=all)
    )
    sys.stdout.write(f"dropped {dropped}\n")


def _target(data_dir: str | None, url: str | None, token: str | None, tenant: str) -> EngineTarget:
    from engine.cli.local_engine import find_engine

    return find_engine(data_dir, url, token, "engine-dead-letters", ["admin"], tenant, names_tenant=True)


def _chosen(target: EngineTarget, tenant: str, letters: Sequence[str] | None, user: str | None, *, all: bool) -> Iterator[list[str]]:
    """The letters that were named, or all of them, in parts that one request may have."""
    if all == bool(letters):
        raise EngineError("which dead letters: ids, or --all")
    if user is not None and letters:
        raise EngineError("--user: only with --all")
    named, size = list(letters or ()), _PAGE
    if all:
        # What is refused again while this runs becomes a newer letter: it is left for the next time.
        newest = next(_pages(target, tenant, None, "newest", limit=1))
        last = _position(newest[0]["letter"]) if newest else (0, 0)
        pages = list(_pages(target, tenant, user, "oldest"))
        named = [one["letter"] for page in pages for one in page if _position(one["letter"]) <= last]
        size = max(1, *map(len, pages))  # as many as the engine lists at once, one request may have
    for start in range(0, len(named), size):
        yield named[start : start + size]


def _pages(target: EngineTarget, tenant: str, user: str | None, order: str, **query: Any) -> Iterator[list[dict[str, Any]]]:
    """All dead letters, page by page."""
    query |= {"tenant": tenant, "order": order, **({} if user is None else {"user": user})}
    while True:
        page = _ask(target, "GET", "/v1/dead-letters", query)
        yield page["dead_letters"]
        if "after" not in page:
            return
        query["after"] = page["after"]


def _ask(target: EngineTarget, method: str, path: str, query: dict[str, Any], body: Any = None) -> dict[str, Any]:
    from engine.cli.operator_request import ask

    return ask(target, method, f"{path}?{urlencode(query)}", body, advice="repeat it, nothing is delivered twice")


def _position(letter: str) -> tuple[int, int]:
    at_ms, _, number = letter.partition("-")
    return int(at_ms), int(number)
