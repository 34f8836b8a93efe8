"""Redis Cluster: each store is a key space of its own, on the master that has its hash slot, and moves with it.

    redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]/[STORES][?OPTION=...]

`rediss+cluster://` speaks TLS. The hosts are any nodes, and need not be all; the number of stores is fixed for the life of the data.
To the rest of the engine a store is what one Redis server is: slot map, journals, fencing epochs and data epoch are its own.

Key space. A cluster has no SELECT. Instead, each connection puts the hash tag of its store before every key: `{7}engine:slots`. So all
keys of a store have one hash slot, and no script crosses a slot. The slot of store k is in the k-th of as many equal ranges, so that
stores spread evenly over the masters. A command whose keys are not known here is refused.

Topology. Each new connection asks the nodes in turn for the master of its slot (CLUSTER SLOTS) and verifies it with ROLE. A reply that says
that the slot is elsewhere closes the connection, and its command fails as when a server does not answer: the caller decides whether to
repeat it. A fail-over and a finished move therefore need no notification.

    the node answers               the slot                              what it means here
    MOVED                          has another master                    away: the next connection goes there
    ASK, TRYAGAIN                  migrates, key by key                  away, until it has arrived
    CLUSTERDOWN, MASTERDOWN        has no master                         away, until a replica is promoted
    READONLY                       the node was demoted                  away: the next connection finds the new master

While a slot migrates key by key, a node answers for the keys that it has, and ASK for the others. A script must not see half a store, so
each declares a key that never exists (`engine.store.lua`): its node then refuses it with TRYAGAIN, from the moment on in which a key may
leave. So the store pauses by itself, whoever moves the slot, and nothing is accepted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import Connection, Redis, SSLConnection
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, ConnectionError, MasterDownError, ReadOnlyError, RedisError, TryAgainError

from engine.config import STORES_ALLOWED
from engine.store.connection_pool import ConnectionPool
from engine.store.masters import MasterSearch, greet_master, host_and_port
from engine.store.tls_context import SharedContext

SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""URL schemes with a cluster -> the same without."""

HASH_SLOTS: Final = 16384
"""Of a Redis Cluster."""

STORES_MAX: Final = max(STORES_ALLOWED)

_PORT: Final = 6379
_PATIENCE: Final = 16  # times the time of one question, at most, while no node answers
_ELSEWHERE: Final = (AskError, TryAgainError, ClusterDownError, MasterDownError, ReadOnlyError)  # MOVED is an AskError


class ClusterUrl(msgspec.Struct, frozen=True):
    """The parsed URL of a store: addresses of nodes, which store of how many, and options of a redis-py connection."""

    nodes: list[tuple[str, int]]
    store: int
    stores: int
    options: dict[str, Any]


def parse(url: str) -> ClusterUrl:
    """Parse the URL of a store, `redis+cluster://.../STORES#STORE`, as `engine.config.store_urls` makes it. Raises ValueError."""
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    login, _, hosts = authority.rpartition("@")  # urlsplit rejects an authority with several hosts
    parts = urlsplit(f"{scheme}://node/{path}")
    netloc = f"{login}@node" if login else "node"
    plain = parts._replace(scheme=SCHEMES[parts.scheme], netloc=netloc, path="/", fragment="").geturl()
    options: dict[str, Any] = dict(parse_url(plain))
    for address in ("host", "port", "connection_class"):
        options.pop(address, None)
    if parts.scheme.startswith("rediss"):
        options["ssl"] = True
    return ClusterUrl([host_and_port(text, _PORT, "node") for text in hosts.split(",")], int(parts.fragment), int(parts.path[1:]), options)


