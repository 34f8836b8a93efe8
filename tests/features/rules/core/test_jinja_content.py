"""Jinja2 texts of rules: what they can say, and what they cannot do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from engine.errors import Invalid
from engine.features.rules.core.jinja_content import TEXT_CHARS_MAX, parse_content
from tests.support.hostile_input import values


@pytest.mark.parametrize(
    ("text", "names", "rendered"),
    [
        ("{{ a.b }} {{ a['b'] }}", {"a": {"b": 1}}, "1 1"),
        ("{{ a.items | length }}", {"a": {"items": [1, 2]}}, "2"),
        ("{{ a.keys }}", {"a": {}}, ""),
        ("{{ a.b.c.d }}", {}, ""),
        ("{% if n > 1 %}{{ n }} people{% else %}one{% endif %}", {"n": 3}, "3 people"),
        ("{% for x in xs %}{{ x }},{% endfor %}", {"xs": ["a", "b"]}, "a,b,"),
        ("{{ x | default('none', true) }}", {"x": ""}, "none"),
        ("{{ '<b>' }}", {}, "<b>"),
        ("{{ 2 * 3 + 2 ** 3 }}", {}, "14"),
        ("{{ xs | join(', ') }} {{ ys | join(attribute='n') }} {{ zs | join }}", {"xs": [1, "a"], "ys": [{"n": 2}]}, "1, a 2 "),
        ("{{ x | replace('a', 'b') }} {{ x | replace('a', 'b', 1) }} {{ 11 | replace(1, y) }}", {"x": "aa"}, "bb ba "),
    ],
)
def test_texts_render(text: str, names: dict[str, Any], rendered: str) -> None:
    assert parse_content(text).render(names) == rendered


@pytest.mark.parametrize(
    "text",
    [
        "{{ a",
        "{% if %}",
        "{% for x %}{% endfor %}",
        "{{ a | nofilter }}",
        "{{ [1] | random }}",
        "{% include 'x' %}{{",
        "{{ a | pprint }}",
        "{{ '%9d' | format(1) }}",
        "{% for x in y %}" * 30 + "{% endfor %}" * 30,
    ],
)
def test_what_is_no_template_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_content(text)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ a.__class__ }}",
        "{{ (1).__class__.__base__.__subclasses__() }}",
        "{{ range(10**9) | list }}",
        "{% for a in range(1001) %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ [0] * 10000000000 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ xs.append(1) }}",
        "{{ cycler('a') }}",
        "{{ lipsum() }}",
        "{% include 'x' %}",
        "{{ 1 / 0 }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ none.x() }}",
    ],
)
def test_no_text_gets_out_of_the_sandbox_or_takes_long(text: str) -> None:
    try:
        rendered = parse_content(text).render({"a": {}, "xs": [1]})
    except Invalid:
        return
    assert rendered == "", rendered[:100]


def test_a_text_is_cut_where_it_gets_too_long() -> None:
    nested = "{% for a in range(1000) %}{% for b in range(1000) %}0123456789{% endfor %}{% endfor %}"
    assert len(parse_content(nested).render({})) == TEXT_CHARS_MAX


@settings(max_examples=200, deadline=None)
@given(values)
def test_any_event_renders_or_is_invalid(value: Any) -> None:
    content = parse_content("{{ event.a }}{% for x in event %}{{ x.y.z }}{% endfor %}{{ event | length }}{{ event[0] }}")
    try:
        assert len(content.render({"event": value})) <= TEXT_CHARS_MAX
    except Invalid:
        assert not isinstance(value, list | dict | str)


def test_an_event_makes_no_text_of_a_filter_larger_than_a_megabyte() -> None:
    names = {"text": "a" * 16_000, "by": "b" * 16_000, "many": [""] * 16_000}
    for text in ("{{ text | replace('a', by) }}", "{{ many | join(by) }}", "{{ text | replace('', by) | length }}"):
        with pytest.raises(Invalid, match="too long"):
            parse_content(text).render(names)
