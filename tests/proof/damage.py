"""Damages stored data in one place at a time, and judges what the engine's readers make of it.

refused   Redis or the engine does not start, or the snapshot is not restored
found     a reader or `engine verify` reports it
harmless  everything is deliverable as before: the place holds no record, or an older state of one
altered   a message or a page that never was is deliverable
missed    something is no more deliverable, and nothing reports it
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from engine.config import Config
from engine.errors import EngineError, SnapshotFailed
from engine.features.snapshots.snapshots import DUMP, Snapshots
from engine.store.embedded_redis import EmbeddedRedis
from engine.store.redis_client import connect
from engine.store.server_program import ServerProgram
from tests.proof import stored
from tests.proof.stored import Found

BLOCK_BYTES: Final = 4096
KINDS: Final = ("bit", "zeroed", "torn")
OUTCOMES: Final = ("refused", "found", "harmless", "altered", "missed")

Damage = Callable[[bytes, random.Random], tuple[bytes, str]]
"""Damaged bytes, and where."""


def one_bit(value: bytes, rng: random.Random) -> tuple[bytes, str]:
    bit = rng.randrange(8 * len(value))
    changed = bytearray(value)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed), f"bit {bit}"


def zeroed(value: bytes, rng: random.Random) -> tuple[bytes, str]:
    """A block was never written."""
    start = rng.randrange(-(-len(value) // BLOCK_BYTES)) * BLOCK_BYTES
    size = len(value[start : start + BLOCK_BYTES])
    return value[:start] + bytes(size) + value[start + size :], f"block at {start}"


def torn(value: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Of a block only the beginning was written; the rest is that of another one."""
    start = rng.randrange(-(-len(value) // BLOCK_BYTES)) * BLOCK_BYTES
    size = len(value[start : start + BLOCK_BYTES])
    cut = rng.randrange(size)
    return value[: start + cut] + rng.randbytes(size - cut) + value[start + size :], f"torn at {start + cut}"


DAMAGES: Final[dict[str, Damage]] = {"bit": one_bit, "zeroed": zeroed, "torn": torn}


class Case(Struct, frozen=True):
    """One damage, and what became of it."""

    place: str
    where: str
    kind: str
    outcome: str
    detail: str = ""


class Proof:
    """One data directory, damaged again and again.

    Args:
        folder: for the data.
        server: the Redis that an engine would run.
        seed: of the choices.
    """

    def __init__(self, folder: Path, server: ServerProgram, seed: int) -> None:
        self._whole = folder / "whole"
        self._trial = folder / "trial"
        self._server = server
        self._rng = random.Random(seed)
        self._truth = Found(frozenset(), ())
        self.cases: list[Case] = []

    async def prepare(self) -> None:
        """Store the data, and read what is true."""
        await stored.make(Config(data_dir=str(self._whole)), self._server)
        self._truth = await self._started(self._whole)
        assert not self._truth.damaged, self._truth.damaged
        ways = Counter(way for way, *_ in self._truth.delivered)
        assert set(ways) == {"page", "offline", "journal", "timer", "broadcast", "dead letter", "action"}, ways

    async def _started(self, data_dir: Path) -> Found:
        config = Config(data_dir=str(data_dir))
        redis = EmbeddedRedis(config, [self._server])
        await redis.start()
        client = connect(msgspec.structs.replace(config, redis_url=redis.url, redis_durability="reported"))
        try:
            return await stored.read(client, config)
        finally:
            await client.aclose()
            await redis.stop()

    def _judge(self, found: Found) -> tuple[str, str]:
        # A message is what was published, whichever way it comes: a group that was not trimmed is read again, and changes nothing.
        published = {one[1:] for one in self._truth.delivered}
        if altered := [one for one in found.delivered if one[0] != "page" and one[1:] not in published]:
            return "altered", str(min(altered))
        if found.damaged:
            return "found", found.damaged[0]
        if missing := self._truth.delivered - found.delivered:
            return "missed", str(min(missing))
        return "harmless", ""

    # -- The append-only file. -----------------------------------------------------------------------------------------
    async def damage_file(self, kind: str) -> None:
        """Damage a file of the append-only file, and start on it."""
        files = stored.files_of(self._whole)
        (chosen,) = self._rng.choices(files, [path.stat().st_size for path in files])
        shutil.rmtree(self._trial, ignore_errors=True)
        shutil.copytree(self._whole / "redis", self._trial / "redis")
        path = self._trial / chosen.relative_to(self._whole)
        changed, where = DAMAGES[kind](path.read_bytes(), self._rng)
        path.write_bytes(changed)
        try:
            outcome, detail = self._judge(await self._started(self._trial))
        except EngineError as error:
            outcome, detail = "refused", str(error)
        self.cases.append(Case("base" if chosen.suffix == ".rdb" else "append-only file", where, kind, outcome, detail))

    # -- A snapshot. ---------------------------------------------------------------------------------------------------
    def damage_snapshot(self, kind: str) -> None:
        """Damage the dump, and check it as a restore does."""
        (snapshot,) = Snapshots(self._whole).complete()
        dump = snapshot.path / DUMP
        whole = dump.read_bytes()
        changed, where = DAMAGES[kind](whole, self._rng)
        dump.write_bytes(changed)
        try:
            snapshot.check()
            outcome = "harmless" if changed == whole else "missed"
        except SnapshotFailed:
            outcome = "refused"
        finally:
            dump.write_bytes(whole)
        self.cases.append(Case("snapshot", where, kind, outcome))

    # -- Keys of a running server. -------------------------------------------------------------------------------------
    async def damage_live(self, kinds: list[str]) -> None:
        """Damage a value, a field or an entry in memory for each of these kinds, and put it right again."""
        config = Config(data_dir=str(self._whole))
        redis = EmbeddedRedis(config, [self._server])
        await redis.start()
        client = connect(msgspec.structs.replace(config, redis_url=redis.url, redis_durability="reported"))
        try:
            await client.config_set("appendonly", "no")  # the files stay whole
            keys = [key for key in sorted(await client.keys("*")) if await client.type(key) != b"stream" or await client.xlen(key)]
            sizes = [int(await client.memory_usage(key) or 0) for key in keys]
            for kind in kinds:
                (key,) = self._rng.choices(keys, sizes)
                dumped: Any = await client.dump(key)
                where = await self._damage_key(client, key, DAMAGES[kind])
                outcome, detail = self._judge(await self._read_live(client, config))
                await client.restore(key, 0, dumped, replace=True)
                self.cases.append(Case("live key", where, kind, outcome, detail))
        finally:
            await client.aclose()
            await redis.stop()

    async def _read_live(self, client: Redis, config: Config) -> Found:
        try:
            return await stored.read(client, config)
        except EngineError as error:
            return Found(frozenset(), (str(error),))

    async def _damage_key(self, client: Any, key: bytes, damage: Damage) -> str:
        type_of = (await client.type(key)).decode()
        if type_of == "string":
            changed, where = damage(await client.get(key) or b"\0", self._rng)
            await client.set(key, changed)
        elif type_of == "hash":
            fields = await client.hgetall(key)
            field = self._weighted(fields)
            if self._in_name(field, fields[field]):
                changed, where = damage(field, self._rng)
                await client.hdel(key, field)
                await client.hset(key, changed, fields[field])
            else:
                changed, where = damage(fields[field] or b"\0", self._rng)
                await client.hset(key, field, changed)
            where = f"{field!r} {where}"
        elif type_of == "stream":
            where = await self._damage_stream(client, key, damage)
        elif type_of == "set":
            member = self._rng.choice(sorted(await client.smembers(key)))
            changed, where = damage(member, self._rng)
            await client.srem(key, member)
            await client.sadd(key, changed)
        else:
            member, score = self._rng.choice(await client.zrange(key, 0, -1, withscores=True))
            changed, where = damage(member, self._rng)
            await client.zrem(key, member)
            await client.zadd(key, {changed: score})
        return f"{key!r} {where}"

    async def _damage_stream(self, client: Any, key: bytes, damage: Damage) -> str:
        entries = await client.xrange(key)
        at = self._rng.randrange(len(entries))
        entry, fields = entries[at]
        name = self._weighted(fields)
        if self._rng.randrange(16) == 0:
            number, rest = entry.split(b"-")
            changed_id = f"{int(number) ^ 1 << self._rng.randrange(8)}-{rest.decode()}".encode()
            entries[at], where = (changed_id, fields), "its id"
        elif self._in_name(name, fields[name]):
            changed, where = damage(name, self._rng)
            entries[at] = (entry, {**{other: value for other, value in fields.items() if other != name}, changed: fields[name]})
        else:
            changed, where = damage(fields[name] or b"\0", self._rng)
            entries[at] = (entry, {**fields, name: changed})
        await client.delete(key)
        for entry_id, content in sorted(entries, key=lambda one: tuple(map(int, one[0].split(b"-")))):
            if entry_id != b"0-0" and not await client.xrange(key, entry_id, entry_id):
                await client.xadd(key, content, id=entry_id)
        return f"{entry!r} {where}"

    def _weighted(self, fields: dict[bytes, bytes]) -> bytes:
        names = sorted(fields)
        return self._rng.choices(names, [len(name) + len(fields[name]) for name in names])[0]

    def _in_name(self, name: bytes, value: bytes) -> bool:
        return bool(name) and self._rng.randrange(len(name) + len(value)) < len(name)
