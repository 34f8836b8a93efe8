"""Cross-origin requests (CORS, Fetch standard, section 3.2): rejected unless their origin is allowed.

A request of another origin is rejected before it has an effect. CORS alone only hides the response, which is too late: with a cookie as
credentials any site could publish, and even reading acknowledges.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.config import Config
from engine.http.error_responses import problem_of
from engine.http.problems import Problem, forbidden, problem_response

_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_PREFLIGHT_AGE_S: Final = 600
_ORIGIN_CHARS_MAX: Final = 200
_THIS_MACHINE: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_HEADERS: Final = b"authorization, content-type, last-event-id, x-client-id, x-last-seq, if-match"
_EXPOSED: Final = b"retry-after, www-authenticate, etag"

_OWN_SITES: Final = (b"", b"same-origin", b"none")
"""Values of `Sec-Fetch-Site` (Fetch Metadata) without an `Origin`: a program, a page of the engine, the address bar."""


class CrossOrigin:
    """ASGI middleware for everything under `/v1/`.

    Args:
        mail_links: paths left alone (`EndpointTable.mail_links`): web mail opens them from its site, their pages post with `Origin: null`.
    """

    def __init__(self, app: ASGIApp, config: Config, mail_links: Container[str] = ()) -> None:
        self._app = app
        self._config = config
        self._mail_links = mail_links

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer preflights, reject origins that are not allowed, add CORS headers to responses for those that are."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/") or scope["path"] in self._mail_links:
            await self._app(scope, receive, send)
            return
        found = dict(scope["headers"])
        if not (origin := found.get(b"origin", b"")):
            # An <img> or a link on another site, or on a sibling domain, sends cookies, but no Origin.
            if found.get(b"sec-fetch-site", b"") not in _OWN_SITES:
                await problem_response(forbidden("requests of other sites need an allowed origin"))(scope, receive, send)
            else:
                await self._app(scope, receive, send)
            return
        if not (allow := response_headers(scope["headers"], self._config)):
            await problem_response(not_allowed(origin.decode("latin-1")))(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and "access-control-request-method" in Headers(scope=scope):
            preflight = [
                (b"access-control-allow-methods", _METHODS),
                (b"access-control-allow-headers", _HEADERS),
                (b"access-control-max-age", b"%d" % _PREFLIGHT_AGE_S),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": allow[:2] + allow[3:] + preflight})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return

        await self._answer(scope, receive, send, allow)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        """Let the application answer, with these headers added."""
        started = False

        async def marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        try:
            await self._app(scope, receive, marked)
        except Exception as error:  # a bug, which Starlette counts, and would answer without these headers
            if not started:
                await problem_response(problem_of(error))(scope, receive, marked)
            raise


def response_headers(headers: Iterable[tuple[bytes, bytes]], config: Config) -> list[tuple[bytes, bytes]]:
    """Those that let a page of an allowed origin read the response to a request with these; none for any other request."""
    found = dict(headers)
    origin, host = found.get(b"origin", b""), found.get(b"host", b"")
    if not origin or not origin_allowed(origin.decode("latin-1"), host.decode("latin-1"), config):
        return []
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]


def origin_allowed(origin: str | None, host: str, config: Config) -> bool:
    """May a page of this origin use the engine? Programs send no `Origin`: only their token is checked.

    Args:
        origin: the `Origin` header (RFC 6454, section 7), None when there is none.
        host: the `Host` header: pages that the engine serves are always allowed, and on an engine for one machine those that others
            serve on it: a page under development.
        config: with `allowed_origins`, each `scheme://host[:port]` or `*`; and `host`.
    """
    if origin is None or "*" in config.allowed_origins:
        return True
    asked = _origin_parts(origin)
    if asked is None:
        return False
    scheme, name, port = asked
    own = _origin_parts(f"{scheme}://{host}")
    if own is not None and (own[1:] == (name, port) or (config.host in _THIS_MACHINE and {own[1], name} <= _THIS_MACHINE)):
        return True
    return any(_origin_parts(listed) == asked for listed in config.allowed_origins)


def not_allowed(origin: str) -> Problem:
    """What the developer of a page is told."""
    return forbidden(f"pages of {origin[:_ORIGIN_CHARS_MAX]!r} may not use this engine: add their origin to the setting allowed_origins")


def _origin_parts(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an origin; None when it is not one (sandboxed pages send `null`)."""
    try:
        parts: SplitResult = urlsplit(origin)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    return parts.scheme, parts.hostname, port
