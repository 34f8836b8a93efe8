"""Tables and lists of templates."""

from __future__ import annotations

import pytest

from engine.core.model.placeholders import Scope
from engine.errors import Invalid
from engine.features.rules.core.shapes import parse_shape, render_shape


def test_tables_of_templates_leave_out_what_has_no_value() -> None:
    shape = parse_shape({"a": "{x}", "b": ["{y}", "{z}"], "c": {"d": "{z}", "n": 1}})
    assert render_shape(shape, Scope({"x": 1, "y": "Y"}, {})) == {"a": 1, "b": ["Y"], "c": {"n": 1}}


def test_numbers_and_booleans_of_a_table_stay_and_other_types_are_refused() -> None:
    assert render_shape(parse_shape({"n": 1.5, "b": [True, 0]}), Scope({}, {})) == {"n": 1.5, "b": [True, 0]}
    for value in (None, b"x", {"deep": [object()]}):
        with pytest.raises(Invalid, match="is allowed here"):
            parse_shape(value)
