"""Maps exceptions of endpoints to responses, all of them problem details."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from engine.errors import Overloaded, StorageUnavailable, Unavailable
from engine.http.problems import (
    RETRY_AFTER_S,
    Problem,
    method_not_allowed,
    not_found,
    problem_response,
    retry_after_s,
    too_many_requests,
    unavailable,
)

log = logging.getLogger(__name__)

_EXPECTED: Final = (Problem, Overloaded, Unavailable, StorageUnavailable)


def handlers(refused: Counter[int]) -> Mapping[Any, Any]:
    """Exception handlers for Starlette, by exception. Each response is counted in `refused` by its status."""

    async def refuse(request: Request | WebSocket, error: Exception) -> Response | None:
        response = refusal(error, refused)
        if isinstance(request, WebSocket) and "websocket.http.response" not in request.scope.get("extensions", {}):
            await request.close()  # before the upgrade: such a server answers 403
            return None
        return response

    async def answer_nobody(_request: Request, _error: Exception) -> Response:
        return Response(status_code=400)  # the client has disconnected; the server discards this

    expected = (*_EXPECTED, HTTPException)
    # Exception: a bug. The server logs it with its traceback; the response contains nothing of it.
    return {**dict.fromkeys(expected, cast("Any", refuse)), ClientDisconnect: answer_nobody, Exception: refuse}


def refusal(error: Exception, refused: Counter[int]) -> Response:
    """The response to a request that raised `error`, counted in `refused` by its status."""
    problem = problem_of(error)
    refused[problem.status] += 1
    return problem_response(problem)


def problem_for(error: Exception, refused: Counter[int]) -> Problem:
    """The problem that a client is answered without Starlette, counted in `refused`. A bug is logged."""
    if not isinstance(error, _EXPECTED):
        log.error("a request failed", exc_info=error)
    problem = problem_of(error)
    refused[problem.status] += 1
    return problem


def problem_of(error: Exception) -> Problem:
    """The problem that an exception of an endpoint is; 500 for one that is a bug."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Overloaded):
        return too_many_requests(str(error), retry_after_s(error.backlog_ms))
    if isinstance(error, Unavailable):
        return unavailable(str(error), retry_after_s(error.retry_ms))
    if isinstance(error, StorageUnavailable):
        return unavailable(str(error), RETRY_AFTER_S)
    if not isinstance(error, HTTPException):
        return Problem(500, "the engine failed to answer; the operator's log says why")
    headers: Mapping[str, str] = error.headers or {}
    if error.status_code == 405:
        return method_not_allowed(_allowed(headers.get("Allow", "")))
    if error.status_code == 404:
        return not_found("nothing is here")
    return Problem(error.status_code, error.detail, headers=headers)


def _allowed(text: str) -> Sequence[str]:
    return sorted(part.strip() for part in text.split(",") if part.strip())
