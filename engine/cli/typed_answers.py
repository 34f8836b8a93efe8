"""Answers to questions, typed in a terminal: by the number of a choice, or in words for the newest question that takes some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

CHOICES_MAX: Final = 100
"""Choices that can be typed: the newest. Nobody scrolls back further."""


class Typed(Struct, frozen=True):
    """An answer to a question: a choice, or words."""

    question: str
    answer: str | None
    text: str
    topic: str = ""


class TypedAnswers:
    """The questions that were printed."""

    def __init__(self) -> None:
        self._choices: dict[int, Typed] = {}
        self._last = 0
        self._in_words: Typed | None = None

    def ask(self, question: str, ask: Mapping[str, Any]) -> str:
        """Number the choices of a question; the line that offers them."""
        offered, topic = [], ask.get("topic", "")
        for choice in ask.get("answers", ()):
            self._last += 1
            self._choices[self._last] = Typed(question, choice["id"], "", topic)
            self._choices.pop(self._last - CHOICES_MAX, None)
            offered.append(f"[{self._last}] {choice['label']}")
        if ask.get("text"):
            self._in_words = Typed(question, None, "", topic)
            offered.append("or type your answer" if offered else "type your answer")
        return "   ".join(offered)

    def read(self, line: str) -> Typed | None:
        """What a line answers; None for nothing."""
        words = line.strip()
        if words.isascii() and words.isdigit() and int(words) in self._choices:
            return self._choices[int(words)]
        return msgspec.structs.replace(self._in_words, text=words) if words and self._in_words else None
