"""The contents of a rule as they are written: each locale and variant needs only what differs, and none is left in a wrong language."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RulesError
from engine.features.rules.core.content import ContentTemplate, LocalisedContent, RuleContent
from engine.features.rules.core.content_toml import LOCALES_MAX, VARIANTS_MAX
from engine.features.rules.core.toml_loader import parse_rules

HEAD = '[[rule]]\nname = "r"\nevent = "e"\ntype = "t"\nrecipients = ["user"]\n'


def contents(text: str) -> RuleContent:
    return parse_rules(HEAD + text, "x.toml").rules[0].content


def titles(content: LocalisedContent) -> dict[str, Any]:
    return {"": _title(content.default), **{tag: _title(one) for tag, one in content.locales.items()}}


def _title(content: ContentTemplate) -> str:
    title = content.members["title"]
    return str(title.parts[0])  # type: ignore[union-attr]  # a template


def test_a_locale_has_what_differs_and_the_rest_is_the_rules_own() -> None:
    found = contents('title = "own"\nbody = "b"\nlocales = { de = { title = "deutsch" }, "zh-TW" = { body = "c" } }').content
    assert titles(found) == {"": "own", "de": "deutsch", "zh-tw": "own"}
    assert set(found.locales["de"].members) == {"title", "body"}


def test_a_variant_is_laid_over_the_rule_in_every_locale() -> None:
    text = """
title = "own"
body = "b"
locales.de = { title = "deutsch" }
variants = [
    { name = "plain" },
    { name = "warm", weight = 2, title = "warm", locales = { de = { title = "herzlich" }, fr = { title = "chaud" } } },
]
"""
    plain, warm = contents(text).variants
    assert (plain.name, plain.weight, titles(plain.content)) == ("plain", 1.0, {"": "own", "de": "deutsch"})
    assert (warm.name, warm.weight, titles(warm.content)) == ("warm", 2.0, {"": "warm", "de": "herzlich", "fr": "chaud"})
    assert set(warm.content.locales["fr"].members) == {"title", "body"}


def test_a_variant_of_a_language_takes_the_rest_from_the_nearest_locale_of_the_rule() -> None:
    text = 'title = "own"\nbody = "b"\nlocales.zh = { title = "zh" }\nvariants = [{ name = "v", locales."zh-TW" = { body = "c" } }]'
    (variant,) = contents(text).variants
    assert titles(variant.content) == {"": "own", "zh": "zh", "zh-tw": "zh"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('locales = { german = { title = "x" } }', "locales"),
        ('locales = { de = { titel = "x" } }', "titel"),
        ('locales.de = { title = "{" }', "locales.de.data.title: a brace"),
        ('locales.de.template = { text = "{{ a" }', "locales.de.template.text: line 1"),
        ('locales.de = { summary = "x" }', "summary: needs a window"),
        ('variants = [{ name = "A" }]', "variants[0].name"),
        ('variants = [{ name = "a", weight = 0 }]', "variants[0].weight"),
        ('variants = [{ name = "a", weight = nan }]', "variants[0].weight"),
        ('variants = [{ name = "a" }, { name = "a" }]', "variants[1].name: another variant has this name"),
        ('variants = [{ name = "a", data = { x = "{" } }]', "variants[0].data.x: a brace"),
        (
            'title = "a"\nbody = "b"\nlocales.de = { title = "c", body = "d" }\nvariants = [{ name = "a", title = "e" }]',
            "variants[0].locales.de: needs title, as the rule's locale has",
        ),
        (
            'window = "5m"\nsummary = "a"\nlocales.de = { summary = "c" }\nvariants = [{ name = "a", summary = "e", locales.de = {} }]',
            "variants[0].locales.de: needs summary, as the rule's locale has",
        ),
        ("variants = [" + ", ".join(f"{{ name = 'v{n}' }}" for n in range(VARIANTS_MAX + 1)) + "]", "variants"),
        ("locales = { " + ", ".join(f"aa-{n:04} = {{}}" for n in range(LOCALES_MAX + 1)) + " }", "locales"),
    ],
)
def test_a_wrong_content_is_refused_with_its_field(text: str, reason: str) -> None:
    with pytest.raises(RulesError) as refused:
        contents(text)
    assert str(refused.value).startswith("x.toml:1: rule 'r': ")
    assert reason in str(refused.value)
