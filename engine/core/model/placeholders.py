"""Paths into an event and texts with placeholders: the small language of rules.

A path is names joined by dots; `[]` behind a name stands for every element of a list: `requested_reviewers[].login`. Names
that begin with `$` are not the event's but the rule's: `$event`, `$action`, `$delivery`, `$rule`, `$user`.

A placeholder is `{path}`, `{path|path|"text"}` for the first that is there and not empty, or `{path:200}` to cut a text at 200 characters.
A template that is one placeholder and nothing else keeps the type of its value; otherwise it makes text. `{{` and `}}` are
braces. Tables of templates give tables, without the members that have no value.
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
    """What paths lead into: the event's payload, and names of the rule's own."""

    payload: Mapping[str, Any]
    names: Mapping[str, Any]


class EventPath(Struct, frozen=True):
    """A parsed path: (name, through every element of the list there) for each step."""

    steps: tuple[tuple[str, bool], ...]

    def values(self, scope: Scope) -> list[Any]:
        """Everything the path leads to, without nulls."""
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
                    break  # an empty text is a value only when nothing better follows
        return found


class Template(Struct, frozen=True):
    """A parsed template."""

    parts: tuple[str | _Placeholder, ...]

    def render(self, scope: Scope) -> Any:
        """The value of a lone placeholder (None when there is none), else a text."""
        if len(self.parts) == 1 and isinstance(self.parts[0], _Placeholder) and self.parts[0].chars_max is None:
            return self.parts[0].value(scope)
        return "".join(part if isinstance(part, str) else _cut(_text(part.value(scope)), part.chars_max) for part in self.parts)


Shape = Template | dict[str, Any] | list[Any] | int | float | bool
"""Templates in tables and lists, as deep as the rule's author likes."""


def parse_path(text: str) -> EventPath:
    """A path from its text.

    Raises:
        Invalid: it is none.
    """
    steps = [_SEGMENT.fullmatch(part) for part in text.split(".")]
    if not all(steps):
        raise Invalid(f"a path looks like issue.user.login or requested_reviewers[].login; this is {text!r}")
    return EventPath(tuple((step[1], step[2] is not None) for step in steps if step is not None))


def parse_template(text: str) -> Template:
    """A template from its text.

    Raises:
        Invalid: a brace without its partner, or a placeholder that holds no path.
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


def parse_shape(value: Any) -> Shape:
    """Every text in a value as it comes from TOML, parsed as a template.

    Raises:
        Invalid: a template is malformed, or the value is of a type that JSON has not.
    """
    if isinstance(value, str):
        return parse_template(value)
    if isinstance(value, dict):
        return {name: parse_shape(member) for name, member in value.items()}
    if isinstance(value, list):
        return [parse_shape(member) for member in value]
    if isinstance(value, bool | int | float):
        return value
    raise Invalid(f"text, number, true, false, list or table is allowed here; this is {value!r}")


def render_shape(shape: Shape, scope: Scope) -> Any:
    """The shape with its templates rendered; members and elements without a value are left out."""
    if isinstance(shape, Template):
        return shape.render(scope)
    if isinstance(shape, dict):
        members = ((name, render_shape(member, scope)) for name, member in shape.items())
        return {name: member for name, member in members if member is not None}
    if isinstance(shape, list):
        return [member for member in (render_shape(element, scope) for element in shape) if member is not None]
    return shape


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
