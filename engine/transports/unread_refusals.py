"""Refusals of requests for a connection that are answered unread, while an edge admits no more connections.

When thousands of clients come back at once, most of them get the same answer, and reading each request, verifying its token and making a
response costs three times as much as taking its socket and giving it back. `refuse` says whether all are refused now, and until when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engine.api import publish_endpoint
from engine.auth.tokens import RawHeaders
from engine.http.problems import Problem, problem_response
from engine.transports.asgi import STATUS_LINES

_HEAD_ENDS = b"\r\n\r\n"


class UnreadRefusals:
    """The responses, encoded once for each `Retry-After`.

    Args:
        path: of the requests that are refused so; they are complete when their head is.
        refuse: the problem that any of them is answered with now; None when they are to be read.
        refused: counts refusals by status.
    """

    def __init__(self, path: str, refuse: Callable[[], Problem | None], refused: Counter[int]) -> None:
        self._starts = tuple(b"GET %b%b" % (path.encode(), end) for end in (b" ", b"?"))
        self._refuse = refuse
        self._refused = refused
        self._encoded: dict[str, tuple[bytes, bytes]] = {}  # by Retry-After: the status line, and what is behind the default headers

    def answer(self, data: bytes, default_headers: RawHeaders) -> bytes | None:
        """The response to a client that has sent `data` on a new connection; None when it is to be read."""
        if not (data.startswith(self._starts) and data.endswith(_HEAD_ENDS)):
            return None
        problem = self._refuse()
        if problem is None:
            return None
        retry_after = problem.headers["Retry-After"]
        encoded = self._encoded.get(retry_after)
        if encoded is None:
            refusal = problem_response(problem)
            rest = publish_endpoint.response(b"", refusal.raw_headers, bytes(refusal.body), close=True)
            encoded = self._encoded[retry_after] = STATUS_LINES[problem.status], rest
        self._refused[problem.status] += 1
        status_line, rest = encoded
        return b"".join((status_line, *[b"%b: %b\r\n" % header for header in default_headers], rest))
