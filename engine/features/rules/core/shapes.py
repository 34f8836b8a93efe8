"""Templates in tables and lists. They render as tables and lists, without the members that have no value."""

from __future__ import annotations

from math import isfinite
from typing import Any

from engine.core.model.placeholders import Scope, Template, parse_template
from engine.errors import Invalid

Shape = Template | dict[str, Any] | list[Any] | int | float | bool
"""Templates in tables and lists, nested to any depth."""


def parse_shape(value: Any) -> Shape:
    """Parse every text in a TOML value as a template.

    Raises:
        Invalid: a template is malformed, or the value has a type that JSON lacks.
    """
    if isinstance(value, str):
        return parse_template(value)
    if isinstance(value, dict):
        return {name: parse_shape(member) for name, member in value.items()}
    if isinstance(value, list):
        return [parse_shape(member) for member in value]
    if isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    raise Invalid(f"text, number, true, false, list or table is allowed here; this is {value!r}")


def render_shape(shape: Shape, scope: Scope) -> Any:
    """Return the shape with its templates rendered; members and elements without a value are left out."""
    if isinstance(shape, Template):
        return shape.render(scope)
    if isinstance(shape, dict):
        members = ((name, render_shape(member, scope)) for name, member in shape.items())
        return {name: member for name, member in members if member is not None}
    if isinstance(shape, list):
        return [member for member in (render_shape(element, scope) for element in shape) if member is not None]
    return shape
