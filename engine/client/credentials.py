"""Address of an engine and bearer token, for both clients."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from engine.client.loop_bound import OfLoop

Token = str | Callable[[], str | Awaitable[str]]
"""A token, or a function (plain or async) that returns a fresh one each time it is called."""

TOKEN_TIMEOUT_S: Final = 30.0
"""Of one call of such a function that is async, and of the wait for one that is under way."""

_SECURE: Final = {"http": False, "ws": False, "https": True, "wss": True}


class EngineUrl(msgspec.Struct, frozen=True):
    """Base address of an engine. `prefix` is the path it is mounted at, without a trailing slash."""

    secure: bool
    host: str
    port: int
    prefix: str

    @property
    def netloc(self) -> str:
        """`host:port`, IPv6 addresses in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def http(self) -> str:
        """The base URL for HTTP."""
        return f"{'https' if self.secure else 'http'}://{self.netloc}{self.prefix}"

    @property
    def websocket(self) -> str:
        """The base URL for WebSocket."""
        return f"{'wss' if self.secure else 'ws'}://{self.netloc}{self.prefix}"


def parse_url(url: str) -> EngineUrl:
    """The address in a URL such as `http://127.0.0.1:8000` or `wss://example.org/notify`.

    Raises:
        ValueError: another scheme, no host, an invalid port, or what nothing would use, such as a password.
    """
    parts: SplitResult = urlsplit(url)
    if parts.scheme not in _SECURE or not parts.hostname:
        raise ValueError(f"an engine's URL looks like http://127.0.0.1:8000 (or https, ws, wss); this is {url!r}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("an engine's URL has no user, password, query or fragment: the token is an argument of its own")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError(f"no host has such a name: {url!r}") from None
    secure = _SECURE[parts.scheme]
    return EngineUrl(secure, parts.hostname, parts.port or (443 if secure else 80), parts.path.rstrip("/"))


def expires_s(token: str) -> float | None:
    """The `exp` of a JWT, seconds since the epoch; None when it has none or is no JWT. The token is not verified."""
    try:
        return float(claims_of(token)["exp"])
    except (KeyError, TypeError, ValueError):
        return None


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a JWT, which is not verified; none when it is no JWT."""
    try:
        return msgspec.json.decode(urlsafe_b64decode(token.split(".")[1] + "=="), type=dict[str, Any])
    except (IndexError, ValueError):  # msgspec's and base64's errors are ValueErrors
        return {}


def _checked(token: object) -> str:
    """The token, if it can be sent. Raises TypeError, ValueError."""
    if not isinstance(token, str):
        raise TypeError(f"a token is text; the token function returned {type(token).__name__}")
    if "\n" in token or "\r" in token:
        raise ValueError("the token has a line break, such as the one at the end of a file: strip it")
    return token


class Credentials:
    """The current bearer token and its source.

    Raises:
        ValueError: the token has a line break.
    """

    def __init__(self, token: Token) -> None:
        self._source = token
        self._current: str | None = _checked(token) if isinstance(token, str) else None
        self._late = False  # by this clock the current one had expired when it came
        self._asking = OfLoop(asyncio.Lock)

    @property
    def renewable(self) -> bool:
        """Whether the source can issue fresh tokens."""
        return not isinstance(self._source, str)

    async def get(self, *, fresh: bool = False, refused: str | None = None) -> str:
        """The current token; a fresh one with `fresh`, or when it has expired or is the one `refused`, if there is a source.

        Any number of requests may be refused with one token, or find it expired: the first asks the source, for all.

        Raises whatever the source raises, and TimeoutError when it does not return within `TOKEN_TIMEOUT_S`.
        """
        if not isinstance(self._source, str) and (fresh or self._stale(refused)):
            limit = asyncio.timeout(TOKEN_TIMEOUT_S)
            try:
                async with limit, self._asking.get():
                    if fresh or self._stale(refused):
                        answer = self._source()
                        self._current = _checked(await answer if inspect.isawaitable(answer) else answer)
                        self._late = (expires_s(self._current) or math.inf) <= time.time()
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise TimeoutError(f"the token function has not returned within {TOKEN_TIMEOUT_S:g} s") from error
        assert self._current is not None
        return self._current

    def _stale(self, refused: str | None) -> bool:
        return self._current is None or self._current == refused or self.renew_in_s() == 0

    def renew_in_s(self) -> float | None:
        """Seconds until the token is to be renewed, None for never: at 90 % of the time until it expires, less a second.

        Never, too, where it had expired when it came: this clock is ahead, or the source keeps tokens for too long. It is used until the
        engine refuses it; renewed by this clock, the source would be asked for each request, and once a second beside a connection.
        """
        if not self.renewable or self._current is None or self._late:
            return None
        expiry = expires_s(self._current)
        return None if expiry is None else max(0.0, (expiry - time.time()) * 0.9 - 1)
