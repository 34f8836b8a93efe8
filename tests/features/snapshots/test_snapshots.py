"""Snapshots of a real Redis that is written to, taken and kept; and what stops one."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine import __version__
from engine.config import Config
from engine.errors import SnapshotFailed
from engine.features.snapshots import snapshots as module
from engine.features.snapshots.snapshots import Snapshots, SnapshotSchedule
from engine.store.redis_client import claim_data_epoch
from engine.store.server_program import ServerProgram, installed_servers
from tests.support.background_task import background
from tests.support.chaos.disk import CannotMount, small_disk
from tests.support.missing_programs import missing
from tests.support.own_redis import served
from tests.support.redis_server import oldest_supported
from tests.support.waiting import until

pytestmark = pytest.mark.redis


@pytest.fixture(params=["newest", "oldest"])
def server(request: pytest.FixtureRequest) -> ServerProgram:
    """Since 7.0 the append-only file is a directory of several; before, one file."""
    return installed_servers()[0] if request.param == "newest" else oldest_supported()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(data_dir=str(tmp_path / "data"), start_timeout_s=20)


async def test_a_snapshot_is_a_directory_with_the_dump_and_what_it_is(config: Config, server: ServerProgram) -> None:
    async with served(config, server) as client:
        epoch = await claim_data_epoch(client, 1_700_000_000)
        taken = await Snapshots(config.data_dir).take(client, 3)
    manifest = taken.manifest
    assert (manifest.engine, manifest.data_epoch) == (__version__, epoch)
    assert manifest.server.split()[0] in ("Redis", "Valkey")
    assert sorted(path.name for path in taken.path.iterdir()) == ["dump.rdb", "manifest.json"]
    assert manifest.bytes == (taken.path / "dump.rdb").stat().st_size > 0
    assert stat.S_IMODE(taken.path.stat().st_mode) == stat.S_IMODE(taken.path.parent.stat().st_mode) == 0o700
    taken.check()
    assert not (Path(config.data_dir) / "redis" / "dump.rdb").exists()  # moved, so the disk has it once


async def test_only_the_newest_are_kept(config: Config) -> None:
    snapshots = Snapshots(config.data_dir)
    async with served(config) as client:
        names = [(await snapshots.take(client, 2)).name for _ in range(4)]
    assert [snapshot.name for snapshot in snapshots.complete()] == names[-2:]
    assert snapshots.find("latest").name == names[-1]
    assert snapshots.find(names[-2]).name == names[-2]
    assert snapshots.find(str(snapshots.find(names[-2]).path)).name == names[-2]


async def test_what_a_crash_left_is_no_snapshot_and_goes_with_the_next_one(config: Config) -> None:
    folder, redis = Path(config.data_dir) / "snapshots", Path(config.data_dir) / "redis"
    async with served(config) as client:
        (folder / ".draft-1").mkdir(parents=True)
        (folder / ".draft-1" / "dump.rdb").write_bytes(b"half")
        (redis / "dump.rdb").write_bytes(b"of a Redis that was killed")
        (redis / "temp-17.rdb").write_bytes(b"half")
        assert Snapshots(folder.parent).complete() == []
        (await Snapshots(folder.parent).take(client, 1)).check()
    assert [path.name for path in folder.iterdir() if path.is_dir()] == [Snapshots(folder.parent).find("latest").name]
    assert not list(redis.glob("*.rdb"))


async def test_an_old_snapshot_that_stays_is_told_and_goes_later(config: Config) -> None:
    snapshots, folder = Snapshots(config.data_dir), Path(config.data_dir) / "snapshots"

    def part(path: Path) -> None:
        (path / "manifest.json").unlink(missing_ok=True)
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    async with served(config) as client:
        await snapshots.take(client, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module.shutil, "rmtree", part)
            for _ in range(2):
                with pytest.raises(SnapshotFailed, match=r"was taken, but an older one is not deleted: .*Operation not permitted"):
                    await snapshots.take(client, 1)
        taken = await snapshots.take(client, 1)
    assert [path for path in folder.iterdir() if path.is_dir()] == [taken.path]


async def test_a_rewrite_of_the_log_that_begins_first_is_waited_for(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(config) as client:
        await client.mset({f"key-{number}": "x" for number in range(300)})
        await client.config_set("rdb-key-save-delay", 1000)  # microseconds: the rewrite is not over when BGSAVE comes
        info, rewrites = client.info, 0

        async def then_rewrite(section: str | None = None) -> Any:
            nonlocal rewrites
            answer = await info(section)
            if section == "persistence" and not rewrites:
                rewrites += 1
                await client.bgrewriteaof()
            return answer

        monkeypatch.setattr(client, "info", then_rewrite)
        await Snapshots(config.data_dir).take(client, 2)
    assert rewrites == 1


async def test_two_are_not_taken_at_once(config: Config) -> None:
    async with served(config) as client:
        snapshots = Snapshots(config.data_dir)
        results = await asyncio.gather(snapshots.take(client, 9), snapshots.take(client, 9), return_exceptions=True)
    assert [str(result) for result in results if isinstance(result, SnapshotFailed)] == ["another snapshot is being taken"]
    assert len(snapshots.complete()) == 1


async def test_a_damaged_snapshot_is_recognised(config: Config) -> None:
    async with served(config) as client:
        taken = await Snapshots(config.data_dir).take(client, 1)
    with (taken.path / "dump.rdb").open("r+b") as file:
        file.seek(20)
        file.write(b"?")
    with pytest.raises(SnapshotFailed, match="is damaged"):
        taken.check()
    os.truncate(taken.path / "dump.rdb", 10)
    with pytest.raises(SnapshotFailed, match="its 10 bytes"):
        taken.check()


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "No such file"),
        (b"{", "truncated"),
        (b'{"engine":"\xff"}', "utf-8"),
        (b'{"engine":"","server":"","taken_at":"2026-1\x30-0Z","data_epoch":"","bytes":1,"sha256":""}', "isoformat"),
        (
            b'{"format":2,"engine":"9.9","server":"","taken_at":"","data_epoch":"","bytes":1,"sha256":""}',
            "taken by engine 9.9, in a format",
        ),
    ],
)
def test_what_is_no_snapshot_is_refused_by_name(tmp_path: Path, manifest: bytes | None, reason: str) -> None:
    path = tmp_path / "snapshots" / "20260101T000000.000Z"
    path.mkdir(parents=True)
    if manifest is not None:
        (path / "manifest.json").write_bytes(manifest)
    with pytest.raises(SnapshotFailed, match=reason):
        Snapshots(tmp_path).find(path.name)
    with pytest.raises(SnapshotFailed, match="there is no snapshot in"):
        Snapshots(tmp_path).find("latest")


async def test_without_room_none_is_begun_and_redis_serves_on(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_BYTES", 1 << 60)
    async with served(config) as client:
        with pytest.raises(SnapshotFailed, match="MiB free; a snapshot may need"):
            await Snapshots(config.data_dir).take(client, 1)
        assert await client.set("written", 1)


@pytest.mark.parametrize("full", ["", "snapshots"])
async def test_a_disk_that_fills_while_one_is_written_harms_nothing(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, full: str
) -> None:
    """Redis cannot write its dump; or the snapshots have a disk of their own, and the dump does not fit."""
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 60))
    snapshots = Snapshots(config.data_dir)
    try:
        with small_disk(Path(config.data_dir) / full, 6 << 20):
            async with served(config) as client:
                kept = await snapshots.take(client, 3)
                for key in ("message", "another"):
                    await client.set(key, os.urandom((2 << 20) if full == "" else 4 << 20))
                with pytest.raises(SnapshotFailed, match="No space left" if full else "could not write"):
                    await snapshots.take(client, 1)
                assert await client.set("written", 1)
                assert snapshots.complete() == [kept]
                assert {path.name for path in (Path(config.data_dir) / "snapshots").iterdir()} == {".lock", kept.name}
    except CannotMount as error:
        missing(f"no small disk: {error}")


async def test_the_schedule_takes_one_at_once_and_then_in_its_interval(config: Config) -> None:
    config = msgspec.structs.replace(config, snapshot_interval_s=1, snapshots_kept=2)
    async with served(config) as client:
        schedule = SnapshotSchedule(config, client)
        async with background(schedule.follow()):
            await until(lambda: schedule.status()["count"] == 2)
        first, second = Snapshots(config.data_dir).complete()
        assert second.name > first.name
        status = schedule.status()
        assert 0 <= status.pop("age_s") < 600
        assert status == {"count": 2, "failures": 0, "error": "", "name": second.name, "bytes": second.manifest.bytes}
        assert SnapshotSchedule(msgspec.structs.replace(config, snapshot_interval_s=3600), client).wait_s() > 3500  # of the next process


async def test_a_failed_attempt_is_counted_told_and_repeated(config: Config) -> None:
    config = msgspec.structs.replace(config, snapshot_interval_s=1)
    async with served(config) as client:
        schedule = SnapshotSchedule(config, client)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "ROOM_BYTES", 1 << 60)
            following = asyncio.ensure_future(schedule.follow())
            await until(lambda: schedule.failures > 0)
            assert "MiB free" in schedule.status()["error"]
        try:
            await until(lambda: schedule.status()["error"] == "")
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        assert schedule.status()["count"] == 1
        assert schedule.status()["failures"] >= 1
