"""The way to storage: redis-py's client as far as the engine uses it, over a network that may fail in every way a network can.

One round trip is one request with one or several commands and one reply. What may become of it:

    answered        applied, the reply arrives; how late differs, so round trips of one client overtake each other (they have a pool)
    refused         storage is down: nothing is applied, the client knows at once; replies that were on their way are lost
    cut             the connection breaks: none, some or all of the commands were applied, and the client cannot know which
    stuck           the client gives up after its timeout; the commands apply later all the same
    cut off         one direction or both do not get through: what was sent is lost, or sent again by the kernel when the cut is over, also
                    that of a client that has given up or died; a reply comes late
    migrating       of one of several stores: its node refuses all scripts from some command on, and plain commands on the keys that have
                    left; the client closes the connection (`engine.store.cluster`). Then another node has everything but the scripts

Between any two commands storage may forget its scripts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from engine.store.cluster import with_tag
from tests.sim.cuts import Cuts, Place
from tests.sim.faults import Faults
from tests.sim.loop import PROCESS, Process, SimLoop
from tests.sim.redis import MiniRedis, Status

_HOP_S = 0.0001  # one way, and half of the typical time a command waits

_MIGRATION_S: Final = (0.01, 0.1, 0.4)


class Storage:
    """The Redis of a store. `writer` is the process whose commands are being applied.

    Attributes:
        migrates: its hash slot may: it is one of several stores.
        steady: no fault strikes it.
    """

    def __init__(self, loop: SimLoop, faults: Faults, server: MiniRedis, timeout_s: float, cuts: Cuts, place: Place) -> None:
        self.loop = loop
        self.server = server
        self.writer: Process | None = None
        self._faults = faults
        self._timeout_s = timeout_s
        self._slow_until = self._refuses_until = self._stuck_until = 0.0
        self._rng = faults.rng("storage-cut")
        self._cuts = cuts
        self.place = place
        self._cut_rng = faults.rng("partition")
        self.failed_at: dict[Process, float] = {}  # when a process last got no answer
        self.on_broken: Callable[[BaseException], None] = lambda _error: None
        self.migrates = self.steady = False
        self._migration = 0.0, 0.0  # of the one that goes on, or whose end nobody has seen: since when, and until when
        self._migration_rng = faults.rng("storage-migrates")

    # -- Faults that last. --------------------------------------------------------------------------------------------
    def slow(self, seconds: float) -> None:
        self._slow_until = self.loop.time() + seconds

    def refuse(self, seconds: float) -> None:
        self._refuses_until = self.loop.time() + seconds

    def stick(self, seconds: float) -> None:
        self._stuck_until = self.loop.time() + seconds

    def heal(self) -> None:
        self._slow_until = self._refuses_until = 0.0
        self._stuck_until = min(self._stuck_until, self.loop.time() + self._timeout_s)
        since, until = self._migration
        self._migration = since, min(until, self.loop.time())

    def undisturbed_at(self, place: Place) -> float:
        """Since when its commands reach storage as they should, and the replies come back."""
        return max(self._slow_until, self._away_until, self._cuts.both_open_at(place, self.place))

    @property
    def _away_until(self) -> float:
        return max(self._refuses_until, self._stuck_until, self._migration[1])

    @property
    def is_away(self) -> bool:
        """Whether it takes nothing now, or not everything."""
        return self.loop.time() < self._away_until

    # -- Migration. ---------------------------------------------------------------------------------------------------
    def _moves_on(self) -> None:
        """Between two commands: its hash slot begins to migrate, or has arrived at a node without scripts."""
        now = self.loop.time()
        if self._migration[1] and now >= self._migration[1]:
            self.server.scripts.clear()
            self._migration = 0.0, 0.0
        if not self._migration[1] and self._faults.strikes("storage-migrates", 0.002):
            seconds = self._migration_rng.choice(_MIGRATION_S)
            self._faults.happens("storage-migrates", f"the hash slot of {self.place.name} migrates for {seconds} s")
            self._migration = now, now + seconds

    def _refuses(self, command: Sequence[Any]) -> bool:
        """Whether a node whose hash slot migrates refuses the command. Keys leave in the order of their checksums."""
        since, until = self._migration
        if not until:
            return False
        if command[0] in ("EVALSHA", "EVAL"):
            return True
        words = [*str(command[0]).split(), *command[1:]]
        keys = (str(word) for word, tagged in zip(words, with_tag("{0}", command), strict=True) if word != tagged)
        left = (self.loop.time() - since) / (until - since)
        return any(crc32(key.encode()) < left * (1 << 32) for key in keys)

    # -- Round trips. -------------------------------------------------------------------------------------------------
    def round_trip(self, commands: Sequence[tuple[Any, ...]]) -> asyncio.Future[list[Any]]:
        """The replies; an error reply is the exception itself, in its place."""
        loop, rng = self.loop, self._rng
        process = PROCESS.get()
        future: asyncio.Future[list[Any]] = loop.create_future()
        if process is not None and not process.alive:
            future.cancel()
            return future
        now = loop.time()
        go_s = _HOP_S * (0.5 + rng.random())
        back_s = _HOP_S * (0.5 + rng.random())
        if now < self._slow_until:
            go_s += rng.random() ** 3 * self._timeout_s
            back_s += rng.random() ** 3 * self._timeout_s
        outside = loop.outside
        if now < self._refuses_until:
            loop.call_later(go_s, self._fail, future, RedisConnectionError, "refused", process, context=outside)
            return future
        applied = len(commands)
        cut = not self.steady and self._faults.strikes("storage-cut", 0.004)
        if cut:
            applied = rng.choice((0, rng.randrange(applied + 1), applied))
        if now < self._stuck_until:
            go_s += self._stuck_until - now
        loop.call_later(go_s, self._arrive, process, commands, applied, cut, back_s, future, context=outside)
        loop.call_later(self._timeout_s, self._fail, future, RedisTimeoutError, "no answer in time", process, context=outside)
        return future

    def _arrive(self, process: Process | None, commands: Sequence[tuple[Any, ...]], *rest: Any) -> None:
        wait_s = self._cuts.open_at(process.place, self.place) - self.loop.time() if process is not None else 0.0
        if wait_s <= 0:
            self._apply(process, commands, *rest)
        elif self._cut_rng.random() < 0.5:
            wait_s += 0.2 * self._cut_rng.random()
            self.loop.call_later(wait_s, self._arrive, process, commands, *rest, context=self.loop.outside)

    def _fail(self, future: asyncio.Future[list[Any]], kind: type[Exception], detail: str, process: Process | None) -> None:
        if not future.done():
            if process is not None:
                self.failed_at[process] = self.loop.time()
            future.set_exception(kind(detail))

    def _apply(
        self,
        process: Process | None,
        commands: Sequence[tuple[Any, ...]],
        applied: int,
        cut: bool,
        back_s: float,
        future: asyncio.Future[list[Any]],
    ) -> None:
        replies: list[Any] = []
        refused = False
        self.writer = process
        try:
            for command in commands[:applied]:
                if not self.steady and self._faults.strikes("storage-forgets", 0.002):
                    self.server.scripts.clear()
                if self.migrates and not self.steady:
                    self._moves_on()
                    if self._refuses(command):
                        refused = True
                        continue
                try:
                    replies.append(self.server.execute(*command))
                except ResponseError as error:
                    replies.append(error)
        except Exception as error:  # a command that is not simulated, or the books found something: the run ends
            self.on_broken(error)
            return
        finally:
            self.writer = None
        if future.done():
            return
        if process is not None:
            back_s += max(self._cuts.open_at(self.place, process.place) - self.loop.time(), 0.0)
        if cut:
            self.loop.call_later(back_s, self._fail, future, RedisConnectionError, "connection lost", process, context=self.loop.outside)
        elif refused:
            why = "the hash slot is elsewhere"
            self.loop.call_later(back_s, self._fail, future, RedisConnectionError, why, process, context=self.loop.outside)
        else:
            self.loop.call_later(back_s, self._answer, future, replies, process, context=self.loop.outside)

    def _answer(self, future: asyncio.Future[list[Any]], replies: list[Any], process: Process | None) -> None:
        if self.loop.time() < self._refuses_until:
            self._fail(future, RedisConnectionError, "connection lost", process)
        if not future.done():
            future.set_result(replies)


class Client:
    """What `engine.store.redis_client.connect` returns, here."""

    connection_pool = None  # of no cluster's node

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def execute_command(self, *command: Any) -> Any:
        reply = (await self._storage.round_trip([command]))[0]
        if isinstance(reply, ResponseError):
            raise reply
        return _parsed(command, reply)

    def pipeline(self, transaction: bool = True) -> Pipeline:
        assert not transaction, "the engine uses scripts where it needs atomic steps"
        return Pipeline(self._storage)

    async def aclose(self) -> None:
        pass

    async def incr(self, key: str) -> Any:
        return await self.execute_command("INCR", key)

    async def get(self, key: str) -> Any:
        return await self.execute_command("GET", key)

    async def set(self, key: str, value: Any, *, nx: bool = False, px: int | None = None) -> Any:
        return await self.execute_command(*_set(key, value, nx, px))

    async def hget(self, key: str, field: str) -> Any:
        return await self.execute_command("HGET", key, field)

    async def hsetnx(self, key: str, field: str, value: Any) -> Any:
        return await self.execute_command("HSETNX", key, field, value)

    async def info(self) -> dict[str, Any]:
        """What the controller shows of it."""
        await self.execute_command("TIME")
        return {"run_id": "1", "redis_version": "7.0.0", "process_id": 1, "uptime_in_seconds": 1, "used_memory": 1}

    async def hscan(self, key: str, cursor: int, *, count: int) -> Any:
        return await self.execute_command("HSCAN", key, cursor, "COUNT", count)

    async def zrangebyscore(self, key: str, min: Any, max: Any) -> Any:
        return await self.execute_command("ZRANGEBYSCORE", key, min, max)

    async def xrange(self, key: str, min: Any = "-", max: Any = "+", count: int | None = None) -> Any:
        return await self.execute_command(*_xrange(key, min, max, count))

    async def xread(self, streams: dict[str, str], count: int, block: int | None) -> Any:
        """Looks again once when its time is over, instead of waking at the first write: late, as on a busy server."""
        for last in (block is None, True):
            reply = await self.execute_command("XREAD", "COUNT", count, "STREAMS", *streams, *streams.values())
            if reply is not None or last:
                return reply
            await asyncio.sleep((block or 0) / 1000)
        raise AssertionError("the second look is the last")

    async def xrevrange(self, key: str, count: int) -> Any:
        return await self.execute_command("XREVRANGE", key, "+", "-", "COUNT", count)

    async def xadd(self, key: str, fields: dict[Any, Any], *, maxlen: int | None = None, approximate: bool = True) -> Any:
        return await self.execute_command(*_xadd(key, fields, maxlen, approximate))

    async def hmget(self, key: str, fields: Sequence[Any]) -> Any:
        return await self.execute_command("HMGET", key, *fields)

    async def srem(self, key: str, *members: str) -> Any:
        return await self.execute_command("SREM", key, *members)

    async def zrange(self, key: str, start: int, end: int, *, withscores: bool = False) -> Any:
        return await self.execute_command(*_zrange(key, start, end, withscores))

    async def zadd(self, key: str, scores: Mapping[Any, float], *, nx: bool = False) -> Any:
        pairs = [part for member, score in scores.items() for part in (score, member)]
        return await self.execute_command("ZADD", key, *(("NX",) if nx else ()), *pairs)

    async def zrem(self, key: str, *members: Any) -> Any:
        return await self.execute_command("ZREM", key, *members)

    async def xlen(self, key: str) -> Any:
        return await self.execute_command("XLEN", key)

    async def xdel(self, key: str, *ids: Any) -> Any:
        return await self.execute_command("XDEL", key, *ids)

    async def hdel(self, key: str, *fields: Any) -> Any:
        return await self.execute_command("HDEL", key, *fields)


class Pipeline:
    """Commands gathered for one round trip."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *command: Any) -> None:
        self._commands.append(command)

    def hmget(self, key: str, fields: Sequence[str]) -> None:
        self._commands.append(("HMGET", key, *fields))

    def hget(self, key: str, field: str) -> None:
        self._commands.append(("HGET", key, field))

    def get(self, key: str) -> None:
        self._commands.append(("GET", key))

    def mget(self, *keys: str | Iterable[str]) -> None:
        names = [name for key in keys for name in ((key,) if isinstance(key, str) else key)]
        self._commands.append(("MGET", *names))

    def set(self, key: str, value: Any, *, nx: bool = False, px: int | None = None) -> None:
        self._commands.append(_set(key, value, nx, px))

    def xrange(self, key: str, min: Any = "-", max: Any = "+", count: int | None = None) -> None:
        self._commands.append(_xrange(key, min, max, count))

    def xrevrange(self, key: str, *, count: int) -> None:
        self._commands.append(("XREVRANGE", key, "+", "-", "COUNT", count))

    def xadd(self, key: str, fields: dict[Any, Any], *, maxlen: int | None = None, approximate: bool = True) -> None:
        self._commands.append(_xadd(key, fields, maxlen, approximate))

    def zrange(self, key: str, start: int, end: int, *, withscores: bool = False) -> None:
        self._commands.append(_zrange(key, start, end, withscores))

    def hexists(self, key: str, field: str) -> None:
        self._commands.append(("HEXISTS", key, field))

    def hlen(self, key: str) -> None:
        self._commands.append(("HLEN", key))

    def zadd(self, key: str, scores: Mapping[Any, float]) -> None:
        self._commands.append(("ZADD", key, *[part for member, score in scores.items() for part in (score, member)]))

    def zscore(self, key: str, member: str) -> None:
        self._commands.append(("ZSCORE", key, member))

    def zrangebyscore(self, key: str, low: Any, high: Any, *, start: int, num: int) -> None:
        self._commands.append(("ZRANGEBYSCORE", key, low, high, "LIMIT", start, num))

    def sadd(self, key: str, *members: str) -> None:
        self._commands.append(("SADD", key, *members))

    def srem(self, key: str, *members: str) -> None:
        self._commands.append(("SREM", key, *members))

    def smembers(self, key: str) -> None:
        self._commands.append(("SMEMBERS", key))

    def hgetall(self, key: str) -> None:
        self._commands.append(("HGETALL", key))

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self._commands = self._commands, []
        replies = await self._storage.round_trip(commands)
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, ResponseError):
                    raise reply
        return [_parsed(command, reply) for command, reply in zip(commands, replies, strict=True)]


