"""How the exchanges of a link travel from one actor to another: one interface, three carriers, and the choice among them.

    carrier   between              CPU of an exchange, one end   who may connect
    unix      actors of one node   0.05 ms                       the user that runs the engine (`engine.actors.socket_carrier`)
    tcp       nodes of a cluster   0.05 ms                       who proves the engine's link key (`engine.actors.tcp_carrier`)
    ray       any two actors       0.8 ms                        who proves the engine key (`engine.store.sealed_config`)

Sessions, numbers, pacing and leases are the same on all of them (`engine.core.wire.link`), and nothing above the link knows which it is.
Ray places and restarts the actors, and a Ray call gets an actor's `Address` when a session opens. With `link_transport = "ray"` no actor
has an address, so everything is a Ray call. Ray itself puts batches above 100 KiB into its object store.

States of an `ActorPeer`; its owner is the link's caller
    closed    no session
    direct    over a socket. It is lost with the connection: requests in flight fail, both ends end the session
    ray       by choice: this callee has no address that can be reached from here
    fallback  through Ray, because the callee's TCP port was not reached or proved nothing. Every `RETRY_S` it is tried again; once it
              works, the link ends the session and opens the next over TCP. Meanwhile a new session does not try the same address.
              Or because its Unix socket was that of a process which has died since; once the callee has another, the session ends too

Crash points. The callee dies: the connection breaks, or Ray's calls fail; the next session asks for the address again. The caller dies: the
callee ends the session with the connection, or after the lease. The cable is pulled: nothing breaks, and the leases of the link end the
session at both ends; the kernel gives the connection up after `tcp_carrier.SILENCE_MS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from engine.actors import socket_carrier, tcp_carrier
from engine.actors.hedged_call import hedged
from engine.actors.socket_carrier import DIRECT_CALL_MS, Address, CallerConnection, ServedBy
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config
from engine.errors import ConfigError, StorageUnavailable

log = logging.getLogger(__name__)

RAY_CALL_MS: Final = 0.8
"""CPU time of one exchange at one end by Ray call, ms, measured; a link's pacing keeps to `link_calls_share` by it."""

RETRY_S: Final = 30.0
"""Between two attempts on a TCP port that could not be used: each costs a connection, and when it works, a session."""

NOWHERE: Final = Address()
"""Of an actor that is reached by Ray calls only."""

_finder: Final = ThreadPoolExecutor(1, "find-actor")
"""A lookup lasts for as long as Ray's control service is away. Those that wait for it take no thread that others need."""

_FIND_S: Final = 0.1  # between two lookups of an actor that is being created


class Peer(Protocol):
    """A remote actor, as the caller of a link uses it.

    Attributes:
        carrier: of the open session: `unix`, `tcp` or `ray`.
        retry_s: after this long in the session `improved` should be asked; None when there is nothing better.
    """

    carrier: str
    retry_s: float | None

    async def open(self) -> float:
        """Connect for a new session; returns the CPU cost of an exchange, ms. Raises RayError, OSError or TimeoutError."""

    def exchange(self, session: str, seq: int, batch: bytes) -> Awaitable[bytes]:
        """Send one request; returns its reply. Awaiting it raises RayError or ConnectionError."""

    async def improved(self) -> bool:
        """Whether a session opened now would have a better carrier."""

    async def lost(self) -> bool:
        """Wait until the connection is lost. Returns False, at once, when there is none since Ray makes the calls."""

    def close(self) -> None:
        """End the session."""


