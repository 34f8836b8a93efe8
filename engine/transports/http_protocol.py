"""HTTP/1.1 (RFC 9112) on one client connection: a state machine around the parser of httptools, run by uvicorn's server.

What is being read is one state, `Reading`:

    HEAD     a request is due, or its head is incomplete. Bounded by `request_head_bytes_max`, and by `request_timeout_s` after which the
             connection is aborted. The first state of a connection.
    UPGRADE  the head is complete and asks for another protocol; left before the parser takes another byte.
    PUBLISH  the body of a request that may take the fast path of `engine.api.publish_endpoint`; left at the end of the read.
    BODY     the body of a request that an `AsgiExchange` answers.
    IDLE     between requests. Bounded by `keep_alive_s` after the last response; then the connection is closed.
    ENDED    nothing more is read: the connection is lost, rejected or handed to another protocol.

    from     on                                                       to       and
    HEAD     head complete: an upgrade                                UPGRADE
             head complete: a plain publish request, nothing unanswered  PUBLISH
             head complete: any other                                 BODY     an AsgiExchange begins, or waits for those before it
             head too large, or malformed                             ENDED    400 after the responses that are due, then close
    UPGRADE  a WebSocket, nothing unanswered                          ENDED    DirectWebSocket, or else HandshakeProtocol, has the transport
             any other upgrade                                        HEAD     the same head without the upgrade: served as HTTP/1.1
    PUBLISH  body complete                                            IDLE     PublishEndpoint answers, without ASGI
             read ends                                                BODY     an AsgiExchange begins: the application waits for the rest
    BODY     body complete                                            IDLE
             malformed                                                ENDED    as in HEAD; the request that it belongs to is not answered
    IDLE     a request begins                                         HEAD
    any      connection lost                                          ENDED

What is being answered is the other half: at most one request at a time, `busy` while there is one. Requests that the client sends without
waiting (RFC 9112, section 9.3.2) are answered in their order; while one waits for its turn, nothing is read beyond the read that
contained it. Reading also pauses while more than `_BODY_BYTES_MAX` of a body wait for the application.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter, deque
from collections.abc import Coroutine, MutableSet
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.server import ServerState

from engine.api import publish_endpoint
from engine.auth.tokens import Principal, RawHeaders
from engine.config import Config
from engine.errors import Overloaded, Unavailable
from engine.http import error_responses
from engine.http.problems import Problem
from engine.transports import websocket_handshake
from engine.transports.asgi import STATUS_LINES, TRANSPORT, AsgiExchange
from engine.transports.websocket_transport import DirectWebSocket, HandshakeProtocol

_BODY_BYTES_MAX: Final = 64 << 10
"""Bytes of a body that the application has not consumed; beyond it the client waits."""

_MALFORMED: Final = (httptools.HttpParserError, UnicodeDecodeError)
"""What callbacks of the parser raise about a request's target."""

log: Final = logging.getLogger("engine.edge.http")


class FastPaths(NamedTuple):
    """What answers plain requests without ASGI."""

    open_socket: websocket_handshake.OpenSocket
    publisher: publish_endpoint.PublishEndpoint
    refused: Counter[int]
    """By status; refusals are counted here."""


class Reading(enum.Enum):
    """What of a request is due next. See the module's theory of operation."""

    HEAD = enum.auto()
    UPGRADE = enum.auto()
    PUBLISH = enum.auto()
    BODY = enum.auto()
    IDLE = enum.auto()
    ENDED = enum.auto()