@cache
def tag_of(store: int, stores: int) -> str:
    """The prefix of a store's keys: `{<number>}`, the first one whose hash slot is in the range's first 1 024 slots.

    So the first store has the same tag for every number of stores, and its slot map tells how many there are.
    """
    begin = store * HASH_SLOTS // stores
    return next(tag for number in count() if begin <= key_slot((tag := f"{{{number}}}").encode()) < begin + HASH_SLOTS // STORES_MAX)


def slot_of_tag(tag: str) -> int:
    """The hash slot of all keys of a store."""
    return int(key_slot(tag.encode()))


def cluster_warnings(settings: Mapping[Any, Any], commit_retry_ms: int) -> list[str]:
    """One sentence for each setting of a node that keeps more publishers waiting, or longer, than need be; none where it tells none."""
    warnings = []
    if settings.get("cluster-require-full-coverage") == "yes":
        warnings.append("cluster-require-full-coverage yes: while one master is away, all stores are; set it to no")
    timeout_ms = int(settings.get("cluster-node-timeout", 0))
    if timeout_ms >= commit_retry_ms:
        warnings.append(
            f"cluster-node-timeout {timeout_ms}: publishers get 503 after commit_retry_ms ({commit_retry_ms}), before a fail-over"
        )
    return warnings


# -- Keys. -------------------------------------------------------------------------------------------------------------
_Rewrite = Callable[[str, list[Any]], None]
"""Puts a tag before the keys among a command's arguments, in place."""


def _tagged(tag: str, key: Any) -> Any:
    return tag.encode() + key if isinstance(key, bytes) else f"{tag}{key}"


def _none(tag: str, args: list[Any]) -> None:
    pass


def _first(tag: str, args: list[Any]) -> None:
    args[0] = _tagged(tag, args[0])


def _second(tag: str, args: list[Any]) -> None:
    if len(args) > 1:
        args[1] = _tagged(tag, args[1])


def _all(tag: str, args: list[Any]) -> None:
    args[:] = [_tagged(tag, key) for key in args]


def _script(tag: str, args: list[Any]) -> None:
    for at in range(2, 2 + int(args[1])):
        args[at] = _tagged(tag, args[at])


def _streams(tag: str, args: list[Any]) -> None:
    first = next(at for at, word in enumerate(args) if word in ("STREAMS", b"STREAMS")) + 1
    for at in range(first, first + (len(args) - first) // 2):
        args[at] = _tagged(tag, args[at])


def _scan(tag: str, args: list[Any]) -> None:
    pattern = args.index(b"MATCH") if b"MATCH" in args else -1
    if pattern < 0:
        args += (b"MATCH", f"{tag}*")
    else:
        args[pattern + 1] = _tagged(tag, args[pattern + 1])


_COMMANDS: Final[Mapping[_Rewrite, str]] = {
    _none: "AUTH CLIENT CLUSTER COMMAND CONFIG DBSIZE DISCARD EXEC HELLO INFO LATENCY MULTI PING QUIT ROLE SCRIPT SELECT SLOWLOG TIME WAIT "
    "WAITAOF",
    _first: "DUMP EXPIRE GET INCR PERSIST PEXPIRE PEXPIREAT PTTL SET STRLEN TTL TYPE "
    "HDEL HEXISTS HGET HGETALL HINCRBY HKEYS HLEN HMGET HSCAN HSET HSETNX HSTRLEN LINDEX LLEN LPUSH LRANGE LREM LTRIM RPUSH "
    "SADD SCARD SISMEMBER SMEMBERS SREM XACK XADD XAUTOCLAIM XCLAIM XDEL XLEN XPENDING XRANGE XREVRANGE XTRIM ZADD ZCARD ZCOUNT ZINCRBY "
    "ZMSCORE ZRANGE ZRANGEBYSCORE ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZSCAN ZSCORE",
    _second: "MEMORY OBJECT XGROUP XINFO",
    _all: "DEL EXISTS MGET UNLINK",
    _script: "EVAL EVALSHA",
    _streams: "XREAD XREADGROUP",
    _scan: "SCAN",
}
_REWRITES: Final = {name: rewrite for rewrite, names in _COMMANDS.items() for name in names.split()}


def with_tag(tag: str, command: Sequence[Any]) -> list[Any]:
    """The words of a command with the tag before each key. Raises ValueError when it is not known where its keys are."""
    name, *rest = str(command[0]).split()
    args = [*rest, *command[1:]]
    rewrite = _REWRITES.get(name)
    if rewrite is None:
        raise ValueError(f"{name}: not known to have no key, or where")
    rewrite(tag, args)
    return [name, *args]


def untag_replies(tag: str, callbacks: MutableMapping[Any, Any]) -> None:
    """Let redis-py's callbacks take the tag away from the names of keys in the replies to SCAN, XREAD and XREADGROUP."""
    length = len(tag.encode())

    def scanned(reply: Any, **options: Any) -> Any:
        cursor, keys = _scanned(reply, **options)
        return cursor, [key[length:] for key in keys]

    def read_with(parse: Callable[..., Any]) -> Callable[..., Any]:
        def read(reply: Any, **options: Any) -> Any:
            found = parse(reply, **options)
            if isinstance(found, dict):
                return {name[length:]: entries for name, entries in found.items()}
            return [[name[length:], entries] for name, entries in found or ()]

        return read

    _scanned = callbacks["SCAN"]
    callbacks["SCAN"] = scanned
    for name in ("XREAD", "XREADGROUP"):
        callbacks[name] = read_with(callbacks[name])


# -- Connections. ------------------------------------------------------------------------------------------------------
class _Topology:
    """Finds the master of a hash slot. Remembers all nodes that any of them has named.

    A question that no node has answered is followed by one with twice the time, and an answer by one with half of it: many processes that
    connect at once, over TLS, keep the nodes busy, and connections given up too early keep them so.

    Args:
        connection: makes an unconnected one to this address, with these timeouts.
        timeout_s: of one node.

    Attributes:
        answered: the address of the node that has answered last.
        found: the address of the last master that was named, None before the first.
    """

    def __init__(self, seeds: Sequence[tuple[str, int]], slot: int, connection: Callable[..., Connection], timeout_s: float) -> None:
        self._seeds = list(seeds)
        self._nodes = list(seeds)
        self.answered = self._nodes[0]
        self.found: tuple[str, int] | None = None
        self._slot = slot
        self._connection = connection
        self._least_s = self._timeout_s = timeout_s
        self._search = MasterSearch(self._find)

    async def master(self) -> tuple[str, int]:
        """Its address, as the first node that answers names it: one question for all who ask at once. Raises ConnectionError."""
        return await self._search.master()

    async def _find(self) -> tuple[str, int]:
        failures, answered = [], False
        for address in list(self._nodes):
            try:
                slots = await self._ask(address)
            except (RedisError, OSError) as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
                self.doubt(address)
                continue
            answered, self.answered, self._timeout_s = True, address, max(self._timeout_s / 2, self._least_s)
            named = [address_of(node, address[0]) for _, _, *nodes in slots for node in nodes]
            self._nodes = list(dict.fromkeys((address, *named, *self._seeds)))
            for first, last, master, *_ in slots:
                if first <= self._slot <= last:
                    self.found = address_of(master, address[0])
                    return self.found
            failures.append(f"{address[0]}:{address[1]}: hash slot {self._slot} has no master")
        if not answered:
            self._timeout_s = min(2 * self._timeout_s, _PATIENCE * self._least_s)
        raise ConnectionError("no node of the cluster names the master: " + "; ".join(failures))

    async def _ask(self, address: tuple[str, int]) -> list[Any]:
        timeouts = {"socket_timeout": self._timeout_s, "socket_connect_timeout": self._timeout_s}
        connection = self._connection(host=address[0], port=address[1], **timeouts)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command("CLUSTER", "SLOTS", check_health=False)
            return list(await connection.read_response())
        finally:
            await connection.disconnect()

    def doubt(self, address: tuple[str, int]) -> None:
        """Ask this node last: it does not answer, or the map that it gave was old."""
        if address in self._nodes:
            self._nodes.remove(address)
            self._nodes.append(address)


def address_of(node: Sequence[Any], asked: str) -> tuple[str, int]:
    """Of a node in the reply to CLUSTER SLOTS. It may not know its own host: then it is the one that was asked."""
    host = node[0].decode() if isinstance(node[0], bytes) else node[0]
    return (asked if not host or host == "?" else host), int(node[1])


class _Tagged(AbstractConnection):
    """Mixin for connection classes: sends each command with the tag of the store before each key."""

    tag: str

    def pack_command(self, *args: Any) -> Any:
        """The encoded command. Raises ValueError when it is not known where its keys are."""
        return super().pack_command(*with_tag(self.tag, args))


class _ToStore(Connection):
    """A connection that finds the master of its store each time it connects."""

    def __init__(self, *, topology: _Topology, tag: str, **options: Any) -> None:
        self._topology = topology
        self.tag = tag
        super().__init__(**options)

    async def _connect(self) -> None:
        self.host, self.port = await self._topology.master()
        self._named_by = self._topology.answered
        try:
            await super()._connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError):
            self._topology.doubt((self.host, self.port))
            self._topology.doubt(self._named_by)
            raise

    async def greet(self) -> None:
        try:
            await greet_master(self)
        except (RedisError, OSError):
            self._topology.doubt(self._named_by)
            raise

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*arguments, **options)
        except _ELSEWHERE as error:
            self._topology.doubt(self._named_by)
            await self.disconnect()
            raise ConnectionError(f"{self.host}:{self.port} does not serve hash slot {slot_of_tag(self.tag)} now: {error}") from error


