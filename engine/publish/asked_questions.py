"""Checks the member `ask` of an item, and makes the question that clients get. Pure, as `engine.publish.drafts`."""

from __future__ import annotations

import math
from typing import Final

from msgspec import UNSET

from engine.config import Config
from engine.core.model.action import parse_target
from engine.core.model.allowed_targets import not_allowed
from engine.core.model.duration import parse_duration_ms
from engine.core.model.names import is_event_type, is_id, is_user
from engine.core.model.question import CHOICE_CHARS_MAX, LABEL_CHARS_MAX, Question
from engine.errors import Invalid
from engine.publish.items import Ask

OUTCOME: Final = "answer:"
"""Before the id of a question, it is the id of the message that tells the answer."""


def question_of(ask: Ask, topic: str, from_ms: int, config: Config) -> Question:
    """The question to one user or, unless it is "", to a topic; its deadline counts from this time. Raises Invalid."""
    if len(ask.answers) > config.question_answers_max:
        raise Invalid(f"at most {config.question_answers_max} answers", "$.ask.answers")
    if not ask.answers and not ask.text:
        raise Invalid("at least one answer is needed, or `text`: true", "$.ask.answers")
    for index, choice in enumerate(ask.answers):
        if not is_id(choice.id, CHOICE_CHARS_MAX):
            raise Invalid(f"printable text of 1 to {CHOICE_CHARS_MAX} characters", f"$.ask.answers[{index}].id")
        if not is_user(choice.label, LABEL_CHARS_MAX):
            raise Invalid(f"text of 1 to {LABEL_CHARS_MAX} characters without control characters", f"$.ask.answers[{index}].label")
    ids = [choice.id for choice in ask.answers]
    if len(set(ids)) < len(ids):
        raise Invalid("each answer has an id of its own", "$.ask.answers")
    default = None if ask.default is UNSET else ask.default
    if default is not None and default not in ids:
        raise Invalid("the id of one of `answers`", "$.ask.default")
    needed = _needed(ask, topic, config)
    deadline = from_ms + _deadline_ms(ask, config)
    target, event = _target(ask, config), _event(ask, config)
    return Question(ask.answers, deadline, ask.text, default, topic, needed, ask.to == "everyone", target, event)


def check_id(id: str, config: Config) -> None:
    """Check that the message with the answer has an id, too. Raises Invalid."""
    if len(id) > config.id_chars_max - len(OUTCOME):
        raise Invalid(f"of a question: at most {config.id_chars_max - len(OUTCOME)} characters", "$.id")


def _needed(ask: Ask, topic: str, config: Config) -> int:
    """How many members must give the same answer; of everyone it is known when the question is stored."""
    if ask.to != "anyone" and not topic:
        raise Invalid("only for a topic", "$.ask.to")
    if ask.to != "anyone" and not ask.answers:
        raise Invalid("only with `answers`, which can be the same", "$.ask.to")
    if topic and (ask.do is not UNSET or ask.event is not UNSET):
        raise Invalid("only for a question to one user", "$.ask.do" if ask.do is not UNSET else "$.ask.event")
    if isinstance(ask.to, str):
        return 1
    if not 1 <= ask.to <= config.question_members_max:
        raise Invalid(f"anyone, everyone, or a number from 1 to {config.question_members_max}", "$.ask.to")
    return ask.to


def _target(ask: Ask, config: Config) -> str:
    """The target of the action, which the settings must name: who may publish may not call whatever a rule may."""
    if ask.do is UNSET:
        return ""
    try:
        problem = not_allowed(parse_target(ask.do), config)
    except Invalid as error:
        raise Invalid(error.detail, "$.ask.do") from None
    if not any(ask.do == allowed or (allowed.endswith("*") and ask.do.startswith(allowed[:-1])) for allowed in config.question_targets):
        problem = "it is not among question_targets"
    if problem:
        raise Invalid(problem, "$.ask.do")
    return ask.do


def _event(ask: Ask, config: Config) -> str:
    if ask.event is UNSET:
        return ""
    if not is_event_type(ask.event, config.id_chars_max):
        raise Invalid(f"words of letters, digits, _, -, / and : joined by dots, at most {config.id_chars_max} characters", "$.ask.event")
    return ask.event


def _deadline_ms(ask: Ask, config: Config) -> int:
    given = ask.deadline
    if given is UNSET:
        return config.question_deadline_s_default * 1000
    try:
        deadline_ms = parse_duration_ms(given) if isinstance(given, str) else math.ceil(given * 1000)
    except (Invalid, OverflowError) as error:
        raise Invalid(str(error), "$.ask.deadline") from None
    if not 0 < deadline_ms <= config.question_deadline_s_max * 1000:
        raise Invalid(f"more than 0 and at most {config.question_deadline_s_max} seconds", "$.ask.deadline")
    return deadline_ms
