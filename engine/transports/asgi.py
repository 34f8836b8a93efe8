"""One HTTP request and its response, between `engine.transports.http_protocol` and the ASGI application (ASGI HTTP, version 2.3)."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp, Receive

from engine.auth.tokens import RawHeaders
from engine.http.routed_path import routed_path

if TYPE_CHECKING:
    from engine.transports.http_protocol import HttpProtocol

TRANSPORT: Final = "notify.transport"
"""Key of `scope["extensions"]` of HTTP requests: `{"transport": asyncio.Transport}`, so that a stream can abort a connection whose
client does not read."""

STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
"""By status code; a response of the engine has no other."""

_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9110, section 5.6.2, in lower case
_NOT_IN_VALUES: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # RFC 9110, section 5.5: a line break in one would begin another header
_BODILESS: Final = frozenset((204, 304))

log: Final = logging.getLogger("engine.edge.http")


def http_scope(
    method: str, target: bytes, headers: RawHeaders, *, version: str = "1.1", extensions: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The scope of a request. `target`: path and query, percent-encoded."""
    path, _, query_string = target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "method": method,
        "scheme": "http",
        "path": routed_path(path.decode("ascii")),
        "raw_path": path,
        "query_string": query_string,
        "root_path": "",
        "headers": headers,
        "extensions": extensions or {},
    }


class AsgiExchange:
    """A request that the application answers.

    The head of the response leaves with the first part of its body, in one write (ASGI leaves that to the server).

    Args:
        keep_alive: whether the client wants the connection kept open after the response.
        expects_continue: the client waits for a 100 before it sends the body (RFC 9110, section 10.1.1).
    """

    __slots__ = (
        "_body",
        "_body_left",
        "_changed",
        "_chunked",
        "_connection",
        "_disconnected",
        "_expects_continue",
        "_head",
        "_keep_alive",
        "_scope",
        "_whole",
        "complete",
        "started",
    )

    def __init__(self, connection: HttpProtocol, scope: dict[str, Any], *, keep_alive: bool, expects_continue: bool) -> None:
        self._connection = connection
        self._scope = scope
        self._keep_alive = keep_alive
        self._expects_continue = expects_continue
        self._body = bytearray()  # received and not consumed
        self._whole = False  # all of the request's body is here
        self._changed = asyncio.Event()  # more of the body, its end, or the end of the exchange
        self._disconnected = False
        self._head = b""  # of the response, while it waits for the body's first part
        self._chunked = False
        self._body_left: int | None = 0  # of Content-Length; None: the end of the connection ends the body
        self.complete = False
        """Has all of the response left?"""
        self.started = False
        """Has some of the response left?"""

    # -- For the connection. -----------------------------------------------------------------------------------------------
    def feed(self, body: bytes) -> int:
        """Take a part of the request's body. Returns how many bytes wait to be consumed."""
        if self.complete or self._disconnected:
            return 0
        self._body += body
        self._changed.set()
        return len(self._body)

    def feed_eof(self) -> None:
        self._whole = True
        self._changed.set()

    @property
    def due(self) -> bool:
        """Is this whole request, no GET, without any of its response?"""
        return self._whole and not self.started and self._scope["method"] != "GET"

    def disconnect(self) -> None:
        """The client is gone: the application receives `http.disconnect`, and what it sends is discarded."""
        self._disconnected = True
        self._changed.set()

    async def run(self, application: ASGIApp) -> None:
        """Let the application answer. A response that it leaves incomplete becomes a 500, or ends the connection if it has begun."""
        try:
            await application(self._scope, self._receive, self._send)
        except Exception as error:
            log.error("the application failed", exc_info=error)
        finally:
            if not (self.complete or self._disconnected):
                self._fail()

    # -- For the application. ----------------------------------------------------------------------------------------------
    async def _receive(self) -> dict[str, Any]:
        if self._expects_continue:
            self._expects_continue = False
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not (self._disconnected or self.complete):
            self._connection.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self._disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self._whole}

    async def _send(self, message: Any) -> None:
        await self._connection.until_writable()
        if self._disconnected:
            return
        expected = "http.response.body" if self._head or self.started else "http.response.start"
        if self.complete or message["type"] != expected:
            raise RuntimeError(f"{message['type']} instead of {'nothing' if self.complete else expected}")
        if expected == "http.response.start":
            self._head = self._make_head(message["status"], message.get("headers", ()))
        else:
            self._send_body(message.get("body", b""), more=message.get("more_body", False))

    def _make_head(self, status: int, headers: RawHeaders) -> bytes:
        # A client that was not told to go on may send the body that it has announced, or its next request (RFC 9110, section 10.1.1).
        unsure = self._expects_continue and not (self._body or self._whole)
        self._expects_continue = False
        self._keep_alive = self._keep_alive and not (unsure or self._connection.closes_next)
        lines = [STATUS_LINES[status]]
        length: int | None = None
        says_close = False
        for name, value in (*self._connection.default_headers, *headers):
            field = name.lower()
            if _NAME.fullmatch(field) is None or _NOT_IN_VALUES.search(value) is not None:
                raise RuntimeError("a header that cannot be sent")
            if field == b"content-length":
                length = int(value)
            elif field == b"connection" and b"close" in value.lower():
                self._keep_alive = False
                says_close = True
            lines.append(b"%b: %b\r\n" % (field, value))
        if not (self._keep_alive or says_close):
            lines.append(b"connection: close\r\n")
        self._body_left = 0 if length is None or self._scope["method"] == "HEAD" else length
        if length is None and self._scope["method"] != "HEAD" and status not in _BODILESS:
            if self._scope["http_version"] == "1.0":  # which has no chunks (RFC 9112, section 6.3)
                self._body_left = None
            else:
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _send_body(self, body: bytes, *, more: bool) -> None:
        if self._scope["method"] == "HEAD":
            body = b""
        elif self._chunked:
            end = b"" if more else b"0\r\n\r\n"
            body = b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        elif self._body_left is not None:
            self._body_left -= len(body)
            if self._body_left < 0 or (self._body_left and not more):
                raise RuntimeError("the response is not as long as its Content-Length")
        head, self._head = self._head, b""
        self.started = True
        if head or body:
            self._connection.write(head + body)
        if not more:
            self._end(close=not self._keep_alive)

    def _fail(self) -> None:
        """Answer 500, or end the connection when some of the response has left already."""
        if self.started:
            self._connection.fail()
            return
        body = b"Internal Server Error"
        lines = [STATUS_LINES[500], *(b"%b: %b\r\n" % header for header in self._connection.default_headers)]
        lines.append(b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self._connection.write(b"".join((*lines, body)))
        self._end(close=True)

    def _end(self, *, close: bool) -> None:
        self.complete = True
        self._changed.set()
        self._connection.answered(close=close)


async def until_disconnected(receive: Receive) -> None:
    """Return when the client has closed its connection; what it sends before is discarded."""
    while (await receive())["type"] != "http.disconnect":
        pass
