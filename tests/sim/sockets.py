"""Connections between actors, as a kernel keeps them: the streams under the engine's own `CallerConnection` and `CalleeConnection`.

A stream keeps its order and loses nothing, until one end gives up. While a way is cut, what is written waits and is sent again, after
pauses that double; so it arrives late when the cut is short, and never when it is longer than the kernel's patience. Then each end finds
out by itself, at its own time. A process that dies, or closes, lets the other end know as soon as the way is open.

    unix    between actors of one host; never cut
    tcp     between hosts
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from engine.actors.socket_carrier import Address, CalleeConnection, CallerConnection, ServedBy, anyone
from tests.sim.cuts import TCP, Cuts, Place
from tests.sim.faults import Faults
from tests.sim.loop import Process, SimLoop

CONNECT_S = 0.25
"""As the engine's, below the time that a session has for its opening."""

_HOP_S = 0.0001
_PATIENCE_S = (0.4, 1.0, 4.0)
_PAUSE_S = 0.02
_PAUSE_MAX_S = 0.4


class End:
    """One end of a connection: the transport of its protocol."""

    def __init__(self, sockets: Sockets, process: Process, protocol: Any, is_tcp: bool) -> None:
        self._sockets = sockets
        self._loop = sockets.loop
        self.process = process
        self.place: Place = process.place
        self._protocol = protocol
        self._carrier = TCP if is_tcp else ""
        self._is_tcp = is_tcp
        self.peer: End
        self._out: list[bytes] = []
        self._fin = False  # after what is in `_out`
        self._pumping = False
        self._stuck_at: float | None = None
        self._pause_s = _PAUSE_S
        self.over = False  # nothing is received any more

    # -- What a protocol asks of its transport. -----------------------------------------------------------------------
    def write(self, data: bytes) -> None:
        if not self.over and self.process.alive:
            self._out.append(data)
            self._pump(0.0)

    def is_closing(self) -> bool:
        return self.over

    def close(self) -> None:
        """What was written is still sent, then the end."""
        if not self.over:
            self._finish(None)

    def abort(self) -> None:
        """What was written is not sent."""
        self._out.clear()
        self.close()

    # -- What the kernel does. ----------------------------------------------------------------------------------------
    def _finish(self, error: Exception | None) -> None:
        self.over = self._fin = True
        self._pump(0.0)
        if self.process.alive:
            self._loop.call_soon(self._protocol.connection_lost, error, context=self.process.context)

    def died(self) -> None:
        self.over = self._fin = True
        self._pump(0.0)

    def _reset(self) -> None:
        """The kernel gives up, or the other end is no more."""
        self._out.clear()
        if not self.over:
            self._finish(ConnectionResetError("the connection is lost"))

    def _pump(self, pause_s: float) -> None:
        if not self._pumping and (self._out or self._fin):
            self._pumping = True
            hop_s = _HOP_S * (0.3 + self._sockets.rng.random())
            self._loop.call_later(pause_s + hop_s, self._send, context=self._loop.outside)

    def _send(self) -> None:
        self._pumping = False
        now_s, peer = self._loop.time(), self.peer
        if self._is_tcp and self._sockets.cuts.is_cut(self.place, peer.place, self._carrier):
            if self._stuck_at is None:
                self._stuck_at, self._pause_s = now_s, _PAUSE_S
            if now_s - self._stuck_at > self._sockets.patience_s and not self._fin:
                self._reset()
            self._pump(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
            return
        self._stuck_at = None
        out, self._out = self._out, []
        if peer.over:
            if not self.over:  # a reset comes back, when it can
                wait_s = max(self._sockets.cuts.open_at(peer.place, self.place, self._carrier) - now_s, 0.0) if self._is_tcp else 0.0
                self._loop.call_later(wait_s + _HOP_S, self._reset, context=self._loop.outside)
            self._fin = False
            return
        if out:
            self._loop.call_soon(self.peer.receive, b"".join(out), context=peer.process.context)
        if self._fin:
            self._fin = False
            self._loop.call_soon(peer.finished, context=peer.process.context)

    def receive(self, data: bytes) -> None:
        """As its process's code."""
        if not self.over:
            self._protocol.data_received(data)

    def finished(self) -> None:
        """The other end has closed: asyncio closes this one."""
        self.close()


class Sockets:
    """Every listener and every connection of a world."""

    def __init__(self, loop: SimLoop, cuts: Cuts, faults: Faults) -> None:
        self.loop = loop
        self.cuts = cuts
        self.rng = faults.rng("partition")
        self.patience_s = self.rng.choice(_PATIENCE_S)
        self._listening: dict[str | int, tuple[Process, ServedBy]] = {}
        self._ends: dict[Process, list[End]] = {}

    def listen(self, process: Process, served: ServedBy) -> Address:
        """Of an actor that is ready. A successor has another path, and another port."""
        port = len(self._listening) + 1
        path = f"/{process}"
        self._listening[path] = self._listening[port] = process, served
        return Address(process.place.host, path, process.place.host, port)

    async def connect(self, caller: Process, where: str | int) -> CallerConnection:
        """To a path or a port. Raises OSError or TimeoutError."""
        connected: asyncio.Future[CallerConnection] = self.loop.create_future()
        self._later(_HOP_S, self._knock, caller, where, connected, _PAUSE_S)
        async with asyncio.timeout(CONNECT_S):
            return await connected

    def _later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(delay_s, act, *args, context=self.loop.outside)

    def _knock(self, caller: Process, where: str | int, connected: asyncio.Future[CallerConnection], pause_s: float) -> None:
        if connected.done():
            return
        process, served = self._listening[where]
        is_tcp = isinstance(where, int)
        if is_tcp and self.cuts.both_open_at(caller.place, process.place, TCP) > self.loop.time():
            self._later(pause_s, self._knock, caller, where, connected, 2 * pause_s)
        elif not process.alive:
            self._later(_HOP_S, self._refuse, connected)
        else:
            self.loop.call_soon(self._accept, caller, process, served, connected, is_tcp, context=process.context)

    def _refuse(self, connected: asyncio.Future[CallerConnection]) -> None:
        if not connected.done():
            connected.set_exception(ConnectionRefusedError())

    def _accept(
        self, caller: Process, process: Process, served: ServedBy, connected: asyncio.Future[CallerConnection], is_tcp: bool
    ) -> None:
        """As the callee's code: one that hangs proves nothing."""
        if connected.done() or not process.alive:
            return
        theirs: CalleeConnection = served(anyone)
        end = End(self, process, theirs, is_tcp)
        self._later(_HOP_S, self._made, caller, end, connected, is_tcp)
        theirs.connection_made(end)

    def _made(self, caller: Process, other: End, connected: asyncio.Future[CallerConnection], is_tcp: bool) -> None:
        if connected.done() or not caller.alive or not other.process.alive:
            self._refuse(connected)
            return
        mine: CallerConnection = CallerConnection()
        end = End(self, caller, mine, is_tcp)
        end.peer, other.peer = other, end
        for one in (end, other):
            kept = self._ends.setdefault(one.process, [])
            kept[:] = [*(known for known in kept if not known.over), one]
        mine.connection_made(end)
        connected.set_result(mine)

    def died(self, process: Process) -> None:
        """Its kernel ends its connections, and its ports are closed."""
        for end in self._ends.pop(process, ()):
            end.died()
