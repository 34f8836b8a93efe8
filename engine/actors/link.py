"""Runs the links between actors: timers, calls and replies, and a new session when one ends.

Both classes are loops around the state machines of `engine.core.wire.link`: feed, send what is due, re-arm one timer. Batches travel
over `engine.actors.carrier`. Not thread-safe: each object is used from one event loop.

A batch is decoded completely before any of it is applied. If it cannot be decoded, or applying it fails, the session ends at both ends
and no later batch is applied; the next session announces all state again. The actor goes on: one peer's fault must not affect the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import ceil
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder
from ray.exceptions import RayError

from engine.actors.actor_process import REAL, ProcessContext
from engine.actors.carrier import RAY_CALL_MS, Peer
from engine.config import Config
from engine.core.wire.link import RESET, Callee, Caller, LinkLimits, LinkOverflow
from engine.core.wire.pacing import CallBudget
from engine.core.wire.records import UNREADABLE
from engine.errors import CorruptRecord

log = logging.getLogger(__name__)

_GONE = (RayError, ConnectionError)

_PACING_MAX_MS = 4.0  # under load the interval grows to this: larger groups, 5 % less CPU per message than with 1 ms
_PACING_RECORDS = 64  # for each so many in a batch the interval behind it is a millisecond longer
_INFLIGHT_MAX = 8  # concurrent calls of one link: up to three are parked, the rest in transit
_BATCH_BYTES_MAX = 8 << 20
_QUEUE_BYTES_MAX = 256 << 20  # waiting at one end of one link; beyond it the session is reset

_CALLERS_KEPT = 1000  # whose last session is remembered: each process of an edge is another caller

_FLUSH_LOOK_S = 0.001
"""Between looks at what waits to be sent."""

_REOPEN_MS = (20.0, 50.0, 100.0, 200.0, 400.0)
"""Delays between attempts to open a session: a peer restarts in a second or two, and each attempt costs a call."""


def link_limits(config: Config, pacing_ms: float | None = None, call_ms: float = RAY_CALL_MS) -> LinkLimits:
    """The limits of a link whose exchanges take `call_ms` of CPU, the same for any number of peers."""
    return LinkLimits(
        pacing_ms=config.link_pacing_ms if pacing_ms is None else pacing_ms,
        pacing_max_ms=_PACING_MAX_MS,
        pacing_records=_PACING_RECORDS,
        lazy_pacing_ms=config.link_ack_pacing_ms,
        park_ms=config.link_park_ms,
        timeout_ms=config.link_timeout_ms,
        call_ms=call_ms,
        budget_pacing_max_ms=config.link_ray_pacing_max_ms if call_ms >= RAY_CALL_MS else _PACING_MAX_MS,
        inflight_max=_INFLIGHT_MAX,
        batch_bytes_max=_BATCH_BYTES_MAX,
        queue_bytes_max=_QUEUE_BYTES_MAX,
    )


class _Alarm:
    """The timer of one end of a session. It is only moved to an earlier time: firing too early costs less than arming it each time.

    It waits for whole milliseconds, as uvloop's timers do. These take less than half of one for no wait, and would fire again and again.
    """

    __slots__ = ("_at_ms", "_handle", "_ring")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = float("inf")

    def arm(self, at_ms: float, now_ms: float) -> None:
        """Fire at `at_ms` or earlier."""
        if self._handle is not None:
            if now_ms < self._at_ms <= at_ms:
                return
            self._handle.cancel()
        self._at_ms = at_ms
        self._handle = asyncio.get_running_loop().call_later(max(ceil(at_ms - now_ms), 0) / 1000, self._rang)

    def _rang(self) -> None:
        self._handle = None
        self._ring()

    def cancel(self) -> None:
        """Disarm the timer."""
        if self._handle is not None:
            self._handle.cancel()


def _taken(session: str, sender: str, batches: Iterable[bytes], decoder: Decoder[Any], take: Callable[[list[Any]], None]) -> bool:
    """Decode and apply batches in order; False if one failed and the session must end, with no later batch applied."""
    try:
        for received in batches:
            records = decoder.decode(received)
            if records:
                take(records)
    except (*UNREADABLE, CorruptRecord) as error:
        log.error("link %s: a batch of the %s cannot be decoded: %s", session, sender, error)
        return False
    except Exception:
        log.exception("link %s: a batch could not be applied", session)
        return False
    return True


class LinkCaller:
    """The calling end of a link to one actor: opens sessions, one after another, for as long as `run` runs.

    Args:
        name: of the calling actor, such as `edge-0`; session ids start with it. Behind a slash it may name the process, so that an older
            process of the actor keeps its sessions beside those of a newer one; else a new session ends the older process's.
        on_records: called with the callee's records, in order.
        on_reset: called when a session begins, also the first: announce all state in `send` calls.
        on_open: called when the callee has answered for the first time in a session, before the records of that answer.
        on_end: called when an open session has ended.
        budget: of the calling actor, for all its links; the link's own when left out.
        pacing_ms: overrides the setting `link_pacing_ms`.
        context: supplies the clock and the name of this process.
    """

    def __init__(
        self,
        peer: Peer,
        name: str,
        decoder: Decoder[Any],
        config: Config,
        *,
        on_records: Callable[[list[Any]], None],
        on_reset: Callable[[], None],
        on_open: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
        budget: CallBudget | None = None,
        pacing_ms: float | None = None,
        context: ProcessContext = REAL,
    ) -> None:
        self._clock_ms = context.monotonic_ms
        self._process = context.session_name()
        self._peer = peer
        self._name = name
        self._decoder = decoder
        self._on_records = on_records
        self._on_reset = on_reset
        self._on_open = on_open
        self._on_end = on_end
        self._limits = partial(link_limits, config, pacing_ms)
        self._budget = budget or CallBudget(config.link_calls_share)
        self._open_s = (config.link_timeout_ms + config.link_park_ms) / 1000
        self._caller: Caller | None = None
        self._calls: set[asyncio.Future[bytes]] = set()
        self._alarm = _Alarm(self._pump)
        self._scheduled = False
        self._ended = asyncio.Event()
        self.open = False  # a reply has arrived in this session
        self.sessions = 0
        self.calls = 0

    @property
    def carrier(self) -> str:
        """The carrier of the open session, `unix`, `tcp` or `ray`; "" while there is none."""
        return self._peer.carrier if self.open else ""

    def send(self, record: Struct, *, eager: bool = True) -> None:
        """Queue a record for the callee. Without a session it is dropped, since `on_reset` announces all state.

        Of lazy records (`Ack`) only the latest per connection is sent. An eager record is sent after its connection's lazy one.
        """
        caller = self._caller
        if caller is None:
            return
        now_ms = self._clock_ms()
        try:
            if eager:
                conn = getattr(record, "conn", None)
                if conn is not None:
                    caller.outbox.promote(conn, now_ms)
                caller.outbox.push((record,), now_ms)
            else:
                caller.outbox.push_latest(getattr(record, "conn", record), record, now_ms)
        except LinkOverflow as error:
            self._overflowed(caller, error)
            return
        if not self._scheduled:
            self._schedule()

    def send_all(self, records: Sequence[Struct]) -> None:
        """Queue eager records that concern no connection, as `send` would one by one."""
        caller = self._caller
        if caller is None:
            return
        try:
            caller.outbox.push(records, self._clock_ms())
        except LinkOverflow as error:
            self._overflowed(caller, error)
            return
        if not self._scheduled:
            self._schedule()

    def _overflowed(self, caller: Caller, error: LinkOverflow) -> None:
        log.warning("link %s: %s", caller.session, error)
        self._end(caller)

    def _schedule(self) -> None:
        """One call carries everything queued in this iteration of the event loop."""
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._pump)

    async def run(self) -> None:
        """Keep a session open until cancelled."""
        attempt = 0
        try:
            while True:
                self._ended.clear()
                try:
                    async with asyncio.timeout(self._open_s):
                        call_ms = await self._peer.open()
                except (RayError, OSError, TimeoutError) as error:
                    log.warning("link %s: cannot be opened: %r", self._name, error)
                else:
                    self.sessions += 1
                    session = f"{self._name}/{self._process}.{self.sessions}"
                    self._caller = Caller(session, self._limits(call_ms), self._clock_ms(), self._budget)
                    self._on_reset()
                    self._pump()
                    await self._over(self._caller)
                    self._peer.close()
                if self.open:
                    attempt, self.open = 0, False
                    self._on_end()
                else:
                    attempt += 1
                await asyncio.sleep(_REOPEN_MS[min(attempt, len(_REOPEN_MS) - 1)] / 1000)
        finally:
            self._caller = None
            self._peer.close()
            for call in list(self._calls):
                call.cancel()
            self._alarm.cancel()

    async def _over(self, caller: Caller) -> None:
        """Returns when the session has ended, which it also does when its peer can be had over a better carrier."""
        while not self._ended.is_set():
            try:
                async with asyncio.timeout(self._peer.retry_s):
                    await self._ended.wait()
            except TimeoutError:
                if await self._improved():
                    log.info("link %s: ends for a better carrier than %s", caller.session, self._peer.carrier)
                    self._end(caller)

    async def _improved(self) -> bool:
        try:
            async with asyncio.timeout(self._open_s):
                return await self._peer.improved()
        except TimeoutError:
            return False

    def _end(self, caller: Caller) -> None:
        caller.over = True
        if caller is self._caller:
            self._caller = None
            self._ended.set()

    def _pump(self) -> None:
        """Make the calls that are due and arm the timer for the next."""
        self._scheduled = False
        caller = self._caller
        if caller is None:
            return
        now_ms = self._clock_ms()
        for seq, batch in caller.calls(now_ms):
            self.calls += 1
            reply = asyncio.ensure_future(self._peer.exchange(caller.session, seq, batch))
            self._calls.add(reply)
            reply.add_done_callback(partial(self._replied, caller, seq))
        if caller.over:
            log.warning("link %s: no reply in time", caller.session)
            self._end(caller)
            return
        self._alarm.arm(caller.wake_ms, now_ms)

    def _replied(self, caller: Caller, seq: int, reply: asyncio.Future[bytes]) -> None:
        self._calls.discard(reply)
        if reply.cancelled():
            return
        error = reply.exception()
        if error is not None:
            # _GONE: the peer died, restarts or is unreachable. Any other error is a defect, logged with its traceback.
            if not caller.over:
                log.warning("link %s: %s", caller.session, type(error).__name__, exc_info=None if isinstance(error, _GONE) else error)
            self._end(caller)
            return
        if caller is not self._caller:
            return
        batches = caller.reply(seq, reply.result(), self._clock_ms())
        if caller.over:
            self._end(caller)
            return
        if not self.open:
            self.open = True
            self._on_open()
        if not _taken(caller.session, "callee", batches, self._decoder, self._on_records):
            self._end(caller)
        self._pump()


class _Session:
    """A callee session and how its parked calls are answered."""

    __slots__ = ("alarm", "callee", "scheduled", "waiting")

    def __init__(self, callee: Callee, pump: Callable[[_Session], None]) -> None:
        self.callee = callee
        self.waiting: dict[int, Callable[[bytes], object]] = {}
        self.alarm = _Alarm(partial(pump, self))
        self.scheduled = False


class LinkServer:
    """The called end of all links to this actor.

    Args:
        on_open: a session began. A new session of the same caller comes after `on_close` of its old one; ids of one caller differ in
            what follows the last slash: `<process>.<number>`. An opening that was under way for so long that a later session of its
            process has begun is refused: what its records ask for was asked for again, and answered.
        on_records: called with the records of a session, in order.
        on_close: a session ended: the caller timed out, was replaced, or could not keep up.
        pacing_ms: between replies. The default is none: a commit has gathered what it answers.
        context: the clock.

    Attributes:
        budget: of this actor; the links that it calls share it.
    """

    def __init__(
        self,
        decoder: Decoder[Any],
        config: Config,
        *,
        on_open: Callable[[str], None],
        on_records: Callable[[str, list[Any]], None],
        on_close: Callable[[str], None],
        pacing_ms: float = 0.0,
        context: ProcessContext = REAL,
    ) -> None:
        self._clock_ms = context.monotonic_ms
        self._decoder = decoder
        self._config = config
        self._pacing_ms = pacing_ms
        self._on_open = on_open
        self._on_records = on_records
        self._on_close = on_close
        self._sessions: dict[str, _Session] = {}
        self._newest: dict[str, tuple[str, int]] = {}  # by caller, the last to open at the end: process and number of its last session
        self.budget = CallBudget(config.link_calls_share)

    def sessions(self) -> list[str]:
        """Ids of the open sessions."""
        return list(self._sessions)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the caller that has most of them waiting."""
        return max((state.callee.queued_bytes for state in self._sessions.values()), default=0)

    async def exchange(self, session: str, seq: int, batch: bytes) -> bytes:
        """The body of the actor's `exchange` method: returns when the reply is due."""
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.request(session, seq, batch, partial(_resolve, reply))
        return await reply

    def request(self, session: str, seq: int, batch: bytes, answer: Callable[[bytes], object], call_ms: float = RAY_CALL_MS) -> None:
        """Handle a request; `answer` is called once, with the reply, when it is due. `call_ms` is the CPU time of an exchange."""
        now_ms = self._clock_ms()
        state = self._sessions.get(session)
        if state is None:
            if seq != 0 or self._is_over(session):
                answer(RESET)
                return
            state = self._open(session, now_ms, call_ms)
        state.waiting[seq] = answer
        if not _taken(session, "caller", state.callee.request(seq, batch, now_ms), self._decoder, partial(self._on_records, session)):
            self._close(state)
        self._pump(state)

    def lost(self, session: str) -> None:
        """The caller's connection is lost: end its session. A caller that is alive opens a new one."""
        state = self._sessions.get(session)
        if state is not None:
            self._close(state)

    def open_in_ms(self, sessions: Iterable[str]) -> float:
        """About how long it takes until records that are sent from now on leave in one of these open sessions; 0 or less: not at all."""
        now_ms = self._clock_ms()
        return min([self._sessions[session].callee.open_at(now_ms) - now_ms for session in sessions], default=0)

    async def end(self, flush_s: float) -> None:
        """End all sessions; callers that are alive open new ones. What is queued is sent before, if that takes no longer than this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(flush_s):
                while self.queued_bytes:
                    await asyncio.sleep(_FLUSH_LOOK_S)
        for state in list(self._sessions.values()):
            self._close(state)

    def _queue(self, session: str, records: Sequence[Struct]) -> None:
        state = self._sessions.get(session)
        if state is None:
            return
        try:
            state.callee.outbox.push(records, self._clock_ms())
        except LinkOverflow as error:
            log.warning("link %s: %s", session, error)
            self._close(state)
            return
        if not state.scheduled:
            state.scheduled = True
            asyncio.get_running_loop().call_soon(self._pump, state)

    def send_all(self, output: Iterable[tuple[str, Struct]]) -> None:
        """Queue (session, record) pairs, in order for each session."""
        by_session: dict[str, list[Struct]] = {}
        for session, record in output:
            records = by_session.get(session)
            if records is None:
                by_session[session] = [record]
            else:
                records.append(record)
        for session, records in by_session.items():
            self._queue(session, records)

    def _is_over(self, session: str) -> bool:
        """Whether this session, which is not open, or a later one of its process has been open."""
        caller, process, number = _parts(session)
        known, newest = self._newest.get(caller, ("", 0))
        return process == known and 0 < number <= newest

    def _open(self, session: str, now_ms: float, call_ms: float) -> _Session:
        caller, process, number = _parts(session)
        self._newest.pop(caller, None)
        self._newest[caller] = process, number
        if len(self._newest) > _CALLERS_KEPT:
            del self._newest[next(iter(self._newest))]
        for other, state in list(self._sessions.items()):
            if other.rpartition("/")[0] == caller:
                self._close(state)
        limits = link_limits(self._config, self._pacing_ms, call_ms)
        state = _Session(Callee(session, limits, now_ms, self.budget), self._pump)
        self._sessions[session] = state
        self._on_open(session)
        return state

    def _close(self, state: _Session) -> None:
        session = state.callee.session
        if self._sessions.get(session) is not state:
            return
        del self._sessions[session]
        state.alarm.cancel()
        waiting, state.waiting = state.waiting, {}
        for answer in waiting.values():
            answer(RESET)
        self._on_close(session)

    def _pump(self, state: _Session) -> None:
        """Send the replies that are due and arm the timer for the next; end the session if its caller timed out."""
        state.scheduled = False
        if self._sessions.get(state.callee.session) is not state:
            return
        now_ms = self._clock_ms()
        for seq, data in state.callee.replies(now_ms):
            state.waiting.pop(seq)(data)
        if state.callee.over:
            log.warning("link %s: the caller went silent", state.callee.session)
            self._close(state)
            return
        state.alarm.arm(state.callee.wake_ms, now_ms)


def _parts(session: str) -> tuple[str, str, int]:
    """Caller, process and number of a session's id. Processes of earlier versions do not number their sessions: 0."""
    caller, _, run = session.rpartition("/")
    process, _, number = run.partition(".")
    return caller, process, int(number) if number.isdecimal() else 0


def _resolve(reply: asyncio.Future[bytes], data: bytes) -> None:
    if not reply.done():  # the Ray call may have been cancelled
        reply.set_result(data)