def _set(key: str, value: Any, nx: bool, px: int | None) -> tuple[Any, ...]:
    return ("SET", key, value, *(("NX",) if nx else ()), *(("PX", px) if px is not None else ()))


def _xadd(key: str, fields: dict[Any, Any], maxlen: int | None, approximate: bool) -> tuple[Any, ...]:
    assert approximate or maxlen is None, "exact trimming costs Redis a node's rewrite each time"
    limit = () if maxlen is None else ("MAXLEN", "~", maxlen)
    return ("XADD", key, *limit, "*", *[part for pair in fields.items() for part in pair])


def _xrange(key: str, low: Any, high: Any, count: int | None) -> tuple[Any, ...]:
    return ("XRANGE", key, low, high, *(("COUNT", count) if count is not None else ()))


def _zrange(key: str, start: int, end: int, withscores: bool) -> tuple[Any, ...]:
    return ("ZRANGE", key, start, end, *(("WITHSCORES",) if withscores else ()))


def _pairs(flat: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _parsed(command: tuple[Any, ...], reply: Any) -> Any:
    """As redis-py turns replies into Python values."""
    if isinstance(reply, Exception) or reply is None:
        return reply
    if command[0] == "XRANGE":
        return [(entry_id, _pairs(fields)) for entry_id, fields in reply]
    if command[0] == "ZRANGE" and command[-1] == "WITHSCORES":
        return [(member, float(score)) for member, score in zip(reply[::2], reply[1::2], strict=True)]
    if command[0] == "XREAD":
        return [[key, [(entry_id, _pairs(fields)) for entry_id, fields in entries]] for key, entries in reply]
    if command[0] == "HGETALL":
        return _pairs(reply)
    if command[0] == "HSCAN":
        return int(reply[0]), _pairs(reply[1])
    return True if isinstance(reply, Status) else reply
