"""Snapshots of the engine's own Redis: taken while it serves, in bounded number. `engine restore` restores them.

A snapshot is a directory `snapshots/<time>/` of the data directory with two files: `dump.rdb`, which Redis writes in a child process as of
one moment, and `manifest.json`. It is there whole or not at all: both are written and fsynced under a temporary name, then renamed.

    room      is checked first: a full disk would end a Redis that fsyncs every write
    BGSAVE    writes `redis/dump.rdb` and fsyncs it. The append-only file, in whatever layout, is not touched
    manifest  the dump is moved and measured; one rename makes both a snapshot
    trim      the oldest beyond `snapshots_kept` become drafts, and are deleted

A crash in between leaves a draft, or a stale dump beside the append-only file; the next attempt deletes them. A draft that cannot be
deleted keeps no snapshot from being taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError

from engine import __version__
from engine.config import Config
from engine.errors import SnapshotFailed
from engine.store.embedded_redis import REDIS_FOLDER
from engine.store.keys import EPOCH_FIELD, META_KEY
from engine.store.redis_client import server_name

log = logging.getLogger(__name__)

LATEST: Final = "latest"
"""Name for the newest snapshot of the data directory."""

FOLDER: Final = "snapshots"
"""Directory of the snapshots, in the data directory. It may be on another disk: a mount, or a link."""

DUMP: Final = "dump.rdb"
"""The data, in a snapshot, as Redis writes and reads them."""

_MANIFEST: Final = "manifest.json"
_FORMAT: Final = 1
_DRAFT: Final = ".draft-"  # begins the names of snapshots that are not complete

ROOM_BYTES: Final = 64 << 20
"""Left free on the disk beside a snapshot, for the append-only file meanwhile."""

_SAVE_TIMEOUT_S: Final = 3600.0  # some hundred gigabytes
_POLL_S: Final = 0.02
_POLL_MAX_S: Final = 0.5
_BUSY: Final = ("Another child process is active", "Background save already in progress")
_RETRY_S: Final = 60.0  # after a failure, or a failed daily snapshot would be missed for a day


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot is, in its `manifest.json`."""

    format: int = _FORMAT
    engine: str  # version
    server: str  # version of the Redis that wrote it
    taken_at: str  # RFC 3339, UTC
    data_epoch: str  # "" when no engine has used this Redis
    bytes: int  # of the dump
    sha256: str  # and its digest


class Snapshot(msgspec.Struct, frozen=True):
    """A complete snapshot: its directory and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The time it was taken, in an order that is that of time."""
        return self.path.name

    def check(self) -> None:
        """Compare the dump with the manifest. Raises SnapshotFailed when it differs."""
        dump = self.path / DUMP
        try:
            size = dump.stat().st_size
            differs = size != self.manifest.bytes or _digest(dump) != self.manifest.sha256
        except OSError as error:
            raise SnapshotFailed(f"snapshot {self.path}: {error.strerror}") from error
        if differs:
            raise SnapshotFailed(f"snapshot {self.path} is damaged: its {size} bytes are not those that its manifest describes")


