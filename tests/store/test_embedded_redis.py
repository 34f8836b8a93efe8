"""The engine's own Redis: a real redis-server, killed, cut short, left over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from redis.exceptions import RedisError, ResponseError

from engine.config import REDIS_MEMORY_BYTES_MIN, Config
from engine.errors import ConfigError, StorageUnavailable
from engine.store import embedded_redis
from engine.store.embedded_redis import DataDirLock, EmbeddedRedis, memory_bytes
from engine.store.keys import EPOCH_FIELD, META_KEY
from engine.store.redis_client import connect, replace_data_epoch
from engine.store.server_program import ServerProgram, installed_servers
from tests.support.chaos.disk import CannotMount, filled, small_disk
from tests.support.missing_programs import missing
from tests.support.redis_server import oldest_supported
from tests.support.waiting import until, until_done

pytestmark = pytest.mark.redis


@contextlib.asynccontextmanager
async def running(config: Config, *servers: ServerProgram) -> AsyncIterator[EmbeddedRedis]:
    redis = EmbeddedRedis(config, servers)
    await redis.start()
    supervisor = asyncio.ensure_future(redis.supervise())
    try:
        yield redis
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
        await redis.stop()


async def command(redis: EmbeddedRedis, config: Config, *words: str) -> object:
    client = connect(msgspec.structs.replace(config, redis_url=redis.url, redis_durability="reported"))
    try:
        return await client.execute_command(*words)
    finally:
        await client.aclose()


def servers_of(config: Config) -> list[int]:
    """Pids of the servers that run on the data directory."""
    found = []
    folder = (Path(config.data_dir) / "redis").resolve()
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder:
                found.append(process.pid)
    return found


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(data_dir=str(tmp_path / "data"), start_timeout_s=20)


@pytest.fixture(params=["newest", "oldest"])
def server(request: pytest.FixtureRequest) -> ServerProgram:
    """The server that an engine takes here, and the oldest that it supports."""
    return installed_servers()[0] if request.param == "newest" else oldest_supported()


async def persistence(redis: EmbeddedRedis) -> dict[str, str]:
    """What the server tells of it, once it answers: on a busy machine not at the first time."""
    return await until(lambda: redis._info("persistence"))


async def base_bytes(redis: EmbeddedRedis) -> int:
    return int((await persistence(redis))["aof_base_size"])


async def test_a_long_end_of_the_append_only_file_becomes_its_base(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_redis, "_LOOK_S", 0.05)
    monkeypatch.setattr(embedded_redis, "_END_BYTES_MIN", 20_000)
    async with running(config) as redis:
        await command(redis, config, "SET", "short", "x" * 10_000)
        await asyncio.sleep(0.3)
        assert await base_bytes(redis) < 10_000, "the end is too short for it"
        with monkeypatch.context() as full:
            full.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, (1 << 30) - 30_000, 30_000))  # type: ignore[attr-defined]
            await command(redis, config, "SET", "long", os.urandom(10_000).hex())
            await asyncio.sleep(0.3)
            assert await base_bytes(redis) < 10_000, "the disk has no room for it"
        await until(lambda: base_bytes(redis), holds=lambda size: size > 10_000)
        with monkeypatch.context() as slow:
            slow.setattr(embedded_redis, "_WRITTEN_BYTES_PER_S", 1000)
            await command(redis, config, "SET", "longer", os.urandom(20_000).hex())
            await asyncio.sleep(0.3)
            assert await base_bytes(redis) < 40_000, "the last time has not paid off yet"
        await until(lambda: base_bytes(redis), holds=lambda size: size > 40_000)
    assert "rewrit" not in (Path(config.data_dir) / "redis" / "redis.log").read_text(), "it would fill the disk"
    async with running(config) as redis:
        assert await command(redis, config, "STRLEN", "longer") == 40_000


async def test_it_listens_on_a_private_socket_only(config: Config, server: ServerProgram) -> None:
    async with running(config, server) as redis:
        assert redis.pid is not None
        path = Path(redis.url.removeprefix("unix://"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert not psutil.Process(redis.pid).net_connections("tcp")
    assert redis.pid is None


async def test_the_bundled_server_runs_with_jemalloc(config: Config) -> None:
    bundled = next(server for server in installed_servers() if server.plain_malloc)
    async with running(config, bundled) as redis:
        assert any("libjemalloc" in found.path for found in psutil.Process(redis.pid).memory_maps())
        await command(redis, config, "BGREWRITEAOF")  # forks
        ended = await until(lambda: persistence(redis), holds=lambda told: told["aof_rewrite_in_progress"] == "0")
        assert ended["aof_last_bgrewrite_status"] == "ok"


async def test_killed_it_comes_back_by_itself_with_everything_that_was_written(config: Config, server: ServerProgram) -> None:
    async with running(config, server) as redis:
        await command(redis, config, "SET", "before", "1")
        killed = redis.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await until(lambda: redis.restarts == 1 and redis.pid not in (None, killed))
        assert await until_done(lambda: command(redis, config, "GET", "before"), RedisError, OSError) == b"1"


async def test_a_server_that_served_a_while_is_started_again_at_once(config: Config) -> None:
    never = msgspec.structs.replace(config, redis_restart_ms=600_000, redis_restart_max_ms=600_000)
    async with running(never) as redis:
        for deaths in (1, 2):
            await until(lambda: int(redis._info("server").get("uptime_in_seconds", 0)) >= 2)
            killed = redis.pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            await until(lambda deaths=deaths, killed=killed: redis.restarts == deaths and redis.pid not in (None, killed))


async def test_a_stop_and_a_start_keep_the_data(config: Config) -> None:
    async with running(config) as redis:
        await command(redis, config, "SET", "before", "1")
    async with running(config) as redis:
        assert await command(redis, config, "GET", "before") == b"1"


async def test_a_tail_cut_short_by_a_crash_loses_only_the_cut_record(config: Config, server: ServerProgram) -> None:
    async with running(config, server) as redis:
        await command(redis, config, "SET", "first", "1")
        await command(redis, config, "SET", "second", "2")
    files = [
        path for path in Path(config.data_dir).rglob("*aof*") if path.is_file() and path.stat().st_size and "manifest" not in path.name
    ]
    newest = max(files, key=lambda path: path.name.endswith("incr.aof"))
    os.truncate(newest, newest.stat().st_size - 3)
    async with running(config, server) as redis:
        assert await command(redis, config, "GET", "first") == b"1"
        assert await command(redis, config, "GET", "second") is None


async def test_a_server_that_cannot_start_is_reported_with_the_end_of_its_log(config: Config) -> None:
    async with running(config) as redis:
        await command(redis, config, "SET", "first", "1")
    for path in Path(config.data_dir).rglob("*aof*"):
        if path.is_file():
            path.write_bytes(b"this is not an append-only file")
    with pytest.raises(StorageUnavailable, match=r"ended with code 1 .*redis\.log"):
        await EmbeddedRedis(config).start()


async def test_files_that_the_newest_server_cannot_read_are_opened_by_another_that_can(config: Config, tmp_path: Path) -> None:
    """A server that ends as Valkey does on files of Redis 8; the next of the list is taken."""
    fails = tmp_path / "valkey-server"
    fails.write_text('#!/bin/sh\necho "Can\'t handle RDB format version 12" > redis.log\nexit 1\n')
    fails.chmod(0o755)
    works = installed_servers()[0]
    async with running(config, ServerProgram(fails, "Valkey", (99, 0, 0)), works) as redis:
        assert redis.server == works
    with pytest.raises(StorageUnavailable, match="RDB format version"):
        await EmbeddedRedis(config, [ServerProgram(fails, "Valkey", (99, 0, 0))]).start()


async def test_a_server_that_would_not_see_the_files_of_a_newer_one_is_not_started_on_them(config: Config) -> None:
    """Redis 6.2 looks for its file elsewhere, and would start empty."""
    async with running(config) as redis:
        await command(redis, config, "SET", "first", "1")
    with pytest.raises(ConfigError, match=r"data_dir: Redis 7\.0 or newer wrote .* only Redis 6\.2"):
        EmbeddedRedis(config, [oldest_supported()])


async def test_files_of_the_oldest_server_are_opened_by_the_newest(config: Config) -> None:
    async with running(config, oldest_supported()) as redis:
        await command(redis, config, "XADD", "log", "1-1", "b", "1")
        await command(redis, config, "BGREWRITEAOF")
    async with running(config) as redis:
        assert await command(redis, config, "XLEN", "log") == 1


async def test_its_memory_is_limited_and_nothing_is_evicted(config: Config, server: ServerProgram) -> None:
    third = memory_bytes() // 3
    for given, expected in ((0, third), (REDIS_MEMORY_BYTES_MIN, REDIS_MEMORY_BYTES_MIN)):
        limited = msgspec.structs.replace(config, redis_memory_bytes_max=given)
        async with running(limited, server) as redis:
            assert await command(redis, limited, "CONFIG", "GET", "maxmemory") == {b"maxmemory": b"%d" % expected}
            assert await command(redis, limited, "CONFIG", "GET", "maxmemory-policy") == {b"maxmemory-policy": b"noeviction"}


async def test_a_user_with_one_message_costs_less_than_a_kilobyte(config: Config) -> None:
    async with running(config) as redis:
        await command(redis, config, "XADD", "offline", "1-0", "m", "x" * 200)
        assert await command(redis, config, "MEMORY", "USAGE", "offline") < 1000


def test_the_memory_of_a_container_is_what_its_control_group_allows(tmp_path: Path) -> None:
    machine = memory_bytes(tmp_path)
    assert machine == psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_bytes(tmp_path) == machine
    (tmp_path / "memory.max").write_text("1048576\n")
    assert memory_bytes(tmp_path) == 1 << 20


async def test_commands_that_nobody_may_use_are_not_there(config: Config, server: ServerProgram) -> None:
    async with running(config, server) as redis:
        for words in (("DEBUG", "SLEEP", "0"), ("MODULE", "LIST")):
            with pytest.raises(ResponseError, match="unknown command"):
                await command(redis, config, *words)


@pytest.mark.parametrize("temporary", ["t", "t" * 90])
async def test_a_path_too_long_for_a_socket_gets_a_short_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: str
) -> None:
    (tmp_path / temporary).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / temporary))
    config = Config(data_dir=str(tmp_path / ("d" * 90) / "data"), start_timeout_s=20)
    async with running(config) as redis:
        path = Path(redis.url.removeprefix("unix://"))
        assert len(os.fsencode(path)) <= 107
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert (Path(config.data_dir) / "redis" / "run").resolve() == path.parent.resolve()
    assert not path.parent.exists()


def test_a_second_engine_on_the_same_data_directory_is_refused_by_name(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path / "data")
    with pytest.raises(ConfigError, match=rf"pid {os.getpid()}.*engine down"):
        DataDirLock(tmp_path / "data")
    lock.release()
    DataDirLock(tmp_path / "data").release()


def test_a_disk_without_room_for_the_lock_is_told_as_the_data_directory(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(ConfigError, match=r"^data_dir: cannot use .*: File too large$"):
            DataDirLock(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    DataDirLock(tmp_path).release()


_ENGINE_THAT_IS_KILLED = """
import asyncio, os, signal, sys
from engine.config import REDIS_MEMORY_BYTES_MIN, Config
from engine.store.embedded_redis import DataDirLock, EmbeddedRedis, memory_bytes

