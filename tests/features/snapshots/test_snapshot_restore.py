"""A snapshot takes the place of what is stored, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest

from engine.config import Config
from engine.errors import ConfigError, SnapshotFailed
from engine.features.snapshots import snapshot_restore
from engine.features.snapshots.snapshot_restore import restore_snapshot
from engine.features.snapshots.snapshots import Snapshot, Snapshots
from engine.store import embedded_redis
from engine.store.embedded_redis import DataDirLock, EmbeddedRedis
from engine.store.redis_client import claim_data_epoch
from engine.store.server_program import ServerProgram, installed_servers
from tests.support.own_redis import served
from tests.support.redis_server import oldest_supported

pytestmark = pytest.mark.redis


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(data_dir=str(tmp_path / "data"), start_timeout_s=20)


async def stored(config: Config, *servers: ServerProgram) -> Snapshot:
    """A snapshot of a data directory whose Redis has been written to since."""
    async with served(config, *servers) as client:
        await claim_data_epoch(client, 1_700_000_000)
        await client.xadd("log", {"b": "1"}, id="1-1")
        await client.set("id", "x", px=3_600_000)
        taken = await Snapshots(config.data_dir).take(client, 2)
        await client.xadd("log", {"b": "2"}, id="1-2")
        return taken


async def contents(config: Config) -> tuple[int, bytes | None, str]:
    """Entries of the log, the id, and the data epoch."""
    async with served(config) as client:
        assert not await client.exists("id") or 0 < await client.pttl("id") <= 3_600_000
        return await client.xlen("log"), await client.get("id"), await claim_data_epoch(client, 1)


@pytest.mark.parametrize("server", [installed_servers()[0], oldest_supported()], ids=["newest", "oldest"])
async def test_a_restore_brings_back_what_the_snapshot_has_under_a_new_data_epoch(config: Config, server: ServerProgram) -> None:
    taken = await stored(config, server)
    restored = await restore_snapshot(config, taken)
    assert await contents(config) == (1, b"x", restored.data_epoch)
    assert int(restored.data_epoch, 36) > int(taken.manifest.data_epoch, 36)
    assert restored.keys == 3
    assert {path.name for path in Path(config.data_dir).iterdir()} == {
        "engine.lock",
        "redis",
        "snapshots",
        Path(restored.replaced or "").name,
    }


async def test_the_replaced_data_are_kept(config: Config) -> None:
    restored = await restore_snapshot(config, await stored(config))
    assert restored.replaced is not None
    shutil.rmtree(Path(config.data_dir) / "redis")
    restored.replaced.rename(Path(config.data_dir) / "redis")
    assert (await contents(config))[0] == 2


async def test_a_restore_leaves_no_directory_of_sockets_behind(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (temporary := tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    config = msgspec.structs.replace(config, data_dir=str(tmp_path / ("d" * 90)))  # too long for a socket
    await restore_snapshot(config, await stored(config))
    assert not list(temporary.iterdir())


async def test_a_snapshot_is_restored_into_a_new_data_directory(config: Config, tmp_path: Path) -> None:
    taken = await stored(config)
    elsewhere = msgspec.structs.replace(config, data_dir=str(tmp_path / "elsewhere"))
    assert (await restore_snapshot(elsewhere, taken)).replaced is None
    assert (await contents(elsewhere))[:2] == (1, b"x")


async def test_a_restore_can_be_repeated_and_each_has_a_data_epoch_of_its_own(config: Config) -> None:
    taken = await stored(config)
    first = await restore_snapshot(config, taken)
    async with served(config) as client:
        again = await Snapshots(config.data_dir).take(client, 2)
    second = await restore_snapshot(config, again)
    assert int(second.data_epoch, 36) > int(first.data_epoch, 36) > int(taken.manifest.data_epoch, 36)


async def test_while_an_engine_runs_on_the_data_nothing_is_restored(config: Config) -> None:
    taken = await stored(config)
    lock = DataDirLock(Path(config.data_dir))
    try:
        with pytest.raises(ConfigError, match=rf"another engine \(pid {os.getpid()}\) uses"):
            await restore_snapshot(config, taken)
    finally:
        lock.release()
    assert (await contents(config))[0] == 2


async def test_a_server_that_a_killed_engine_left_running_is_stopped_first(config: Config) -> None:
    taken = await stored(config)
    left = EmbeddedRedis(config)
    await left.start()
    assert left.pid is not None
    restored = await restore_snapshot(config, taken)
    assert left.pid is None or not Path(f"/proc/{left.pid}/exe").exists()
    assert await contents(config) == (1, b"x", restored.data_epoch)
    await left.stop()


@pytest.mark.parametrize("harm", ["damaged", "empty", "no room"])
async def test_a_snapshot_that_cannot_be_restored_leaves_everything_as_it_was(
    config: Config, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    taken = await stored(config)
    if harm == "damaged":
        os.truncate(taken.path / "dump.rdb", taken.manifest.bytes - 1)
    elif harm == "empty":
        async with served(config) as client:
            await client.hdel("engine:meta", "epoch")
            taken = await Snapshots(config.data_dir).take(client, 2)
            await claim_data_epoch(client, 1)
    else:
        monkeypatch.setattr(snapshot_restore, "ROOM_BYTES", 1 << 60)
    with pytest.raises(SnapshotFailed, match={"damaged": "damaged", "empty": "no data of an engine", "no room": "MiB free"}[harm]):
        await restore_snapshot(config, taken)
    assert {path.name for path in Path(config.data_dir).iterdir()} == {"engine.lock", "redis", "snapshots"}
    assert (await contents(config))[0] == 2


@pytest.mark.parametrize("renames", [0, 1, 2])
async def test_a_restore_that_is_killed_is_undone_or_completed_by_the_next_start(
    config: Config, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """It ends before a rename: the one that decides, the one that moves the data away, the one that puts the others there."""
    taken = await stored(config)
    done = 0

    def rename(self: Path, target: Path) -> Path:
        nonlocal done
        if done == renames:
            raise KeyboardInterrupt
        done += 1
        os.rename(self, target)
        return target

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            await restore_snapshot(config, taken)
    entries, _, epoch = await contents(config)
    assert (entries, epoch == taken.manifest.data_epoch) == ((2, True) if renames == 0 else (1, False))
    assert not (Path(config.data_dir) / embedded_redis.RESTORED_FOLDER).exists()
