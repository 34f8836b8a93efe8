"""Requests to features as frames of a WebSocket: a feature registers a type of frame, and answers each frame of it by one.

    client --{"type":"answer","ref",...}--> WebSocketSession --> FeatureFrames, a task --> the feature that registered `answer`
    client <--{"type":"answer_result","ref","status",...}--

The status and the members are those of the same request over HTTP; a refusal has its problem detail as `problem`. The connection's token
decides as that of a request would.

Backpressure. A frame takes tokens of its connection's budget. The unanswered requests of a connection, and of all, are bounded together
with subscriptions (`frame_requests_per_connection_max`, `frame_requests_max`): beyond that the answer is 429. Answers come as requests end:
a client that needs an order waits for each answer. When the connection ends, a request that has begun is carried out all the same. Its
client repeats it on another connection, so a feature registers only what may be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Coroutine, Mapping
from typing import Any

from engine.gateway.connection import Connection
from engine.http.error_responses import problem_for

Result = tuple[int, Mapping[str, Any]]
"""The status of an answer, and its members."""

FrameHandler = Callable[[Connection, bytes], Coroutine[Any, Any, Result]]
"""(the client, its frame) -> the answer. The call raises Invalid, the coroutine Problem, Overloaded, Unavailable."""


class FeatureFrames:
    """The frames of one edge's features.

    Args:
        refused: refusals are counted there by their status.
    """

    def __init__(self, refused: Counter[int]) -> None:
        self._refused = refused
        self._answers: dict[str, FrameHandler] = {}

    @property
    def types(self) -> Container[str]:
        return self._answers.keys()

    def register(self, type: str, answer: FrameHandler) -> None:
        """Answer the frames of this type so."""
        self._answers[type] = answer

    def begin(self, connection: Connection, type: str, text: bytes, on_result: Callable[[int, Mapping[str, Any]], None]) -> None:
        """Answer a frame; `on_result` is called once, later. Raises Invalid: it is malformed, and nothing is called."""
        connection.gateway.begin(self._answer(self._answers[type](connection, text), on_result))

    async def _answer(self, answer: Coroutine[Any, Any, Result], on_result: Callable[[int, Mapping[str, Any]], None]) -> None:
        try:
            status, members = await answer
        except Exception as error:
            problem = problem_for(error, self._refused)
            retry = {"retry_after": int(text)} if (text := problem.headers.get("Retry-After")) else {}
            status, members = problem.status, {"problem": problem.body(), **retry}
        on_result(status, members)
