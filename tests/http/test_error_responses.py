"""Which response each exception of an endpoint becomes, and that it is counted."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.websockets import WebSocket

from engine.errors import Overloaded, Unavailable
from engine.http.error_responses import handlers, refusal
from engine.http.problems import RETRY_AFTER_S, conflict


@pytest.mark.parametrize(
    ("error", "status", "detail", "header", "value"),
    [
        (conflict("taken"), 409, "taken", None, None),
        (Overloaded("the backlog takes too long"), 429, "the backlog takes too long", "retry-after", "1"),
        (Unavailable("no answer in time"), 503, "no answer in time", "retry-after", str(RETRY_AFTER_S)),
        (HTTPException(404), 404, "nothing is here", None, None),
        (HTTPException(405, headers={"Allow": "POST, GET"}), 405, "", "allow", "GET, POST"),
        (HTTPException(405), 405, "", "allow", ""),
        (HTTPException(426, "upgrade", headers={"Upgrade": "websocket"}), 426, "upgrade", "upgrade", "websocket"),
        (ZeroDivisionError("a secret detail"), 500, "the operator's log says why", None, None),
    ],
)
def test_each_exception_is_one_problem_with_its_header(
    error: Exception, status: int, detail: str, header: str | None, value: str | None
) -> None:
    refused: Counter[int] = Counter()
    response = refusal(error, refused)
    body = json.loads(bytes(response.body))
    assert (response.status_code, body["status"], refused) == (status, status, {status: 1})
    assert detail in body["detail"]
    assert "secret" not in str(body)
    assert response.headers["content-type"] == "application/problem+json"
    assert header is None or response.headers[header] == value


def test_an_overload_is_retried_after_its_backlog_and_at_most_half_as_long_again() -> None:
    for backlog_ms, allowed in ((0.0, {1}), (3000.0, {3, 4, 5}), (9000.0, set(range(9, 15)))):
        assert int(refusal(Overloaded("", backlog_ms), Counter()).headers["retry-after"]) in allowed


async def test_every_exception_has_a_handler_and_a_bug_is_counted_as_500() -> None:
    refused: Counter[int] = Counter()
    by_kind = handlers(refused)
    request = Request({"type": "http"})
    for error, status in ((Overloaded(""), 429), (Unavailable(""), 503), (HTTPException(404), 404), (conflict("x"), 409)):
        assert (await by_kind[next(kind for kind in by_kind if isinstance(error, kind))](request, error)).status_code == status
    assert (await by_kind[Exception](request, KeyError("x"))).status_code == 500
    assert refused == {429: 1, 503: 1, 404: 1, 409: 1, 500: 1}


async def test_a_client_that_has_disconnected_is_not_counted() -> None:
    refused: Counter[int] = Counter()
    assert (await handlers(refused)[ClientDisconnect](Request({"type": "http"}), ClientDisconnect())).status_code == 400
    assert not refused


@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}])
async def test_a_refused_handshake_is_a_problem_where_the_server_can_send_one_and_else_a_close(extensions: dict[str, Any]) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    refused: Counter[int] = Counter()
    socket = WebSocket({"type": "websocket", "extensions": extensions}, receive, send)
    response = await handlers(refused)[Unavailable](socket, Unavailable("no answer in time"))
    if extensions:
        assert (response.status_code, sent) == (503, [])
    else:
        assert response is None
        assert [message["type"] for message in sent] == ["websocket.close"]
    assert refused == {503: 1}
