"""Carries link exchanges between actors of one node over a Unix socket instead of Ray calls.

A Ray call costs 1.25 ms of CPU at both ends together, whatever its size; the same exchange over a socket costs a fifteenth of that. Ray
places and restarts the actors and reports the node of each; actors of other nodes are reached by Ray calls, with Ray's authentication.
Sessions, numbers, pacing and leases are the same either way (`engine.core.wire.link`).

A connection carries one link session. Frames in both directions: `<length: u32><request: u64><that many bytes>`, little-endian. The
caller's first frame is the session id, each later one a batch; the callee sends replies, each under the number of its request.

States of a connection
    open    after `ActorPeer.open`, which gets the actor's socket path by a Ray call
    lost    one end closed it: requests in flight fail and both ends close the session. The next session gets the path again

Access: only the user that runs the engine. The sockets are in a directory of mode 0700 in that of Ray's session. Where this is
impossible, because the path is too long for a socket or Ray has no such directory, all exchanges are Ray calls.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import struct
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import ray
from ray.exceptions import RayActorError

from engine.store.embedded_redis import SOCKET_PATH_BYTES_MAX

log = logging.getLogger(__name__)

RAY_CALL_MS: Final = 0.8
"""CPU time of one exchange at one end by Ray call, ms, measured; with `link_calls_share` it sets the pacing for many peers."""

DIRECT_CALL_MS: Final = 0.05
"""The same over a socket."""

_HEAD: Final = struct.Struct("<IQ")
_FIND_S: Final = 0.1  # between two lookups of an actor that is being created

Address = tuple[str, str]
"""Node id and socket path of an actor; ("", "") when it does not listen on a socket."""

NOWHERE: Final[Address] = ("", "")


class ExchangeHandler(Protocol):
    """The callee's side of links, as connections use it; see `engine.actors.link.LinkServer`."""

    def request(self, session: str, seq: int, batch: bytes, answer: Callable[[bytes], object], call_ms: float) -> None:
        """Process a request; call `answer` once with the reply."""

    def lost(self, session: str) -> None:
        """The session's connection was lost."""


class Peer(Protocol):
    """A remote actor, as the caller of a link uses it."""

    async def open(self) -> float:
        """Connect for a new session; returns the CPU cost of an exchange, ms. Raises RayError, OSError or TimeoutError."""

    def exchange(self, session: str, seq: int, batch: bytes) -> Awaitable[bytes]:
        """Send one request; returns its reply. Awaiting it raises RayError or ConnectionError."""

    def close(self) -> None:
        """End the session."""


class _Frames:
    """Splits a byte stream into frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Add received bytes; returns the (number, content) of all frames completed by them."""
        buffer = self._buffer
        buffer += data
        frames = []
        at, end = 0, len(buffer)
        while end - at >= _HEAD.size:
            length, number = _HEAD.unpack_from(buffer, at)
            start, stop = at + _HEAD.size, at + _HEAD.size + length
            if stop > end:
                break
            frames.append((number, bytes(memoryview(buffer)[start:stop])))
            at = stop
        del buffer[:at]
        return frames


def _frame(number: int, content: bytes) -> bytes:
    return _HEAD.pack(len(content), number) + content