class RayPeer:
    """A peer that is called through Ray only.

    Args:
        handle: Ray actor handle with `exchange(session, seq, batch[, proof]) -> bytes`; any object with `.exchange.remote`.
        prove: makes the proof of a session, without which an actor in Ray does nothing.
    """

    carrier = "ray"
    retry_s: float | None = None

    def __init__(self, handle: Any, prove: Callable[[str], bytes] | None = None) -> None:
        self._handle = handle
        self._prove = prove
        self._proven: tuple[str, tuple[bytes, ...]] = "", ()

    async def open(self) -> float:
        """Do nothing: Ray connects by itself."""
        return RAY_CALL_MS

    def exchange(self, session: str, seq: int, batch: bytes) -> Awaitable[bytes]:
        if self._prove is not None and session != self._proven[0]:
            self._proven = session, (self._prove(session),)
        reply: Awaitable[bytes] = self._handle.exchange.remote(session, seq, batch, *self._proven[1])
        return reply

    async def improved(self) -> bool:
        return False

    async def lost(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""


class ActorPeer:
    """A named actor, which may not exist yet, called over the best carrier there is.

    Args:
        name: of the actor.

    The simulator overrides the methods that reach outside: `_find`, `_here`, `_connect_here`, `_connect`.
    """

    tcp_retry_s: ClassVar[float] = RETRY_S

    def __init__(self, name: str, credentials: LinkCredentials) -> None:
        self._name = name
        self._credentials = credentials
        self._handle: Any = None
        self._through_ray = RayPeer(None)
        self._connection: CallerConnection | None = None
        self._address = NOWHERE
        self._failed: tuple[Address, float] = NOWHERE, 0.0  # where TCP did not work, and until when it is not tried
        self.carrier = "ray"
        self.retry_s: float | None = None

    async def open(self) -> float:
        """See `Peer`. Waits until the actor exists and serves."""
        self.close()
        if self._handle is None:
            self._handle = await self._find()
            self._through_ray = RayPeer(self._handle, self._credentials.prove)
        try:
            self._address = await hedged(self._handle.address.remote)
        except ActorUnavailableError:
            raise  # it is being restarted, under the same handle
        except RayActorError:
            self._handle = None  # a controller may have created another one of this name
            raise
        self._connection = await self._over_unix() or await self._over_tcp()
        if self._connection is None:
            self.carrier = "ray"
            return RAY_CALL_MS
        return DIRECT_CALL_MS

    async def _find(self) -> Any:
        return await await_actor(self._name, self._credentials.namespace)

    def _here(self) -> str:
        return node_id()

    async def _over_unix(self) -> CallerConnection | None:
        address = self._address
        if not address.path or address.node != self._here():
            return None
        try:
            connection = await self._connect_here()
        except OSError as error:
            log.warning("the socket %s of %s cannot be used: %s", address.path, self._name, error)
            self.retry_s = self.tcp_retry_s
            return None
        self.carrier = "unix"
        return connection

    async def _connect_here(self) -> CallerConnection:
        return await socket_carrier.connect(self._address.path)

    async def _over_tcp(self) -> CallerConnection | None:
        if not self._address.port:
            return None
        now_s = asyncio.get_running_loop().time()
        self.retry_s = self.tcp_retry_s
        address, until_s = self._failed
        if address == self._address and now_s < until_s:
            return None
        try:
            connection = await self._connect()
        except (OSError, TimeoutError, ConfigError, StorageUnavailable) as error:
            log.warning(
                "%s is called through Ray, at ten times the cost: TCP %s:%d: %s; tried again every %d s",
                self._name, self._address.host, self._address.port, str(error) or type(error).__name__, self.tcp_retry_s,
            )  # fmt: skip
            self._failed = self._address, now_s + self.tcp_retry_s
            return None
        self.carrier, self.retry_s = "tcp", None
        return connection

    async def _connect(self) -> CallerConnection:
        return await tcp_carrier.connect(self._address.host, self._address.port, self._credentials, self._name)

    async def improved(self) -> bool:
        try:
            if await self._handle.address.remote() != self._address:
                return True  # it was that of a process before the one that the session is with
            if not self._address.port:
                return False
            connection = await self._connect()
        except (RayError, OSError, TimeoutError, ConfigError, StorageUnavailable) as error:
            log.info("%s is still called through Ray: %r", self._name, error)
            return False
        connection.close()
        self._failed = NOWHERE, 0.0
        return True

    async def lost(self) -> bool:
        if self._connection is None:
            return False
        await self._connection.lost()
        return True

    def exchange(self, session: str, seq: int, batch: bytes) -> Awaitable[bytes]:
        return (self._connection or self._through_ray).exchange(session, seq, batch)

    def close(self) -> None:
        """Close the connection, if there is one; the callee ends the session then."""
        self.retry_s = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def listen(config: Config, credentials: LinkCredentials, served: ServedBy) -> Address:
    """Accept connections for the life of the process: of actors on this node, and in a cluster of actors on other nodes.

    An engine that started its own Ray has one node, so nothing listens on TCP. What cannot listen is reached by Ray calls.
    """
    if config.link_transport == "ray" or not ray.is_initialized():
        return NOWHERE
    context = ray.get_runtime_context()
    folder = Path(context.get_temp_dir()) / context.get_session_name()
    path = await socket_carrier.listen(folder, credentials.name, credentials.namespace, served)
    host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    port = await tcp_carrier.listen(host, config.link_ports, credentials, served) if config.address else 0
    return Address(node_id(), path, host, port)


def node_id() -> str:
    """Ray's name of this node."""
    return str(ray.get_runtime_context().get_node_id())


async def find_actor(name: str, namespace: str) -> Any:
    """The handle of a named actor. Raises ValueError when there is no such actor."""
    return await asyncio.get_running_loop().run_in_executor(_finder, lambda: ray.get_actor(name, namespace=namespace))


async def await_actor(name: str, namespace: str) -> Any:
    """Wait for a named actor; returns its handle."""
    while True:
        try:
            return await find_actor(name, namespace)
        except ValueError:
            await asyncio.sleep(_FIND_S)
