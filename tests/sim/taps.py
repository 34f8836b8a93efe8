"""Listening in on one shard: every record it is told and every record it says, in the order in which its core took and made them.

Some promises hold from one moment on: what is acknowledged never comes again, what a connection has in flight stays within its
window. From outside that moment is blurred by what is on its way; at the core it is sharp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from engine.core.wire import records as wire
from tests.sim.books import Books
from tests.sim.known import User, Violation
from tests.sim.loop import Process


class Flight:
    """What one connection was sent and nobody has acknowledged."""

    def __init__(self, user: User, kind: int) -> None:
        self.user = user
        self.kind = kind
        self.attached = False
        self.attempts: dict[int, int] = {}  # number -> attempt of its last sending
        self.sends: dict[int, int] = {}


class ShardTap:
    """Put between a shard's shell and its core. Raises Violation from within the shell's calls."""

    def __init__(self, books: Books, process: Process, actor: Any, fail: Callable[[Violation], None]) -> None:
        self._books = books
        self._process = process
        self._core = actor._core
        self._acked_before = {key: frozenset(user.durably_acked) for key, user in books.users.items()}
        self._config = actor._config
        self._fail = fail
        self._flights: dict[tuple[str, int], Flight] = {}
        self._posts: dict[tuple[str, int], tuple[str, str]] = {}
        self._acked: dict[str, set[int]] = {}
        self._read = 0  # of the core's output
        self._handle = self._core.handle
        self._flush = actor._flush
        self._closed = self._core.closed
        self._core.handle = self.handle
        self._core.closed = self.closed
        for part in (actor, actor._reads, actor._shared, actor._checkpoints, actor._erasure, actor._sweep, actor._mover):
            part._flush = self.flush

    def handle(self, session: str, records: Iterable[Any], now_ms: int) -> None:
        for record in records:
            self._scan()
            self._told(session, record)
            self._handle(session, [record], now_ms)
            self._scan()

    def closed(self, session: str, now_ms: int) -> None:
        self._scan()
        self._flights = {key: flight for key, flight in self._flights.items() if key[0] != session}
        self._closed(session, now_ms)

    def flush(self) -> None:
        self._scan()
        self._flush()
        self._read = 0

    # -- What the core is told. ---------------------------------------------------------------------------------------
    def _told(self, session: str, record: Any) -> None:
        kind = type(record)
        if kind is wire.Post:
            self._posts[session, record.ref] = (record.key, record.envelope.id)
        elif kind is wire.Attach:
            self._flights[session, record.conn] = Flight(self._books.user(record.key), record.kind)
        elif kind is wire.Detach:
            self._flights.pop((session, record.conn), None)
        elif kind is wire.Ack or kind is wire.AckIds:
            flight = self._flights.get((session, record.conn))
            if flight is None or not flight.attached:
                return
            if kind is wire.Ack:
                seqs = [seq for seq in flight.attempts if seq <= record.seq] if record.seq <= flight.user.head else []
            else:
                seqs = [seq for seq in map(flight.user.seq_of.get, record.ids) if seq in flight.attempts]
            self._acked.setdefault(flight.user.key, set()).update(seqs)
            for other in self._flights.values():
                if other.user is flight.user:
                    for seq in seqs:
                        other.attempts.pop(seq, None)

    # -- What the core says. ------------------------------------------------------------------------------------------
    def _scan(self) -> None:
        if not self._process.alive:
            return  # it is killed: nothing of this leaves it
        output = self._core.output.to_edges
        try:
            for session, record in output[self._read :]:
                self._said(session, record)
        except Violation as violation:
            self._fail(violation)
        self._read = len(output)

    def _said(self, session: str, record: Any) -> None:
        kind = type(record)
        if kind is wire.Posted:
            self._posted(session, record)
            return
        flight = self._flights.get((session, getattr(record, "conn", -1)))
        if flight is None:
            return
        if kind is wire.Deliver:
            flight.attached = True
            self._delivered(flight, record, f"{session}/{record.conn}")
        elif kind is wire.Hangup or kind is wire.Moved:
            del self._flights[session, record.conn]  # what its client says from now on arrives too late
        elif kind is wire.Welcome or kind is wire.GapRange:
            flight.attached = True

    def _posted(self, session: str, record: wire.Posted) -> None:
        key, id = self._posts.pop((session, record.ref), ("", ""))
        if record.status not in {wire.ACCEPTED, wire.DUPLICATE} or not key or not record.seq:
            return
        message = self._books.user(key).messages.get(record.seq)
        if message is None or message.id != id:
            raise Violation(f"[1] {id} of {key} is answered as {record.seq} before it is in the journal", key)

    def _delivered(self, flight: Flight, record: wire.Deliver, name: str) -> None:
        user = flight.user
        acked = self._acked.get(user.key, ())
        for seq, attempt, _ in record.messages:
            if seq not in user.messages:
                raise Violation(f"[2] {seq} of {user.key} goes out on {name} before it is in the journal", user.key)
            if user.messages[seq].inbox_only:
                raise Violation(f"{seq} of {user.key} is for the inbox only, and goes out on {name}", user.key)
            # A refused one is pending until its dead letter is stored, whoever acknowledges it meanwhile; another owner may send it again.
            if seq in acked and (seq not in user.refused or user.messages[seq].id in user.dead):
                raise Violation(f"{seq} of {user.key} was acknowledged, and goes out on {name} again", user.key)
            if seq in self._acked_before.get(user.key, ()) and seq in user.durably_acked:
                raise Violation(f"{seq} of {user.key} was journalled as acknowledged, and goes out on {name} after a restart", user.key)
            if attempt <= flight.attempts.get(seq, 0):
                raise Violation(f"attempt {attempt} of {seq} goes out on {name} after attempt {flight.attempts[seq]}", user.key)
            flight.attempts[seq] = attempt
            flight.sends[seq] = flight.sends.get(seq, 0) + 1
            if flight.sends[seq] > self._config.retry_tries:
                raise Violation(f"tries: {seq} goes out on {name} too often", user.key)
        pending = [seq for seq in flight.attempts if not self._books.is_accounted(user, seq)]
        if len(pending) > self._config.window and flight.kind != wire.SSE:
            raise Violation(f"window: {len(pending)} messages are in flight on {name}: {pending}", user.key)
