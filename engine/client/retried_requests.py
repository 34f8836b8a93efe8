"""HTTP requests, repeated until an engine answers for good: one retry policy for publishing and for user settings.

A request is repeated after a lost connection, a timeout and the statuses in `RETRIED`, with exponential backoff and jitter, never before
`Retry-After`, for `retry_for_s` at most. One that is not idempotent is only repeated after the statuses in `NOT_TAKEN`. A 401 is repeated
once at once with a fresh token, where the credentials can renew it.

The time begins when the first attempt need not wait for other requests any more. Before, the engine has not been asked.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from engine.client.credentials import Credentials
from engine.client.http_connection import Response
from engine.client.loop_bound import OfLoop
from engine.client.publish_results import problem_of, value_of
from engine.errors import Unreachable

T = TypeVar("T")

RETRY_FIRST_S: Final = 0.1
RETRY_CAP_S: Final = 5.0
_RETRY_AFTER_MAX_S: Final = 86_400.0
RETRY_JITTER: Final = 0.3
RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
NOT_TAKEN: Final = frozenset({429, 503})
"""After these an engine has done nothing of the request."""

CLOSED: Final = "this Publisher is closed"
"""Of a call that needs a publisher which was closed."""


class Carrier(Protocol):
    """What takes one attempt of a request to an engine, over HTTP (`engine.client.http_connection`) or Ray (`engine.ray.edge_calls`).

    Attributes:
        engine: the engine, for error messages.
    """

    engine: str

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float, on_turn: Callable[[], None]
    ) -> Response:
        """The answer. `on_turn` is called when the request waits for no others any more.

        Raises OSError when there is none; the request may have taken effect.
        """

    def close(self) -> None:
        """Close the connections."""


class RetriedRequests:
    """Sends requests to one engine. Close it at the end.

    Args:
        make_carrier: makes what takes each attempt, for an event loop.
        timeout_s: as the attribute.
        retry_for_s: how long a request is repeated, from the turn of its first attempt on.

    Attributes:
        timeout_s: of one attempt.
    """

    def __init__(self, make_carrier: Callable[[], Carrier], credentials: Credentials, *, timeout_s: float, retry_for_s: float) -> None:
        self._carrier = OfLoop(make_carrier)
        self._credentials = credentials
        self.timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._closed = False

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        failed: str = "did not answer",
        on_retry: Callable[[Response], None] | None = None,
        *,
        repeatable: bool = True,
    ) -> Response:
        """The first answer whose status is not in `RETRIED`.

        Args:
            body: JSON, b"" for none.
            failed: predicate of the error message, after the engine's address.
            on_retry: called with each answer that is retried.
            repeatable: the request is idempotent.

        Raises:
            Unreachable: there was none within `retry_for_s`, or the request may not be repeated; it may have taken effect.
            RuntimeError: it is closed, or in use in another event loop.
            Exception: whatever the source of tokens raises.
        """
        carrier = self._carrier.get()
        begun_s: float | None = None
        attempt = 0
        refused: str | None = None  # a token

        def begin() -> None:
            nonlocal begun_s
            begun_s = begun_s or time.monotonic()

        while True:
            if self._closed:
                raise RuntimeError(CLOSED)
            token = await self._credentials.get(refused=refused)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            wait_s, status = None, 0
            try:
                answer = await carrier.request(method, path, headers, body, timeout_s=self.timeout_s, on_turn=begin)
            except OSError as error:  # ConnectionError and TimeoutError are OSErrors
                reason = str(error) or f"no answer within {self.timeout_s:g} s"
                again = repeatable or isinstance(error, ConnectionRefusedError)
            else:
                if answer.status == 401 and self._credentials.renewable and refused is None:
                    refused = token
                    continue
                if answer.status not in RETRIED:
                    return answer
                if on_retry is not None:
                    on_retry(answer)
                reason = f"{answer.status} {problem_of(answer).detail}"
                again = repeatable or answer.status in NOT_TAKEN
                status = answer.status
                wait_s = retry_after_s(answer.headers.get("retry-after"))
            delay_s = retry_delay_s(attempt, wait_s, random.random())
            attempt += 1
            if not again:
                raise Unreachable(f"{carrier.engine} {failed}, or did without an answer: {reason}", status)
            begin()  # it may have failed before its turn
            assert begun_s is not None
            if time.monotonic() + delay_s > begun_s + self._retry_for_s:
                raise Unreachable(f"{carrier.engine} {failed} within {self._retry_for_s:g} s: {reason}", status)
            await asyncio.sleep(delay_s)

    async def fetch(self, kind: type[T], method: str, path: str, body: Any = None, *, good: int = 200) -> T:
        """What an answer with the status `good` holds.

        Args:
            body: sent as JSON; None: there is none.
        Raises:
            Refused, Unauthorized, Forbidden: the answer has another status, or is not an engine's. Otherwise as `send`.
        """
        answer = await self.send(method, path, b"" if body is None else msgspec.json.encode(body))
        return value_of(kind, answer, good)

    async def close(self) -> None:
        """Close the connections, and end what is to be repeated."""
        self._closed = True
        self._carrier.get().close()


def segment(name: str) -> str:
    """A name as a segment of a path."""
    return quote(name, safe="")


def with_query(path: str, **parameters: Any) -> str:
    """The path with these parameters; those that are None, False or "" are left out."""
    given = {
        name: "true" if value is True else value for name, value in parameters.items() if value not in (None, "") and value is not False
    }
    return f"{path}?{urlencode(given)}" if given else path


def retry_after_s(header: str | None) -> float | None:
    """The seconds in a `Retry-After` header (RFC 9110, section 10.2.3), a day at most; None for its date form, which no engine uses."""
    try:
        return min(max(0.0, float(header or "")), _RETRY_AFTER_MAX_S)
    except ValueError:
        return None


def retry_delay_s(attempt: int, retry_after_s: float | None, random: float) -> float:
    """Delay after failure number `attempt` (from 0): doubling from 0.1 s to 5 s, +-30 %, never before `Retry-After`.

    Args:
        random: uniformly distributed in [0, 1).
    """
    delay = min(RETRY_FIRST_S * (1 << min(attempt, 16)), RETRY_CAP_S) * (1 + RETRY_JITTER * (2 * random - 1))
    return delay if retry_after_s is None else max(delay, retry_after_s * (1 + RETRY_JITTER * random))