class Snapshots:
    """The snapshots of one data directory."""

    def __init__(self, data_dir: str | Path) -> None:
        self._data_dir = Path(data_dir).absolute()
        self._folder = self._data_dir / FOLDER

    def complete(self) -> list[Snapshot]:
        """All that are complete, oldest first."""
        found = []
        for path in self.paths():
            with contextlib.suppress(SnapshotFailed):
                found.append(_read(path))
        return found

    def paths(self) -> list[Path]:
        """Of all, oldest first, also of those that cannot be read."""
        return sorted(path for path in self._folder.glob("[0-9]*") if path.is_dir())

    def find(self, which: str) -> Snapshot:
        """The snapshot of this name or directory, or the `LATEST`. Raises SnapshotFailed."""
        if which == LATEST:
            if not (found := self.complete()):
                raise SnapshotFailed(f"there is no snapshot in {self._folder}")
            return found[-1]
        own = self._folder / which
        return _read(own if own.is_dir() else Path(which))

    async def take(self, client: redis.Redis, kept: int) -> Snapshot:
        """Take one of the Redis that runs on the data directory, then delete the oldest beyond `kept`.

        Raises:
            SnapshotFailed: none was taken, or older ones are not deleted; the message says which, and why.
        """
        try:
            with self._exclusive():
                return await self._take(client, kept)
        except RedisError as error:
            raise SnapshotFailed(f"Redis does not write a snapshot: {error}") from error
        except OSError as error:
            raise SnapshotFailed(f"{error.filename or self._folder}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One at a time takes a snapshot: the schedule of the engine, or a command. Raises SnapshotFailed."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with (self._folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SnapshotFailed("another snapshot is being taken") from error
            yield

    async def _take(self, client: redis.Redis, kept: int) -> Snapshot:
        dump = self._data_dir / REDIS_FOLDER / DUMP
        if not dump.parent.is_dir():
            raise SnapshotFailed(f"{dump.parent} is not there: snapshots are taken on the machine of the engine's own Redis")
        with contextlib.suppress(OSError):  # the trim tells it
            await asyncio.to_thread(self._delete_drafts)
        info: dict[str, Any] = await client.info()
        for folder in {dump.parent, self._folder}:
            needed, free = int(info["used_memory"]) + ROOM_BYTES, shutil.disk_usage(folder).free
            if free < needed:
                raise SnapshotFailed(f"{folder} has {free >> 20} MiB free; a snapshot may need {needed >> 20} MiB")
        await _save(client, dump)
        epoch: Any = await client.hget(META_KEY, EPOCH_FIELD)
        taken = await asyncio.to_thread(self._keep, dump, server_name(info), (epoch or b"").decode())
        try:
            await asyncio.to_thread(self._trim, kept, taken)
        except OSError as error:
            reason = f"{error.filename or self._folder}: {error.strerror or error}"
            raise SnapshotFailed(f"snapshot {taken.path} was taken, but an older one is not deleted: {reason}") from error
        return taken

    def _trim(self, kept: int, taken: Snapshot) -> None:
        for old in self.complete()[:-kept]:
            if old.path != taken.path:  # the clock may have been set back since an older one
                old.path.rename(self._folder / f"{_DRAFT}{old.name}")
        self._delete_drafts()

    def _delete_drafts(self) -> None:
        for draft in self._folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(draft)

    def _keep(self, dump: Path, server: str, epoch: str) -> Snapshot:
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self._folder))  # mode 0700
        try:
            moved = draft / DUMP
            shutil.move(dump, moved)  # copied where the snapshots are on another disk
            now = datetime.now(UTC)
            manifest = Manifest(
                engine=__version__, server=server, taken_at=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                data_epoch=epoch, bytes=moved.stat().st_size, sha256=_digest(moved),
            )  # fmt: skip
            (draft / _MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
            for path in (moved, draft / _MANIFEST, draft):
                sync(path)
            path = self._folder / f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"
            draft.rename(path)
            sync(self._folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return Snapshot(path, manifest)


class SnapshotSchedule:
    """Takes a snapshot of the engine's own Redis every `snapshot_interval_s`, as long as the engine runs.

    The directory tells when the last one was taken, so a restart of the engine neither delays nor repeats one.

    Attributes:
        error: why the last attempt failed, "" when it did not.
        failures: failed attempts.
    """

    def __init__(self, config: Config, client: redis.Redis) -> None:
        self._interval_s = config.snapshot_interval_s
        self._kept = config.snapshots_kept
        self._client = client
        self._snapshots = Snapshots(config.data_dir)
        self.error = ""
        self.failures = 0

    async def follow(self) -> None:
        """Take them until cancelled."""
        while True:
            await asyncio.sleep(self.wait_s())
            try:
                taken = await self._snapshots.take(self._client, self._kept)
            except SnapshotFailed as error:
                self.failures += 1
                self.error = str(error)
                log.error("the next attempt to take a snapshot is in %.0f s: %s", self.wait_s(), error)
            else:
                self.error = ""
                log.info("snapshot %s: %d bytes", taken.path, taken.manifest.bytes)

    def status(self) -> dict[str, Any]:
        """`count`, `error`, `failures`, and of the newest, where there is one, `name`, `bytes` and `age_s`."""
        found = self._snapshots.complete()
        status: dict[str, Any] = {"count": len(found), "failures": self.failures, "error": self.error}
        if found:
            status |= {"name": found[-1].name, "bytes": found[-1].manifest.bytes, "age_s": round(_age_s(found[-1]), 1)}
        return status

    def wait_s(self) -> float:
        found = self._snapshots.complete()
        due_s = self._interval_s - _age_s(found[-1]) if found else 0.0
        return max(due_s, min(_RETRY_S, self._interval_s) if self.error else 0.0)


async def _save(client: redis.Redis, dump: Path) -> None:
    """Have Redis write `dump`, as of a moment after this call. Raises SnapshotFailed, RedisError and OSError."""
    deadline = time.monotonic() + _SAVE_TIMEOUT_S
    pause_s = _POLL_S
    begun = False
    while True:
        info: dict[str, Any] = await client.info("persistence")
        busy = info["rdb_bgsave_in_progress"] or info["aof_rewrite_in_progress"] or info.get("aof_rewrite_scheduled")
        if begun and not info["rdb_bgsave_in_progress"]:
            break
        if not begun and not busy:
            for stale in (dump, *dump.parent.glob("temp-*.rdb")):  # of a Redis that was killed while it wrote one
                stale.unlink(missing_ok=True)
            try:
                await client.bgsave(schedule=False)  # an error reply when its child process could not be started
                begun = True
            except ResponseError as error:
                if not str(error).startswith(_BUSY):  # the engine has begun to write the append-only file anew since it was asked
                    raise
        elif time.monotonic() > deadline:
            raise SnapshotFailed(f"Redis has not written a snapshot after {_SAVE_TIMEOUT_S:.0f} s")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_MAX_S)
    if info["rdb_last_bgsave_status"] != "ok":
        raise SnapshotFailed(f"Redis could not write {dump}; the reason is in {dump.parent / 'redis.log'}")


def sync(path: Path) -> None:
    """fsync a file, or a directory: then the names in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> Snapshot:
    try:
        manifest = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=Manifest)
        if manifest.format == _FORMAT:
            datetime.fromisoformat(manifest.taken_at)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SnapshotFailed(f"{path} is no snapshot: {_MANIFEST}: {reason}") from error
    if manifest.format != _FORMAT:
        raise SnapshotFailed(f"{path} was taken by engine {manifest.engine}, in a format that this version does not know")
    return Snapshot(path, manifest)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _age_s(snapshot: Snapshot) -> float:
    return max(0.0, time.time() - datetime.fromisoformat(snapshot.manifest.taken_at).timestamp())