async def main():
    config = Config(data_dir=sys.argv[1])
    lock = DataDirLock(__import__("pathlib").Path(config.data_dir))
    redis = EmbeddedRedis(config)
    await redis.start()
    print(redis.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_it_dies_with_a_killed_engine_and_the_next_one_starts_at_once(config: Config) -> None:
    with subprocess.Popen([sys.executable, "-c", _ENGINE_THAT_IS_KILLED, config.data_dir], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        pid = int(engine.stdout.readline())
        engine.kill()
    lock = DataDirLock(Path(config.data_dir))
    async with running(config) as redis:
        assert redis.pid != pid
        assert await command(redis, config, "PING") in (b"PONG", True)
    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    lock.release()


@pytest.mark.parametrize("fsync", ["always", "everysec"])
async def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, server: ServerProgram, fsync: str) -> None:
    """With `always` Redis ends itself rather than answer for what it could not write; with `everysec` it refuses writes."""
    try:
        with small_disk(tmp_path / "disk", 8 << 20) as folder:
            config = Config(data_dir=str(folder / "data"), redis_fsync=fsync, start_timeout_s=20, redis_restart_max_ms=200)
            async with running(config, server) as redis:
                written = 0

                async def write() -> None:
                    nonlocal written
                    try:
                        await command(redis, config, "XADD", "log", f"1-{written + 1}", "b", "x" * 1000)
                    except ResponseError as error:
                        if "equal or smaller" not in str(error):  # else it was written before, and only its answer was lost
                            raise
                    written += 1

                for _ in range(20):
                    await write()
                with filled(folder):
                    refused = 0
                    async with asyncio.timeout(60):
                        while refused < 5:
                            try:
                                await write()
                            except (RedisError, OSError):
                                refused += 1
                                await asyncio.sleep(0.05)
                    assert bool(redis.restarts) == (fsync == "always")
                await until_done(write, RedisError, OSError)
                entries = await command(redis, config, "XRANGE", "log", "-", "+")
                assert isinstance(entries, list)
                found = [int(entry_id.partition(b"-")[2]) for entry_id, _ in entries]
                assert found == list(range(1, written + 1))
    except CannotMount as error:
        missing(f"no full disk was tried: cannot mount a tmpfs ({error})")


async def test_a_damaged_length_that_would_drop_later_writes_refuses_the_start(config: Config, server: ServerProgram) -> None:
    async with running(config, server) as redis:
        for number in range(20):
            await command(redis, config, "SET", f"key{number}", "x" * 20)
    (path,) = [path for path in Path(config.data_dir).rglob("*.aof") if path.stat().st_size > 500]
    whole = path.read_bytes()
    at = whole.index(b"$20", whole.index(b"key5"))
    damaged = whole[:at] + b"$9990" + whole[at + 3 :]
    path.write_bytes(damaged)
    command_at = whole.rindex(b"*", 0, at)
    with pytest.raises(StorageUnavailable, match=rf"{path.name} is damaged at byte {command_at}, and .*`engine restore latest"):
        await EmbeddedRedis(config, [server]).start()
    assert path.read_bytes() == damaged


async def test_a_damaged_write_that_fails_while_the_files_are_loaded_is_told_by_a_new_data_epoch(
    config: Config, server: ServerProgram
) -> None:
    async with running(config, server) as redis:
        await command(redis, config, "HSET", META_KEY, EPOCH_FIELD, "1")
        for number in range(1, 4):
            await command(redis, config, "XADD", "stream", f"{number}-0", "field", "value")
        assert redis.lost_writes == 0
    (path,) = [path for path in Path(config.data_dir).rglob("*.aof") if path.stat().st_size > 100]
    path.write_bytes(path.read_bytes().replace(b"2-0", b"0-0"))  # no number of an entry: Redis leaves the write out
    async with running(config, server) as redis:
        assert redis.lost_writes == 1
        assert await command(redis, config, "XLEN", "stream") == 2
        epoch = await command(redis, config, "HGET", META_KEY, EPOCH_FIELD)
        assert epoch != b"1"
        await until(lambda: command(redis, config, "INFO", "persistence"), holds=lambda info: not info["aof_rewrite_in_progress"])
    async with running(config, server) as redis:
        assert redis.lost_writes == 0, "it was left out for good"
        assert await command(redis, config, "HGET", META_KEY, EPOCH_FIELD) == epoch


async def test_a_server_busy_after_its_start_hides_no_lost_write(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(config) as redis:
        await command(redis, config, "XADD", "stream", "1-0", "field", "value")
    (path,) = [path for path in Path(config.data_dir).rglob("*.aof") if path.stat().st_size > 50]
    path.write_bytes(path.read_bytes().replace(b"1-0", b"0-0"))  # no number of an entry: Redis leaves the write out
    answers, info = list[dict[str, str]](), EmbeddedRedis._info

    def one_answer(self: EmbeddedRedis, section: str) -> dict[str, str]:
        if not any(answers):
            answers.append(info(self, section))
            return answers[-1]
        return {}

    monkeypatch.setattr(EmbeddedRedis, "_info", one_answer)
    async with running(config) as redis:
        assert redis.lost_writes == 1


async def test_files_that_a_killed_server_left_unfinished_are_deleted(config: Config) -> None:
    folder = Path(config.data_dir) / "redis"
    async with running(config) as redis:
        await command(redis, config, "SET", "key", "value")
        for name in ("temp-rewriteaof-bg-7.aof", "temp-7.rdb"):
            (folder / name).write_bytes(b"all data")
        assert redis.pid is not None
        os.kill(redis.pid, signal.SIGKILL)
        await until(lambda: redis.restarts)
        assert await until_done(lambda: command(redis, config, "GET", "key"), RedisError, OSError) == b"value"
        assert not list(folder.glob("temp-*"))


async def test_a_loss_that_cannot_be_told_starts_no_second_server(
    config: Config, server: ServerProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would write the same files, and the clients of the first one would go on with it."""
    told = 0

    async def replace(*words: Any) -> str:
        nonlocal told
        told += 1
        if told == 1:
            raise StorageUnavailable("Timeout reading from socket")
        return await replace_data_epoch(*words)

    monkeypatch.setattr(embedded_redis, "replace_data_epoch", replace)
    async with running(config, server) as redis:
        await command(redis, config, "HSET", META_KEY, EPOCH_FIELD, "1")
        await command(redis, config, "XADD", "stream", "1-0", "field", "value")
        first = redis.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        (path,) = [path for path in Path(config.data_dir).rglob("*.aof") if path.stat().st_size > 50]
        path.write_bytes(path.read_bytes().replace(b"1-0", b"0-0"))  # no number of an entry: Redis leaves the write out
        await until(lambda: told == 2 and redis.pid not in (None, first))
        assert await until_done(lambda: command(redis, config, "HGET", META_KEY, EPOCH_FIELD), RedisError, OSError) != b"1"
        assert servers_of(config) == [redis.pid]


async def test_a_server_left_over_in_a_linked_directory_is_stopped(config: Config, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    Path(config.data_dir).symlink_to(tmp_path / "disk")
    left_over = EmbeddedRedis(config)
    await left_over.start()
    await EmbeddedRedis(config).end_leftover()
    assert servers_of(config) == []
    await left_over.stop()


def scripted(text: str, folder: Path) -> ServerProgram:
    """A server that is this Python program, newer than any other."""
    program = folder / "valkey-server"
    program.write_text(text.format(python=sys.executable))
    program.chmod(0o755)
    return ServerProgram(program, "Valkey", (99, 0, 0))


LOADING = """#!{python}
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[sys.argv.index("--unixsocket") + 1])
server.listen()
text = b"# Server\\r\\nredis_version:8.0.0\\r\\n"
for asked in range(1, 1000):
    connection = server.accept()[0]
    connection.recv(100)
    open("asked", "a").write("x")
    connection.sendall((b"-LOADING the data\\r\\n" if asked <= 3 else b"+PONG\\r\\n") + b"$%d\\r\\n%b\\r\\n" % (len(text), text))
"""
"""Answers INFO while it loads its data, as Redis does."""


async def test_a_server_is_ready_when_it_has_loaded_its_data(config: Config, tmp_path: Path) -> None:
    redis = EmbeddedRedis(config, [scripted(LOADING, tmp_path)])
    assert await redis.start() == "8.0.0"
    await redis.stop()
    assert len((redis.data_dir / "redis" / "asked").read_text()) >= 4


CUT = """#!{python}
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[sys.argv.index("--unixsocket") + 1])
server.listen()
text = b"# Server\\r\\nredis_version:8.0.0\\r\\n"
for cut in (1, 10, -6, -2, None):
    connection = server.accept()[0]
    connection.recv(100)
    connection.sendall(b"+PONG\\r\\n" + (b"$%d\\r\\n%b" % (len(text), text))[:cut])
    connection.close()
server.accept()
"""
"""The connections of its first replies end before these do."""


async def test_a_reply_that_is_cut_is_none(config: Config, tmp_path: Path) -> None:
    redis = EmbeddedRedis(config, [scripted(CUT, tmp_path)])
    assert await redis.start() == "8.0.0"
    await redis.stop()


LOADING_LONG = """#!{python}
import os, socket, sys, time
again = os.path.exists("starts")
open("starts", "a").write("x")
ready_s = time.monotonic() + (1.5 if again else 0)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[sys.argv.index("--unixsocket") + 1])
server.listen()
text = b"# Server\\r\\nredis_version:8.0.0\\r\\n"
while True:
    connection = server.accept()[0]
    connection.recv(100)
    first = b"-LOADING the data\\r\\n" if time.monotonic() < ready_s else b"+PONG\\r\\n"
    connection.sendall(first + b"$%d\\r\\n%b\\r\\n" % (len(text), text))
"""
"""Its data have grown: the next start takes longer than `start_timeout_s`."""


async def test_a_server_that_starts_again_is_not_ended_while_it_loads(config: Config, tmp_path: Path) -> None:
    program = scripted(LOADING_LONG, tmp_path)
    async with running(msgspec.structs.replace(config, start_timeout_s=1), program) as redis:
        first = redis.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: redis.pid not in (None, first) and bool(redis._info("default")), 10)
        assert (redis.data_dir / "redis" / "starts").read_text() == "xx"


async def test_a_first_start_that_loads_for_too_long_names_its_setting(config: Config, tmp_path: Path) -> None:
    program = scripted(LOADING.replace("asked <= 3", "True"), tmp_path)
    redis = EmbeddedRedis(msgspec.structs.replace(config, start_timeout_s=1), [program])
    with pytest.raises(StorageUnavailable, match=r"start_timeout_s: .*loads its data"):
        await redis.start()
