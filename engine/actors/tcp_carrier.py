"""Connections between actors of different nodes: listening on a port that strangers may reach, and connecting to one.

An exchange by Ray call costs ten times the CPU. Each actor listens on its node's Ray address only, on the first free port of
`link_ports`. Both ends prove the engine's link key (`engine.core.wire.link_handshake`) before anything is parsed; then the connection is
that of `engine.actors.socket_carrier`, and its frames are read. With `link_tls_*` the connection is TLS 1.3 first, with certificates at
both ends.

States of an accepted connection; the listener owns it until it is proven
    unproven   one of at most `UNPROVEN_MAX`; no more are accepted meanwhile, the kernel holds a few and drops the rest
    proven     handed over to its `CalleeConnection`
    refused    closed; it keeps its place among the unproven until `HANDSHAKE_S` after it was accepted, so that strangers cost an actor
               at most UNPROVEN_MAX / HANDSHAKE_S handshakes a second: 1 % of a core, 10 % with TLS

While strangers hold all places, new links of the engine's own actors are Ray calls; those that are open are not concerned.

The key is read from Redis when it is first needed, and again, every `REREAD_S` at most, after a proof was rejected: it may have been
rotated, or lost with Redis's data. While Redis is away, the key that was read last is used. Certificates that were renewed are those of
the next connection.

Crash points: there is no state to lose. A process that dies loses its connections, and the listener with them; its successor may get
another port, and another actor its old one, where the proof fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import redis.asyncio as redis

from engine.actors.socket_carrier import CallerConnection, ServedBy
from engine.config import Config, port_range
from engine.core.wire.link_handshake import NONCE_BYTES, CalleeHandshake, CallerHandshake, HandshakeFailed, identity
from engine.errors import ConfigError, StorageUnavailable
from engine.store.redis_client import connect as connect_to_redis
from engine.store.stored_secret import claim_link_key

log = logging.getLogger(__name__)

UNPROVEN_MAX: Final = 64
"""A shard that starts again is connected to by every edge, 64 at most, at once; each is proven within milliseconds."""

HANDSHAKE_S: Final = 2.0
"""For the handshakes of an accepted connection, TLS included: a hundred times what a busy machine takes."""

CONNECT_S: Final = 1.5
"""For connecting and the handshakes: a session must open, then by Ray call, within `link_timeout_ms` + `link_park_ms`."""

SILENCE_MS: Final = 10_000
"""After this long without a sign of the other end's kernel a connection is lost. The link has given its session up before."""

REREAD_S: Final = 5.0

_BACKLOG: Final = 64
_WARN_S: Final = 30.0  # between two warnings about refused connections
_PAUSE_S: Final = 1.0  # when a connection cannot be accepted, mostly for want of file descriptors


class TlsContexts(NamedTuple):
    """For the end that connects and for the end that is connected to."""

    caller: ssl.SSLContext
    callee: ssl.SSLContext


def tls_contexts(config: Config) -> TlsContexts | None:
    """What `link_tls_cert`, `link_tls_key` and `link_tls_ca` stand for; None when they are not set. TLS 1.3, certificates at both ends.

    Names in certificates are not compared, since nodes come and go: every certificate of the CA is accepted, so it should sign for
    this purpose only. Which actor it is, the link key's proof says.

    Raises:
        ConfigError: a file cannot be read or used.
    """
    if not config.link_tls_cert:
        return None
    contexts = TlsContexts(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    for context in contexts:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(config.link_tls_ca)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(f"link_tls_ca: {config.link_tls_ca}: {error}; needed is a PEM file with certificates") from error
        try:
            context.load_cert_chain(config.link_tls_cert, config.link_tls_key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"link_tls_cert, link_tls_key: {config.link_tls_cert}, {config.link_tls_key}: {error}; "
                "needed are PEM files with a certificate and its private key, without a password"
            ) from error
    return contexts


def _files_of_tls(config: Config) -> list[tuple[int, int, int]]:
    """What changes with the files of `link_tls_*`; empty when they are not set, or one is missing."""
    try:
        found = [os.stat(path) for path in (config.link_tls_cert, config.link_tls_key, config.link_tls_ca) if path]
    except OSError:
        return []
    return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in found]


def _no_password() -> str:
    raise ValueError("the private key is encrypted")  # else OpenSSL asks on the terminal


