"""The connection to Redis, and the data epoch.

One pool per process, with explicit timeouts and limits. redis-py never retries a command: when a reply is lost the command may have
been applied, and only its caller can decide whether repeating it is safe. The pool replaces dead connections, so a restarted Redis
costs at most one error per command in flight.

The data epoch is the first half of every cursor. It is created when a Redis is first used, stored in it, and replaced exactly when
data is lost, so that a client with an older cursor gets `gap`. `engine.store.loss_detector` detects the loss.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio as redis
from redis.asyncio import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError, TimeoutError

from engine.config import Config, store_urls
from engine.errors import ConfigError, StorageUnavailable
from engine.store.cluster import SCHEMES as CLUSTER_SCHEMES
from engine.store.cluster import ClusterPool, cluster_warnings, untag_replies
from engine.store.connection_pool import CancellableConnection, ConnectionPool
from engine.store.durability import REASONS, VerifiedConnection, WeakDurability, read_durability
from engine.store.keys import EPOCH_FIELD, META_KEY
from engine.store.lua import Script
from engine.store.masters import ToMaster
from engine.store.sentinel import SCHEMES, SentinelPool
from engine.store.tls_context import SharedContext

_REPLACE_EPOCH = Script("data_epoch_replace")

VERSION_MIN: Final = (6, 2)
"""Oldest Redis with the stream trimming by id (`XTRIM MINID`) that checkpoints use."""

_PASSWORD_OPTION: Final = re.compile(r"([?&][^&=]*(?:password|secret|token|key)=)[^&]*")
_DATABASE: Final = re.compile(r"/?[0-9]*/?")
_LOGIN_PASSWORD: Final = re.compile(r"(^[^:/]+://[^:@/?]*:).*(?=@)")

_NODE_TIMEOUT_S: Final = 0.3  # of one request to one sentinel or node; they are asked one after the other

_DRIVER: Final = DriverInfo()
"""What connections tell of their library. Left out, each would read the installed package's description, in 1 ms."""

_DEFAULTS: Final = Config()

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def connect(config: Config) -> redis.Redis:
    """A client with its own pool for `config.redis_url`, for the first store when it has several. Connections are opened on first use.

    The URL is `unix://`, `redis://`, `rediss://`, or one of `engine.store.sentinel` or `engine.store.cluster`. Replies are bytes. The
    caller closes the client with `aclose()`.

    Raises:
        ConfigError: the URL is not one of Redis.
    """
    timeout_s = config.redis_timeout_ms / 1000
    options: dict[str, Any] = {
        "max_connections": config.redis_connections_max,
        "timeout": timeout_s,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "client_name": "engine",
        "driver_info": _DRIVER,
    }
    try:
        url = store_urls(config.redis_url)[0]
        scheme = url.partition("://")[0]
        if scheme in SCHEMES:
            pool: ConnectionPool = SentinelPool(url, _NODE_TIMEOUT_S, **options)
        elif scheme in CLUSTER_SCHEMES:
            pool = ClusterPool(url, _NODE_TIMEOUT_S, **options)
        else:
            pool = ConnectionPool.from_url(url, **options)
            if scheme != "unix":
                if not _DATABASE.fullmatch(urlsplit(url).path):  # which redis-py takes for 0
                    raise ValueError("behind the last / stands the number of a database")
                pool.mixins = (ToMaster,)  # its name may stand for another server after a fail-over
    except ValueError as error:
        if "Port" in str(error):  # it quotes what it took for the port, which is a part of the password when that has such a character
            raise ConfigError(
                f"redis_url: {display_url(config.redis_url)} has no valid port; in a password / ? # and % must be percent-encoded"
            ) from None
        raise ConfigError(f"redis_url: {error}") from error
    mixins: list[type] = [*pool.mixins, CancellableConnection]
    if config.redis_durability == "required":
        mixins.append(VerifiedConnection)
    if issubclass(pool.connection_class, SSLConnection):
        mixins.append(SharedContext)
    pool.connection_class = type("EngineConnection", (*mixins, pool.connection_class), {})
    client = redis.Redis.from_pool(pool)
    if isinstance(pool, ClusterPool):
        untag_replies(pool.tag, client.response_callbacks)
    return client


def display_url(url: str) -> str:
    """The URL without passwords, for output and logs; where it is not clear what they are, without too much."""
    return _LOGIN_PASSWORD.sub(r"\1***", _PASSWORD_OPTION.sub(r"\1***", url))


