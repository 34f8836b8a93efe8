"""Keeps a session connected: opens a link, feeds the session until it ends, opens the next one, and looks for a better one meanwhile.

States of the receiver, all held by its one task, the *runner*:

    opening     one link is being made, with the transport on which the ladder stands
    serving     one link is open: a task reads it into the session, another one writes what the session has to send
    improving   beside serving, when the link is not of the best transport: after a while a *candidate* is made of each better one in turn
    waiting     none is open; the session says for how long
    ended       `failure` is set, or the receiver was closed

After a connection was lost, heartbeat probes go out beside opening and waiting, until the next one.

Who owns what. The runner opens, closes and replaces links; there are never more than the one that serves and one candidate. The session
knows only of the one that serves. A candidate is read as far as its `welcome`, by the improving task; only then it replaces the other
one, which is not read any more. Nothing gets lost in between, whatever the former link had in its buffers: the candidate began with the
cursor, so everything that was not settled then comes over it too, and the session drops what it has seen. An acknowledgement that the
former link may not have sent is sent again, by number or when the message is repeated. Where a user has as many connections as allowed,
the engine closes the oldest for the candidate, with 4409. That may be the one that serves: whether the client is one too many is known
only when the candidate has been welcomed, or has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from engine.client.credentials import Credentials
from engine.client.heartbeat_probes import HeartbeatProbes
from engine.client.links.event_stream_link import EventStreamLink
from engine.client.links.poll_link import PollLink
from engine.client.links.transport_ladder import TransportLadder
from engine.client.links.transport_link import CLOSE_TIMEOUT_S, Link, LinkEnded, LinkOptions
from engine.client.links.websocket_link import WebSocketLink
from engine.client.protocol import CLOSE_LOST, CLOSE_TOO_MANY, WELCOME_TIMEOUT_MS, Connected, Disconnected, Event, Session, Transport

LINKS: Final[dict[Transport, Callable[[LinkOptions], Link]]] = {"websocket": WebSocketLink, "sse": EventStreamLink, "poll": PollLink}


class Receiver:
    """Serves one session, from `start` to `close`.

    Args:
        options: of all links; `timeout_s` is also how long one may take to open, with its welcome. Before the first is open all transports
            share that time.
        on_event: called with the events of the session in order.
        on_change: called after messages may have arrived, or the cursor may have moved.

    Attributes:
        failure: what ended it, when that was not `close`.
        reason: why there was no connection when it was tried last.
        opened: a link has been welcomed.
    """

    def __init__(
        self,
        session: Session,
        options: LinkOptions,
        ladder: TransportLadder,
        on_event: Callable[[Event], object] | None,
        on_change: Callable[[], None],
    ) -> None:
        self._session = session
        self._options = options
        self._credentials: Credentials = options.credentials
        self._ladder = ladder
        self._on_event = on_event
        self._on_change = on_change
        self._runner: asyncio.Task[None] | None = None
        self._ending = False  # the runner is cancelled once: again, and it could not send what is settled and close the link
        self._writable = asyncio.Event()
        self._sending = asyncio.Lock()  # what the session has given out is sent before the link is left
        self._trying = False  # a candidate is being made
        self._probes = HeartbeatProbes(options)
        self.failure: BaseException | None = None
        self.reason = "no answer"
        self.opened = asyncio.Event()
        # Monotonic, so that a corrected clock times nothing out; anchored to the wall, because ACKs carry a timestamp.
        self._clock_offset_s = time.time() - time.monotonic()

    # -- for the client ------------------------------------------------------------------------------------------------
    def now_ms(self) -> int:
        """The time by which the session goes."""
        return int((time.monotonic() + self._clock_offset_s) * 1000)

    @property
    def running(self) -> bool:
        """Messages may still arrive."""
        return self._runner is not None and not self._runner.done()

    def start(self) -> None:
        self._runner = asyncio.create_task(self._run(), name="engine-client")

    async def until_opened(self, timeout_s: float) -> bool:
        """Wait for the first connection; False when there was none in time. Raises what ended the receiver."""
        assert self._runner is not None
        opened = asyncio.create_task(self.opened.wait())
        try:
            await asyncio.wait({opened, self._runner}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        if self.failure is not None:
            raise self.failure
        return self.opened.is_set()

    def send_soon(self) -> None:
        """The session may have something to send."""
        self._writable.set()

    def fail(self, error: BaseException) -> None:
        """End it because of this."""
        self.failure = error
        self._end()

    async def close(self) -> None:
        """Send what is settled, close the connection and end. Idempotent, and returns to each caller when that is done."""
        self._end()
        if self._runner is not None and not self._runner.done():
            await asyncio.wait({self._runner})

    def _end(self) -> None:
        if self._runner is not None and not self._ending:
            self._ending = True
            self._runner.cancel()

    # -- the runner ----------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        try:
            while True:
                at_once = await self._connect()
                self._report_events()
                if self._session.failure is not None:
                    raise self._session.failure
                if not at_once:
                    await asyncio.sleep(self._session.retry_in_ms(random.random(), self.now_ms()) / 1000)
        except Exception as error:
            self.failure = error
        finally:
            self._probes.end()
            self._on_change()

    async def _connect(self) -> bool:
        """One link, and those that replace it, to the end of the last. Returns whether to go on at once, with the next transport."""
        session = self._session
        try:
            await self._credentials.get(fresh=session.token_rejected)
        except Exception as error:
            if not self.opened.is_set():
                raise
            session.unreachable(f"no fresh token: {error!r}")  # the issuer of tokens may be back soon
            return False
        link = LINKS[self._ladder.current](self._options)
        share = 1 if self.opened.is_set() else self._ladder.size
        due_ms = self.now_ms() + round(self._options.timeout_s / share * 1000)
        try:
            await link.open(self._options.timeout_s / share)
        except LinkEnded as end:
            return self._ended(end, opened=False)
        frames: Sequence[bytes] = ()
        welcome_timeout_ms = min(WELCOME_TIMEOUT_MS, max(1, due_ms - self.now_ms()))
        while True:
            outcome = await self._serve(link, frames, welcome_timeout_ms)
            if isinstance(outcome, LinkEnded):
                return self._ended(outcome, opened=True)
            link, frames = outcome
            welcome_timeout_ms = WELCOME_TIMEOUT_MS

    def _ended(self, end: LinkEnded, *, opened: bool) -> bool:
        """Tell session and ladder how a link ended; returns whether the next transport is to be tried at once."""
        session = self._session
        welcomed = session.welcomed
        at_once = not welcomed and end.status != 401 and end.code < 4000 and self._ladder.failed(end)
        if end.status:
            session.refused(end.status, end.reason, end.retry_after_s, elsewhere=not self._ladder.exhausted)
        elif opened:
            session.closed(end.code or CLOSE_LOST, end.reason, self.now_ms(), end.retry_after_s)
        else:
            session.unreachable(end.reason)
        return at_once

    # -- one link ------------------------------------------------------------------------------------------------------
    async def _serve(self, link: Link, frames: Sequence[bytes], welcome_timeout_ms: int) -> LinkEnded | tuple[Link, Sequence[bytes]]:
        """Serve a link until it ends, or until a better one has been welcomed. Leaves nothing of this one open.

        Args:
            frames: that were read of it before.
            welcome_timeout_ms: within which its `welcome` has to come, if it is not among them.

        Returns:
            How it ended, or the better one and its first frames.
        """
        self._session.opened(self.now_ms(), link.presented, link.transport, welcome_timeout_ms)
        reading = asyncio.create_task(self._read(link, frames), name="engine-client-reader")
        writing = asyncio.create_task(self._write(link), name="engine-client-writer")
        self._trying = False
        improving = asyncio.create_task(self._improve(link.transport, reading), name="engine-client-improver")
        renewing = asyncio.create_task(self._renew(link), name="engine-client-renewer")
        outcome: LinkEnded | tuple[Link, Sequence[bytes]] | None = None
        try:
            await asyncio.wait({reading, writing, improving}, return_when=asyncio.FIRST_COMPLETED)
            if self._trying and reading.done() and reading.result().code == CLOSE_TOO_MANY:
                await asyncio.wait({improving})  # the engine may have made room for the candidate; if that fails, this is how it ends
            outcome = improving.result() if improving.done() else (reading if reading.done() else writing).result()
            return outcome
        finally:
            for task in (reading, improving, renewing):
                task.cancel()  # one that is not done ends cancelled, so only one that is done has a candidate
            if outcome is None and improving.done() and not improving.cancelled() and improving.exception() is None:
                candidate = improving.result()
                if isinstance(candidate, tuple):
                    candidate[0].abort()  # too late: this link is being left
            try:
                if outcome is None or (self._session.closing is not None and self._session.welcomed):
                    await self._leave(link)
            finally:
                link.abort()  # it was closed, it has ended, or the better one takes over what it had
                writing.cancel()
                await asyncio.wait({reading, writing, improving, renewing})

    async def _read(self, link: Link, frames: Sequence[bytes]) -> LinkEnded:
        """Feed the session with what the link receives, and with the time; returns how the link ended."""
        session = self._session
        while True:
            now_ms = self.now_ms()
            for frame in frames:
                session.receive(frame, now_ms)
            self._report_events()
            self._writable.set()
            self._on_change()
            if session.closing is not None:
                return LinkEnded(session.closing, silent=not session.welcomed)  # a proxy may take a handshake and let nothing through
            try:
                async with asyncio.timeout((session.deadline_ms - self.now_ms()) / 1000):
                    frames = await link.receive()
            except TimeoutError:
                frames = ()
                session.tick(self.now_ms())
            except LinkEnded as end:
                return end
            else:
                session.heard(self.now_ms())

    async def _write(self, link: Link) -> LinkEnded:
        """Send what the session has whenever it may have something; returns how the link ended."""
        while True:
            await self._writable.wait()
            self._writable.clear()
            try:
                async with self._sending:
                    await self._flush(link)
            except LinkEnded as end:
                return end

    async def _flush(self, link: Link) -> None:
        frames = self._session.data_to_send(self.now_ms())
        if frames and (answers := await link.send(frames)):
            for answer in answers:
                self._session.receive(answer, self.now_ms())
            self._on_change()
            self._writable.set()  # the cursor may have moved

    async def _leave(self, link: Link) -> None:
        """Send what is pending and close, within `CLOSE_TIMEOUT_S`. What is not sent then is sent on the next connection."""
        with contextlib.suppress(LinkEnded, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._sending:  # after the request that is under way
                await self._flush(link)
                await link.close()

    async def _improve(self, transport: Transport, reading: asyncio.Task[LinkEnded]) -> LinkEnded | tuple[Link, Sequence[bytes]]:
        """A link of a better transport and its first frames, as soon as there is one; else how `reading` ended during an attempt."""
        better = self._ladder.better(transport)
        while better:
            await asyncio.sleep(self._ladder.upgrade_in_s(time.monotonic(), random.random()))
            self._ladder.upgrade_tried()
            self._trying = True
            for candidate in better:
                link = LINKS[candidate](self._options)
                try:
                    return link, await self._welcome(link)
                except LinkEnded:
                    continue  # the next one, or later again; this says nothing of the link that serves
            self._trying = False
            if reading.done():
                return reading.result()
        never: asyncio.Future[tuple[Link, Sequence[bytes]]] = asyncio.get_running_loop().create_future()
        return await never  # there is nothing better

    async def _welcome(self, link: Link) -> Sequence[bytes]:
        """Open a link and read its first frames. Leaves nothing open when it fails."""
        try:
            await link.open(self._options.timeout_s)
            async with asyncio.timeout(WELCOME_TIMEOUT_MS / 1000):
                while not (frames := await link.receive()):
                    pass
            return frames
        except TimeoutError as error:
            link.abort()
            raise LinkEnded("no welcome") from error
        except BaseException:
            link.abort()
            raise

    async def _renew(self, link: Link) -> None:
        """Send a fresh token before the old one expires, so that the connection stays open. Requests carry the current one anyway."""
        while link.duplex and (due_s := self._credentials.renew_in_s()) is not None:
            await asyncio.sleep(max(1.0, due_s))
            try:
                self._session.authenticate(await self._credentials.get(fresh=True))
            except Exception as error:
                self._session.note("token", f"no fresh token: {error!r}")  # retried in a second; the old one is still valid
            self._writable.set()

    def _report_events(self) -> None:
        for event in self._session.events():
            if isinstance(event, Connected):
                self._ladder.opened(event.transport)
                self.opened.set()
                self._probes.end()
            elif isinstance(event, Disconnected):
                self.reason = event.reason
                if self.opened.is_set():  # the engine expects this client back
                    self._probes.begin(self._session.heartbeat_ms)
            if self._on_event is not None:
                self._on_event(event)
