"""What an answer to a question may be, and what it means at the deadline. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from engine.core.model.question import Question
from engine.errors import Invalid

DEADLINE: Final = "deadline"
"""The reason of an answer that no person gave."""

SPLIT: Final = "split"
"""The reason of the default where everyone has answered, and not the same."""

WITHDRAWN: Final = "withdrawn"
"""The reason of the end of a question whose asker wants no answer any more."""


class GivenAnswer(Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to a question.

    Attributes:
        answer: id of a choice; None: only a text, none by the deadline, or withdrawn.
        at: when it was given, ms since the epoch.
        by: the user who gave it; None: none did, or one who was erased.
        label: of the choice.
        text: in the user's words.
        device: on which it was given, where the client names it.
        reason: `DEADLINE`, `SPLIT`, `WITHDRAWN`, or "" for an answer of a user.
    """

    answer: str | None
    at: int
    by: str | None
    label: str = ""
    text: str = ""
    device: str = ""
    reason: str = ""

    def repeats(self, other: GivenAnswer) -> bool:
        """Is this the same answer of the same user, given once more?"""
        return (self.by, self.answer, self.text, self.reason) == (other.by, other.answer, other.text, other.reason)

    def without_user(self) -> GivenAnswer:
        """The answer of a user who is erased: the choice stays, since others act by it."""
        return GivenAnswer(self.answer, self.at, None, self.label, reason=self.reason)


def answer_of(question: Question, choice: str | None, text: str, by: str, device: str, at_ms: int, chars_max: int) -> GivenAnswer:
    """The answer of a user. Raises Invalid: the question does not allow it."""
    chosen = None if choice is None else question.choice(choice)
    if choice is not None and chosen is None:
        raise Invalid(_allowed(question), "$.answer")
    if text and not question.text:
        raise Invalid("this question takes no text", "$.text")
    if len(text) > chars_max:
        raise Invalid(f"at most {chars_max} characters", "$.text")
    if chosen is None and not (question.text and text.strip()):
        raise Invalid(_allowed(question), "$.answer")
    return GivenAnswer(choice, at_ms, by, "" if chosen is None else chosen.label, text, device)


def answer_at_deadline(question: Question) -> GivenAnswer:
    """The answer of a question that has none by its deadline."""
    return _default(question, question.deadline, DEADLINE)


def withdrawal(at_ms: int) -> GivenAnswer:
    """The end of a question that its asker withdraws."""
    return GivenAnswer(None, at_ms, None, reason=WITHDRAWN)


def agreed(question: Question, votes: Iterable[GivenAnswer]) -> GivenAnswer | None:
    """The answer that members have agreed on; None while they have not. More votes never change it, but for another one first.

    A quorum: the vote that completed it. Everyone: the last vote when all are the same, else the default.
    """
    found = sorted(votes, key=lambda vote: (vote.at, vote.by or ""))
    counted: Counter[str | None] = Counter()
    for vote in found:
        counted[vote.answer] += 1
        if counted[vote.answer] >= question.needed:
            return vote
    if question.everyone and len(found) >= question.needed:
        return _default(question, found[-1].at, SPLIT)
    return None


def _default(question: Question, at_ms: int, reason: str) -> GivenAnswer:
    chosen = None if question.default is None else question.choice(question.default)
    return GivenAnswer(question.default, at_ms, None, "" if chosen is None else chosen.label, reason=reason)


def _allowed(question: Question) -> str:
    ids = ", ".join(choice.id for choice in question.answers)
    if not ids:
        return "leave it out: `text` is the answer"
    return f"one of {ids}" + (", or a `text` alone" if question.text else "")
