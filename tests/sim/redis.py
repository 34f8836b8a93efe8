"""A Redis in memory: the commands the engine uses, and its real Lua scripts in a real Lua 5.1.

`MiniRedis` is the server: data and commands, synchronous, each call atomic. Replies are as they are on the wire (bytes, int, None,
lists), so that scripts see what Redis shows them. `test_redis.py` compares it with a real server, command by command.
What is asked of it and is not here raises `NotImplementedError`: a simulation must not pass because nothing happened.

Watchers see every write with who made it; the books are kept that way.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from hashlib import sha1
from typing import Any, Final

import msgspec
from redis.exceptions import NoScriptError, ResponseError

try:
    from lupa import lua51
except ImportError:  # tests/sim/conftest.py says so loudly
    lua51 = None  # type: ignore[assignment]

Arg = bytes | str | int | float

STREAM_NODE_ENTRIES: Final = 100
"""`stream-node-max-entries`: `MAXLEN ~` only drops whole nodes."""

_WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
_SMALL_ID: Final = "The ID specified in XADD is equal or smaller than the target stream top item"


class Stream:
    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], list[bytes]] = {}  # in the order of their ids
        self.last = (0, 0)


class SortedSet:
    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def add(self, member: bytes, score: float) -> int:
        old = self.scores.get(member)
        if old is not None:
            del self.order[bisect_left(self.order, (old, member))]
        self.scores[member] = score
        insort(self.order, (score, member))
        return int(old is None)

    def remove(self, member: bytes) -> int:
        score = self.scores.pop(member, None)
        if score is None:
            return 0
        del self.order[bisect_left(self.order, (score, member))]
        return 1


class Status(str):
    """A status reply such as `OK`."""

    __slots__ = ()


def to_bytes(value: Arg) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return number(value)
    return str(value).encode()


def number(value: float) -> bytes:
    if value in (float("inf"), float("-inf")):
        return b"inf" if value > 0 else b"-inf"
    return b"%d" % value if value == int(value) else repr(value).encode()


def stream_id(text: bytes, missing: int) -> tuple[int, int]:
    ms, dash, seq = text.partition(b"-")
    return int(ms), int(seq) if dash else missing


def _bound(text: bytes, missing: int) -> tuple[int, int]:
    if text in {b"-", b"+"}:
        return (0, 0) if text == b"-" else (1 << 64, 0)
    return stream_id(text.lstrip(b"("), missing)


def id_bytes(entry_id: tuple[int, int]) -> bytes:
    return b"%d-%d" % entry_id


class MiniRedis:
    """See the module's text.

    Args:
        now_ms: the server's clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.data: dict[bytes, Any] = {}
        self.expires: dict[bytes, int] = {}
        self.scripts: set[str] = set()
        self.watch: Callable[[str, bytes, Any], None] = lambda _what, _key, _detail: None
        self.commands = 0
        self._table: dict[bytes, Callable[..., Any]] = {
            name.removeprefix("cmd_").upper().encode(): getattr(self, name) for name in dir(self) if name.startswith("cmd_")
        }

    def execute(self, *command: Arg) -> Any:
        """One command. Raises ResponseError as the client library would."""
        self.commands += 1
        name = to_bytes(command[0]).upper()
        if name == b"SCRIPT LOAD":
            return self.cmd_script(b"LOAD", *map(to_bytes, command[1:]))
        run = self._table.get(name)
        if run is None:
            raise NotImplementedError(f"the simulated Redis has no {name.decode()}")
        return run(*map(to_bytes, command[1:]))

    def _get(self, key: bytes, kind: type) -> Any:
        at_ms = self.expires.get(key)
        if at_ms is not None and at_ms <= self.now_ms():
            self._drop(key, "expired")
        value = self.data.get(key)
        if value is not None and type(value) is not kind:
            raise ResponseError(_WRONG_TYPE)
        return value

    def _make(self, key: bytes, kind: type) -> Any:
        value = self._get(key, kind)
        if value is None:
            value = self.data[key] = kind()
        return value

    def _drop(self, key: bytes, why: str) -> None:
        self.expires.pop(key, None)
        value = self.data.pop(key, None)
        if value is not None:
            self.watch(why, key, value)

    def _tidy(self, key: bytes, value: Any) -> None:
        """An empty collection does not exist (streams stay)."""
        if not (value.scores if type(value) is SortedSet else value):
            self.data.pop(key, None)
            self.expires.pop(key, None)

    # -- Strings and keys. --------------------------------------------------------------------------------------------
    def cmd_get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._get(key, bytes)
        return value

    def cmd_mget(self, *keys: bytes) -> list[bytes | None]:
        return [self.cmd_get(key) for key in keys]

    def cmd_mset(self, *pairs: bytes) -> Status:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.cmd_set(key, value)
        return Status("OK")

    def cmd_set(self, key: bytes, value: bytes, *options: bytes) -> Status | None:
        upper = [option.upper() for option in options]
        at_ms = self.expires.get(key)
        there = key in self.data and not (at_ms is not None and at_ms <= self.now_ms())
        if b"NX" in upper and there:
            return None
        self.data[key] = value
        self.expires.pop(key, None)
        if b"PX" in upper:
            self.expires[key] = self.now_ms() + int(options[upper.index(b"PX") + 1])
        self.watch("set", key, value)
        return Status("OK")

    def cmd_del(self, *keys: bytes) -> int:
        found = [key for key in keys if key in self.data]
        for key in found:
            self._drop(key, "del")
        return len(found)

    def cmd_exists(self, *keys: bytes) -> int:
        return sum(key in self.data for key in keys)

    def cmd_pttl(self, key: bytes) -> int:
        if key not in self.data:
            return -2
        at_ms = self.expires.get(key)
        return -1 if at_ms is None else max(at_ms - self.now_ms(), 0)

    def cmd_pexpireat(self, key: bytes, at_ms: bytes) -> int:
        if key not in self.data:
            return 0
        if int(at_ms) <= self.now_ms():
            self._drop(key, "expired")
        else:
            self.expires[key] = int(at_ms)
        return 1

    def cmd_pexpire(self, key: bytes, ms: bytes) -> int:
        return self.cmd_pexpireat(key, b"%d" % (self.now_ms() + int(ms)))

    def cmd_time(self) -> list[bytes]:
        return [b"%d" % (self.now_ms() // 1000), b"%d" % (self.now_ms() % 1000 * 1000)]

    # -- Hashes. ------------------------------------------------------------------------------------------------------
    def cmd_hget(self, key: bytes, field: bytes) -> bytes | None:
        value: bytes | None = (self._get(key, dict) or {}).get(field)
        return value

    def cmd_hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        value = self._get(key, dict) or {}
        return [value.get(field) for field in fields]

    def cmd_hexists(self, key: bytes, field: bytes) -> int:
        return int(field in (self._get(key, dict) or {}))

    def cmd_hset(self, key: bytes, *pairs: bytes) -> int:
        value = self._make(key, dict)
        added = 0
        for field, content in zip(pairs[::2], pairs[1::2], strict=True):
            added += field not in value
            value[field] = content
            self.watch("hset", key, (field, content))
        return added

    def cmd_hsetnx(self, key: bytes, field: bytes, content: bytes) -> int:
        if field in (self._get(key, dict) or {}):
            return 0
        return self.cmd_hset(key, field, content)

    def cmd_hincrby(self, key: bytes, field: bytes, by: bytes) -> int:
        value = int((self._get(key, dict) or {}).get(field, b"0")) + int(by)
        self.cmd_hset(key, field, b"%d" % value)
        return value

    def cmd_hdel(self, key: bytes, *fields: bytes) -> int:
        value = self._get(key, dict)
        if value is None:
            return 0
        removed = 0
        for field in fields:
            if field in value:
                self.watch("hdel", key, (field, value.pop(field)))
                removed += 1
        self._tidy(key, value)
        return removed

    def cmd_sadd(self, key: bytes, *members: bytes) -> int:
        value = self._make(key, set)
        added = len(set(members) - value)
        value.update(members)
        return added

    def cmd_srem(self, key: bytes, *members: bytes) -> int:
        value = self._get(key, set)
        if value is None:
            return 0
        removed = len(value.intersection(members))
        value.difference_update(members)
        self._tidy(key, value)
        return removed

    def cmd_smembers(self, key: bytes) -> list[bytes]:
        """In order, where a real server has none."""
        return sorted(self._get(key, set) or ())

    def cmd_hstrlen(self, key: bytes, field: bytes) -> int:
        return len(self.cmd_hget(key, field) or b"")

    def cmd_hkeys(self, key: bytes) -> list[bytes]:
        return list(self._get(key, dict) or ())

    def cmd_hgetall(self, key: bytes) -> list[bytes]:
        return [part for pair in (self._get(key, dict) or {}).items() for part in pair]

    def cmd_hlen(self, key: bytes) -> int:
        return len(self._get(key, dict) or ())

    def cmd_hscan(self, key: bytes, _cursor: bytes, *_options: bytes) -> list[Any]:
        """All of it at once: allowed, and what Redis does with small hashes."""
        value = self._get(key, dict) or {}
        return [b"0", [part for pair in value.items() for part in pair]]

    # -- Streams. -----------------------------------------------------------------------------------------------------
    def cmd_xadd(self, key: bytes, *rest: bytes) -> bytes:
        args = list(rest)
        maxlen, approximate = -1, False
        if args[0].upper() == b"MAXLEN":
            approximate = args[1] == b"~"
            maxlen = int(args[1 + (args[1] in {b"~", b"="})])
            del args[: 2 + (args[1] in {b"~", b"="})]
        stream = self._get(key, Stream)
        last = stream.last if stream is not None else (0, 0)
        if args[0] == b"*":
            entry_id = max((self.now_ms(), 0), (last[0], last[1] + 1))
        else:
            entry_id = stream_id(args[0], 0)
            if entry_id == (0, 0):
                raise ResponseError("The ID specified in XADD must be greater than 0-0")
            if entry_id <= last:
                raise ResponseError(_SMALL_ID)
        stream = self._make(key, Stream)
        stream.entries[entry_id] = args[1:]
        stream.last = entry_id
        self.watch("xadd", key, (entry_id, args[1:]))
        if maxlen >= 0:
            step = STREAM_NODE_ENTRIES if approximate else 1
            while len(stream.entries) - step >= maxlen:
                for old in list(stream.entries)[:step]:
                    self.watch("xtrim", key, (old, stream.entries.pop(old)))
        return id_bytes(entry_id)

    def cmd_xdel(self, key: bytes, *ids: bytes) -> int:
        stream = self._get(key, Stream)
        removed = 0
        for text in ids if stream is not None else ():
            entry_id = stream_id(text, 0)
            if entry_id in stream.entries:
                self.watch("xdel", key, (entry_id, stream.entries.pop(entry_id)))
                removed += 1
        return removed

    def cmd_xtrim(self, key: bytes, how: bytes, threshold: bytes) -> int:
        if how.upper() != b"MINID":
            raise NotImplementedError("XTRIM without MINID")
        stream = self._get(key, Stream)
        if stream is None:
            return 0
        minimum = stream_id(threshold, 0)
        removed = []
        for entry_id in stream.entries:
            if entry_id >= minimum:
                break
            removed.append(entry_id)
        for entry_id in removed:
            self.watch("xtrim", key, (entry_id, stream.entries.pop(entry_id)))
        return len(removed)

    def cmd_xlen(self, key: bytes) -> int:
        stream = self._get(key, Stream)
        return 0 if stream is None else len(stream.entries)

    def cmd_xrange(self, key: bytes, low: bytes, high: bytes, *count: bytes) -> list[list[Any]]:
        stream = self._get(key, Stream)
        if stream is None:
            return []
        exclusive = low.startswith(b"(")
        first, last = _bound(low, 0), _bound(high, 1 << 64)
        limit = int(count[1]) if count else 1 << 62
        found = []
        for entry_id, fields in stream.entries.items():
            if entry_id > last or len(found) >= limit:
                break
            if entry_id > first or (entry_id == first and not exclusive):
                found.append([id_bytes(entry_id), fields])
        return found

    def cmd_xrevrange(self, key: bytes, high: bytes, low: bytes, *count: bytes) -> list[list[Any]]:
        found = self.cmd_xrange(key, low, high)[::-1]
        return found[: int(count[1])] if count else found

    def cmd_xread(self, _count: bytes, count: bytes, _streams: bytes, key: bytes, after: bytes) -> list[Any] | None:
        """Of one stream, without waiting."""
        found = self.cmd_xrange(key, b"(" + after, b"+", b"COUNT", count)
        return [[key, found]] if found else None

    def cmd_memory(self, _usage: bytes, key: bytes, *_samples: bytes) -> int | None:
        """Of a stream, about: its entries, and a hundred bytes."""
        value = self._get(key, Stream)
        return None if value is None else 100 + sum(len(part) + 16 for fields in value.entries.values() for part in fields)

    # -- Sorted sets. -------------------------------------------------------------------------------------------------
    def cmd_zadd(self, key: bytes, *pairs: bytes) -> int:
        members: SortedSet = self._make(key, SortedSet)
        added = 0
        option = pairs[0].upper()
        pairs = pairs[option in (b"NX", b"GT") :]
        for score, member in zip(pairs[::2], pairs[1::2], strict=True):
            known = members.scores.get(member)
            if known is not None and (option == b"NX" or (option == b"GT" and known >= float(score))):
                continue
            added += members.add(member, float(score))
            self.watch("zadd", key, (member, float(score)))
        return added

    def cmd_zincrby(self, key: bytes, by: bytes, member: bytes) -> bytes:
        members: SortedSet = self._make(key, SortedSet)
        score = members.scores.get(member, 0.0) + float(by)
        members.add(member, score)
        self.watch("zadd", key, (member, score))
        return number(score)

    def cmd_zrem(self, key: bytes, *members: bytes) -> int:
        value = self._get(key, SortedSet)
        if value is None:
            return 0
        removed = 0
        for member in members:
            removed += value.remove(member)
            self.watch("zrem", key, member)
        self._tidy(key, value)
        return removed

    def cmd_zremrangebyrank(self, key: bytes, start: bytes, stop: bytes) -> int:
        members = self.cmd_zrange(key, start, stop)
        return self.cmd_zrem(key, *members) if members else 0

    def cmd_zpopmin(self, key: bytes, count: bytes) -> list[bytes]:
        found = self.cmd_zrange(key, b"0", b"%d" % (int(count) - 1), b"WITHSCORES")
        self.cmd_zrem(key, *found[::2])
        return found

    def cmd_zscore(self, key: bytes, member: bytes) -> bytes | None:
        value = self._get(key, SortedSet)
        score = None if value is None else value.scores.get(member)
        return None if score is None else number(score)

    def cmd_zcard(self, key: bytes) -> int:
        value = self._get(key, SortedSet)
        return 0 if value is None else len(value.order)

    def _between(self, key: bytes, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
        value = self._get(key, SortedSet)
        if value is None:
            return []
        below, above = float(low.lstrip(b"(")), float(high.lstrip(b"("))
        low_open, high_open = low.startswith(b"("), high.startswith(b"(")
        return [
            pair
            for pair in value.order
            if (pair[0] > below or (pair[0] == below and not low_open)) and (pair[0] < above or (pair[0] == above and not high_open))
        ]

    def cmd_zcount(self, key: bytes, low: bytes, high: bytes) -> int:
        return len(self._between(key, low, high))

    def cmd_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *limit: bytes) -> list[bytes]:
        found = [member for _, member in self._between(key, low, high)]
        return found[int(limit[1]) : int(limit[1]) + int(limit[2])] if limit else found

    def cmd_zrange(self, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[bytes]:
        value = self._get(key, SortedSet)
        order = [] if value is None else value.order
        first, last = int(start), int(stop)
        first = max(first + len(order), 0) if first < 0 else first
        last = last + len(order) if last < 0 else last
        if options:
            return [part for score, member in order[first : last + 1] for part in (member, number(score))]
        return [member for _, member in order[first : last + 1]]

    # -- Scripts. -----------------------------------------------------------------------------------------------------
    def cmd_script(self, what: bytes, text: bytes) -> bytes:
        if what.upper() != b"LOAD":
            raise NotImplementedError(f"SCRIPT {what.decode()}")
        sha = sha1(text, usedforsecurity=False).hexdigest()
        lua().compile(sha, text)
        self.scripts.add(sha)
        return sha.encode()

    def cmd_evalsha(self, sha: bytes, count: bytes, *rest: bytes) -> Any:
        name = sha.decode()
        if name not in self.scripts:
            raise NoScriptError("NOSCRIPT No matching script. Please use EVAL.")
        return lua().run(self, name, rest[: int(count)], rest[int(count) :])

    def cmd_eval(self, text: bytes, count: bytes, *rest: bytes) -> Any:
        return self.cmd_evalsha(self.cmd_script(b"LOAD", text), count, *rest)


class Lua:
    """One Lua for all servers of this process; each script is compiled once, to a function of KEYS and ARGV."""

    def __init__(self) -> None:
        self._runtime = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._compiled: dict[str, Any] = {}
        self._server: MiniRedis
        self._table = self._runtime.table_from
        self._kind = lua51.lua_type
        environment = self._runtime.globals()
        environment[b"redis"] = self._table(
            {
                b"call": self._call,
                b"pcall": self._pcall,
                b"error_reply": lambda text: self._table({b"err": text}),
                b"status_reply": lambda text: self._table({b"ok": text}),
            }
        )
        environment[b"cmsgpack"] = self._table({b"unpack_limit": _unpack_limit})

    def compile(self, sha: str, text: bytes) -> None:
        if sha not in self._compiled:
            self._compiled[sha] = self._runtime.execute(b"return function(KEYS, ARGV)\n" + _without_shebang(text) + b"\nend")

    def run(self, server: MiniRedis, sha: str, keys: tuple[bytes, ...], args: tuple[bytes, ...]) -> Any:
        self._server = server
        return self._to_reply(self._compiled[sha](self._table(keys), self._table(args)))

    def _call(self, *command: Any) -> Any:
        return self._to_lua(self._server.execute(*command))

    def _pcall(self, *command: Any) -> Any:
        try:
            return self._call(*command)
        except ResponseError as error:
            return self._table({b"err": str(error).encode()})

    def _to_lua(self, reply: Any) -> Any:
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._table([self._to_lua(part) for part in reply])
        if isinstance(reply, Status):
            return self._table({b"ok": reply.encode()})
        return reply

    def _to_reply(self, value: Any) -> Any:
        """As Redis converts what a script returns: numbers lose their fraction, a table ends at its first nil."""
        if isinstance(value, bool):
            return 1 if value else None
        if isinstance(value, float):
            return int(value)
        if self._kind(value) != "table":
            return value
        if value[b"err"] is not None:
            raise ResponseError(value[b"err"].decode())
        if value[b"ok"] is not None:
            return Status(value[b"ok"].decode())
        parts = []
        while (part := value[len(parts) + 1]) is not None:
            parts.append(self._to_reply(part))
        return parts


_lua: list[Lua] = []


def lua() -> Lua:
    if not _lua:
        _lua.append(Lua())
    return _lua[0]


def _without_shebang(text: bytes) -> bytes:
    return text.partition(b"\n")[2] if text.startswith(b"#!") else text


def _unpack_limit(packed: bytes, limit: float, offset: float) -> tuple[Any, ...]:
    """`cmsgpack.unpack_limit`: so many values from an offset on, behind the offset that follows them (-1 at the end)."""
    values: list[Any] = []
    at = int(offset)
    for _ in range(int(limit)):
        value, at = _unpack_one(packed, at)
        values.append(value)
    return (at if at < len(packed) else -1, *values)


def _unpack_one(packed: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at this byte. Only texts and whole numbers: what the scripts look at."""
    head = packed[at]
    if 0xA0 <= head <= 0xBF:
        start, size = at + 1, head & 0x1F
    elif head in {0xD9, 0xDA, 0xDB}:
        width = 1 << (head - 0xD9)
        start, size = at + 1 + width, int.from_bytes(packed[at + 1 : at + 1 + width], "big")
    else:
        size = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}.get(head, 0)
        if not size and 0x80 <= head < 0xE0:
            raise ResponseError("Bad data format in input.")
        return msgspec.msgpack.decode(packed[at : at + 1 + size]), at + 1 + size
    if start + size > len(packed):
        raise ResponseError("Missing bytes in input.")
    return packed[start : start + size], start + size
