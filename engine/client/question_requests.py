"""Questions to users: an asker waits for the answer or withdraws the question, a user answers (docs/QUESTIONS.md).

All requests are idempotent, and so they are retried: a question has one answer, whoever asks for it and however often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from engine.client.http_connection import Response
from engine.client.publish_results import body_of
from engine.client.retried_requests import RETRIED, RetriedRequests

WAIT_S_MAX: Final = 20.0
"""Of one request; proxies cut those that are silent for longer."""


class QuestionAnswer(Struct, frozen=True, kw_only=True):
    """The answer to a question.

    Attributes:
        answer: id of the choice; None for a text alone, for none by the deadline, and for a question that was withdrawn.
        by: the user who gave it; None with a `reason`, and for a user who was erased.
        at: when, ms since the epoch.
        label: of the choice.
        text: in the user's words.
        device: on which it was given, where the client has a name.
        reason: "deadline" when there was none in time, "split" when not all members gave the same; `answer` is the default then.
            "withdrawn" when its asker wanted no answer any more.
    """

    answer: str | None
    by: str | None
    at: int
    label: str = ""
    text: str = ""
    device: str = ""
    reason: str = ""


class AskedQuestion(Struct, frozen=True, kw_only=True):
    """A question as it stands.

    Attributes:
        state: `open`, `answered`, or the reason of an answer that nobody gave.
        asked: when, ms since the epoch.
        deadline: when the default is the answer, likewise.
        answer: None while it is open.
    """

    state: str
    asked: int
    deadline: int
    answer: QuestionAnswer | None = None


class _Times(Struct):
    state: str
    asked: int
    deadline: int


async def fetch_question(requests: RetriedRequests, id: str, of: Mapping[str, str], wait_s: float) -> AskedQuestion:
    """A question to a user or a topic, `{"user": "ann"}`, as soon as it has an answer, or after `wait_s`.

    Raises:
        Refused: there is no such question; Unauthorized, Forbidden: the token.
        Unreachable: no engine answered.
    """
    body = body_of(await requests.send("GET", _path(id, {**of, "wait": f"{wait_s:g}"}), b""))
    of_question = msgspec.json.decode(body, type=_Times)
    answer = None if of_question.state == "open" else msgspec.json.decode(body, type=QuestionAnswer)
    return AskedQuestion(state=of_question.state, asked=of_question.asked, deadline=of_question.deadline, answer=answer)


async def withdraw(requests: RetriedRequests, id: str, of: Mapping[str, str]) -> None:
    """End a question to a user or a topic without an answer; durable on return.

    Raises:
        Refused: it has an answer, which the error tells (status 409), or there is no such question.
        Unauthorized, Forbidden: the token.
        Unreachable: no engine answered.
    """
    body_of(await requests.send("DELETE", _path(id, of), b""))


def _path(id: str, query: Mapping[str, str]) -> str:
    return f"/v1/questions/{quote(id, safe='')}?{urlencode(query)}"


AskByFrame = Callable[[str, Mapping[str, object]], Awaitable[Response | None]]
"""(type, members) -> the answer to a frame; None: it is not known whether the engine took it."""


async def give_answer_by_frame(ask: AskByFrame, id: str, answer: str | None, text: str, topic: str) -> QuestionAnswer | None:
    """As `give_answer`, on an open WebSocket. None: ask by a request. Raises Refused."""
    reply = await ask("answer", {"message": id, "answer": answer, "text": text, "topic": topic})
    if reply is None or reply.status in RETRIED:
        return None
    return msgspec.json.decode(body_of(reply), type=QuestionAnswer)


async def give_answer(requests: RetriedRequests, id: str, answer: str | None, text: str, device: str, topic: str) -> QuestionAnswer:
    """Answer a question of the bearer by a request; durable on return.

    Raises:
        Refused: it has another answer, which the error tells; or there is no such question, or it does not take this answer.
        Unauthorized, Forbidden: the token.
        Unreachable: no engine answered.
    """
    query = f"?{urlencode({'device': device})}" if device else ""
    body = msgspec.json.encode({"answer": answer, "text": text, "topic": topic})
    reply = await requests.send("POST", f"/v1/answers/{quote(id, safe='')}{query}", body)
    return msgspec.json.decode(body_of(reply), type=QuestionAnswer)
