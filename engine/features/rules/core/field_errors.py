"""Names the field of a rules file in the error of what parses its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from engine.core.model.duration import parse_duration_ms
from engine.errors import Invalid

_Written = TypeVar("_Written")
_Parsed = TypeVar("_Parsed")


def at_field(field: str, parse: Callable[[_Written], _Parsed], written: _Written) -> _Parsed:
    """`parse(written)`; the error it raises names the field."""
    try:
        return parse(written)
    except Invalid as error:
        raise Invalid(error.detail, field) from error


def duration_at(field: str, written: str | float) -> int:
    """The milliseconds of a duration. Raises Invalid, which names the field."""
    return at_field(field, parse_duration_ms, str(written))
