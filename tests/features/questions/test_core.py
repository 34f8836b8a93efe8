"""What an answer may be, and what the deadline makes of a question."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.question import Choice, Question
from engine.errors import Invalid
from engine.features.questions.core import DEADLINE, SPLIT, GivenAnswer, agreed, answer_at_deadline, answer_of

IDS = st.lists(st.text("abc", min_size=1, max_size=2), unique=True, max_size=4)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    choices = tuple(Choice(id, f"label {id}") for id in draw(IDS))
    default = draw(st.sampled_from([None, *(choice.id for choice in choices)]))
    return Question(choices, 1000, draw(st.booleans()) or not choices, default)


@given(questions(), st.none() | st.text("abc", max_size=2), st.sampled_from(["", " ", "because", "x" * 51]))
def test_an_answer_is_one_of_the_choices_or_a_text_where_one_is_asked_for(question: Question, choice: str | None, text: str) -> None:
    ids = [one.id for one in question.answers]
    allowed = choice in ids if choice is not None else question.text and bool(text.strip())
    allowed = allowed and (question.text or not text) and len(text) <= 50
    if allowed:
        answer = answer_of(question, choice, text, "ann", "phone", 7, 50)
        assert (answer.answer, answer.text, answer.by, answer.at, answer.device) == (choice, text, "ann", 7, "phone")
        assert answer.label == ("" if choice is None else f"label {choice}")
        return
    with pytest.raises(Invalid) as refused:
        answer_of(question, choice, text, "ann", "", 7, 50)
    assert refused.value.path in ("$.answer", "$.text")


@given(questions())
def test_the_default_is_the_answer_at_the_deadline(question: Question) -> None:
    answer = answer_at_deadline(question)
    assert (answer.answer, answer.by, answer.at, answer.reason) == (question.default, None, 1000, DEADLINE)


def test_only_the_same_answer_of_the_same_user_is_a_repeat() -> None:
    question = Question((Choice("yes", "Yes"), Choice("no", "No")), 1000, text=True)
    first = answer_of(question, "yes", "", "ann", "phone", 7, 50)
    assert answer_of(question, "yes", "", "ann", "laptop", 9, 50).repeats(first)
    assert not answer_of(question, "no", "", "ann", "phone", 9, 50).repeats(first)
    assert not answer_of(question, "yes", "", "bob", "phone", 9, 50).repeats(first)
    assert not answer_of(question, "yes", "so", "ann", "phone", 9, 50).repeats(first)


VOTES = st.lists(st.sampled_from(["yes", "no"]), max_size=6).map(lambda ids: [GivenAnswer(id, at, f"u{at}") for at, id in enumerate(ids)])
CHOICES = (Choice("yes", "Yes"), Choice("no", "No"))


@given(VOTES, st.integers(1, 4), st.randoms())
def test_a_quorum_is_the_first_answer_that_so_many_have_given(votes: list[GivenAnswer], needed: int, random: Random) -> None:
    question = Question(CHOICES, 1000, default="no", topic="t", needed=needed)
    shuffled = random.sample(votes, len(votes))
    answer = agreed(question, shuffled)
    places = [[at for at, vote in enumerate(votes) if vote.answer == id][needed - 1 : needed] for id in ("yes", "no")]
    completed = [place for found in places for place in found]
    assert answer == (votes[min(completed)] if completed else None)


@given(VOTES, st.integers(1, 6))
def test_everyone_agrees_or_the_default_is_the_answer(votes: list[GivenAnswer], members: int) -> None:
    question = Question(CHOICES, 1000, default="no", topic="t", needed=members, everyone=True)
    answer = agreed(question, votes[:members])
    if len(votes) < members:
        assert answer is None
    elif len({vote.answer for vote in votes[:members]}) == 1:
        assert answer == votes[members - 1]
    else:
        assert answer is not None
        assert (answer.answer, answer.by, answer.reason) == ("no", None, SPLIT)
