"""A listening socket that outlives its edge: connections wait for the edge's next process instead of being refused.

A client that is refused comes back after a pause of its own, and all that are refused come back again and again: they take the CPU that
the next process needs. Held by a second process of the machine, the socket queues their connections until the next edge accepts them.
The fork server of a local Ray is that process (`engine.cli.fork_server`); on other nodes a service leads clients to edges elsewhere.

States of a socket at the keeper
    owned     by the edge at the other end of a connection, which breaks with the edge's process
    orphaned  its edge died. The next edge with this address takes it, as soon as it can serve; after `_KEPT_S` it is closed, which resets
              what waits
    closed    its edge leaves on purpose and said so, or died while another edge has the address, to which clients go at once

A keeper that dies, or starts anew, takes its copies along: edges have theirs, and the next one binds anew. So does one that the keeper does
not answer in time; what the keeper then has for it stays an orphan.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Final

_KEPT_S: Final = 3.0
"""For the next process of an edge to serve: a fork takes 0.2 s, a process started by its command 2 s."""

_ANSWER_S: Final = 1.0
"""For the keeper, which may be forking a process."""

_WORD: Final = b"listener "
_WORD_BYTES_MAX: Final = 512
_NONE: Final = b"none"
_LEFT: Final = b"left"

keeper_path = ""
"""Socket of this machine's keeper; "" where there is none. Set in the processes that it forks."""


class KeptListener:
    """The listening socket of this process: its predecessor's, if that was kept, else a new one.

    Args:
        address: the same for all edges that share a port; "" for a port that only this process has, which is not kept.
        bind: makes a new one.

    Raises:
        OSError: of `bind`.
    """

    def __init__(self, address: str, bind: Callable[[], socket.socket]) -> None:
        self._keeper, found = _ask(address) if keeper_path and address else (None, None)
        self.socket = found or bind()
        if self._keeper is not None and found is None:
            with contextlib.suppress(OSError):
                socket.send_fds(self._keeper, [_WORD], [self.socket.fileno()])

    def release(self) -> None:
        """The edge leaves: no next process gets the socket. No effect when it was released before."""
        if self._keeper is not None:
            with self._keeper, contextlib.suppress(OSError):
                self._keeper.send(_LEFT)
            self._keeper = None

    def stop(self) -> None:
        """Stop listening, whether or not the keeper has closed its copy yet: Linux shuts the socket down for both."""
        with contextlib.suppress(OSError):  # it is closed
            self.socket.shutdown(socket.SHUT_RDWR)


def _ask(address: str) -> tuple[socket.socket | None, socket.socket | None]:
    """The connection to the keeper, if it answers, and what it has of a predecessor."""
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        keeper.settimeout(_ANSWER_S)
        keeper.connect(keeper_path)
        keeper.send(_WORD + address.encode())
        _, found = _receive(keeper)
    except OSError:
        keeper.close()
        return None, None
    return keeper, found


def _receive(peer: socket.socket) -> tuple[bytes, socket.socket | None]:
    """A word, and the socket that is sent with it."""
    word, files, _, _ = socket.recv_fds(peer, _WORD_BYTES_MAX, 1)
    listener = socket.socket(fileno=files[0]) if files else None
    if listener is not None:
        listener.set_inheritable(False)  # `recv_fds` of Python 3.11 ignores the flag for that
    return word, listener


class _Kept:
    """One socket at the keeper."""

    def __init__(self, address: bytes, owner: socket.socket) -> None:
        self.address = address
        self.owner: socket.socket | None = owner
        self.listener: socket.socket | None = None
        self.until_s = 0.0  # when an orphan is closed

    def close(self) -> None:
        for held in (self.listener, self.owner):
            if held is not None:
                held.close()


class Keeper:
    """The keeper's part, for a loop that waits for `owners`, `until_expiry` at the longest.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: list[_Kept] = []

    @staticmethod
    def is_asked(request: bytes) -> bool:
        """Whether what a process sends first is for the keeper."""
        return request.startswith(_WORD)

    def adopt(self, owner: socket.socket, request: bytes) -> None:
        """An edge begins: answer with what its predecessor had."""
        kept = _Kept(request.removeprefix(_WORD), owner)
        orphan = next((one for one in self._kept if one.owner is None and one.address == kept.address), None)
        try:
            if orphan is None:
                owner.send(_NONE)
            else:
                assert orphan.listener is not None
                socket.send_fds(owner, [_WORD], [orphan.listener.fileno()])
        except OSError:  # the edge waits no more
            owner.close()
            return
        if orphan is not None:
            self._kept.remove(orphan)
            kept.listener = orphan.listener
        self._kept.append(kept)

    def owners(self) -> list[socket.socket]:
        """Connections of edges."""
        return [kept.owner for kept in self._kept if kept.owner is not None]

    def take_news(self, owner: socket.socket) -> None:
        """There is something to read from this edge: its socket, that it leaves, or its end."""
        kept = next(one for one in self._kept if one.owner is owner)
        try:
            word, listener = _receive(owner)
        except OSError:
            word, listener = b"", None
        if listener is not None:
            kept.listener = listener
        elif word == _LEFT:
            self._drop(kept)
        else:
            self._orphan(kept, owner)

    def _orphan(self, kept: _Kept, owner: socket.socket) -> None:
        if kept.listener is None or any(one.address == kept.address and one.owner not in (None, owner) for one in self._kept):
            self._drop(kept)
            return
        owner.close()
        kept.owner = None
        kept.until_s = self._clock() + _KEPT_S

    def _drop(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        kept.close()

    def until_expiry(self) -> float | None:
        """Seconds until `expire` has something to do; None while nothing waits for that."""
        waiting = [kept.until_s for kept in self._kept if kept.owner is None]
        return max(min(waiting) - self._clock(), 0.0) if waiting else None

    def expire(self) -> None:
        """Close the orphans that nobody took in time."""
        now_s = self._clock()
        for kept in [one for one in self._kept if one.owner is None and one.until_s <= now_s]:
            self._drop(kept)

    def close(self) -> None:
        """In a process that was forked: these are its parent's."""
        for kept in self._kept:
            kept.close()
        self._kept.clear()
