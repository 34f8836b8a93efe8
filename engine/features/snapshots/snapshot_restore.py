"""Replaces the data of the engine's own Redis by a snapshot, while no engine runs on the data directory.

    checked   the dump is the one that the manifest describes, and there is room for it
    staged    a Redis in `.restoring` loads a copy of it. The copy gets a new data epoch; then all of it is fsynced
    decided   one rename makes it `redis.restored`
    adopted   the replaced data become `redis.replaced-<time>`, and `redis.restored` becomes `redis` (`engine.store.embedded_redis`)

A restore that ends before it is decided has changed nothing. One that ends later is completed by whoever opens the data directory next, the
engine or another restore. So no engine ever starts on a mixture, or empty.

Redis reads a dump as an append-only file of the format before 7.0, which may begin with one; servers since 7.0 convert it when they start.
So one file, `appendonly.aof`, restores any version.

A restored Redis assigns numbers again that clients have seen. The new data epoch makes every cursor one of another time: clients get `gap`
and everything that is pending.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from redis.exceptions import RedisError

from engine.config import Config
from engine.errors import SnapshotFailed
from engine.features.snapshots.snapshots import DUMP, ROOM_BYTES, Snapshot, sync
from engine.store.embedded_redis import REDIS_FOLDER, RESTORED_FOLDER, DataDirLock, EmbeddedRedis, adopt_restored
from engine.store.keys import EPOCH_FIELD, META_KEY
from engine.store.redis_client import connect, replace_data_epoch

_RESTORING: Final = ".restoring"
_LOG_BEFORE_7: Final = "appendonly.aof"


class Restored(msgspec.Struct, frozen=True):
    """What a restore has done."""

    keys: int  # of Redis
    data_epoch: str  # the new one
    replaced: Path | None  # the data that were there, None where there were none


async def restore_snapshot(config: Config, snapshot: Snapshot) -> Restored:
    """Replace the data by the snapshot's.

    Raises:
        ConfigError: an engine runs on the data directory.
        SnapshotFailed: the snapshot cannot be used, or there is no room for it; the data are as they were.
        StorageUnavailable: no server that is installed here reads it; the data are as they were.
    """
    data_dir = Path(config.data_dir)
    lock = DataDirLock(data_dir)
    try:
        await EmbeddedRedis(config).end_leftover()
        snapshot.check()
        needed, free = 2 * snapshot.manifest.bytes + ROOM_BYTES, shutil.disk_usage(data_dir).free
        if free < needed:
            raise SnapshotFailed(f"{data_dir} has {free >> 20} MiB free; restoring this snapshot needs {needed >> 20} MiB")
        staging = data_dir / _RESTORING
        try:
            keys, epoch = await _stage(msgspec.structs.replace(config, data_dir=str(staging)), snapshot)
            for path in (staging / REDIS_FOLDER).rglob("*"):
                if path.is_dir() or path.is_file():
                    sync(path)
            sync(staging / REDIS_FOLDER)
            (staging / REDIS_FOLDER).rename(data_dir / RESTORED_FOLDER)
            sync(data_dir)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return Restored(keys, epoch, adopt_restored(data_dir))
    except OSError as error:
        raise SnapshotFailed(f"{error.filename or data_dir}: {error.strerror or error}") from error
    finally:
        lock.release()


async def _stage(config: Config, snapshot: Snapshot) -> tuple[int, str]:
    """Load the snapshot in a data directory of its own and give it a new data epoch. Returns the number of keys, and the epoch."""
    shutil.rmtree(config.data_dir, ignore_errors=True)  # of a restore that was killed
    server = EmbeddedRedis(config)
    shutil.copyfile(snapshot.path / DUMP, Path(config.data_dir) / REDIS_FOLDER / _LOG_BEFORE_7)
    try:
        await server.start()
        async with connect(msgspec.structs.replace(config, redis_url=server.url, redis_durability="reported")) as client:
            keys, epoch = await _keys_and_epoch(client)
            if epoch is None:
                raise SnapshotFailed(f"snapshot {snapshot.path} has no data of an engine ({keys} keys)")
            return keys, await replace_data_epoch(client, epoch.decode(), int(time.time()))
    except RedisError as error:
        raise SnapshotFailed(f"the restored Redis does not answer: {error}") from error
    finally:
        await server.stop()


async def _keys_and_epoch(client: Any) -> tuple[int, bytes | None]:
    return await client.dbsize(), await client.hget(META_KEY, EPOCH_FIELD)
