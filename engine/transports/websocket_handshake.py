"""The opening handshake of a WebSocket (RFC 6455, section 4.2), with a fast path for the request that nearly every client sends.

    HttpProtocol --plain, and granted--> 101, DirectWebSocket
                 --any other-----------> HandshakeProtocol, the websockets library, ASGI, Starlette, routes

The general handshake writes the request out again for the library to parse, and runs a task, the middleware and the routes: 400 us of an
edge's CPU per client that connects, 190 on the fast path.

The fast path only grants, and answers 429. A request is plain when comparing bytes is enough to know that the library would accept it
(`ServerProtocol.process_request`). Every other request, and every one that is refused for another reason, takes the general handshake
from its beginning, so nothing is granted that the library would reject. A 429 is answered at once: admission has counted the request,
and to be refused must cost less than to be admitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from websockets.utils import accept_key

from engine.auth import tokens
from engine.auth.tokens import Authenticator, Principal, RawHeaders
from engine.config import Config
from engine.core.model.routing import mailbox_key
from engine.gateway.connection import Cursor, parse_cursor, wants_counts
from engine.gateway.gateway import Gateway
from engine.http.cors import not_allowed, origin_allowed
from engine.http.problems import bad_request
from engine.transports.websocket_protocol import Verify
from engine.transports.websocket_transport import DirectWebSocket

PATH: Final = "/v1/ws"
SUBPROTOCOL: Final = "notify.v1.json"

SocketArguments = tuple[Gateway, Principal, Cursor, str, Verify]
"""The arguments of a `WebSocketSession`."""

OpenSocket = Callable[[RawHeaders, bytes, Sequence[str]], DirectWebSocket]
"""(headers, query string, offered subprotocols) -> the connection, not begun. Raises Problem or Unavailable."""

_CONNECTION: Final = frozenset((b"upgrade", b"keep-alive, upgrade"))  # Firefox sends the latter
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")  # 16 bytes in base64
_TOKENS: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:, ?[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")  # RFC 9110, section 5.6.2


def wants_digest(query_string: bytes) -> bool:
    """Whether the client asks for a digest of what it missed."""
    return b"digest=1" in query_string.split(b"&")


class Opening(NamedTuple):
    """A plain request for a WebSocket."""

    key: str
    query_string: bytes
    subprotocols: Sequence[str]


def plain(method: str, http_version: str, url: bytes, headers: RawHeaders) -> Opening | None:
    """What a request asks for; None when it is not plain. `url` is the request line's target."""
    if not url.isascii() or method != "GET" or http_version != "1.1":
        return None
    target, _, query_string = url.partition(b"?")
    if target.decode() != PATH:
        return None
    fields = dict(headers)
    if len(fields) != len(headers):
        return None  # what a repeated field means depends on the field
    key, offered = fields.get(b"sec-websocket-key", b""), fields.get(b"sec-websocket-protocol")
    if (
        fields.get(b"connection", b"").lower() not in _CONNECTION
        or fields.get(b"upgrade", b"").lower() != b"websocket"
        or fields.get(b"sec-websocket-version") != b"13"
        or _KEY.fullmatch(key) is None
        or b"content-length" in fields
        or b"transfer-encoding" in fields
    ):
        return None
    if offered is None:
        return Opening(key.decode(), query_string, ())
    if _TOKENS.fullmatch(offered) is None:
        return None
    return Opening(key.decode(), query_string, offered.decode().replace(" ", "").split(","))


def answer(opening: Opening, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The 101 response. `default_headers`: of every response of the server."""
    lines = [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"]
    lines += [b"%b: %b\r\n" % header for header in default_headers]
    if SUBPROTOCOL in opening.subprotocols:
        lines.append(b"Sec-WebSocket-Protocol: %b\r\n" % SUBPROTOCOL.encode())
    lines.append(b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept_key(opening.key).encode())
    return b"".join(lines)


class Sockets:
    """Decides who gets a WebSocket, for the fast path and the general handshake."""

    def __init__(self, gateway: Gateway, authenticator: Authenticator, config: Config) -> None:
        self._gateway = gateway
        self._authenticator = authenticator
        self._config = config

    def arguments(self, headers: RawHeaders, query_string: bytes, subprotocols: Sequence[str]) -> SocketArguments:
        """Authenticate and admit a request; return the arguments of its connection.

        Raises:
            Problem: 400, subprotocols are offered, but not ours; 401; 403, the token has no scope `connect`, or the page's origin is not
                allowed; 429, too many connections begin. Only a 429 has been counted, so it must be the answer.
            Unavailable: the edge is full or draining.
        """
        principal = self._authenticator.authenticate(headers, query_string, subprotocols, now_s=self._gateway.wall_ms() / 1000)
        tokens.require(principal, "connect")
        self._check_origin(dict(headers))
        if subprotocols and SUBPROTOCOL not in subprotocols:
            # Without a common subprotocol a client must fail the connection (RFC 6455, section 4.1), after a 101 that looked well.
            raise bad_request(f"offer the subprotocol {SUBPROTOCOL}, beside that of the token, or none")
        self._gateway.admit(mailbox_key(principal.tenant, principal.user))
        query = dict(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True))
        device = query.get("device", "")[: self._config.id_chars_max]
        return self._gateway, principal, parse_cursor(query.get("last_event_id", "")), device, self._verify

    def open(self, headers: RawHeaders, query_string: bytes, subprotocols: Sequence[str]) -> DirectWebSocket:
        """An `OpenSocket`."""
        connection = DirectWebSocket(*self.arguments(headers, query_string, subprotocols))
        connection.wants_digest = wants_digest(query_string)
        connection.wants_counts = wants_counts(query_string)
        return connection

    def _verify(self, token: str) -> Principal:
        """The principal of a fresh token. Raises Problem as `arguments` does."""
        principal = self._authenticator.token_principal(token, self._gateway.wall_ms() / 1000)
        tokens.require(principal, "connect")
        return principal

    def _check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        # Browsers send cookies with WebSocket handshakes to any site, and CORS does not apply to them (RFC 6455, section 10.2).
        origin = headers.get(b"origin")
        if origin is None:
            return
        if not origin_allowed(origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1"), self._config):
            raise not_allowed(origin.decode("latin-1"))
