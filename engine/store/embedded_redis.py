"""The engine's own Redis: a Redis or Valkey server on a private socket, with its append-only file in the data directory.

The server is a child of `engine up` and ends with it, also when that is killed (Linux: parent-death signal). A server that a killed
engine left running is found by its pid file and stopped before a new one opens the same files. One engine per data directory: a file
in it is locked (`flock`) for the life of the process; the kernel releases the lock.

A start reads the append-only file, and a command of its end takes as long as ten records of its base. So the end is kept short: Redis
writes the file anew not only when it has doubled, but as soon as the last time that took has paid off.

A server that dies is restarted on the same data; `restarts` counts it, and `lost_writes` the damaged writes that the last start left out.
While it says that it loads them it has all the time it needs, since the data may have grown: the next one would begin anew.
Data that a restore has prepared are adopted before a server starts (`engine restore`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import psutil
from redis.exceptions import RedisError

from engine.config import REDIS_MEMORY_BYTES_MIN, Config
from engine.errors import ConfigError, StorageUnavailable
from engine.store.append_only_file import damage_before_end
from engine.store.keys import EPOCH_FIELD, META_KEY
from engine.store.redis_client import check_version, connect, replace_data_epoch
from engine.store.server_program import NAMES, ServerProgram, installed_servers

log = logging.getLogger(__name__)

REDIS_FOLDER: Final = "redis"
"""The server's directory, in the data directory."""

RESTORED_FOLDER: Final = "redis.restored"
"""Data that are to take its place: a restore that is decided and not completed."""

_LOCK_FILE: Final = "engine.lock"
_REPLACED: Final = "redis.replaced-"  # begins the names of directories that a restore has replaced

SOCKET_PATH_BYTES_MAX: Final = 107
"""`sockaddr_un.sun_path` on Linux is 108 bytes with its NUL (unix(7))."""

_SOCKET_BYTES: Final = len("/engine-01234567/workers.sock")
"""What is behind the directory of temporary files in the path of the longest socket there."""

STOP_TIMEOUT_S: Final = 10.0
"""Redis flushes its append-only file on SIGTERM; after this it is killed, which the file survives too."""

_OTHER_FORMAT: Final = "RDB format version"
"""In the log of a server that cannot read the files of a newer or another one: "Can't handle RDB format version 80"."""

_TORN_END: Final = "Unexpected end of file reading the append only file"
"""In the log of a server that ended for that reason."""

_FILES_SINCE_7: Final = "appendonlydir"
"""Where the append-only file is since Redis 7.0. Older servers look beside it."""

_UNUSED_COMMANDS: Final = ("DEBUG", "MODULE")
"""Commands that nobody may use: one crashes the server, the other loads code. Newer servers refuse both by default."""

_PROBE_S: Final = 0.01
_PROBE_TIMEOUT_S: Final = 0.5
_STEADY_S: Final = 1.0  # after serving this long the restart backoff begins anew: its start does not fail

_LOOK_S: Final = 2.0
"""Between two looks at the append-only file."""

_END_BYTES_MIN: Final = 1 << 20
"""Of the end of the append-only file, for which it is written anew: 10 to 30 ms of the next start, for which users wait."""

_REST_PER_WORK: Final = 50
"""Times that writing it anew took pass before it is done again: 2 % of a core at most."""

_WRITTEN_BYTES_PER_S: Final = 50 << 20
"""By which a short time is estimated: Redis tells it in whole seconds, and as one when a second has begun meanwhile."""

# A separate program instead of a `preexec_fn`, which may deadlock in a process with threads (Ray's driver has many).
_DIE_WITH_PARENT: Final = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)  # SIGTERM: to import `signal` takes as long as to start Python
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def dying_with_parent(command: Sequence[str | Path]) -> list[str]:
    """The same command, which gets SIGTERM when this process ends, also when it is killed.

    Another program runs before it in the same process: it asks for a signal at the death of the parent, and checks that it is alive still.
    Elsewhere than on Linux there is no such signal.
    """
    return [sys.executable, "-ISc", _DIE_WITH_PARENT, str(os.getpid()), *map(str, command)]


