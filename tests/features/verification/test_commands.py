"""`engine verify` on the data directory of a stopped engine."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from engine.__main__ import app
from engine.cli.state_file import EngineState, write_state
from engine.config import Config
from engine.core.model.routing import spread
from engine.errors import ConfigError
from engine.features.snapshots.snapshots import DUMP, Snapshot, Snapshots
from engine.store.keys import SLOTS_KEY
from engine.store.slot_map import encode_slot_map
from tests.support.own_redis import served

pytestmark = pytest.mark.redis


def stopped_engine(data_dir: Path) -> None:
    async def fill() -> None:
        async with served(Config(data_dir=str(data_dir))) as client:
            await client.set(SLOTS_KEY, encode_slot_map(spread(1)))
            await Snapshots(data_dir).take(client, 1)

    asyncio.run(fill())


def verify(data_dir: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", "--data-dir", str(data_dir), *words])
    return result.exit_code, result.stdout


def append_only_file(data_dir: Path) -> Path:
    return next(path for path in (data_dir / "redis").rglob("*.aof") if path.stat().st_size)


def test_a_data_directory_is_whole_then_damaged_and_stays_as_it_is(tmp_path: Path) -> None:
    stopped_engine(tmp_path)
    assert verify(tmp_path) == (0, "        1 slot map\n        1 snapshot\nall whole\n")
    path = append_only_file(tmp_path)
    content = path.read_bytes()
    end = len(content) - 3  # before the line end of the map, the last value
    path.write_bytes(content[:end] + bytes([content[end] ^ 1]) + content[end + 1 :])
    (dump,) = (tmp_path / "snapshots").glob(f"*/{DUMP}")
    dump.write_bytes(dump.read_bytes()[:-1])
    (tmp_path / "snapshots" / "20260101T000000.000Z").mkdir()  # its manifest is lost
    before = {file: file.read_bytes() for file in (tmp_path / "redis").rglob("*") if file.is_file() and file.suffix != ".log"}
    code, told = verify(tmp_path, "--json")
    found = json.loads(told)
    assert code == 2
    assert found["damaged"] == 3
    assert [one["kind"] for one in found["damage"]] == ["slot map", "snapshot", "snapshot"]
    assert all(one["advice"] for one in found["damage"])
    assert "damaged: slot map at engine:slots: " in verify(tmp_path)[1]
    assert {file: file.read_bytes() for file in before} == before
    assert not list(tmp_path.glob(".verifying*"))


def test_a_snapshot_that_is_trimmed_meanwhile_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_engine(tmp_path)
    check = Snapshot.check

    def trimmed(snapshot: Snapshot) -> None:
        shutil.rmtree(snapshot.path)
        check(snapshot)

    monkeypatch.setattr(Snapshot, "check", trimmed)
    assert verify(tmp_path) == (0, "        1 slot map\nall whole\n")


def test_the_copy_of_a_killed_check_is_deleted(tmp_path: Path) -> None:
    stopped_engine(tmp_path)
    left = tmp_path / ".verifying" / "redis" / "dump.rdb"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"all data")
    assert verify(tmp_path)[0] == 0
    assert not left.exists()


def test_files_that_redis_refuses_are_damage_and_not_an_error(tmp_path: Path) -> None:
    stopped_engine(tmp_path)
    append_only_file(tmp_path).write_bytes(b"this is no append-only file")
    code, told = verify(tmp_path)
    assert code == 2
    assert "Redis refuses the files" in told
    assert "engine restore latest" in told


def test_the_data_of_a_restore_that_is_decided_are_those_that_are_checked(tmp_path: Path) -> None:
    stopped_engine(tmp_path)
    (tmp_path / "redis").rename(tmp_path / "redis.restored")
    assert verify(tmp_path)[0] == 0, "as before"
    stopped_engine(tmp_path / "other")
    (tmp_path / "other" / "redis").rename(tmp_path / "redis")
    append_only_file(tmp_path).write_bytes(b"this is no append-only file")
    assert verify(tmp_path)[0] == 0
    assert (tmp_path / "redis.restored").is_dir()


@pytest.mark.parametrize(("url", "told"), [("", "has no data of an engine"), ("redis://:***@127.0.0.1:1", "give it with --redis")])
def test_data_that_are_not_to_be_had_are_an_error(tmp_path: Path, url: str, told: str) -> None:
    if url:  # an engine runs here, whose password stands nowhere
        own = psutil.Process()
        facts = {"version": "", "ray_address": "", "ray_logs": "", "namespace": "", "redis_url": url}
        write_state(tmp_path, EngineState(url="", pid=own.pid, pid_started_s=own.create_time(), **facts))
    error = CliRunner().invoke(app, ["verify", "--data-dir", str(tmp_path)]).exception
    assert isinstance(error, ConfigError)
    assert told in str(error)
