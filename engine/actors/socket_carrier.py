"""Exchanges between actors of one node: over a Unix socket, in place of Ray calls.

A Ray call costs 1.25 ms of CPU at both ends together, whatever it carries; the same exchange over a socket costs a fifteenth of that. Ray
places the actors, starts them again, and says which node each is on; actors of other nodes are reached by Ray calls, with
Ray's authentication. What is exchanged, its numbers, pacing and leases are the same either way (`engine.core.wire.link`).

A connection carries one link session. Frames, both ways: `<length: u32><request: u64><that many bytes>`, little-endian. The caller's
first frame is the session's id, every later one a batch; the callee's are replies, each under the number of its request.

States of a connection
    open    from `ActorPeer.open` on, which asks the actor, by a Ray call, where it listens
    lost    one end is gone: requests under way fail and both sides end the session at once. The caller's next one asks again

Who may connect: the user that runs the engine. The sockets are in a directory of its own (mode 0700) in that of Ray's session. Where that
cannot be, because the path is too long for a socket or Ray has no such directory, Ray calls do everything.
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
"""CPU of one exchange at one end when it is a Ray call, measured; with `link_calls_share` it sets the pacing for many peers."""

DIRECT_CALL_MS: Final = 0.05
"""The same over a socket."""

_HEAD: Final = struct.Struct("<IQ")
_FIND_S: Final = 0.1  # between two looks for an actor that is being created

Address = tuple[str, str]
"""Node id and path of the socket an actor listens on; ("", "") when it listens on none."""

NOWHERE: Final[Address] = ("", "")


class Exchanging(Protocol):
    """The called end of links, as connections use it; see `engine.actors.link.LinkServer`."""

    def request(self, session: str, seq: int, batch: bytes, answer: Callable[[bytes], object], call_ms: float) -> None:
        """A request came; `answer` is called once with the reply."""

    def lost(self, session: str) -> None:
        """The session's connection is gone."""


class Peer(Protocol):
    """An actor, as the calling end of a link uses it."""

    async def open(self) -> float:
        """Find the way to it for a new session; returns what an exchange costs, in ms. Raises RayError, OSError or TimeoutError."""

    def exchange(self, session: str, seq: int, batch: bytes) -> Awaitable[bytes]:
        """One request and its reply. The result raises RayError or ConnectionError."""

    def close(self) -> None:
        """The session is over."""


class _Frames:
    """Cuts what a socket gives into frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """(number, content) of the frames that are complete now."""
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


class Served(asyncio.Protocol):
    """The callee's end of a connection.

    Args:
        links: gets the requests.
        ready: does the actor serve; else who connects is sent away, and asks again by `ActorPeer.open`, which waits.
    """

    def __init__(self, links: Callable[[], Exchanging], ready: Callable[[], bool]) -> None:
        self._links = links
        self._ready = ready
        self._frames = _Frames()
        self._session = ""
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport by class
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


class _Calling(asyncio.Protocol):
    """The caller's end of a connection."""

    def __init__(self) -> None:
        self._frames = _Frames()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._session = ""
        self._loop = asyncio.get_running_loop()
        self._lost = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport by class
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
    """A peer reached by Ray calls only.

    Args:
        handle: Ray actor handle with `exchange(session, seq, batch) -> bytes`; anything with `.exchange.remote` will do.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def open(self) -> float:
        """Nothing is to be done."""
        return RAY_CALL_MS

    def exchange(self, session: str, seq: int, batch: bytes) -> Awaitable[bytes]:
        """See `Peer`."""
        reply: Awaitable[bytes] = self._handle.exchange.remote(session, seq, batch)
        return reply

    def close(self) -> None:
        """Nothing is to be done."""


class ActorPeer:
    """A named actor, which may not exist yet: over its socket when it is on this node, else by Ray calls."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name = name
        self._namespace = namespace
        self._handle: Any = None
        self._calling: _Calling | None = None  # when it is on this node
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
            self._handle = None  # a controller may have made another one of this name
            raise
        if not path or node != node_id():
            return RAY_CALL_MS
        try:
            _, self._calling = await asyncio.get_running_loop().create_unix_connection(_Calling, path)
        except OSError as error:
            log.warning("%s is called through Ray: its socket %s cannot be used: %s", self._name, path, error)
            return RAY_CALL_MS
        return DIRECT_CALL_MS

    def exchange(self, session: str, seq: int, batch: bytes) -> Awaitable[bytes]:
        """See `Peer`."""
        return (self._calling or self._through_ray).exchange(session, seq, batch)

    def close(self) -> None:
        """End the connection, if there is one: the callee ends the session at once."""
        if self._calling is not None:
            self._calling.close()
            self._calling = None


async def listen(name: str, namespace: str, served: Callable[[], asyncio.Protocol]) -> Address:
    """Serve connections of this node's actors, for as long as the process lives."""
    if not ray.is_initialized():
        return NOWHERE
    try:
        path = _folder(namespace) / f"{name}-{os.getpid()}"
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise OSError(f"a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes, {path} is longer")
        for left in path.parent.glob(f"{name}-*"):  # by earlier incarnations
            left.unlink(missing_ok=True)
        await asyncio.get_running_loop().create_unix_server(served, os.fspath(path))
    except OSError as error:
        log.warning("%s is reached through Ray only: %s", name, error)
        return NOWHERE
    return node_id(), os.fspath(path)


def _folder(namespace: str) -> Path:
    """This user's own, for the sockets of one engine."""
    context = ray.get_runtime_context()
    name = f"engine-{os.getuid()}-{zlib.crc32(namespace.encode()):08x}"
    folder = Path(context.get_temp_dir()) / context.get_session_name() / name
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(f"{folder} is not this user's alone")
    return folder


def node_id() -> str:
    """Ray's name of this node."""
    return str(ray.get_runtime_context().get_node_id())


async def find_actor(name: str, namespace: str) -> Any:
    """The handle of a named actor. Raises ValueError when there is none."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: ray.get_actor(name, namespace=namespace))


async def await_actor(name: str, namespace: str) -> Any:
    """The handle of a named actor, as soon as there is one."""
    while True:
        try:
            return await find_actor(name, namespace)
        except ValueError:
            await asyncio.sleep(_FIND_S)
