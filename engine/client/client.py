"""Receive a user's notifications: the asyncio shell around `engine.client.protocol`, on the websockets library.

One task per client keeps a connection standing: connect, then one loop of feed, take events, transmit, wait for the
next frame or the session's deadline. A second task writes, so that acknowledging never waits for reading. All decisions
are the session's.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from ssl import SSLContext
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlencode

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response
from websockets.typing import Subprotocol

from engine.client.credentials import Credentials, Token, parse_url
from engine.client.frames import Message
from engine.client.protocol import Connected, Disconnected, Event, Session
from engine.client.retried_requests import retry_after_s
from engine.errors import Unreachable

SUBPROTOCOL: Final = Subprotocol("notify.v1.json")
FRAME_BYTES_MAX: Final = 8 << 20  # an engine coalesces up to 256 KiB; far beyond it is not an engine
CLOSE_TIMEOUT_S: Final = 2.0
YIELD_EVERY: Final = 32  # messages handed over without a pause; then the loop gets to write the acknowledgements


class Client:
    """Receives one user's notifications, in order, and acknowledges them.

        async with Client("http://127.0.0.1:8000", token) as client:
            async for message in client:
                await handle(message.type, message.data)

    At least once: a message is acknowledged when the loop asks for the next one (or is left without an exception), so one
    whose handler failed or whose process died comes again. Repeats of what was handled are dropped by id. The connection is
    made again whenever it is lost, after 1, 2, 5, 10 s with jitter or when the server says, from where it left off.

    With `auto_ack=False` each message is settled by `await message.ack()` or `await message.nack("why")`, in any order and
    from any task; the engine stops sending when about 256 are unsettled.

    To go on after a restart of the program, keep what `on_cursor` says:

        Client(url, token, last_event_id=path.read_text() or None, on_cursor=path.write_text)

    Args:
        url: the engine's address, `http://host:port` or `https://...`.
        token: a JWT with scope `connect`, or a function (plain or async) that returns a fresh one: it is called before a
            token expires and when one is rejected.
        device: a stable name of this device, for the engine's session records.
        last_event_id: the cursor to go on from; left out, whatever is pending is delivered.
        auto_ack: acknowledge each message when the next one is asked for.
        on_cursor: called with the new cursor when messages were settled, at most once per turn of the loop.
        on_event: called with `Connected`, `Disconnected`, `Gap`, `Revoked`, `Draining` and `ServerError` as they happen; a
            `Gap` before the messages after it are delivered.
        open_timeout_s: how long entering the context waits for the first connection, over all attempts.
        ssl: for `https` and `wss`, instead of the system's default.

    Raises (from entering the context, and from the iteration):
        Unreachable: no engine answered within `open_timeout_s`; once connected, it is tried forever.
        Unauthorized: the token was rejected, and so was a fresh one where there is a source of them.
        Forbidden: the token lacks the scope.
        TooManyConnections: newer connections of this user pushed this one out.
        Refused: any other answer that waiting does not cure.
    """

    def __init__(
        self,
        url: str,
        token: Token,
        *,
        device: str | None = None,
        last_event_id: str | None = None,
        auto_ack: bool = True,
        on_cursor: Callable[[str], object] | None = None,
        on_event: Callable[[Event], object] | None = None,
        open_timeout_s: float = 10.0,
        ssl: SSLContext | None = None,
    ) -> None:
        self._address = parse_url(url)
        self._credentials = Credentials(token)
        self._device = device
        self._auto_ack = auto_ack
        self._on_cursor = on_cursor
        self._on_event = on_event
        self._open_timeout_s = open_timeout_s
        self._ssl = ssl
        self._session = Session(last_event_id, renewable=self._credentials.renewable)
        self._cursor_told = last_event_id
        self._report_due = False
        self._handling: Message | None = None
        self._handed_in_a_row = 0
        self._failure: BaseException | None = None
        self._last_reason = "no answer"
        self._runner: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        # Monotonic, so that a corrected clock times nothing out; anchored to the wall, because ACKs carry a timestamp.
        self._clock_offset_s = time.time() - time.monotonic()

    @property
    def cursor(self) -> str | None:
        """`event_id` up to which everything is handled; what to pass as `last_event_id` next time."""
        return self._session.cursor

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise RuntimeError("a Client is entered once; make another one")
        self._runner = asyncio.create_task(self._run(), name="engine-client")
        opened = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait({opened, self._runner}, timeout=self._open_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._failure is not None:
                raise self._failure
            if not self._opened.is_set():
                raise Unreachable(f"no engine answered at {self._address.http} within {self._open_timeout_s:g} s: {self._last_reason}")
        except BaseException:
            await self.close()
            raise
        finally:
            opened.cancel()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self._settle_handled()
        await self.close()

    async def close(self) -> None:
        """Say what is settled, end the connection, stop. Doing it twice is harmless."""
        if self._runner is not None and not self._runner.done():
            self._runner.cancel()
            await asyncio.wait({self._runner})
        self._tell_cursor()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message. Cancelling the wait loses nothing."""
        self._settle_handled()
        if self._handed_in_a_row >= YIELD_EVERY:
            self._handed_in_a_row = 0
            await asyncio.sleep(0)
        while (message := self._session.next_message()) is None:
            if self._failure is not None:
                raise self._failure
            if self._runner is None or self._runner.done():
                raise StopAsyncIteration
            self._handed_in_a_row = 0
            self._readable.clear()
            await self._readable.wait()
        self._handed_in_a_row += 1
        message.__dict__["owner"] = self
        if self._auto_ack:
            self._handling = message
        return message

    def settle(self, message: Message, reason: str | None) -> None:
        """Acknowledge a message, or refuse it with a reason; `message.ack()` and `message.nack()` come here."""
        self._session.settle(message, reason, self._now_ms())
        self._writable.set()
        self._report_soon()

    # -- inside --------------------------------------------------------------------------------------------------------
    def _now_ms(self) -> int:
        return int((time.monotonic() + self._clock_offset_s) * 1000)

    def _settle_handled(self) -> None:
        if self._handling is not None:
            message, self._handling = self._handling, None
            self.settle(message, None)

    def _report_soon(self) -> None:
        if self._on_cursor is not None and not self._report_due:
            self._report_due = True
            asyncio.get_running_loop().call_soon(self._report)

    def _tell_cursor(self) -> None:
        cursor = self._session.cursor
        if self._on_cursor is not None and cursor is not None and cursor != self._cursor_told:
            self._cursor_told = cursor
            self._on_cursor(cursor)

    def _report(self) -> None:
        """Tell `on_cursor`; what it raises ends the client, because a cursor that is not kept is not what was asked for."""
        self._report_due = False
        try:
            self._tell_cursor()
        except Exception as error:
            self._failure = error
            if self._runner is not None:
                self._runner.cancel()

    def _tell_events(self) -> None:
        for event in self._session.events():
            if isinstance(event, Connected):
                self._opened.set()
            elif isinstance(event, Disconnected):
                self._last_reason = event.reason
            if self._on_event is not None:
                self._on_event(event)

    async def _run(self) -> None:
        try:
            while True:
                await self._connect()
                self._tell_events()
                if self._session.failure is not None:
                    raise self._session.failure
                await asyncio.sleep(self._session.retry_in_ms(random.random(), self._now_ms()) / 1000)
        except Exception as error:
            self._failure = error
        finally:
            self._readable.set()

    async def _connect(self) -> None:
        """One connection, from its handshake to its end."""
        try:
            token = await self._credentials.get(fresh=self._session.token_rejected)
        except Exception as error:
            if not self._opened.is_set():
                raise
            self._session.unreachable(f"no fresh token: {error!r}")  # whoever issues tokens may be back in a moment
            return
        query = {key: value for key, value in (("last_event_id", self._session.present()), ("device", self._device)) if value}
        try:
            socket = await connect(
                f"{self._address.websocket}/v1/ws" + (f"?{urlencode(query)}" if query else ""),
                additional_headers={"Authorization": f"Bearer {token}"},
                subprotocols=[SUBPROTOCOL],
                compression=None,  # small frames: the memory and time of deflate buy nothing
                proxy=None,
                ping_interval=None,  # the session has its own heartbeat
                open_timeout=self._open_timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=FRAME_BYTES_MAX,
                ssl=(self._ssl or True) if self._address.secure else None,
            )
        except InvalidStatus as error:
            self._session.refused(
                error.response.status_code, detail_of(error.response), retry_after_s(error.response.headers.get("Retry-After"))
            )
        except (OSError, InvalidHandshake) as error:  # TimeoutError is an OSError
            self._session.unreachable(str(error) or type(error).__name__)
        else:
            await self._serve(socket)

    async def _serve(self, socket: ClientConnection) -> None:
        session = self._session
        session.opened(self._now_ms())
        writer = asyncio.create_task(self._write(socket), name="engine-client-writer")
        renewer = asyncio.create_task(self._renew(), name="engine-client-renewer")
        try:
            while session.closing is None:
                try:
                    async with asyncio.timeout((session.deadline_ms - self._now_ms()) / 1000):
                        frame = await socket.recv(decode=False)
                except TimeoutError:
                    session.tick(self._now_ms())
                except ConnectionClosed:
                    break
                else:
                    session.receive(frame, self._now_ms())
                    self._readable.set()
                    if session.cursor != self._cursor_told:
                        self._report_soon()  # a refusal was confirmed, or what held the cursor was handled on another device
                self._tell_events()
                self._writable.set()
        finally:
            for task in (writer, renewer):
                task.cancel()
            await asyncio.wait({writer, renewer})
            await self._leave(socket)
        session.closed(
            1006 if session.closing else int(socket.close_code or 1006), socket.close_reason or "connection lost", self._now_ms()
        )

    async def _leave(self, socket: ClientConnection) -> None:
        """Say what is still to be said and close; a server that does not listen is left after `CLOSE_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for frame in self._session.data_to_send(self._now_ms()):
                    await socket.send(frame, text=True)
                await socket.close()
        except (ConnectionClosed, TimeoutError):
            socket.transport.abort()  # what was not said is said on the next connection, or comes again

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            await self._writable.wait()
            self._writable.clear()
            try:
                for frame in self._session.data_to_send(self._now_ms()):
                    await socket.send(frame, text=True)
            except ConnectionClosed:
                return  # the reader sees it too, and with it why

    async def _renew(self) -> None:
        """Present a fresh token before the old one expires, so that the connection need not be made anew."""
        while (due_s := self._credentials.renew_in_s()) is not None:
            await asyncio.sleep(max(1.0, due_s))
            try:
                self._session.authenticate(await self._credentials.get(fresh=True))
            except Exception as error:
                self._session.note("token", f"no fresh token: {error!r}")  # tried again in a second; the old one still serves
            self._writable.set()


def detail_of(response: Response) -> str:
    """What a problem+json answer says, else the reason phrase."""
    try:
        return str(msgspec.json.decode(response.body or b"")["detail"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return response.reason_phrase
