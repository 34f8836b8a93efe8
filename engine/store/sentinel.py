"""Redis behind Sentinel: discovers the master, also after a fail-over.

    redis+sentinel://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]/SERVICE[/DB][?OPTION=...]

`rediss+sentinel://` speaks TLS to the sentinels and to the master. Port 26379 and database 0 are the defaults. User and password
are those of the master; `sentinel_username` and `sentinel_password` are options, as is everything that a plain Redis URL takes.

It follows Redis's "Guidelines for Redis clients with support for Redis Sentinel": every new connection queries the sentinels in order
for the current master, those that open at once with one query, and verifies it with `ROLE`, because a sentinel may lag. Sentinel closes
the connections of a master that it demotes; where it cannot, the first write fails with READONLY, which closes the connection here. So a
fail-over costs errors until the sentinels have agreed and needs no notification. Commands in flight fail; their callers decide whether to
repeat them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.sentinel import Sentinel

from engine.store.connection_pool import ConnectionPool
from engine.store.masters import MasterSearch, ToMaster, greet_master, host_and_port
from engine.store.tls_context import SharedContext

SCHEMES: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
"""URL schemes with sentinels -> the same without."""

_SENTINEL_PORT: Final = 26379
_SENTINEL_OPTIONS: Final = {"sentinel_username": "username", "sentinel_password": "password"}


class SentinelUrl(msgspec.Struct, frozen=True):
    """A parsed URL: addresses of the sentinels, service name, and connection options for the sentinels and for the master."""

    sentinels: list[tuple[str, int]]
    service: str
    sentinel_options: dict[str, Any]
    options: dict[str, Any]  # keyword arguments of a redis-py connection


def parse(url: str) -> SentinelUrl:
    """Parse a `redis+sentinel` URL. Raises ValueError."""
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    login, _, hosts = authority.rpartition("@")  # urlsplit rejects an authority with several hosts
    parts = urlsplit(f"{scheme}://master/{path}")
    service, _, database = parts.path.lstrip("/").partition("/")
    if not service:
        raise ValueError("the name of the master is missing: redis+sentinel://HOST:PORT,.../NAME")
    # The rest is a plain URL, with the options and the percent-encoding of one.
    netloc = f"{login}@master" if login else "master"
    options: dict[str, Any] = dict(parse_url(parts._replace(scheme=SCHEMES[parts.scheme], netloc=netloc, path=f"/{database}").geturl()))
    sentinel_options = {name: options.pop(option) for option, name in _SENTINEL_OPTIONS.items() if option in options}
    for address in ("host", "port", "connection_class"):
        options.pop(address, None)
    if parts.scheme.startswith("rediss"):
        sentinel_options |= {name: value for name, value in options.items() if name.startswith("ssl_")} | {"ssl": True}
    return SentinelUrl([host_and_port(text, _SENTINEL_PORT, "sentinel") for text in hosts.split(",")], service, sentinel_options, options)


class _ToMaster(ToMaster):
    """A connection that discovers the master through the sentinels each time it connects."""

    def __init__(self, *, search: MasterSearch, **options: Any) -> None:
        self._search = search
        super().__init__(**options)

    async def _connect(self) -> None:
        self.host, self.port = await self._search.master()
        await super()._connect()  # type: ignore[no-untyped-call]


class _ToMasterOverTLS(_ToMaster, SSLConnection):
    """A connection to the master over TLS."""


class SentinelPool(ConnectionPool):
    """Connections to the current master. Closing the pool also closes those to the sentinels.

    Args:
        url: see the module's text.
        sentinel_timeout_s: timeout of one query to one sentinel.
        options: of the pool and of the connections to the master.

    Raises:
        ValueError: the URL is not valid.
    """

    def __init__(self, url: str, sentinel_timeout_s: float, **options: Any) -> None:
        address = parse(url)
        timeouts = {"socket_timeout": sentinel_timeout_s, "socket_connect_timeout": sentinel_timeout_s}
        speak = timeouts | {"retry": options.get("retry")} | address.sentinel_options
        self._sentinel = Sentinel(address.sentinels, sentinel_kwargs=speak)  # type: ignore[no-untyped-call]
        if tls := "ssl" in address.sentinel_options:
            for client in self._sentinel.sentinels:
                client.connection_pool.connection_class = SharedContext
        super().__init__(
            connection_class=_ToMasterOverTLS if tls else _ToMaster,
            search=MasterSearch(partial(self._sentinel.discover_master, address.service)),
            redis_connect_func=greet_master,
            **address.options | options,
        )

    async def aclose(self) -> None:
        await asyncio.gather(super().aclose(), self._sentinel.aclose())
