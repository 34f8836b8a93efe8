"""`engine verify`: check the checksums of everything stored, of a running engine or of a stopped one."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from engine.cli.options import DataDir, RedisUrl
from engine.cli.settings import load
from engine.cli.state_file import running_state
from engine.config import Config, store_urls
from engine.errors import ConfigError, EngineError, SnapshotFailed, StorageUnavailable

if TYPE_CHECKING:
    from engine.features.verification.stored_records import Damage

_DAMAGED: Final = 2
"""Exit code when something is damaged; 1 is an error of the check itself."""

_DRAFT: Final = ".verifying"
_NOT_DATA: Final = ("redis.sock", "redis.pid", "redis.log", "run")

ReportAsJson = Annotated[bool, typer.Option("--json", help="One JSON object for programs: `checked`, `damaged`, `damage`.")]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(verify)


def verify(redis: RedisUrl = None, json: ReportAsJson = False, data_dir: DataDir = None) -> None:
    """Check every stored record, and print what is damaged, where it is, and what to do.

    While an engine runs on the data directory, its Redis is read; users do not notice. Otherwise a copy of the directory's data is loaded
    and read, as `engine up` would load it. `--redis` names another Redis. Snapshots of the directory are compared with their manifests.
    Nothing is changed.

    Exit code: 0 when all is whole, 2 when something is damaged, 1 when it cannot be checked.

    [dim]engine verify
    engine verify --json | jq '.damage[].advice'[/dim]
    """
    config = load({"data_dir": data_dir, "redis_url": redis})
    found = asyncio.run(_verified(config))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n" if json else _report(found))
    if found["damaged"]:
        raise typer.Exit(_DAMAGED)


def _report(found: dict[str, Any]) -> str:
    from engine.cli.local_engine import printable

    lines = [f"{count:>9} {kind}" for kind, count in sorted(found["checked"].items())]
    for one in found["damage"]:
        place = " ".join(printable(word) for word in (one["key"], one["place"]) if word)
        lines += [f"damaged: {one['kind']} at {place}: {one['problem']}", f"         what to do: {one['advice']}"]
    lines.append(f"{found['damaged']} damaged" if found["damaged"] else "all whole")
    return "\n".join(lines) + "\n"


async def _verified(config: Config) -> dict[str, Any]:
    """What the report is made from. Raises EngineError."""
    from engine.features.verification.stored_records import Verification

    checked: dict[str, int] = {}
    damage: list[dict[str, str]] = []
    damaged = 0
    async with _served(config) as (url, refused):
        if refused:
            damage.append({"kind": "data", "key": "", "place": "", "problem": refused, "advice": "`engine restore latest`, or a backup"})
            damaged = 1
        for store in store_urls(url) if url else ():
            result = await _of_server(config, store, Verification)
            for kind, count in result.checked.items():
                checked[kind] = checked.get(kind, 0) + count
            damage += [_told(one) for one in result.damage]
            damaged += result.damaged
    torn = await asyncio.to_thread(_damaged_snapshots, config, checked)
    return {"checked": checked, "damaged": damaged + len(torn), "damage": damage + torn}


async def _of_server(config: Config, url: str, verification: Any) -> Any:
    from engine.cli.feature_data import FEATURES
    from engine.store.redis_client import connect

    async with connect(msgspec.structs.replace(config, redis_url=url, redis_durability="reported")) as client:
        return await verification(client, FEATURES).run()


def _told(one: Damage) -> dict[str, str]:
    return {"kind": one.kind, "key": one.key, "place": one.place, "problem": one.problem, "advice": one.advice}


@asynccontextmanager
async def _served(config: Config) -> AsyncIterator[tuple[str, str]]:
    """The URL of a Redis with the data, and why there is none. Raises EngineError."""
    state = running_state(config.data_dir)
    if url := config.redis_url or (state.redis_url if state is not None else ""):
        if "***" in url:  # `engine.store.redis_client.display_url`
            raise ConfigError(f"redis_url: the engine uses {url}, and does not tell the password; give it with --redis")
        yield url, ""
        return
    from engine.features.snapshots.snapshots import ROOM_BYTES
    from engine.store.embedded_redis import REDIS_FOLDER, RESTORED_FOLDER, DataDirLock, EmbeddedRedis

    data_dir = Path(config.data_dir)
    folder = next((data_dir / name for name in (RESTORED_FOLDER, REDIS_FOLDER) if (data_dir / name).is_dir()), None)
    if folder is None:
        raise ConfigError(f"data_dir: {data_dir} has no data of an engine; give its --data-dir, or --redis")
    lock, draft = DataDirLock(data_dir), data_dir / _DRAFT
    try:
        if draft.exists():  # of a check that was killed
            shutil.rmtree(draft)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if shutil.disk_usage(data_dir).free < size + ROOM_BYTES:
            raise EngineError(f"{data_dir} has no room for a copy of its data ({size >> 20} MiB), from which they are checked")
        draft.mkdir(mode=0o700)
        await asyncio.to_thread(shutil.copytree, folder, draft / REDIS_FOLDER, ignore=shutil.ignore_patterns(*_NOT_DATA))
        server = EmbeddedRedis(msgspec.structs.replace(config, data_dir=str(draft)))
        try:
            refused = ""
            try:
                await server.start()
            except StorageUnavailable as error:
                refused = f"Redis refuses the files in {folder}: {error}"
            yield "" if refused else server.url, refused
        finally:
            await server.stop()
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        lock.release()


def _damaged_snapshots(config: Config, checked: dict[str, int]) -> list[dict[str, str]]:
    from engine.features.snapshots.snapshots import Snapshots

    damage, snapshots = [], Snapshots(config.data_dir)
    for path in snapshots.paths():
        try:
            snapshots.find(str(path)).check()
        except SnapshotFailed as error:
            if not path.exists():  # a newer one has taken its place meanwhile
                continue
            damage.append({"kind": "snapshot", "key": "", "place": str(path), "problem": str(error), "advice": "delete it"})
        checked["snapshot"] = checked.get("snapshot", 0) + 1
    return damage
