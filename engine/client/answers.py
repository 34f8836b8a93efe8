"""What an engine answers to the requests of `Publisher` and `Client` that publish nothing: about events, timers, signals and questions."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from engine.client.http_connection import Response
from engine.client.publish_results import Result, value_of


class EventOutcome(Struct):
    """What the rules made of an event.

    Attributes:
        matched: names of the rules that apply to it.
        results: of the messages that were published.
        scheduled: ids of the timers that were made.
        cancelled: how many timers it cancelled.
    """

    matched: list[str]
    results: list[Result]
    scheduled: list[str]
    cancelled: int


class ScheduledMessage(Struct):
    """A message that is delivered later, or an action that is carried out later.

    Attributes:
        scheduled_id: names it.
        scheduled_at, created_at: milliseconds since the epoch.
        user, topic, broadcast: whom it is for.
        action: the target that is called in place of notifying.
        notification: its own members.
    """

    scheduled_id: str
    scheduled_at: int
    created_at: int = 0
    user: str | None = None
    topic: str | None = None
    broadcast: bool = False
    action: str | None = None
    notification: dict[str, Any] = msgspec.field(default_factory=dict)


class CountedSignals(Struct):
    """How many signals, each of any amount, were counted, and how many were dropped because their name had no room.

    Attributes:
        quota: the limit, when some were dropped.
    """

    counted: int
    dropped: int
    quota: str | None = None


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


def asked_question(answered: Response) -> AskedQuestion:
    """The question in an answer, which has the members of a `QuestionAnswer` beside its own once there is one."""
    found = value_of(_Times, answered)
    answer = None if found.state == "open" else value_of(QuestionAnswer, answered)
    return AskedQuestion(state=found.state, asked=found.asked, deadline=found.deadline, answer=answer)