class CalleeConnection(asyncio.Protocol):
    """The callee's end of a connection.

    Args:
        links: receives the requests.
        ready: whether the actor serves requests. While it does not, connections are closed, and callers wait in `ActorPeer.open`.
    """

    def __init__(self, links: Callable[[], ExchangeHandler], ready: Callable[[], bool]) -> None:
        self._links = links
        self._ready = ready
        self._frames = _Frames()
        self._session = ""
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:  # uvloop's class does not derive from asyncio.Transport
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for number, content in self._frames.feed(data):
            if not self._ready():
                self._transport.close()
                return
            if not self._session:
                self._session = content.decode()
            else:
                self._links().request(self._session, number, content, partial(self._answer, number), DIRECT_CALL_MS)

    def connection_lost(self, error: Exception | None) -> None:
        if self._session:
            self._links().lost(self._session)

    def _answer(self, number: int, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(_frame(number, data))


class _CallerConnection(asyncio.Protocol):
    """The caller's end of a connection."""

    def __init__(self) -> None:
        self._frames = _Frames()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._session = ""
        self._loop = asyncio.get_running_loop()
        self._lost = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:  # uvloop's class does not derive from asyncio.Transport
        self._transport = transport

    def exchange(self, session: str, seq: int, batch: bytes) -> asyncio.Future[bytes]:
        reply: asyncio.Future[bytes] = self._loop.create_future()
        if self._lost:
            reply.set_exception(ConnectionResetError("the connection is lost"))
            return reply
        self._waiting[seq] = reply
        frame = _frame(seq, batch)
        if not self._session:
            self._session = session
            frame = _frame(0, session.encode()) + frame
        self._transport.write(frame)
        return reply

    def data_received(self, data: bytes) -> None:
        for number, content in self._frames.feed(data):
            reply = self._waiting.pop(number, None)
            if reply is not None and not reply.done():
                reply.set_result(content)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(ConnectionResetError("the peer is gone"))

    def close(self) -> None:
        self._transport.close()


class RayPeer:
    """A peer that is called through Ray only.

    Args:
        handle: Ray actor handle with `exchange(session, seq, batch) -> bytes`; any object with `.exchange.remote`.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def open(self) -> float:
        """Do nothing: Ray connects by itself."""
        return RAY_CALL_MS

    def exchange(self, session: str, seq: int, batch: bytes) -> Awaitable[bytes]:
        """See `Peer`."""
        reply: Awaitable[bytes] = self._handle.exchange.remote(session, seq, batch)
        return reply

    def close(self) -> None:
        """Do nothing."""


class ActorPeer:
    """A named actor, which may not exist yet: called over its socket when it is on this node, else through Ray."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name = name
        self._namespace = namespace
        self._handle: Any = None
        self._calling: _CallerConnection | None = None  # set when it is on this node
        self._through_ray = RayPeer(None)

    async def open(self) -> float:
        """See `Peer`. Waits until the actor exists and serves."""
        self.close()
        if self._handle is None:
            self._handle = await await_actor(self._name, self._namespace)
            self._through_ray = RayPeer(self._handle)
        try:
            node, path = await self._handle.address.remote()
        except RayActorError:
            self._handle = None  # a controller may have created another one of this name
            raise
        if not path or node != node_id():
            return RAY_CALL_MS
        try:
            _, self._calling = await asyncio.get_running_loop().create_unix_connection(_CallerConnection, path)
        except OSError as error:
            log.warning("%s is called through Ray: its socket %s cannot be used: %s", self._name, path, error)
            return RAY_CALL_MS
        return DIRECT_CALL_MS

    def exchange(self, session: str, seq: int, batch: bytes) -> Awaitable[bytes]:
        """See `Peer`."""
        return (self._calling or self._through_ray).exchange(session, seq, batch)

    def close(self) -> None:
        """Close the connection, if there is one; the callee ends the session then."""
        if self._calling is not None:
            self._calling.close()
            self._calling = None


async def listen(name: str, namespace: str, served: Callable[[], asyncio.Protocol]) -> Address:
    """Accept connections of actors on this node for the life of the process; returns the address, `NOWHERE` without a socket."""
    if not ray.is_initialized():
        return NOWHERE
    try:
        path = _folder(namespace) / f"{name}-{os.getpid()}"
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise OSError(f"a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes, {path} is longer")
        for left in path.parent.glob(f"{name}-*"):  # of earlier incarnations
            left.unlink(missing_ok=True)
        await asyncio.get_running_loop().create_unix_server(served, os.fspath(path))
    except OSError as error:
        log.warning("%s is reached through Ray only: %s", name, error)
        return NOWHERE
    return node_id(), os.fspath(path)


def _folder(namespace: str) -> Path:
    """The directory for the sockets of one engine, accessible to this user only. Raises OSError when it is not."""
    context = ray.get_runtime_context()
    name = f"engine-{os.getuid()}-{zlib.crc32(namespace.encode()):08x}"
    folder = Path(context.get_temp_dir()) / context.get_session_name() / name
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(f"{folder} is not accessible to this user alone")
    return folder


def node_id() -> str:
    """Ray's name of this node."""
    return str(ray.get_runtime_context().get_node_id())


async def find_actor(name: str, namespace: str) -> Any:
    """The handle of a named actor. Raises ValueError when there is no such actor."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: ray.get_actor(name, namespace=namespace))


async def await_actor(name: str, namespace: str) -> Any:
    """Wait for a named actor; returns its handle."""
    while True:
        try:
            return await find_actor(name, namespace)
        except ValueError:
            await asyncio.sleep(_FIND_S)
