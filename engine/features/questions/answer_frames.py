"""Answers over a WebSocket: an `answer` frame is what `POST /v1/answers/{message}` is (`engine.gateway.feature_frames`)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from engine.core.wire import client_frames
from engine.features.questions.questions import Given, Questions, shown
from engine.gateway.connection import Connection
from engine.gateway.feature_frames import Result


class _AnswerFrame(Given, kw_only=True, gc=False):
    message: str


_frames: Final = msgspec.json.Decoder(_AnswerFrame)


class AnswerFrames:
    """Takes the answers of an edge's WebSockets."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    def answer(self, connection: Connection, frame: bytes) -> Coroutine[Any, Any, Result]:
        """The answer to a frame. Raises Invalid."""
        return self._answer(connection, client_frames.decode(_frames, frame))

    async def _answer(self, connection: Connection, given: _AnswerFrame) -> Result:
        owner = connection.owner
        connection.gateway.tenant_quotas.check_request(owner)
        return 200, shown(await self._questions.answer(owner, connection.key, given.message, connection.device, given))
