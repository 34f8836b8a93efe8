"""Receives a user's notifications: the asyncio shell around `engine.client.protocol`, on the websockets library.

One task per client keeps it connected: connect, then a loop that waits for the next frame or the session's deadline, feeds the session
and reports its events. A second task writes, so that acknowledging never waits for reading. All decisions are in the session.
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
FRAME_BYTES_MAX: Final = 8 << 20  # an engine sends at most 256 KiB
CLOSE_TIMEOUT_S: Final = 2.0
YIELD_EVERY: Final = 32  # messages returned without yielding to the loop, which writes the acknowledgements


class Client:
    """Receives one user's notifications, in order, and acknowledges them.

        async with Client("http://127.0.0.1:8000", token) as client:
            async for message in client:
                await handle(message.type, message.data)

    At least once: a message is acknowledged when the next one is requested, or the context is left without an exception, so a message
    whose handler failed or whose process died is delivered again. Repeats of settled messages are dropped by id. A lost connection
    is made again after 1, 2, 5, 10 s with jitter, or after the delay a server gives, and resumes at the cursor.

    With `auto_ack=False` settle each message with `await message.ack()` or `await message.nack("why")`, in any order and from any task;
    the engine stops sending at about 256 unsettled messages.

    To resume after a restart of the program, store the cursor passed to `on_cursor`:

        Client(url, token, last_event_id=path.read_text() or None, on_cursor=path.write_text)

    Args:
        url: the engine's address, `http://host:port` or `https://...`.
        token: a JWT with scope `connect`, or a function (plain or async) that returns a fresh one; it is called before a token
            expires and when one is rejected.
        device: a stable name of this device, for the engine's session records.
        last_event_id: the cursor to resume from; None delivers everything pending.
        auto_ack: acknowledge each message when the next one is requested.
        on_cursor: called with the new cursor when messages were settled, at most once per turn of the loop.
        on_event: called with `Connected`, `Disconnected`, `Gap`, `Revoked`, `Draining` and `ServerError` in order; with a `Gap`
            before the messages after it are delivered.
        open_timeout_s: how long entering the context waits for the first connection, over all attempts.
        ssl: for `https` and `wss`, instead of the system's default.

    Raises (from entering the context, and from the iteration):
        Unreachable: no engine answered within `open_timeout_s`; once connected, reconnecting never gives up.
        Unauthorized: the token was rejected, and so was a fresh one where `token` is a function.
        Forbidden: the token lacks the scope.
        TooManyConnections: newer connections of this user replaced this one.
        Refused: any other answer that retrying does not change.
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
        self._cursor_reported = last_event_id
        self._report_scheduled = False
        self._handling: Message | None = None
        self._returned_in_a_row = 0
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
        """`event_id` up to which everything is settled; pass it as `last_event_id` to resume."""
        return self._session.cursor

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise RuntimeError("a Client can be entered once; create another one")
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
        """Send what is settled, close the connection and stop. Idempotent."""
        if self._runner is not None and not self._runner.done():
            self._runner.cancel()
            await asyncio.wait({self._runner})
        self._report_cursor()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message. Cancelling the wait loses no message."""
        self._settle_handled()
        if self._returned_in_a_row >= YIELD_EVERY:
            self._returned_in_a_row = 0
            await asyncio.sleep(0)
        while (message := self._session.next_message()) is None:
            if self._failure is not None:
                raise self._failure
            if self._runner is None or self._runner.done():
                raise StopAsyncIteration
            self._returned_in_a_row = 0
            self._readable.clear()
            await self._readable.wait()
        self._returned_in_a_row += 1
        message.__dict__["owner"] = self
        if self._auto_ack:
            self._handling = message
        return message

    def settle(self, message: Message, reason: str | None) -> None:
        """Acknowledge a message, or reject it with a reason; `message.ack()` and `message.nack()` call it."""
        self._session.settle(message, reason, self._now_ms())
        self._writable.set()
        self._schedule_report()

    # -- inside --------------------------------------------------------------------------------------------------------
    def _now_ms(self) -> int:
        return int((time.monotonic() + self._clock_offset_s) * 1000)

    def _settle_handled(self) -> None:
        if self._handling is not None:
            message, self._handling = self._handling, None
            self.settle(message, None)

    def _schedule_report(self) -> None:
        if self._on_cursor is not None and not self._report_scheduled:
            self._report_scheduled = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report_cursor(self) -> None:
        cursor = self._session.cursor
        if self._on_cursor is not None and cursor is not None and cursor != self._cursor_reported:
            self._cursor_reported = cursor
            self._on_cursor(cursor)

    def _report(self) -> None:
        """Call `on_cursor`. An exception from it ends the client: a cursor that is not stored would resume at the wrong message."""
        self._report_scheduled = False
        try:
            self._report_cursor()
        except Exception as error:
            self._failure = error
            if self._runner is not None:
                self._runner.cancel()

    def _report_events(self) -> None:
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
                self._report_events()
                if self._session.failure is not None:
                    raise self._session.failure
                await asyncio.sleep(self._session.retry_in_ms(random.random(), self._now_ms()) / 1000)
        except Exception as error:
            self._failure = error
        finally:
            self._readable.set()

    async def _connect(self) -> None:
        """One connection, from handshake to close."""
        try:
            token = await self._credentials.get(fresh=self._session.token_rejected)
        except Exception as error:
            if not self._opened.is_set():
                raise
            self._session.unreachable(f"no fresh token: {error!r}")  # the issuer of tokens may be back soon
            return
        query = {key: value for key, value in (("last_event_id", self._session.present()), ("device", self._device)) if value}
        try:
            socket = await connect(
                f"{self._address.websocket}/v1/ws" + (f"?{urlencode(query)}" if query else ""),
                additional_headers={"Authorization": f"Bearer {token}"},
                subprotocols=[SUBPROTOCOL],
                compression=None,  # frames are small: deflate costs more memory and time than it saves
                proxy=None,
                ping_interval=None,  # the session sends heartbeats itself
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
                    if session.cursor != self._cursor_reported:
                        self._schedule_report()  # a nack was confirmed, or another device settled what held the cursor
                self._report_events()
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
        """Send what is pending and close; the connection is aborted after `CLOSE_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for frame in self._session.data_to_send(self._now_ms()):
                    await socket.send(frame, text=True)
                await socket.close()
        except (ConnectionClosed, TimeoutError):
            socket.transport.abort()  # what was not sent is sent on the next connection

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            await self._writable.wait()
            self._writable.clear()
            try:
                for frame in self._session.data_to_send(self._now_ms()):
                    await socket.send(frame, text=True)
            except ConnectionClosed:
                return  # the reader reports the reason

    async def _renew(self) -> None:
        """Send a fresh token before the old one expires, so that the connection stays open."""
        while (due_s := self._credentials.renew_in_s()) is not None:
            await asyncio.sleep(max(1.0, due_s))
            try:
                self._session.authenticate(await self._credentials.get(fresh=True))
            except Exception as error:
                self._session.note("token", f"no fresh token: {error!r}")  # retried in a second; the old one is still valid
            self._writable.set()


def detail_of(response: Response) -> str:
    """The `detail` of a problem+json answer, else the reason phrase."""
    try:
        return str(msgspec.json.decode(response.body or b"")["detail"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return response.reason_phrase
