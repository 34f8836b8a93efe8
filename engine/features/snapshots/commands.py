"""`engine snapshot` and `engine restore`: the data of the engine's own Redis, kept aside and put back."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from engine.cli.options import DataDir
from engine.cli.settings import load
from engine.cli.state_file import running_state
from engine.config import Config
from engine.errors import ConfigError, EngineError


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (snapshot, restore):
        app.command()(command)


def snapshot(data_dir: DataDir = None) -> None:
    """Take a snapshot of the running engine's own Redis, and print its directory.

    It is in `snapshots` of the data directory; the oldest beyond `snapshots_kept` are deleted. With `snapshot_interval_s` the engine takes
    them by itself.

    [dim]engine snapshot[/dim]
    """
    from engine.features.snapshots.snapshots import Snapshot, Snapshots
    from engine.store.redis_client import connect

    config = _of_own_redis(load({"data_dir": data_dir}))
    state = running_state(config.data_dir)
    if state is None:
        raise EngineError(f"no engine runs on {config.data_dir}; its data are the files in {Path(config.data_dir) / 'redis'}: copy those")
    _of_own_redis(msgspec.structs.replace(config, redis_url="" if state.redis_url.startswith("unix:") else state.redis_url))

    async def take() -> Snapshot:
        async with connect(msgspec.structs.replace(config, redis_url=state.redis_url, redis_durability="reported")) as client:
            return await Snapshots(config.data_dir).take(client, config.snapshots_kept)

    began = time.monotonic()
    taken = asyncio.run(take())
    sys.stdout.write(f"{taken.path}: {taken.manifest.bytes} bytes in {time.monotonic() - began:.1f} s\n")


def restore(
    snapshot: Annotated[str, typer.Argument(help="`latest`, a name in `snapshots` of the data directory, or the directory of a snapshot.")],
    data_dir: DataDir = None,
) -> None:
    """Replace the data of a stopped engine by a snapshot. The replaced data are kept aside.

    The data get a new data epoch: clients that come back are told of a gap and get everything that was pending at the snapshot.

    [dim]engine down
    engine restore latest
    engine up[/dim]
    """
    from engine.features.snapshots.snapshot_restore import restore_snapshot
    from engine.features.snapshots.snapshots import Snapshots

    config = _of_own_redis(load({"data_dir": data_dir}))
    found = Snapshots(config.data_dir).find(snapshot)
    restored = asyncio.run(restore_snapshot(config, found))
    manifest = found.manifest
    print_line = sys.stdout.write
    print_line(
        f"restored {found.path}, taken {manifest.taken_at} by engine {manifest.engine} from {manifest.server}: {restored.keys} keys\n"
    )
    print_line(f"new data epoch {restored.data_epoch}: clients get `gap` and everything that was pending then\n")
    if restored.replaced is not None:
        print_line(f"the replaced data are in {restored.replaced}; delete them when they are not needed any more\n")
    print_line("start it with `engine up`\n")


def _of_own_redis(config: Config) -> Config:
    """The same configuration. Raises ConfigError for an engine whose Redis is not its own."""
    if config.redis_url:
        raise ConfigError("redis_url: snapshots are of the engine's own Redis; docs/OPERATIONS.md says how to back up and restore another")
    return config
