"""`engine storage`: where the stores of a Redis Cluster are, and moving one."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from engine.cli.options import DataDir, RedisUrl
from engine.cli.settings import load
from engine.config import Config
from engine.errors import ConfigError

_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Where the stores of a Redis Cluster are, and moving one.")


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    app.add_typer(_app, name="storage")


@_app.command()
def show(redis: RedisUrl = None, data_dir: DataDir = None) -> None:
    """Print each store with its hash slot, the node that has it, and its number of keys.

    [dim]engine storage show --redis redis+cluster://10.0.0.5,10.0.0.6/8[/dim]
    """
    from engine.features.redis_cluster.cluster_moves import places

    for place in asyncio.run(places(_of_cluster(redis, data_dir))):
        sys.stdout.write(f"store {place.store}  hash slot {place.slot:>5}  {place.node or 'no master answers'}  {place.keys} keys\n")


@_app.command()
def move(
    store: Annotated[int, typer.Argument(min=0, help="Number of the store, as `engine storage show` prints it.")],
    node: Annotated[str, typer.Argument(help="HOST:PORT of a master, as CLUSTER NODES prints it.")],
    redis: RedisUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Move a store to another master, while the engine runs.

    The store pauses: publishers get 503 for its users, and nothing is lost. With Valkey 9 that is a moment, with others as long as the
    move takes. A move that was interrupted is continued by the same command.

    [dim]engine storage move 3 10.0.0.8:6379 --redis redis+cluster://10.0.0.5,10.0.0.6/8[/dim]
    """
    from rich.console import Console

    from engine.features.redis_cluster.cluster_moves import move as moved

    config = _of_cluster(redis, data_dir)

    async def follow() -> None:
        with Console(stderr=True).status(f"moving store {store} to {node}") as status:
            async for left in moved(config, store, node):
                status.update(f"moving store {store} to {node}: {left} keys")

    asyncio.run(follow())
    sys.stdout.write(f"store {store} is at {node}\n")


def _of_cluster(redis: str | None, data_dir: str | None) -> Config:
    config = load({"data_dir": data_dir, "redis_url": redis})
    if "+cluster://" not in config.redis_url:
        raise ConfigError("redis_url: stores are those of a Redis Cluster; give --redis redis+cluster://HOST,HOST/STORES")
    return config
