"""A question: what a message asks its user, and the choices that clients show as buttons."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

CHOICE_CHARS_MAX: Final = 64
"""Of the id of a choice, a word for programs."""

LABEL_CHARS_MAX: Final = 80
"""Of a label, which is written on a button."""


QUESTIONS_FULL: Final = "as many questions of this user or topic are kept as may, or as many members could answer this one"
"""The reason of an item whose question is refused for that."""


class Choice(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One answer that can be chosen: its id for programs, its label for people, and how a client shows it."""

    id: str
    label: str
    style: Literal["plain", "primary", "danger"] = "plain"


class Question(Struct, frozen=True, omit_defaults=True, gc=False):
    """A question. Clients get it as the member `ask`, without what happens with the answer (`for_clients`).

    Attributes:
        answers: those that can be chosen; none where only a text is asked for.
        deadline: ms since the epoch; at this time the default is the answer.
        text: the answer may have a text; with no `answers` it is one.
        default: id of an answer; None: the question ends without one.
        topic: whose members are asked; "" for one user.
        needed: so many members give the same answer before it is the answer.
        everyone: `needed` members, all there were, answer before there is one.
        do: the target that is called with the answer; "" for none.
        event: type of the event that rules get with the answer; "" for none.
    """

    answers: tuple[Choice, ...]
    deadline: int
    text: bool = False
    default: str | None = None
    topic: str = ""
    needed: int = 1
    everyone: bool = False
    do: str = ""
    event: str = ""

    @property
    def counts(self) -> bool:
        """Several members answer before there is an answer."""
        return self.needed > 1 or self.everyone

    def for_clients(self) -> Question:
        return msgspec.structs.replace(self, do="", event="")

    def choice(self, id: str) -> Choice | None:
        return next((choice for choice in self.answers if choice.id == id), None)