class LinkCredentials:
    """Who this actor is on its links, and what it proves that with.

    Args:
        name: of this actor, such as `edge-0`; sessions that it opens begin with it.
        connect: to Redis, for the time of a read.
        prove: makes the proof that a session over Ray is this engine's.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        connect: Callable[[Config], redis.Redis] = connect_to_redis,
        prove: Callable[[str], bytes] | None = None,
    ) -> None:
        self.name = name
        self.prove = prove
        self.namespace = config.namespace
        self._config = config
        self._connect = connect
        self._key: bytes | None = None
        self._read_at_s = 0.0
        self._doubted = False
        self._reading = asyncio.Lock()
        self._tls: tuple[TlsContexts | None] | None = None
        self._tls_files: list[tuple[int, int, int]] = []  # as they were when `_tls` was made, or could not be

    @property
    def tls(self) -> TlsContexts | None:
        """See `tls_contexts`. Changed files are read anew; while they cannot be used, what was read last is. Raises ConfigError."""
        files = _files_of_tls(self._config)
        if self._tls is None or files != self._tls_files:
            try:
                self._tls = (tls_contexts(self._config),)
            except ConfigError as error:
                if self._tls is None:
                    raise
                log.warning("%s goes on with the certificate that it has: %s", self.name, error)
            self._tls_files = files
        return self._tls[0]

    def identity_of(self, name: str) -> bytes:
        """The identity of an actor of this engine."""
        return identity(self.namespace, name)

    async def key(self) -> bytes:
        """The link key. Raises StorageUnavailable when it has never been read."""
        async with self._reading:
            if self._key is None or self._doubted:
                self._key = await self._read_key()
        return self._key

    async def _read_key(self) -> bytes:
        client = self._connect(self._config)
        try:
            return await claim_link_key(client)
        except StorageUnavailable:
            if self._key is None:
                raise
            return self._key
        finally:
            self._doubted = False
            self._read_at_s = time.monotonic()
            await client.aclose()

    def doubt(self) -> None:
        """A proof was rejected: the key is read again when it is needed next, if it is not new."""
        if time.monotonic() - self._read_at_s > REREAD_S:
            self._doubted = True


class _Unproven(asyncio.Protocol):
    """Runs a handshake over a connection, then gives the connection to the link's protocol.

    Args:
        proven: returns the protocol of the connection, of which the other end is now proven.
    """

    def __init__(self, handshake: CalleeHandshake | CallerHandshake, proven: Callable[[], asyncio.Protocol]) -> None:
        self._handshake = handshake
        self._proven = proven
        self._transport: asyncio.Transport
        self.protocol: asyncio.Future[asyncio.Protocol] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if greeting := self._handshake.greeting():
            transport.write(greeting)

    def data_received(self, data: bytes) -> None:
        if self.protocol.done():
            return  # it failed; what follows is not read
        try:
            answer = self._handshake.receive_data(data)
        except HandshakeFailed as error:
            self._fail(error)
            return
        if answer:
            self._transport.write(answer)
        if self._handshake.proven:
            protocol = self._proven()
            self._transport.set_protocol(protocol)
            protocol.connection_made(self._transport)
            self.protocol.set_result(protocol)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(HandshakeFailed("the other end closed the connection before the handshake was complete"))

    def _fail(self, error: HandshakeFailed) -> None:
        if not self.protocol.done():
            self.protocol.set_exception(error)
            self.protocol.exception()  # nobody may be waiting any more


def _prepare(connection: socket.socket) -> None:
    """A connection must not outlive its other end: a pulled cable closes nothing."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", SILENCE_MS)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def connect(host: str, port: int, credentials: LinkCredentials, callee: str) -> CallerConnection:
    """Connect to the actor `callee`; both ends are proven when it returns.

    Raises:
        OSError: the port cannot be reached, or (HandshakeFailed) the other end is not that actor of this engine; TLS failed.
        TimeoutError: that was not done within `CONNECT_S`.
        ConfigError: the TLS files of this node cannot be used.
        StorageUnavailable: the key cannot be read.
    """
    loop = asyncio.get_running_loop()
    linked = CallerConnection()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(CONNECT_S):
            key = await credentials.key()
            handshake = CallerHandshake(
                key, credentials.identity_of(credentials.name), credentials.identity_of(callee), secrets.token_bytes(NONCE_BYTES)
            )
            unproven = _Unproven(handshake, lambda: linked)
            tls = credentials.tls
            transport, _ = await loop.create_connection(lambda: unproven, host, port, ssl=tls.caller if tls else None)
            _prepare(transport.get_extra_info("socket"))
            await unproven.protocol
    except BaseException as error:
        if isinstance(error, HandshakeFailed):
            credentials.doubt()
        if transport is not None:
            transport.abort()
        raise
    return linked