class _ToStoreOverTLS(_ToStore, SSLConnection):
    """A connection to the master of the store over TLS."""


class ClusterPool(ConnectionPool):
    """Connections to the current master of one store.

    Args:
        url: of the store, see `parse`.
        node_timeout_s: of one question to one node, at first.
        options: of the pool and of the connections to the master.

    Attributes:
        tag: what stands before the store's keys.

    Raises:
        ValueError: the URL is not valid.
    """

    mixins = (_Tagged,)

    def __init__(self, url: str, node_timeout_s: float, **options: Any) -> None:
        address = parse(url)
        tls = address.options.pop("ssl", False)
        speak: dict[str, Any] = {"retry": options.get("retry")} | address.options
        plain = SharedContext if tls else Connection
        self.tag = tag_of(address.store, address.stores)
        self._topology = _Topology(address.nodes, slot_of_tag(self.tag), lambda **at: plain(**speak | at), node_timeout_s)
        super().__init__(
            connection_class=_ToStoreOverTLS if tls else _ToStore,
            topology=self._topology,
            tag=self.tag,
            redis_connect_func=_ToStore.greet,
            **address.options | options,
        )

    @property
    def node(self) -> str:
        """HOST:PORT of the last master of the store; "" before it was found."""
        return "{}:{}".format(*self._topology.found) if self._topology.found else ""


def node_of(client: Redis) -> str:
    """HOST:PORT of the last master of a client's store; "" before it was found, and of a server outside a cluster."""
    pool = client.connection_pool
    return pool.node if isinstance(pool, ClusterPool) else ""
