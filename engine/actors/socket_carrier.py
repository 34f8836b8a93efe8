"""Carries link exchanges over a stream connection, and listens on a Unix socket for actors of the same node.

A Ray call costs 1.25 ms of CPU at both ends together, whatever its size; the same exchange over a socket costs a fifteenth of that.

A connection carries one link session. Frames in both directions: `<length: u32><request: u64><that many bytes>`, little-endian. The
caller's first frame is the session id, each later one a batch; the callee sends replies, each under the number of its request.

States of a connection
    open    a session is carried
    lost    one end closed it, or sent what is no frame: requests in flight fail and both ends close the session

Access to the Unix sockets: only the user that runs the engine. They are in a directory of mode 0700 in that of Ray's session. Where this
is impossible, because the path is too long for a socket or Ray has no such directory, there is none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engine.store.embedded_redis import SOCKET_PATH_BYTES_MAX

if TYPE_CHECKING:
    from engine.actors.link import LinkServer

log = logging.getLogger(__name__)

DIRECT_CALL_MS: Final = 0.05
"""CPU time of one exchange at one end over a connection, ms, measured."""

FRAME_BYTES_MAX: Final = 256 << 20
"""A link queues no more than this, so no batch is larger. Only who proved to belong to the engine gets a frame read at all."""

_listening: Final[list[asyncio.AbstractServer]] = []  # uvloop frees a server that nobody holds, and closes its socket

_SESSION_BYTES_MAX: Final = 200  # a name, a slash, 32 digits
_HEAD: Final = struct.Struct("<IQ")


class Address(NamedTuple):
    """Where an actor listens for links: `path` is "" without a Unix socket, `port` 0 without TCP."""

    node: str = ""
    path: str = ""
    host: str = ""
    port: int = 0


Vouched = Callable[[str], bool]
"""Whether the caller of a connection is known to be the actor of this name."""

ServedBy = Callable[[Vouched], "CalleeConnection"]
"""Makes the callee's end of a connection that is allowed."""


class MalformedFrame(ConnectionError):
    """What was received is no frame of a link."""


class _Frames:
    """Splits a byte stream into frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Add received bytes; returns the (number, content) of all frames completed by them. Raises MalformedFrame."""
        buffer = self._buffer
        buffer += data
        frames = []
        at, end = 0, len(buffer)
        while end - at >= _HEAD.size:
            length, number = _HEAD.unpack_from(buffer, at)
            start, stop = at + _HEAD.size, at + _HEAD.size + length
            if stop > end:
                if length > FRAME_BYTES_MAX:
                    raise MalformedFrame(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} are allowed")
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
        ready: whether the actor serves requests. While it does not, connections are closed, and callers wait for its address.
        vouched: whether the caller may open a session under a name.
    """

    def __init__(self, links: Callable[[], LinkServer], ready: Callable[[], bool], vouched: Vouched) -> None:
        self._links = links
        self._ready = ready
        self._vouched = vouched
        self._frames = _Frames()
        self._session = ""
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:  # uvloop's class does not derive from asyncio.Transport
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for number, content in self._frames.feed(data):
                if not self._ready():
                    self._transport.close()
                    return
                if not self._session:
                    self._session = self._opened(content)
                else:
                    self._links().request(self._session, number, content, partial(self._answer, number), DIRECT_CALL_MS)
        except MalformedFrame as error:
            log.error("a connection of %s ends: %s", self._session or "no session", error)
            self._transport.abort()

    def _opened(self, content: bytes) -> str:
        """The session whose id the first frame is. Raises MalformedFrame."""
        if len(content) <= _SESSION_BYTES_MAX:
            session = content.decode(errors="replace")
            if self._vouched(session.partition("/")[0]):
                return session
        raise MalformedFrame("its first frame is not a session of the caller that connected")

    def connection_lost(self, error: Exception | None) -> None:
        if self._session:
            self._links().lost(self._session)

    def _answer(self, number: int, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(_frame(number, data))


class CallerConnection(asyncio.Protocol):
    """The caller's end of a connection."""

    def __init__(self) -> None:
        self._frames = _Frames()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._session = ""
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:  # uvloop's class does not derive from asyncio.Transport
        self._transport = transport

    def exchange(self, session: str, seq: int, batch: bytes) -> asyncio.Future[bytes]:
        """See `engine.actors.carrier.Peer`."""
        reply: asyncio.Future[bytes] = self._loop.create_future()
        if self._lost.done():
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
        try:
            for number, content in self._frames.feed(data):
                reply = self._waiting.pop(number, None)
                if reply is not None and not reply.done():
                    reply.set_result(content)
        except MalformedFrame as error:
            log.error("the connection of %s ends: %s", self._session, error)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(ConnectionResetError("the peer is gone"))

    async def lost(self) -> None:
        """Returns when either end has closed the connection, or it broke."""
        await asyncio.shield(self._lost)

    def close(self) -> None:
        """End the connection, and the session with it."""
        self._transport.close()


def anyone(_name: str) -> bool:
    """Vouches for whoever connects: a file's permissions did before."""
    return True


async def connect(path: str) -> CallerConnection:
    """Connect to an actor of this node. Raises OSError."""
    _, connection = await asyncio.get_running_loop().create_unix_connection(CallerConnection, path)
    return connection


async def listen(folder: Path, name: str, namespace: str, served: ServedBy) -> str:
    """Accept connections of actors on this node for the life of the process; returns the socket's path, "" when there is none.

    Args:
        folder: of Ray's session; the sockets are in a directory inside.
    """
    try:
        path = private_folder(folder, namespace) / f"{name}-{os.getpid()}"
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise OSError(f"a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes, {path} is longer")
        for left in path.parent.glob(f"{name}-*"):  # of earlier incarnations
            left.unlink(missing_ok=True)
        _listening.append(await asyncio.get_running_loop().create_unix_server(lambda: served(anyone), os.fspath(path)))
    except OSError as error:
        log.warning("%s has no Unix socket: %s", name, error)
        return ""
    return os.fspath(path)


def private_folder(session: Path, namespace: str) -> Path:
    """The directory of one engine on this node, accessible to this user only. Raises OSError when it is not.

    Args:
        session: directory of Ray's session.
    """
    folder = session / f"engine-{os.getuid()}-{zlib.crc32(namespace.encode()):08x}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(f"{folder} is not accessible to this user alone")
    return folder
