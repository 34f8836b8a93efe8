"""Questions and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from engine.config import Config
from engine.features.questions.core import DEADLINE, SPLIT, WITHDRAWN
from engine.http.description.json_schema import TIME_MS, Schema, closed_object, object_of, printable, topic_name, user_name
from engine.http.description.operation import Part, json_of, operation, parameter, whose

by_publisher = partial(operation, "publishing", "publish")


def paths(config: Config) -> Part:
    """See `Description`."""
    device = parameter("device", "query", "The client's name for itself, which the answer keeps.")
    topic = parameter("topic", "query", "The topic that was asked, in place of a user; needs the scope `publish`.", topic_name(config))
    asked = parameter("user", "query", "The user who was asked; or `topic`.", user_name(config))
    wait = parameter(
        "wait",
        "query",
        f"Wait so many seconds for the answer, at most {config.poll_wait_s_max}; without it the request does not wait.",
        {"type": "number", "minimum": 0},
    )
    return {
        "/v1/answers/{message}": [parameter("message", "path", "Id of the message that asks.", printable(config), required=True)],
        "POST /v1/answers/{message}": operation(
            "receiving",
            "connect",
            "answer",
            "Answer a question. The first answer is the answer; the same answer of the same user may be repeated.",
            {200: ("It is the answer; durable.", json_of("Answer"))},
            (404, 409),
            parameters=(whose(config), device),
            body=json_of("GivenAnswer"),
        ),
        "/v1/questions/{question}": [parameter("question", "path", "Id of the message that asks.", printable(config), required=True)],
        "GET /v1/questions/{question}": operation(
            "publishing",
            "connect",
            "question",
            "A question and its answer. `answer`, `by` and `at` are null while it is open.",
            {200: ("As of now, or as of the end of `wait`.", json_of("QuestionState"))},
            (404,),
            parameters=(whose(config), topic, wait),
        ),
        "DELETE /v1/questions/{question}": by_publisher(
            "withdrawQuestion",
            "End a question without an answer: devices show that it was withdrawn, and whoever waits is told. Repeats change nothing.",
            {200: ("It is withdrawn; durable.", json_of("QuestionState"))},
            (404, 409),
            parameters=(asked, topic),
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    text: Schema = {"type": "string", "maxLength": config.question_text_chars_max}
    return {
        "GivenAnswer": closed_object(
            "One of the `answers` of the question, a text where it takes one, or both.",
            answer={"type": ["string", "null"], "description": "Id of an answer."},
            text=text,
            topic={"type": "string", "description": "The topic of `ask`, for a question to one."},
        ),
        "Answer": object_of("The answer to a question.", required=("answer", "by", "at"), **_ANSWER),
        "QuestionState": object_of(
            "A question, and its answer if it has one.",
            required=("id", "state", "asked", "deadline", "answer", "by", "at"),
            id={"type": "string"},
            state={"enum": ["open", "answered", DEADLINE, SPLIT, WITHDRAWN]},
            asked=TIME_MS,
            deadline={**TIME_MS, "description": "At this time the default is the answer."},
            **{**_ANSWER, "at": {"type": ["integer", "null"], "description": "When it was given; null while the question is open."}},
        ),
    }


_ANSWER: Final[dict[str, Schema]] = {
    "answer": {"type": ["string", "null"], "description": "Id of the answer; null for a text alone, none by the deadline, or withdrawn."},
    "by": {"type": ["string", "null"], "description": "The user who gave it; null with a `reason`, and for a user who was erased."},
    "at": TIME_MS,
    "label": {"type": "string"},
    "text": {"type": "string"},
    "device": {"type": "string"},
    "reason": {
        "enum": [DEADLINE, SPLIT, WITHDRAWN],
        "description": "Why nobody gave it: the default by the deadline, or of members who differ; or withdrawn. Else absent.",
    },
}
