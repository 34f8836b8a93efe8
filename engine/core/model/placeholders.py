"""Paths into an event and texts with placeholders: the small language of rules.

A path is names joined by dots; `[]` after a name selects every element of a list: `requested_reviewers[].login`. Names
that begin with `$` are defined by the rule, not by the event: `$event`, `$action`, `$delivery`, `$rule`, `$user`.

A placeholder is `{path}`, `{path|path|"text"}` for the first that is present and nonempty, or `{path:200}` to cut a text at 200 characters.
A template that is one placeholder and nothing else keeps the type of its value; others render as text. `{{` and `}}` are
literal braces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.errors import Invalid

_SEGMENT: Final = re.compile(r"(\$?[\w-]+)(\[\])?")
_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_LIMIT: Final = re.compile(r"(.*):(\d{1,5})", re.DOTALL)
_LITERAL: Final = re.compile(r'"([^"{}|]*)"')


class Scope(Struct, frozen=True):
    """The values that paths resolve against: the event's payload, and the `$` names of the rule."""

    payload: Mapping[str, Any]
    names: Mapping[str, Any]


class EventPath(Struct, frozen=True):
    """A parsed path: (name, whether the step selects every element of the list) for each step."""

    steps: tuple[tuple[str, bool], ...]

    def values(self, scope: Scope) -> list[Any]:
        """Return all values the path selects, without nulls."""
        found: list[Any] = [scope.names if self.steps[0][0].startswith("$") else scope.payload]
        for name, each in self.steps:
            found = [thing[name] for thing in found if isinstance(thing, Mapping) and name in thing]
            if each:
                found = [element for thing in found if isinstance(thing, list) for element in thing]
        return [thing for thing in found if thing is not None]


class _Placeholder(Struct, frozen=True):
    choices: tuple[EventPath | str, ...]
    chars_max: int | None

    def value(self, scope: Scope) -> Any:
        found: Any = None
        for choice in self.choices:
            if isinstance(choice, str):
                return choice
            values = choice.values(scope)
            if values:
                found = values if any(each for _, each in choice.steps) else values[0]
                if found != "":
                    break  # an empty text is the value only when no later choice has one
        return found


class Template(Struct, frozen=True):
    """A parsed template."""

    parts: tuple[str | _Placeholder, ...]

    def render(self, scope: Scope) -> Any:
        """Return the value of a lone placeholder without a length limit (None when it has none), else a text."""
        if len(self.parts) == 1 and isinstance(self.parts[0], _Placeholder) and self.parts[0].chars_max is None:
            return self.parts[0].value(scope)
        return "".join(part if isinstance(part, str) else _cut(_text(part.value(scope)), part.chars_max) for part in self.parts)


def parse_path(text: str) -> EventPath:
    """Parse a path.

    Raises:
        Invalid: the text is not a path.
    """
    steps = [_SEGMENT.fullmatch(part) for part in text.split(".")]
    if not all(steps):
        raise Invalid(f"a path looks like issue.user.login or requested_reviewers[].login; this is {text!r}")
    return EventPath(tuple((step[1], step[2] is not None) for step in steps if step is not None))


def parse_template(text: str) -> Template:
    """Parse a template.

    Raises:
        Invalid: a brace is unbalanced, or a placeholder contains no valid path.
    """
    parts: list[str | _Placeholder] = []
    literal = ""
    position = 0
    for piece in _PIECE.finditer(text):
        literal += text[position : piece.start()]
        position = piece.end()
        if piece[0] in ("{{", "}}"):
            literal += piece[0][0]
        elif piece[1] is None:
            raise Invalid(f"a brace without its partner in {text!r}; write {{{{ or }}}} for a brace")
        else:
            if literal:
                parts.append(literal)
                literal = ""
            parts.append(_parse_placeholder(piece[1]))
    literal += text[position:]
    if literal or not parts:
        parts.append(literal)
    return Template(tuple(parts))


def _parse_placeholder(text: str) -> _Placeholder:
    limit = _LIMIT.fullmatch(text)
    choices = (limit[1] if limit else text).split("|")
    literals = [_LITERAL.fullmatch(choice.strip()) for choice in choices]
    parsed = tuple(literal[1] if literal else parse_path(choice.strip()) for choice, literal in zip(choices, literals, strict=True))
    return _Placeholder(parsed, int(limit[2]) if limit else None)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(_text(element) for element in value)
    return msgspec.json.encode(value).decode()


def _cut(text: str, chars_max: int | None) -> str:
    if chars_max is None or len(text) <= chars_max:
        return text
    return text[: max(0, chars_max - 1)] + "…"
