"""The requests that the engine makes itself: for the keys of a token issuer, and webhooks. One client, httpx, with what all of them need:
redirects are not followed, cookies are not kept, an answer is bounded, and whatever a foreign server sends is an `OSError`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Final, NamedTuple

import httpx

_CALLS_MAX: Final = 1000
_DIGITS_MAX: Final = 9

logging.getLogger("httpx").setLevel(logging.WARNING)  # below, it logs URLs, whose paths may be secrets


class OutgoingAnswer(NamedTuple):
    """The status and the body of an answer, and the seconds of its `Retry-After`; 0 where it has none in seconds."""

    status: int
    body: bytes
    retry_after_s: int = 0


class Outgoing:
    """A client; close it when its requests are over.

    Args:
        tls: verifies certificates; by default by the system's authorities.
        proxies: whether the proxies of the environment are used, `HTTPS_PROXY` and so on.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, *, proxies: bool) -> None:
        limits = httpx.Limits(max_connections=_CALLS_MAX, max_keepalive_connections=0)  # each request has a connection of its own
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # none: the next request to a host may be another tenant's
        self._client = httpx.AsyncClient(verify=tls or ssl.create_default_context(), trust_env=proxies, limits=limits, cookies=cookies)

    async def __aenter__(self) -> Outgoing:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._client.aclose()

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_s: float | None,
        answer_bytes_max: int,
        server_name: str = "",
        connect_s: float | None = None,
    ) -> OutgoingAnswer:
        """Make one request.

        Args:
            timeout_s: for all of it; None: the caller bounds it.
            answer_bytes_max: of the answer's body; with 0 only the status is awaited.
            server_name: the name that a certificate must be of, where the URL has an address in its place.
            connect_s: for the connection, and again for its TLS; None: no bound of their own.

        Raises:
            TimeoutError: among others, when the connection took too long.
            OSError: there was no answer, none in time, or none that is HTTP and short enough.
        """
        extensions = {"sni_hostname": server_name} if server_name else {}
        timeout = httpx.Timeout(None, connect=connect_s)
        text = bytearray()
        try:
            request = self._client.build_request(method, url, headers=headers, content=body, extensions=extensions, timeout=timeout)
            async with asyncio.timeout(timeout_s):
                answer = await self._client.send(request, stream=True)
                try:
                    if answer_bytes_max:
                        async for part in answer.aiter_bytes():
                            text += part
                            if len(text) > answer_bytes_max:
                                raise ConnectionError(f"the answer is longer than {answer_bytes_max} bytes")
                finally:
                    await answer.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise _cause(error) from error
        return OutgoingAnswer(answer.status_code, bytes(text), _seconds(answer.headers.get("Retry-After", "")))


def _seconds(text: str) -> int:
    """RFC 9110, section 10.2.3; a date counts as no time."""
    return int(text) if len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit() else 0


def _cause(error: BaseException) -> OSError:
    """The error of the operating system or of TLS behind one of the client, or one that says the same."""
    found: OSError = ConnectionError(str(error) or type(error).__name__)
    behind: BaseException | None = error
    while behind is not None:
        found = behind if isinstance(behind, OSError) else found
        behind = behind.__cause__ or behind.__context__
    return found