async def listen(host: str, ports: str, credentials: LinkCredentials, served: ServedBy) -> int:
    """Accept connections for the life of the process; returns the port, 0 when it is impossible: then links are Ray calls.

    Args:
        host: the address, and the only one, to listen on.
        ports: `FIRST-LAST`; the first free one is taken.
    """
    try:
        credentials.tls  # noqa: B018  read now, so that a file that cannot be used is reported at the start
        listener = _bind(host, ports)
    except (OSError, ConfigError) as error:
        log.error("%s is reached from other nodes by Ray calls only, at ten times the cost: %s", credentials.name, error)
        return 0
    _Listener(listener, credentials, served)
    port: int = listener.getsockname()[1]
    return port


def _bind(host: str, ports: str) -> socket.socket:
    """A listening socket. Raises OSError."""
    last: OSError | None = None
    for port in port_range(ports):
        # One each: who has bound a port that another actor then listens on first cannot bind another port.
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last incarnation may linger
        try:
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError as error:  # in use: by another actor, another engine or another program
            last = error
            listener.close()
        else:
            return listener
    raise OSError(f"link_ports: no port of {ports} can be had on {host}: {last}")


class _Listener:
    """Accepts connections of whoever reaches the port, a few at a time. The event loop holds it."""

    def __init__(self, listener: socket.socket, credentials: LinkCredentials, served: ServedBy) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._credentials = credentials
        self._served = served
        self._admitting: set[asyncio.Task[None]] = set()
        self._refused = 0
        self._warned_at_s = float("-inf")
        self._resume()

    def _resume(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("%s cannot accept a connection: %s", self._credentials.name, error)
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(_PAUSE_S, self._resume)
            return
        connection.setblocking(False)
        admitting = self._loop.create_task(self._admit(connection, address[0]))
        self._admitting.add(admitting)
        admitting.add_done_callback(self._admitted)
        if len(self._admitting) >= UNPROVEN_MAX:
            self._loop.remove_reader(self._listener.fileno())

    def _admitted(self, task: asyncio.Task[None]) -> None:
        if len(self._admitting) >= UNPROVEN_MAX:
            self._resume()
        self._admitting.discard(task)

    async def _admit(self, connection: socket.socket, host: str) -> None:
        """Prove the other end. Returns when it is proven; after it was refused, when its place may be given away."""
        ends_at_s = self._loop.time() + HANDSHAKE_S
        transport: asyncio.BaseTransport | None = None
        try:
            async with asyncio.timeout_at(ends_at_s):
                _prepare(connection)
                key = await self._credentials.key()
                me = self._credentials.identity_of(self._credentials.name)
                handshake = CalleeHandshake(key, me, secrets.token_bytes(NONCE_BYTES))
                tls = self._credentials.tls

                def proven() -> asyncio.Protocol:
                    return self._served(lambda name: self._credentials.identity_of(name) == handshake.caller)

                unproven = _Unproven(handshake, proven)
                transport, _ = await self._loop.connect_accepted_socket(lambda: unproven, connection, ssl=tls.callee if tls else None)
                await unproven.protocol
        except (OSError, TimeoutError, ConfigError, StorageUnavailable) as error:
            if isinstance(error, HandshakeFailed):
                self._credentials.doubt()
            if transport is None:
                connection.close()
            else:
                transport.abort()  # type: ignore[attr-defined]
            self._warn(host, error)
            await asyncio.sleep(ends_at_s - self._loop.time())

    def _warn(self, host: str, error: Exception) -> None:
        self._refused += 1
        now_s = self._loop.time()
        if now_s - self._warned_at_s >= _WARN_S:
            self._warned_at_s = now_s
            log.warning(
                "%s refused %d connections to its link port, the last from %s: %s",
                self._credentials.name, self._refused, host, str(error) or type(error).__name__,
            )  # fmt: skip
            self._refused = 0
