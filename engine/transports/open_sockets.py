"""How many sockets an edge keeps open, in all and per client address: counted from accept to close, whatever they carry.

The server's set of live protocols is the count of all. A socket has one protocol after another (HTTP, a handshake, a WebSocket), and each
adds itself to a set when it begins and discards itself when it ends; so a client address needs no more than a set that counts.

Loopback is not counted by address. A reverse proxy on another host is one address for all of its clients: it limits them itself, and
`connections_per_address_max` is raised to what it may open.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections.abc import Iterator, MutableSet
from typing import Any, Final

from engine.config import Config
from engine.http.problems import RETRY_AFTER_S, too_many_requests, unavailable

_FILES_SPARE: Final = 256
"""File descriptors of a process beside its clients' sockets: links, Redis, Ray, files."""

_LOG_S: Final = 60.0
"""Between two lines in the log about the same: refusing must not cost."""

log: Final = logging.getLogger("engine.edge.http")


class OpenSockets:
    """Admits the sockets of one edge.

    Args:
        config: `connections_max`, `http_connections_max` and `connections_per_address_max`.
        files_max: file descriptors that the process may have open; see `raise_file_limit`.
    """

    def __init__(self, config: Config, files_max: int) -> None:
        self._sockets_max = max(1, min(config.connections_max + config.http_connections_max, files_max - _FILES_SPARE))
        self._per_address_max = config.connections_per_address_max
        self._addresses: dict[str | bytes, AddressSockets] = {}
        self._logged_s = -_LOG_S

    def admit(self, peer: tuple[Any, ...] | None, everyone: MutableSet[Any]) -> MutableSet[Any]:
        """The set that the protocols of a new socket add themselves to.

        Args:
            peer: the client's address, as a socket names it; None where it has none.
            everyone: all live protocols of the server.

        Raises:
            Problem: 503, the edge has as many sockets as it may; 429, the address has.
        """
        if len(everyone) >= self._sockets_max:
            self._log("%d sockets are open: others are refused with 503", len(everyone))
            raise unavailable(f"{len(everyone)} connections are open here", RETRY_AFTER_S)
        address = _counted_address(peer)
        if address is None:
            return everyone
        sockets = self._addresses.get(address)
        if sockets is None:
            return AddressSockets(address, everyone, self._addresses)
        if len(sockets) >= self._per_address_max:
            self._log(
                "%d sockets of %s are open: others are refused with 429 (connections_per_address_max)", len(sockets), peer and peer[0]
            )
            raise too_many_requests(f"{len(sockets)} connections of this address are open here", RETRY_AFTER_S)
        return sockets

    def _log(self, text: str, *values: object) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_S:
            self._logged_s = now_s
            log.warning(text, *values)


class AddressSockets(MutableSet[Any]):
    """The live protocols of one client address, kept in `everyone` and counted here; listed in `addresses` while there are any."""

    __slots__ = ("_address", "_addresses", "_count", "_everyone")

    def __init__(self, address: str | bytes, everyone: MutableSet[Any], addresses: dict[str | bytes, AddressSockets]) -> None:
        self._address = address
        self._addresses = addresses
        self._everyone = everyone
        self._count = 0

    def add(self, value: Any) -> None:
        """A protocol of this address begins."""
        if value not in self._everyone:
            self._everyone.add(value)
            self._count += 1
            self._addresses[self._address] = self

    def discard(self, value: Any) -> None:
        """A protocol of this address has ended, or was never here."""
        if value in self._everyone:
            self._everyone.discard(value)
            self._count -= 1
            if not self._count:
                del self._addresses[self._address]

    def __contains__(self, value: object) -> bool:
        return value in self._everyone

    def __iter__(self) -> Iterator[Any]:
        return iter(self._everyone)

    def __len__(self) -> int:
        return self._count


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows it; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 31


def _counted_address(peer: tuple[Any, ...] | None) -> str | bytes | None:
    """What counts as one address: IPv4 as it is, of IPv6 the network of a site (RFC 6177), which has addresses without end."""
    if not peer:
        return None
    host: str = peer[0]
    if ":" not in host:
        return None if host.startswith("127.") else host
    if host.startswith("::ffff:") and "." in host:
        return _counted_address((host[7:],))
    if host == "::1":
        return None
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8]
