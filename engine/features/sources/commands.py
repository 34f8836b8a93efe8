"""`engine source ddl | list | dead | redrive`: the sources of engine.toml, asked where they are; the engine need not run."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
import typer

from engine.errors import EngineError, StorageUnavailable

if TYPE_CHECKING:
    from engine.features.sources.core import Source
    from engine.features.sources.readers import SourceReader

T = TypeVar("T")

_USER: Final = "engine-source"
"""Who acts, in the audit log."""

Name = Annotated[str, typer.Argument(help="Name of the source in engine.toml.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    source = typer.Typer(no_args_is_help=True, help="Sources: their tables, lag and dead rows.", rich_markup_mode="rich")
    source.command()(ddl)
    source.command("list")(list_)
    source.command()(dead)
    source.command()(redrive)
    app.add_typer(source, name="source")


def ddl(name: Name) -> None:
    """Print the SQL that makes the outbox of a PostgreSQL source.

    [dim]engine source ddl orders | psql[/dim]
    """
    from engine.features.sources.core import PostgresqlSource
    from engine.features.sources.readers import require_library

    source = _source(name)
    if not isinstance(source, PostgresqlSource):
        raise EngineError(f"{name}: only a source of the kind postgresql has a table")
    require_library(source)
    from engine.features.sources.postgresql_outbox import ddl as statements

    sys.stdout.write(statements(source))


def list_() -> None:
    """Print each source with the rows that wait, the age of the oldest, and its dead rows. Exit code 1 when one does not answer."""
    from engine.cli.local_engine import printable

    away = False
    for source in _sources():
        try:
            lag = _asked(source, lambda reader: reader.lag())
        except StorageUnavailable as error:
            sys.stdout.write(f"{printable(error)}\n")
            away = True
            continue
        age_s = max(time.time() - lag.oldest_ms / 1000, 0) if lag.oldest_ms else 0
        sys.stdout.write(f"{source.name}  waiting={lag.waiting} oldest={age_s:.1f}s dead={lag.dead}\n")
    if away:
        raise typer.Exit(1)


def dead(name: Name, limit: Annotated[int, typer.Option("--limit", min=1, help="The oldest so many.")] = 20) -> None:
    """Print dead rows: id, reason and body."""
    from engine.cli.local_engine import printable

    for row in _asked(_source(name), lambda reader: reader.dead_rows(limit)):
        sys.stdout.write("  ".join(printable(word) for word in row) + "\n")


def redrive(name: Name) -> None:
    """Move all dead rows back into the source. The audit log of the engine records it, where its Redis is found."""
    moved = _asked(_source(name), lambda reader: reader.redrive())
    sys.stdout.write(f"redriven {moved}\n")
    if missing := asyncio.run(_recorded(name, moved)):
        sys.stderr.write(f"not in the audit log: {missing}\n")


async def _recorded(name: str, moved: int) -> str:
    """Record the act; "" or why it is not recorded."""
    from engine.cli.settings import load
    from engine.cli.state_file import running_state
    from engine.features.audit.audit_log import Act, AuditLog
    from engine.store.redis_client import connect

    config = load()
    state = running_state(config.data_dir)
    url = config.redis_url or ("" if state is None else state.redis_url)
    if not url:
        return "no engine runs on the data directory, and redis_url is empty"
    client = connect(msgspec.structs.replace(config, redis_url=url))
    try:
        await AuditLog(client, config).append(Act("default", _USER, "", "redrive_source", f"source/{name}", {"rows": moved}))
    except StorageUnavailable as error:
        return str(error)
    finally:
        await client.aclose()
    return ""


def _sources() -> tuple[Source, ...]:
    from engine.cli.settings import load
    from engine.features.sources.core import sources_of

    return sources_of(load().sources)


def _source(name: str) -> Source:
    sources = _sources()
    for source in sources:
        if source.name == name:
            return source
    raise EngineError(f"there is no source {name!r}; the settings have {', '.join(source.name for source in sources) or 'none'}")


def _asked(source: Source, ask: Callable[[SourceReader], Awaitable[T]]) -> T:
    async def answer() -> T:
        from engine.features.sources.readers import reader_of

        reader = reader_of(source)
        try:
            return await ask(reader)
        finally:
            await reader.close()

    return asyncio.run(answer())