def memory_bytes(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory that this process may use: the machine's, or less where a control group limits it (a container)."""
    limits: list[int] = [psutil.virtual_memory().total]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroup v2 and v1; without a limit: "max", or a huge number
        with contextlib.suppress(OSError, ValueError):
            limits.append(int((cgroups / name).read_text("ascii")))
    return min(limits)


class DataDirLock:
    """Exclusive use of a data directory, until `release()` or the end of the process.

    Raises:
        ConfigError: another engine uses the directory (the message has its pid), or it cannot be created or written.
    """

    def __init__(self, data_dir: Path) -> None:
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: IO[str] = open(data_dir / _LOCK_FILE, "a+", encoding="utf-8")  # noqa: SIM115 - lives as long as the lock
        except OSError as error:
            raise ConfigError(f"data_dir: cannot use {data_dir}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            raise ConfigError(
                f"data_dir: another engine (pid {owner}) uses {data_dir}; stop it with `engine down`, or choose another --data-dir"
            ) from error
        try:
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # it tries again to write
                self._file.close()
            raise ConfigError(f"data_dir: cannot use {data_dir}: {error.strerror}") from error

    def release(self) -> None:
        """Release the directory for another engine."""
        self._file.close()


def lock_owner(data_dir: Path) -> str:
    """Pid of the process that holds the `DataDirLock` of the directory; "" where none does."""
    with contextlib.suppress(OSError), (data_dir / _LOCK_FILE).open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().strip()
    return ""


def short_temporary() -> str:
    """A directory for one with a socket: that of temporary files, or /tmp where its path is too long for that."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= SOCKET_PATH_BYTES_MAX - _SOCKET_BYTES else "/tmp"


def adopt_restored(data_dir: Path) -> Path | None:
    """Complete a restore that is decided: its data take the place of those that are there. Does nothing where there is none.

    The caller holds the `DataDirLock`, and no server runs.

    Returns:
        Where the replaced data are; None where there were none.
    """
    if not (data_dir / RESTORED_FOLDER).is_dir():
        return None
    current, replaced = data_dir / REDIS_FOLDER, None
    if current.is_dir() and not any(current.iterdir()):
        current.rmdir()
    elif current.exists():
        replaced = data_dir / f"{_REPLACED}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        current.rename(replaced)
    (data_dir / RESTORED_FOLDER).rename(current)
    return replaced


class EmbeddedRedis:
    """One server process over the engine's life.

    Args:
        config: its `data_dir`, `redis_fsync`, `start_timeout_s` and restart limits apply.
        servers: the programs to try, in this order; `installed_servers()` by default.

    The caller holds the `DataDirLock`. Order of calls: `start()`, `supervise()` as a task, `stop()`, also when the start has failed.
    """

    def __init__(self, config: Config, servers: Sequence[ServerProgram] = ()) -> None:
        self.data_dir = Path(config.data_dir).absolute()
        if (replaced := adopt_restored(self.data_dir)) is not None:
            log.warning("completed a restore that was interrupted; the replaced data are in %s", replaced)
        self._dir = self.data_dir / REDIS_FOLDER
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._dir.chmod(0o700)
        self._servers = self._able_to_read(list(servers) or installed_servers())
        self._log_path = self._dir / "redis.log"
        self._pid_path = self._dir / "redis.pid"
        self._short_dir: Path | None = None
        self._socket: Path  # from `start` on
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._loads = False  # by its last answer
        self.restarts = 0
        self.lost_writes = 0

    def _able_to_read(self, servers: list[ServerProgram]) -> list[ServerProgram]:
        """Without those that would not see the files of the data directory, and start empty. Raises ConfigError when none is left."""
        if not (self._dir / _FILES_SINCE_7).is_dir():
            return servers
        able = [server for server in servers if server.version >= (7, 0, 0)]
        if not able:
            raise ConfigError(f"data_dir: Redis 7.0 or newer wrote {self._dir}; found only {', '.join(map(str, servers))}")
        return able

    @property
    def url(self) -> str:
        """`unix://` URL of the socket; restarts do not change it."""
        return f"unix://{self._socket}"

    @property
    def server(self) -> ServerProgram:
        """The program that runs, or is to be started."""
        return self._servers[0]

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self._process and self._process.returncode is None else None

    def _socket_path(self) -> Path:
        """In the data directory when the path is short enough, else in a private temporary directory, linked from there."""
        path = self._dir / "redis.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        link = self._dir / "run"
        if link.is_symlink():  # of a run that was killed
            shutil.rmtree(link.resolve(), ignore_errors=True)
            link.unlink()
        self._short_dir = Path(tempfile.mkdtemp(prefix="engine-", dir=short_temporary()))  # mode 0700
        link.symlink_to(self._short_dir)
        return self._short_dir / "redis.sock"

    async def start(self) -> str:
        """Start the server and wait until it has loaded its data; returns its version.

        Raises:
            StorageUnavailable: it was not ready within `start_timeout_s`; the message has the end of its log.
        """
        await self.end_leftover()
        self._socket = self._socket_path()
        while True:
            try:
                return await self._launch_on_whole_data()
            except StorageUnavailable as error:
                if _OTHER_FORMAT not in str(error) or len(self._servers) == 1:
                    raise
                log.warning("%s cannot read the files of the data directory, trying %s", self._servers.pop(0), self.server)

    async def end_leftover(self) -> None:
        """Stop the server of a killed engine if it still runs: two writers would corrupt the files."""
        try:
            pid = int(self._pid_path.read_text("ascii"))
            leftover = psutil.Process(pid)
            if not any(name in leftover.name() for name in NAMES) or Path(leftover.cwd()) != self._dir.resolve():
                return  # the pid has been reused; the kernel's path has no links, which ours may have
        except (OSError, ValueError, psutil.Error):
            return
        deadline = time.monotonic() + STOP_TIMEOUT_S
        with contextlib.suppress(psutil.NoSuchProcess):
            leftover.terminate()
            while leftover.is_running() and leftover.status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() > deadline:
                    leftover.kill()
                await asyncio.sleep(_PROBE_S)

    async def _launch_on_whole_data(self) -> str:
        """Start the server, and tell of damage that it leaves out."""
        told = await self._launch_on_files()
        self.lost_writes = int(told.get("unexpected_error_replies", 0))
        try:
            await self._tell_of_lost_writes()
        except BaseException:
            await self._end_process()  # or the next attempt would start a second server on the same files
            raise
        return told["redis_version"]

    async def _launch_on_files(self) -> dict[str, str]:
        """Start the server. The torn end of a last write may go, but nothing before it (`engine.store.append_only_file`)."""
        try:
            return await self._launch(torn_end="no")
        except StorageUnavailable as error:
            if _TORN_END not in str(error):
                raise
        await asyncio.to_thread(self._refuse_damage)
        log.warning("the last write to %s was cut short; it was not acknowledged, and Redis drops it", self._dir)
        return await self._launch(torn_end="yes")

    async def _tell_of_lost_writes(self) -> None:
        """After a start: Redis leaves out writes that fail while it loads, as damaged ones do, and only counts them.

        What they wrote is lost, whoever wrote it. A new data epoch tells every client of a gap. Then the files are written anew, without
        these writes; an engine that dies before is told again at its next start.
        """
        if not self.lost_writes:
            return
        log.critical("%d writes in %s are damaged and lost; clients are told of a gap, see %s", self.lost_writes, self._dir, self._log_path)
        client = connect(msgspec.structs.replace(self._config, redis_url=self.url, redis_durability="reported"))
        try:
            epoch: Any = await client.hget(META_KEY, EPOCH_FIELD)
            if epoch is not None:
                await replace_data_epoch(client, epoch.decode(), int(time.time()))
            await client.bgrewriteaof()
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"redis-server does not take a new data epoch: {error}") from error
        finally:
            await client.aclose()

    def _refuse_damage(self) -> None:
        for path in (*self._dir.glob(f"{_FILES_SINCE_7}/*.aof"), *self._dir.glob("appendonly.aof")):
            if (at := damage_before_end(path)) is not None:
                raise StorageUnavailable(
                    f"data_dir: {path} is damaged at byte {at}, and {path.stat().st_size - at} bytes follow, which Redis would drop. "
                    "The file is as it was: restore a snapshot (`engine restore latest`) or a backup. "
                    "`valkey-check-aof --fix` drops what follows"
                )

    async def _launch(self, torn_end: str) -> dict[str, str]:
        """Start the server; returns its answer to INFO, once it has loaded its data."""
        for stale in (self._socket, *self._dir.glob("temp-*")):  # a child of a killed server leaves a file as large as all data
            stale.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *dying_with_parent([self.server.path, *self._arguments(), "--aof-load-truncated", torn_end]),
            cwd=self._dir, env=self.server.environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must not reach it: the engine stops it last
        )  # fmt: skip
        deadline = time.monotonic() + self._config.start_timeout_s
        try:
            while (version := (told := self._info("default")).get("redis_version")) is None:
                if self._process.returncode is not None:
                    raise StorageUnavailable(
                        f"{self.server.path.name} ended with code {self._process.returncode} while starting; "
                        f"end of {self._log_path}:\n{self._log_tail()}"
                    )
                if self.restarts and self._loads:
                    deadline = time.monotonic() + self._config.start_timeout_s
                if time.monotonic() > deadline:
                    lacks = "still loads its data: give it more time" if self._loads else "does not answer"
                    raise StorageUnavailable(
                        f"start_timeout_s: after {self._config.start_timeout_s} s {self.server.path.name} {lacks}; see {self._log_path}"
                    )
                await asyncio.sleep(_PROBE_S)
            check_version(version, str(self.server.path))
        except BaseException:
            await self._end_process()
            raise
        return told

    def _info(self, section: str) -> dict[str, str]:
        """A section of what the server tells of itself; empty while it does not answer or loads its data."""
        return dict(line.split(":", 1) for line in self._ask(f"INFO {section}").splitlines() if ":" in line)

    def _ask(self, command: str) -> str:
        """The reply to a command; "" while the server does not answer, not to the end, or loads its data. Synchronous, without redis-py."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PROBE_TIMEOUT_S)
            try:
                connection.connect(str(self._socket))
                connection.sendall(f"PING\r\n{command}\r\n".encode())
                with connection.makefile("rb") as replies:
                    pong = replies.readline()
                    self._loads = pong.startswith(b"-LOADING")
                    if not pong.startswith(b"+PONG"):  # of the two, only PING waits for the data
                        return ""
                    first = replies.readline()
                    if not first.endswith(b"\n"):
                        return ""
                    size = int(first[1:]) if first.startswith(b"$") else 0
                    reply = replies.read(size) if size else first
                    return reply.decode() if len(reply) >= size else ""
            except OSError:
                self._loads = False
                return ""

    async def _end_process(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            log.error("redis-server does not stop; killing it")
            self._process.kill()
            await self._process.wait()

    def _arguments(self) -> list[str]:
        return [
            *(word for name in _UNUSED_COMMANDS for word in ("--rename-command", name, "")),
            "--port", "0",
            "--unixsocket", str(self._socket),
            "--unixsocketperm", "700",
            "--dir", str(self._dir),
            "--pidfile", str(self._pid_path),
            "--logfile", str(self._log_path),
            "--loglevel", "warning",  # more would be a kilobyte each time that the file is written anew, for ever
            "--daemonize", "no",
            "--appendonly", "yes",
            "--appendfsync", self._config.redis_fsync,
            "--auto-aof-rewrite-min-size", "256mb",
            "--save", "",  # the append-only file suffices; snapshots would cost forks
            "--maxmemory", str(self._config.redis_memory_bytes_max or max(memory_bytes() // 3, REDIS_MEMORY_BYTES_MIN)),
            "--maxmemory-policy", "noeviction",  # reject a write rather than evict an accepted message
            "--stream-node-max-bytes", "512",  # a stream begins with a node of this size, 4 KiB if not told: most users have one message
            "--timeout", "0",
            "--always-show-logo", "no",
        ]  # fmt: skip

    def _log_tail(self) -> str:
        try:
            return "\n".join(self._log_path.read_text("utf-8", "replace").splitlines()[-5:])
        except OSError as error:
            return f"(no log: {error.strerror})"

    async def supervise(self) -> None:
        """Restart the server whenever it ends, and keep its start short. Runs until cancelled or `stop()`."""
        shortening = asyncio.ensure_future(self._keep_end_short())
        try:
            await self._keep_running()
        finally:
            shortening.cancel()

    async def _keep_end_short(self) -> None:
        """Have the append-only file written anew from time to time. Not that of Redis before 7.0, whose base hides where its end begins."""
        rested_s = float("-inf")
        while (self._dir / _FILES_SINCE_7).is_dir():
            await asyncio.sleep(_LOOK_S)
            found = self._info("persistence")
            if not found or int(found["aof_rewrite_in_progress"]) or int(found["rdb_bgsave_in_progress"]):
                continue
            base_bytes, told_s = int(found["aof_base_size"]), int(found["aof_last_rewrite_time_sec"])
            end_bytes = int(found["aof_current_size"]) - base_bytes
            if shutil.disk_usage(self._dir).free < int(found["aof_current_size"]) + _END_BYTES_MIN:
                continue  # a disk that it fills ends a server that fsyncs every write
            took_s = told_s if told_s > 1 else base_bytes / _WRITTEN_BYTES_PER_S
            if end_bytes >= _END_BYTES_MIN and time.monotonic() - rested_s >= _REST_PER_WORK * took_s:
                rested_s = time.monotonic()
                self._ask("BGREWRITEAOF")

    async def _keep_running(self) -> None:
        backoff_s = 0.0
        while self._process is not None:
            started = time.monotonic()
            code = await self._process.wait()
            if self._stopping:
                return
            if time.monotonic() - started > _STEADY_S:
                backoff_s = 0.0
            self.restarts += 1
            log.warning("%s ended with code %s; starting it again (restart %d)", self.server.path.name, code, self.restarts)
            while True:
                await asyncio.sleep(backoff_s)
                backoff_s = min(max(2 * backoff_s, self._config.redis_restart_ms / 1000), self._config.redis_restart_max_ms / 1000)
                try:
                    await self._launch_on_whole_data()
                    break
                except (StorageUnavailable, OSError) as error:
                    log.error("cannot start redis-server: %s", error)

    async def stop(self) -> None:
        """Stop the server; all data is on disk afterwards. Idempotent."""
        self._stopping = True
        await self._end_process()
        if self._short_dir is not None:
            shutil.rmtree(self._short_dir, ignore_errors=True)
            (self._dir / "run").unlink(missing_ok=True)