class HttpProtocol(asyncio.Protocol):
    """One client connection. See the module's theory of operation.

    Args:
        config: uvicorn's, loaded: the ASGI application, and the settings of `HandshakeProtocol`.
        server_state: uvicorn's: live connections, which it awaits when it shuts down, running tasks, and headers of every response.
        app_state: for `HandshakeProtocol`.
        _loop: uvicorn's name for the running event loop.
        settings: the engine's.
        fast_paths: what plain requests are answered by; without them the application answers every request.
    """

    __slots__ = (
        "__weakref__",
        "_answering",
        "_app_state",
        "_config",
        "_deadline",
        "_fast_paths",
        "_head_bytes",
        "_headers",
        "_loop",
        "_parser",
        "_parts",
        "_publishing",
        "_reading",
        "_reading_paused",
        "_receiving",
        "_rejection",
        "_server_state",
        "_settings",
        "_stopping",
        "_url",
        "_waiting",
        "_writable",
        "transport",
    )

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        settings: Config,
        fast_paths: FastPaths | None,
    ) -> None:
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._settings = settings
        self._fast_paths = fast_paths
        self.transport: asyncio.Transport
        self._parser: Any = httptools.HttpRequestParser(self)
        self._deadline: asyncio.TimerHandle | None = None  # of an incomplete head, or of an idle connection
        # What is being read.
        self._reading = Reading.HEAD
        self._head_bytes = 0  # of the head; the read that it began in is bounded by itself and not counted
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []  # PUBLISH: the body, as far as it is here
        self._receiving: AsgiExchange | None = None  # BODY: whose body it is
        self._reading_paused = False
        # What is being answered.
        self._publishing = False
        self._answering: AsgiExchange | None = None
        self._waiting: deque[AsgiExchange] = deque()
        self._rejection = b""  # the response to what could not be read, for when those before it have left
        self._stopping = False
        self._writable: asyncio.Event | None = None  # exists while the transport's buffer is full

    # -- The connection. ---------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a BaseTransport, says typeshed
        """A client connected: its first request is due."""
        self.transport = transport
        self._connections.add(self)
        self._set_deadline_of_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended: no request of it is answered any more."""
        self._end_reading()
        for exchange in (self._answering, *self._waiting):
            if exchange is not None:
                exchange.disconnect()
        self._answering = None
        self._waiting.clear()
        self.resume_writing()

    def shutdown(self) -> None:
        """Close once everything is answered; for uvicorn, when the server stops."""
        self._stopping = True
        if not self.busy:
            self.transport.close()

    def retire(self) -> None:
        """Close after the next response, which says so; meanwhile the connection stays open for a request."""
        self._stopping = True

    @property
    def busy(self) -> bool:
        """Is a request unanswered?"""
        return self._publishing or self._answering is not None

    @property
    def stopping(self) -> bool:
        """Has `shutdown` or `retire` been called?"""
        return self._stopping

    @property
    def _connections(self) -> MutableSet[Any]:
        return cast("MutableSet[Any]", self._server_state.connections)

    def _set_deadline_of_head(self) -> None:
        if self._deadline is None:
            self._deadline = self._loop.call_later(self._settings.request_timeout_s, self.transport.abort)

    def _set_deadline_of_idleness(self) -> None:
        if self._deadline is None:
            self._deadline = self._loop.call_later(self._settings.keep_alive_s, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- Reading. ----------------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        if self._reading is Reading.ENDED:
            return
        self._head_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(cause, _MALFORMED):
                log.error("reading a request failed", exc_info=cause)  # a bug
            self._reject("Invalid HTTP request received.")
        if self._reading is Reading.PUBLISH:
            self._leave_fast_path()
        elif self._reading is Reading.HEAD and not self.transport.is_closing():
            if self._head_bytes > self._settings.request_head_bytes_max:
                self._reject("The request's head is too large.")
            else:
                self._set_deadline_of_head()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            self._upgrade(memoryview(data)[pause.args[0] :])

    def on_message_begin(self) -> None:
        """Parser: a request begins."""
        if self._reading is Reading.IDLE:
            self._cancel_deadline()
        self._reading = Reading.HEAD
        self._head_bytes = 0
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Parser: a part of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: a header. A trailer, which comes behind the body, is discarded (RFC 9110, section 6.5.1)."""
        if self._reading is Reading.HEAD:
            self._headers.append((name.lower(), value.rstrip(b" \t")))  # the parser strips the front only

    def on_headers_complete(self) -> None:
        """Parser: the head is complete."""
        if self._parser.should_upgrade():
            self._reading = Reading.UPGRADE
            return
        self._cancel_deadline()
        if self._may_publish():
            self._reading = Reading.PUBLISH
            self._parts = []
        else:
            self._reading = Reading.BODY
            self._begin_exchange()

    def on_body(self, body: bytes) -> None:
        """Parser: a part of the body."""
        if self._reading is Reading.PUBLISH:
            self._parts.append(body)
        elif self._receiving is not None and self._receiving.feed(body) > _BODY_BYTES_MAX:
            self._pause_reading()

    def on_message_complete(self) -> None:
        """Parser: the request is complete."""
        if self._reading is Reading.PUBLISH:
            self._reading = Reading.IDLE
            self._publish()
        elif self._reading is Reading.BODY:
            self._reading = Reading.IDLE
            if self._receiving is not None:
                self._receiving.feed_eof()
                self._receiving = None

    def resume_reading(self) -> None:
        """Read on, unless a request waits for its turn."""
        if self._reading_paused and not self._waiting:
            self._reading_paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def _end_reading(self) -> None:
        self._reading = Reading.ENDED
        self._receiving = None
        self._parser = None  # it holds bound methods of this object: a cycle, which would live until the next full collection
        self._cancel_deadline()
        self._connections.discard(self)

    def _reject(self, detail: str) -> None:
        """Answer 400 when the responses before it have left, and close."""
        broken = self._receiving
        self._reading = Reading.ENDED
        self._receiving = None
        self._cancel_deadline()
        body = detail.encode()
        lines = [STATUS_LINES[400], *(b"%b: %b\r\n" % header for header in self.default_headers)]
        lines.append(b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self._rejection = b"".join((*lines, body))
        if broken is not None and broken is self._answering:
            broken.disconnect()
            self._answering = None
            if broken.started:
                self._rejection = b""
        elif broken is not None and broken in self._waiting:
            self._waiting.remove(broken)
        if not self.busy:
            self._answer_rejection()

    def _answer_rejection(self) -> None:
        self.write(self._rejection)
        self.transport.close()

    # -- Answering, by the application. ------------------------------------------------------------------------------------
    def _begin_exchange(self) -> None:
        """Let the application answer the request whose head was read, after those before it."""
        url = httptools.parse_url(self._url)
        if url.path is None:
            raise httptools.HttpParserInvalidURLError(self._url)
        version = self._parser.get_http_version()
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": unquote(url.path.decode("ascii")),
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
            "extensions": {TRANSPORT: {"transport": self.transport}},
        }
        exchange = self._receiving = AsgiExchange(
            self,
            scope,
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            expects_continue=any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers),
        )
        if self.busy:
            self._waiting.append(exchange)
            self._pause_reading()
        else:
            self._start(exchange)

    def _start(self, exchange: AsgiExchange) -> None:
        self._answering = exchange
        self._run(exchange.run(self._config.loaded_app))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    @property
    def default_headers(self) -> RawHeaders:
        """Headers of every response."""
        return self._server_state.default_headers

    @property
    def closes_next(self) -> bool:
        """Is the connection to be closed after the response that is due?"""
        return self._stopping and not self._waiting

    def answered(self, *, close: bool) -> None:
        """The response that was due is complete: answer the next request, or wait for one."""
        self._answering = None
        self._publishing = False
        if close:
            self.transport.close()
        if self.transport.is_closing():
            return
        if self._waiting:
            self._start(self._waiting.popleft())
        elif self._rejection:
            self._answer_rejection()
        else:
            self._set_deadline_of_idleness()
        self.resume_reading()

    def fail(self) -> None:
        """A response is incomplete and stays so: the client learns it from the end of the connection."""
        self.transport.close()

    # -- Answering publish requests, without ASGI. -------------------------------------------------------------------------
    def _may_publish(self) -> bool:
        return (
            self._fast_paths is not None
            and publish_endpoint.plain(self._parser.get_method(), self._url, self._parser.get_http_version(), self._headers)
            and self._parser.should_keep_alive()
            and not self.busy
            and self._writable is None  # an AsgiExchange waits for a client that does not read
        )

    def _leave_fast_path(self) -> None:
        """The body of a publish request is incomplete: let the application wait for the rest."""
        parts, self._parts = self._parts, []
        self._reading = Reading.BODY
        self._begin_exchange()
        for part in parts:
            self.on_body(part)

    def _publish(self) -> None:
        paths, headers = cast("FastPaths", self._fast_paths), self._headers
        body, self._parts = b"".join(self._parts), []
        self._publishing = True
        try:
            principal = paths.publisher.admit(headers, b"")
        except Exception as error:
            self._refuse(error, paths)
        else:
            self._run(self._answer_publish(body, headers, principal, paths))

    async def _answer_publish(self, body: bytes, headers: RawHeaders, principal: Principal, paths: FastPaths) -> None:
        try:
            answer = await paths.publisher.publish(body, headers, principal)
        except Exception as error:
            self._refuse(error, paths)
        else:
            self._answer(202, publish_endpoint.headers(answer), answer)

    def _refuse(self, error: Exception, paths: FastPaths) -> None:
        if not isinstance(error, Problem | Overloaded | Unavailable):
            log.error("a publish request failed", exc_info=error)  # a bug
        refusal = error_responses.refusal(error, paths.refused)
        self._answer(refusal.status_code, refusal.raw_headers, bytes(refusal.body))

    def _answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Answer in one write. `headers` contain the length of `body`."""
        if self.transport.is_closing():
            self._publishing = False
            return
        close = self.closes_next
        self.transport.write(publish_endpoint.response(STATUS_LINES[status], [*self.default_headers, *headers], body, close=close))
        self.answered(close=close)

    # -- Upgrades. ---------------------------------------------------------------------------------------------------------
    def _upgrade(self, rest: memoryview) -> None:
        """Hand the connection over, or serve the request as HTTP/1.1 (RFC 9110, section 7.8). `rest`: what was read behind its head."""
        while True:
            if self._asks_for_websocket():
                self._hand_over(bytes(rest))
                return
            head = self._head_without_upgrade()
            try:
                self._parser.feed_data(head)
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as pause:
                rest = rest[pause.args[0] :]
            else:
                return

    def _asks_for_websocket(self) -> bool:
        """Does the request ask for a WebSocket, with nothing unanswered that could come to stand behind the 101?"""
        upgrade = next((value.lower() for name, value in reversed(self._headers) if name == b"upgrade"), b"")
        return upgrade == b"websocket" and not self.busy

    def _head_without_upgrade(self) -> bytes:
        method = self._parser.get_method()
        if method == b"CONNECT":  # which is an upgrade whatever its headers
            raise httptools.HttpParserInvalidMethodError("CONNECT")
        lines = [b"%b %b HTTP/%b\r\n" % (method, self._url, self._parser.get_http_version().encode())]
        lines += [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
        return b"".join((*lines, b"\r\n"))

    def _hand_over(self, rest: bytes) -> None:
        """Give the transport to a WebSocket: at once when the request is plain and granted, else to the general handshake."""
        method = self._parser.get_method()
        version, url, headers = self._parser.get_http_version(), self._url, self._headers
        self._end_reading()
        opening = websocket_handshake.plain(method.decode("ascii"), version, url, headers)
        try:
            connection = self._grant(opening) if opening is not None else None
        except Problem as refused:
            self._refuse_upgrade(refused)
            return
        if opening is not None and connection is not None:
            self.transport.write(websocket_handshake.answer(opening, self.default_headers))
            connection.begin(self.transport, self._connections)
            if rest:
                connection.data_received(rest)
            return
        handshake = HandshakeProtocol(self._config, self._server_state, self._app_state)
        handshake.connection_made(self.transport)
        lines = [b"%b %b HTTP/1.1\r\n" % (method, url), *(b"%b: %b\r\n" % header for header in headers), b"\r\n"]
        handshake.data_received(b"".join(lines))
        self.transport.set_protocol(handshake)
        if rest and not self.transport.is_closing():
            handshake.data_received(rest)

    def _grant(self, opening: websocket_handshake.Opening) -> DirectWebSocket | None:
        """The connection that a plain request gets; None when it is refused, which the general handshake then words and counts.

        Raises:
            Problem: 429, which the general handshake must not decide a second time.
        """
        if self._fast_paths is None:
            return None
        try:
            return self._fast_paths.open_socket(self._headers, opening.query_string, opening.subprotocols)
        except Unavailable:
            return None
        except Problem as problem:
            if problem.status == 429:
                raise
            return None

    def _refuse_upgrade(self, problem: Problem) -> None:
        refusal = error_responses.refusal(problem, cast("FastPaths", self._fast_paths).refused)
        headers = [*self.default_headers, *refusal.raw_headers]
        self.transport.write(publish_endpoint.response(STATUS_LINES[refusal.status_code], headers, bytes(refusal.body), close=True))
        self.transport.close()

    # -- Writing. ----------------------------------------------------------------------------------------------------------
    def write(self, data: bytes) -> None:
        """Send bytes, or buffer them; nothing once the connection is closing."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def until_writable(self) -> None:
        """Wait while the client does not take what is buffered."""
        if self._writable is not None:
            await self._writable.wait()

    @property
    def write_paused(self) -> bool:
        """Is the transport's buffer full?"""
        return self._writable is not None

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        """The transport's buffer is nearly empty, or the connection has ended."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None