async def wait_ready(client: redis.Redis, config: Config, timeout_s: float) -> str:
    """Wait until Redis answers and has loaded its data; returns its name and version.

    Raises:
        StorageUnavailable: no reply within `timeout_s`, a refusal, a Redis older than `VERSION_MIN`, or one that keeps less than
            `redis_durability` requires.
        ConfigError: an option of the URL is not known.
    """
    where = display_url(config.redis_url)
    server = await _first_answer(client, where, time.monotonic() + timeout_s)
    check_version(str(server["redis_version"]), where)
    return server_name(server)


def server_name(info: Mapping[str, Any]) -> str:
    """Name and version by `INFO server`. Valkey calls itself Redis 7.2 there as well."""
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"


def check_version(version: str, where: str) -> None:
    """Raises StorageUnavailable when a Redis of this version is too old; `where` is its address, for the message."""
    if tuple(int(part) for part in version.split(".")[:2]) < VERSION_MIN:
        raise StorageUnavailable(f"Redis at {where} is {version}; {VERSION_MIN[0]}.{VERSION_MIN[1]} or newer is needed")


async def _first_answer(client: redis.Redis, where: str, deadline: float) -> Mapping[str, Any]:
    while True:
        try:
            await client.ping()
            server: Mapping[str, Any] = await client.info("server")
            mode = server.get("server_mode") or server.get("redis_mode")  # Valkey, Redis
            if mode == "cluster" and not isinstance(client.connection_pool, ClusterPool):
                raise StorageUnavailable(f"Redis at {where} is a node of a cluster; give redis_url redis+cluster://HOST,HOST/STORES")
            return server
        except AuthenticationError as error:
            raise StorageUnavailable(f"Redis at {where} refuses the login: {error}") from error
        except (ConnectionError, TimeoutError, OSError) as error:  # also while it loads: BusyLoadingError is a ConnectionError
            if isinstance(error, WeakDurability) or isinstance(error.__cause__, WeakDurability):  # redis-py wraps it
                raise StorageUnavailable(f"Redis at {where} {error}") from error
            if time.monotonic() > deadline:
                raise StorageUnavailable(f"Redis at {where} does not answer ({error}); is it running, and reachable from here?") from error
            await asyncio.sleep(0.02)
        except ResponseError as error:  # no such database, or a login that may not do it
            raise StorageUnavailable(f"Redis at {where} refuses: {error}") from error
        except TypeError as error:  # redis-py hands every option of the URL to the connection
            raise ConfigError(f"redis_url: {where} has an option that no connection takes: {error}") from error


async def durability_warnings(client: redis.Redis, config: Config = _DEFAULTS) -> list[str]:
    """One sentence for each reason why this Redis keeps less than promised, takes nothing, or is away longer than need be."""
    replicas_min = config.redis_replicas_min
    word = await read_durability(client)
    warnings = [f"Redis: {REASONS[word]}"] if word else []
    connected = int((await client.info("replication"))["connected_slaves"])
    if connected < replicas_min:
        warnings.append(
            f"{connected} replicas are connected, redis_replicas_min asks for {replicas_min}: publishers get 503 until they are"
        )
    if isinstance(client.connection_pool, ClusterPool):
        warnings += cluster_warnings(await client.config_get("cluster-*"), config.commit_retry_ms)
    return warnings


def base36(number: int) -> str:
    """A number >= 0 in base 36, whose alphabet lacks the `-` that separates the halves of a cursor."""
    digits = ""
    while True:
        number, rest = divmod(number, 36)
        digits = _DIGITS[rest] + digits
        if number == 0:
            return digits


async def claim_data_epoch(client: redis.Redis, now_s: int) -> str:
    """The data epoch of this Redis. The first call on an empty Redis creates it from `now_s`; later calls return it unchanged.

    Raises:
        StorageUnavailable: the server did not keep it.
        RedisError: no reply.
    """
    await client.hsetnx(META_KEY, EPOCH_FIELD, base36(now_s))
    epoch = await client.hget(META_KEY, EPOCH_FIELD)
    if epoch is None:
        raise StorageUnavailable("Redis lost the data epoch that was just written; is it a writable primary?")
    return epoch.decode() if isinstance(epoch, bytes) else str(epoch)


async def replace_data_epoch(client: redis.Redis, lost: str, now_s: int) -> str:
    """Replace the data epoch `lost` after a loss of data; returns the new one, the same for all callers that replace the same one.

    Where storage has an older epoch, it has lost `lost` as well: clients may know both.

    Raises StorageUnavailable.
    """
    successor = base36(max(now_s, int(lost, 36) + 1))
    _, epoch = await _REPLACE_EPOCH.run(client, [META_KEY], [EPOCH_FIELD, lost, successor])
    return str(epoch.decode())
