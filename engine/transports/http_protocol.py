"""HTTP/1.1 (RFC 9112) on one client connection: a state machine around the parser of httptools, run by uvicorn's server.

What is being read is one state, `Reading`:

    HEAD     a request is due, or its head is incomplete; at most `request_head_bytes_max` of it. The first state of a connection.
    UPGRADE  the head is complete and asks for another protocol; left before the parser takes another byte.
    PUBLISH  the body of a request that may take the fast path of `engine.api.publish_endpoint`; one of more than `_AWAITED_BYTES_MAX` has
             to be here with the end of the head.
    BODY     the body of a request that an `AsgiExchange` answers, until its last byte, also when it is answered before.
    IDLE     between requests. A request that came before needs no parsing: see `kept_heads`.
    ENDED    nothing more is read: the connection is lost, refused, handed to another protocol, or about to be closed.

    from     on                                                       to       and
    HEAD     the first read: a request for a WebSocket, none admitted ENDED    a refusal, unread: see `unread_refusals`
    HEAD     head complete: an upgrade                                UPGRADE
             head complete: a plain publish request, nothing unanswered  PUBLISH
             head complete: any other                                 BODY     an AsgiExchange begins, or waits for those before it
             head too large, malformed, or refused by `http_framing`  ENDED    a refusal behind the responses that are due, then close
    UPGRADE  a WebSocket where there is one, nothing unanswered       ENDED    DirectWebSocket, or else HandshakeProtocol, has the transport
             any other upgrade                                        HEAD     the same head without the upgrade: served as HTTP/1.1
    PUBLISH  body complete                                            IDLE     PublishEndpoint answers, without ASGI
             read ends, body larger than `_AWAITED_BYTES_MAX`, or     BODY     an AsgiExchange begins: the application waits for the rest
             the request is refused whatever its body is
             more than the body of a request with a kept head         HEAD     the parser gets all of it
    BODY     body complete                                            IDLE
             malformed, or more framing than body                     ENDED    as in HEAD; the request that it belongs to is not answered
    IDLE     a request with a kept head, nothing unanswered           PUBLISH  held until its body is complete; the parser is not told
             a request begins                                         HEAD
    any      the client's time is up                                  ENDED    as malformed; without a word where no request has begun
             connection lost, or the client's half while no request but a GET waits for its response   ENDED

What is being answered is the other half: at most one request at a time, `busy` while there is one. Requests that the client sends without
waiting (RFC 9112, section 9.3.2) are answered in their order, one per turn of the event loop.

What a client can make the edge hold is bounded in bytes and in time:

    unparsed  A read is parsed in pieces of `_PIECE` bytes. While a request waits for its turn, or more than `_BODY_BYTES_MAX` of a body for
              the application, nothing is read, and what was read behind the piece stays as it came. So the requests of one piece wait.
    unused    Sizes and extensions of chunks, trailers, and a body behind its response are counted against a budget, `_unused_left`:
              `request_head_bytes_max`, more for every byte of body, and `body_bytes_max` for the rest of a request that was answered early.
    unsent    The application's next part waits while the transport's buffer is full. A client that takes nothing from one check to the
              next, every `send_stall_ms`, is disconnected; so is one that takes nothing of what a closing connection still has for it.
    time      One deadline, counted from when the client's turn began: `request_timeout_s` for a head, and again for a body,
              `keep_alive_s` between requests. It does not run while the client has to wait for us.

A connection that ends with a refusal, or with input unread, is closed in two steps (section 9.6): a close at once would send a reset, which
may overtake the refusal.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import sys
from collections import Counter, deque
from collections.abc import Coroutine, MutableSet
from typing import Any, Final, NamedTuple, cast

import httptools
import uvicorn
from uvicorn.server import ServerState

from engine.api import publish_endpoint
from engine.api.publish_endpoint import PublishHead
from engine.auth.tokens import Principal, RawHeaders
from engine.config import Config
from engine.errors import Unavailable
from engine.gateway.paced_turns import PacedTurns
from engine.http import cors, error_responses
from engine.http.problems import Problem, bad_request, problem_response
from engine.http.routed_path import routed_path
from engine.transports import http_framing, websocket_handshake
from engine.transports.asgi import STATUS_LINES, TRANSPORT, AsgiExchange, http_scope
from engine.transports.kept_heads import KeptHeads
from engine.transports.open_sockets import OpenSockets
from engine.transports.unread_refusals import UnreadRefusals
from engine.transports.websocket_transport import DirectWebSocket, HandshakeProtocol

_BODY_BYTES_MAX: Final = 64 << 10
"""Bytes of a body that the application has not consumed; beyond it the client waits."""

_AWAITED_BYTES_MAX: Final = 8 << 10
"""Of the body of a publish request that comes behind its head, as many clients send it, and is waited for without an `AsgiExchange`."""

_OPENINGS: Final = (b"GET /v1/ws", b"GET /v1/sse")
"""How the requests of clients begin that come back after an outage. Publishers and probes do not wait behind them."""

_PIECE: Final = 4096
"""Bytes parsed at once: no more than 160 requests, half a megabyte as exchanges. Most reads are shorter."""

_UNUSED_PER_BODY_BYTE: Final = 16
"""Bytes of framing that a byte of body earns: a chunk of one byte has five, with a padded size a dozen."""

_TIMER_RESOLUTION_S: Final = 0.002
"""A timer of uvloop, which counts whole milliseconds, may fire this much early."""

_NOTHING: Final = memoryview(b"")

log: Final = logging.getLogger("engine.edge.http")


class FastPaths(NamedTuple):
    """What answers plain requests without ASGI."""

    open_socket: websocket_handshake.OpenSocket
    publisher: publish_endpoint.PublishEndpoint
    heads: KeptHeads
    """Of the requests that `publisher` answers."""
    unread: UnreadRefusals
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
        openings: of all sockets of the server: paces the requests for WebSockets and event streams that they begin with.
        fast_paths: what plain requests are answered by; without them the application answers every request.
    """

    __slots__ = (
        "__weakref__",
        "_alone",
        "_answering",
        "_app_state",
        "_awaiting",
        "_body_bytes",
        "_config",
        "_connections",
        "_fast_paths",
        "_head_bytes",
        "_headers",
        "_held",
        "_loop",
        "_open_sockets",
        "_openings",
        "_parser",
        "_parts",
        "_problem",
        "_publishing",
        "_reading",
        "_reading_paused",
        "_receiving",
        "_rejection",
        "_server_state",
        "_settings",
        "_stopping",
        "_timer",
        "_timer_due_s",
        "_turn_began_s",
        "_unparsed",
        "_unsent",
        "_unsent_timer",
        "_unused_left",
        "_url",
        "_version",
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
        open_sockets: OpenSockets,
        openings: PacedTurns,
        fast_paths: FastPaths | None,
    ) -> None:
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._settings = settings
        self._open_sockets = open_sockets
        self._openings: PacedTurns | None = openings  # until the first read
        self._fast_paths = fast_paths
        self.transport: asyncio.Transport
        self._connections = cast("MutableSet[Any]", server_state.connections)  # live ones, of which this is one
        self._parser: Any = httptools.HttpRequestParser(self)
        # What is being read.
        self._reading = Reading.HEAD
        self._head_bytes = 0  # of the head; the piece that it began in is not counted
        self._url = b""
        self._version = ""
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []  # PUBLISH: the body, as far as it is here
        self._body_bytes = 0  # PUBLISH: of all of it
        self._awaiting = False  # PUBLISH: it was decided that the rest of the body is waited for here
        self._held = b""  # PUBLISH: the request, as far as it is here, while its head is kept and nothing of it parsed
        self._alone = b""  # what the parser was given of a request, if that began a read
        self._receiving: AsgiExchange | None = None  # BODY: whose body it is
        self._unused_left = 0  # BODY: bytes that may come and be of no use
        self._unparsed: memoryview | None = None  # of the last read, while reading is paused
        self._problem: Problem | None = None  # what a callback of the parser raised
        self._reading_paused = False
        # The client's time.
        self._turn_began_s = 0.0  # when its turn began; 0: not yet, or it is ours
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        # What is being answered.
        self._publishing = False
        self._answering: AsgiExchange | None = None
        self._waiting: deque[AsgiExchange] = deque()
        self._rejection = b""  # the response to what could not be read, for when those before it have left
        self._stopping = False
        self._writable: asyncio.Event | None = None  # exists while the transport's buffer is full
        self._unsent = 0  # bytes in it when it was looked at
        self._unsent_timer: asyncio.TimerHandle | None = None

    # -- The connection. ---------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a BaseTransport, says typeshed
        """A client connected: its first request is due, unless there are too many connections."""
        self.transport = transport
        try:
            self._connections = self._open_sockets.admit(transport.get_extra_info("peername"), self._connections)
        except Problem as problem:
            self._reading = Reading.ENDED
            transport.write(self._refusal(problem))
            transport.close()
            return
        self._connections.add(self)
        self._begin_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended: no request of it is answered any more."""
        self._end_reading()
        for exchange in (self._answering, *self._waiting):
            if exchange is not None:
                exchange.disconnect()
        self._answering = None
        self._waiting.clear()
        self.resume_writing()

    def eof_received(self) -> bool | None:
        """The client has ended its half: the connection closes behind the response to a publish, or to another request but a GET.

        A GET may wait for messages, for a client that has left.
        """
        self._stopping = True
        return self._publishing or (self._answering is not None and self._answering.due)

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
        return self._publishing or self._answering is not None or self._reading is Reading.PUBLISH

    @property
    def stopping(self) -> bool:
        """Has `shutdown` or `retire` been called?"""
        return self._stopping

    def _close(self) -> None:
        """Close behind what has been written, as long as the client takes it."""
        self._stop_reading()
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._watch_unsent()

    def _close_in_two_steps(self) -> None:
        """End our half, and wait up to `close_timeout_ms` for the client's, whose input is discarded."""
        if self.transport.is_closing():
            return
        self._stop_reading()
        self.transport.write_eof()
        self._timer = self._loop.call_later(self._settings.close_timeout_ms / 1000, self.transport.abort)
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    # -- The client's time. ------------------------------------------------------------------------------------------------
    def _turn_s(self) -> float:
        """How long the client may take for what is due next; 0 while it has to wait for us."""
        if self._reading_paused:
            return 0
        if self._reading is Reading.IDLE:
            return 0 if self.busy else self._settings.keep_alive_s
        return 0 if self._reading is Reading.ENDED else self._settings.request_timeout_s

    def _begin_turn(self) -> None:
        """Let the client's time run, where it does not yet. The timer is left alone as long as it fires before the time is up."""
        turn_s = self._turn_s()
        if turn_s and not self._turn_began_s:
            self._turn_began_s = self._loop.time()
            due_s = self._turn_began_s + turn_s
            if self._timer is None or self._timer_due_s > due_s:
                self._end_turn()
                self._set_timer(due_s, turn_s)

    def _set_timer(self, due_s: float, left_s: float) -> None:
        self._timer_due_s = due_s
        self._timer = self._loop.call_later(left_s, self._check_turn)

    def _check_turn(self) -> None:
        self._timer = None
        turn_s = self._turn_s()
        if not turn_s:
            return  # whatever gives the client its next turn sets a timer
        due_s = self._turn_began_s + turn_s
        left_s = due_s - self._loop.time()
        if left_s > _TIMER_RESOLUTION_S:
            self._set_timer(due_s, left_s)
        elif self._reading is Reading.IDLE or not (self.busy or self._url):
            self._close()
        else:
            self._reject(Problem(408, "the request did not arrive in time"))

    def _end_turn(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- Reading. ----------------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Bytes of the client. The first of a socket, when they ask for a connection, wait for their turn if thousands have asked."""
        if self._held:
            data, self._reading = self._held + data, Reading.IDLE
        if self._reading is Reading.ENDED or (self._reading is Reading.IDLE and self._taken_unparsed(data)):
            return
        self._held = b""
        openings, self._openings = self._openings, None
        if openings is None or not data.startswith(_OPENINGS):
            self._read(data)
        elif not openings.enter(self._begin_opening):
            self._unparsed = memoryview(data)
            self._pause_reading()
        elif not self._refused_unread(data):
            self._read(data)

    def _begin_opening(self) -> None:
        """The turn has come of the request that the connection begins with."""
        if self._unparsed is None or not self._refused_unread(bytes(self._unparsed)):
            self.resume_reading()

    def _refused_unread(self, data: bytes) -> bool:
        """Close the connection with a refusal, if nobody is admitted now."""
        refusal = self._fast_paths.unread.answer(data, self.default_headers) if self._fast_paths is not None else None
        if refusal is None:
            return False
        self.transport.write(refusal)
        self._close()
        return True

    def _read(self, data: bytes | memoryview) -> None:
        """Parse what was received as far as it may be, and keep the rest."""
        start, end = 0, len(data)
        if self._reading is not Reading.PUBLISH:
            self._alone = data if self._reading is Reading.IDLE and isinstance(data, bytes) else b""
        elif self._alone:
            self._alone += data
        if end > _PIECE:
            data = memoryview(data)
        while start < end and not self._reading_paused and self._reading is not Reading.ENDED:
            self._parse(data, start, min(start + _PIECE, end))
            start += _PIECE
        if start < end and self._reading is not Reading.ENDED:
            self._unparsed = memoryview(data)[start:]
        elif self._reading is Reading.PUBLISH and not self._awaiting:
            self._awaiting = self._awaits(PublishHead.of(self._headers, b""), self._body_bytes, cast("FastPaths", self._fast_paths))
            if not self._awaiting:
                self._leave_fast_path()
        if self._reading is not Reading.PUBLISH:
            self._alone = b""
        self._begin_turn()

    def _parse(self, data: bytes | memoryview, start: int, stop: int) -> None:
        """Parse a piece of `data`, and act on what is wrong with it."""
        self._head_bytes += stop - start
        try:
            upgraded = self._feed(data[start:stop])
            if upgraded is not None:
                self._upgrade(data, start + upgraded, stop)
        except httptools.HttpParserError as error:
            if self._problem is None and isinstance(error, httptools.HttpParserCallbackError):
                log.error("reading a request failed", exc_info=error)  # a bug
            self._reject(self._problem or bad_request(f"not a request of HTTP/1.1: {error}"))
            return
        if self._reading is Reading.HEAD:
            if self._head_bytes > self._settings.request_head_bytes_max or len(self._headers) > self._settings.request_headers_max:
                self._reject(self._head_too_large())
        elif self._reading is Reading.BODY:
            self._unused_left -= stop - start
            if self._unused_left < 0:
                self._reject(bad_request("chunk extensions and trailers are too large"))

    def _feed(self, data: bytes | memoryview) -> int | None:
        """Let the parser take `data`. Returns where the head of a request ends that asks for an upgrade; what follows is not parsed."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            return cast("int", pause.args[0])
        return None

    def _head_too_large(self) -> Problem:
        settings = self._settings
        return Problem(431, f"a request's head has at most {settings.request_head_bytes_max} bytes, {settings.request_headers_max} headers")

    # The parser calls these as it comes to each part of a request.
    def on_message_begin(self) -> None:
        self._reading = Reading.HEAD
        self._turn_began_s = 0.0
        self._head_bytes = 0
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: a header. A trailer, which comes behind the body, is discarded (RFC 9110, section 6.5.1)."""
        if self._reading is Reading.HEAD:
            self._headers.append((name.lower(), value.rstrip(b" \t")))  # the parser strips the front only

    def on_headers_complete(self) -> None:
        self._version = self._parser.get_http_version()
        try:
            self._check_head()
        except Problem as problem:
            self._problem = problem
            raise
        if self._parser.should_upgrade():
            self._reading = Reading.UPGRADE
            return
        self._turn_began_s = 0.0
        if self._may_publish():
            self._reading = Reading.PUBLISH
            self._awaiting = False
            self._parts = []
            self._body_bytes = next((int(value) for name, value in self._headers if name == b"content-length"), 0)
        else:
            self._reading = Reading.BODY
            self._begin_exchange()

    def _check_head(self) -> None:
        if len(self._headers) > self._settings.request_headers_max:
            raise self._head_too_large()
        http_framing.check_head(self._version, self._headers)
        if self._url[:1] != b"/" or b"#" in self._url:
            self._url = http_framing.origin_form(self._parser.get_method(), self._url, self._headers)
        if b"%" in self._url:
            http_framing.check_path(self._url)

    def on_body(self, body: bytes) -> None:
        if self._reading is Reading.PUBLISH:
            self._parts.append(body)
        elif self._receiving is not None and not self._receiving.complete:
            self._unused_left += len(body) * (1 + _UNUSED_PER_BODY_BYTE)
            if self._receiving.feed(body) > _BODY_BYTES_MAX:
                self._pause_reading()

    def on_message_complete(self) -> None:
        self._turn_began_s = 0.0
        if self._reading is Reading.PUBLISH:
            self._reading = Reading.IDLE
            self._publish_parsed()
        elif self._reading is Reading.BODY:
            self._reading = Reading.IDLE
            if self._receiving is not None:
                self._receiving.feed_eof()
                self._receiving = None

    def resume_reading(self) -> None:
        """Read on, unless a request waits for its turn."""
        if not self._reading_paused or self._waiting or self.transport.is_closing():
            return
        self._reading_paused = False
        self._turn_began_s = 0.0
        self.transport.resume_reading()
        unparsed, self._unparsed = self._unparsed, None
        self._read(unparsed or _NOTHING)

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def _stop_reading(self) -> None:
        self._reading = Reading.ENDED
        self._receiving = None
        self._unparsed = None
        self._held = self._alone = b""
        self._end_turn()

    def _end_reading(self) -> None:
        self._stop_reading()
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
            self._unsent_timer = None
        self._parser = None  # it holds bound methods of this object: a cycle, which would live until the next full collection
        self._connections.discard(self)

    def _reject(self, problem: Problem) -> None:
        """Answer what cannot be read, when the responses before it have left, and close."""
        broken = self._receiving
        self._stop_reading()
        if broken is None or not (broken.started or broken.complete):
            self._rejection = self._refusal(problem, cors.response_headers(self._headers, self._settings))
        if broken is not None and not broken.complete:
            if broken is self._answering:
                broken.disconnect()
                self._answering = None
            else:
                self._waiting.remove(broken)
        if not self.busy:
            self._answer_rejection()

    def _refusal(self, problem: Problem, further_headers: RawHeaders = ()) -> bytes:
        refused = self._fast_paths.refused if self._fast_paths is not None else Counter()
        response = error_responses.refusal(problem, refused)
        headers = [*self.default_headers, *response.raw_headers, *further_headers]
        return publish_endpoint.response(STATUS_LINES[response.status_code], headers, bytes(response.body), close=True)

    def _answer_rejection(self) -> None:
        self.write(self._rejection)
        self._close_in_two_steps()

    # -- Answering, by the application. ------------------------------------------------------------------------------------
    def _begin_exchange(self) -> None:
        """Let the application answer the request whose head was read, after those before it."""
        self._unused_left = self._settings.request_head_bytes_max + _PIECE
        version, headers, method = self._version, self._headers, self._parser.get_method().decode("ascii")
        scope = http_scope(method, self._url, headers, version=version, extensions={TRANSPORT: {"transport": self.transport}})
        exchange = self._receiving = AsgiExchange(
            self,
            scope,
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            expects_continue=version != "1.0" and any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers),
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
        return self._server_state.default_headers

    @property
    def closes_next(self) -> bool:
        """Is the connection to be closed after the response that is due?"""
        return self._stopping and not self._waiting

    def answered(self, *, close: bool) -> None:
        """The response that was due is complete: answer the next request, or wait for one."""
        self._answering = None
        self._publishing = False
        if self.transport.is_closing():
            return
        if close:
            if self._reading is Reading.IDLE and self._unparsed is None:
                self._close()
            else:
                self._close_in_two_steps()
            return
        if self._waiting:
            self._start(self._waiting.popleft())
        elif self._reading is Reading.ENDED:
            self._answer_rejection()
        elif self._reading is Reading.BODY:
            self._unused_left += self._settings.body_bytes_max
        if self._reading_paused:
            self.resume_reading()
        self._begin_turn()

    def fail(self) -> None:
        """A response is incomplete and stays so: the client learns it from the end of the connection."""
        self._close()

    # -- Answering publish requests, without ASGI. -------------------------------------------------------------------------
    def _may_publish(self) -> bool:
        return (
            self._fast_paths is not None
            and publish_endpoint.plain(self._parser.get_method(), self._url, self._version, self._headers)
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

    def _taken_unparsed(self, data: bytes) -> bool:
        """Publish what `data` is, if that is one request whose head is kept, or hold it until its body is complete.

        The parser is between requests, and stays there.
        """
        paths = self._fast_paths
        if paths is None or self.busy or self._reading_paused or self._writable is not None:
            return False
        found = paths.heads.find(data)
        if found is None:
            return False
        head, body, missing = found
        if missing:
            if not self._held:
                if not self._awaits(head, len(body) + missing, paths):
                    return False
                self._turn_began_s = 0.0
            self._held, self._reading = data, Reading.PUBLISH
            self._begin_turn()
        else:
            self._held, self._turn_began_s = b"", 0.0
            self._publish(head, body, paths)
        return True

    def _awaits(self, head: PublishHead, body_bytes: int, paths: FastPaths) -> bool:
        """Is the rest of the body waited for here? Not of a request that is refused without it: the application answers that at once."""
        return body_bytes <= _AWAITED_BYTES_MAX and paths.publisher.takes_unread(head)

    def _publish_parsed(self) -> None:
        paths = cast("FastPaths", self._fast_paths)
        body, self._parts = b"".join(self._parts), []
        head = PublishHead.of(self._headers, b"")
        if self._publish(head, body, paths):
            paths.heads.keep(self._alone, len(body), head)

    def _publish(self, head: PublishHead, body: bytes, paths: FastPaths) -> bool:
        """Begin to answer a publish request; whether it is admitted."""
        self._publishing = True
        try:
            principal = paths.publisher.admit(head)
        except Exception as error:
            self._loop.call_soon(self._refuse, error, paths)  # what follows in the same read waits for its turn, as behind any request
            return False
        self._run(self._answer_publish(body, head, principal, paths))
        return True

    async def _answer_publish(self, body: bytes, head: PublishHead, principal: Principal, paths: FastPaths) -> None:
        try:
            answer = await paths.publisher.publish(body, head.content, principal)
        except Exception as error:
            self._refuse(error, paths)
        else:
            self._answer(202, publish_endpoint.headers(answer), answer)

    def _refuse(self, error: Exception, paths: FastPaths) -> None:
        refusal = problem_response(error_responses.problem_for(error, paths.refused))
        self._answer(refusal.status_code, refusal.raw_headers, bytes(refusal.body))

    def _answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Answer in one write. `headers` contain the length of `body`."""
        if self.transport.is_closing():
            self._publishing = False
            return
        close = self.closes_next
        self.transport.write(
            publish_endpoint.response(STATUS_LINES[status], [*self._server_state.default_headers, *headers], body, close=close)
        )
        self.answered(close=close)

    # -- Upgrades. ---------------------------------------------------------------------------------------------------------
    def _upgrade(self, data: bytes | memoryview, start: int, stop: int) -> None:
        """Hand the connection over, or serve the request as HTTP/1.1 (RFC 9110, section 7.8).

        Args:
            data: what was read; from `start` on it is behind the request's head.
            start: of that.
            stop: where the piece ends that is parsed.
        """
        upgraded: int | None = 0
        while upgraded is not None:
            start += upgraded
            if self._asks_for_websocket():
                self._hand_over(bytes(data[start:]))
                return
            head = self._head_without_upgrade()
            self._parser = httptools.HttpRequestParser(self)  # the other one may take this request for the connection's last
            self._feed(head)
            upgraded = self._feed(data[start:stop])

    def _asks_for_websocket(self) -> bool:
        """Does the request ask for a WebSocket where there is one, with nothing unanswered that could come to stand behind the 101?"""
        upgrade = next((value.lower() for name, value in reversed(self._headers) if name == b"upgrade"), b"")
        path = routed_path(self._url.partition(b"?")[0].decode("latin-1"))
        return upgrade == b"websocket" and path == websocket_handshake.PATH and self._version != "1.0" and not self.busy

    def _head_without_upgrade(self) -> bytes:
        method = self._parser.get_method()
        if method == b"CONNECT":  # which is an upgrade whatever its headers
            raise httptools.HttpParserInvalidMethodError("CONNECT is for proxies")
        lines = [b"%b %b HTTP/%b\r\n" % (method, self._url, self._version.encode())]
        lines += [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
        return b"".join((*lines, b"\r\n"))

    def _hand_over(self, rest: bytes) -> None:
        """Give the transport to a WebSocket: at once when the request is plain and granted, else to the general handshake."""
        method = self._parser.get_method()
        version, url, headers = self._version, self._url, self._headers
        self._end_reading()
        opening = websocket_handshake.plain(method.decode("ascii"), version, url, headers)
        try:
            connection = self._grant(opening) if opening is not None else None
        except Problem as refused:
            self.transport.write(self._refusal(refused))
            self._close()
            return
        if opening is not None and connection is not None:
            self.transport.write(websocket_handshake.answer(opening, self.default_headers))
            connection.begin(self.transport, self._connections)
            if rest:
                connection.data_received(rest)
            return
        handshake = HandshakeProtocol(self._config, self._server_state, self._app_state)
        handshake.connections = cast("Any", self._connections)  # which may be those of one address
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
        self._writable = asyncio.Event()
        self._watch_unsent()

    def resume_writing(self) -> None:
        """The transport's buffer is nearly empty, or the connection has ended."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def _watch_unsent(self) -> None:
        """Look every `send_stall_ms` whether the client takes what it was sent; see `_check_unsent`."""
        self._unsent = sys.maxsize
        if self._unsent_timer is None:
            self._unsent_timer = self._loop.call_later(self._settings.send_stall_ms / 1000, self._check_unsent)

    def _check_unsent(self) -> None:
        """Disconnect a client that has taken nothing since the last look. Streams have a watch of their own, which comes before."""
        self._unsent_timer = None
        unsent = self.transport.get_write_buffer_size()
        if not unsent or not (self.write_paused or self.transport.is_closing()):
            return
        if unsent >= self._unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        self._unsent_timer = self._loop.call_later(self._settings.send_stall_ms / 1000, self._check_unsent)
