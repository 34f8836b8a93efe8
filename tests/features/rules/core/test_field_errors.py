"""The error of a value names its field."""

from __future__ import annotations

import pytest

from engine.core.model.placeholders import parse_path
from engine.errors import Invalid
from engine.features.rules.core.field_errors import at_field, duration_at


def test_what_is_right_is_parsed_and_what_is_wrong_is_refused_by_the_name_of_its_field() -> None:
    assert at_field("recipients", parse_path, "a.b") == parse_path("a.b")
    assert duration_at("ttl", "1h30m") == 5_400_000
    with pytest.raises(Invalid, match=r"^recipients: a path looks like"):
        at_field("recipients", parse_path, "a b")
    with pytest.raises(Invalid, match=r"^ttl: a duration looks like"):
        duration_at("ttl", 5)
