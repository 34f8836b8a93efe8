"""Parses the contents of a rule: title, body, data, template, summary, locales and variants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from engine.core.model.placeholders import parse_template
from engine.errors import Invalid
from engine.features.policy.core.profile_json import LOCALE_PATTERN
from engine.features.rules.core.content import ContentTemplate, LocalisedContent, RuleContent, Variant
from engine.features.rules.core.field_errors import at_field
from engine.features.rules.core.jinja_content import parse_content
from engine.features.rules.core.shapes import parse_shape

LOCALES_MAX: Final = 50
VARIANTS_MAX: Final = 20
WEIGHT_MAX: Final = 1000

_LOCALE: Final = re.compile(LOCALE_PATTERN)


class ContentText(Struct, forbid_unknown_fields=True):
    """A content as it is written."""

    title: str = ""
    body: str = ""
    data: dict[str, Any] = {}
    template: dict[str, str] = {}
    summary: str = ""


Locales = Annotated[dict[str, ContentText], Meta(max_length=LOCALES_MAX)]


class VariantText(ContentText, forbid_unknown_fields=True, kw_only=True):
    """A variant as it is written."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,31}$")]
    weight: Annotated[float, Meta(gt=0, le=WEIGHT_MAX)] = 1.0
    locales: Locales = {}


def parse_contents(written: ContentText, locales: Mapping[str, ContentText], variants: list[VariantText]) -> RuleContent:
    """All contents of a rule, each complete.

    Raises:
        Invalid: with the field.
    """
    own = _content(written, "")
    own_locales = _locales(locales, "")
    plain = LocalisedContent(own, {tag: content.over(own) for tag, content in own_locales.items()})
    made: list[Variant] = []
    for index, variant in enumerate(variants):
        place = f"variants[{index}]."
        if any(other.name == variant.name for other in made):
            raise Invalid("another variant has this name", f"{place}name")
        made.append(Variant(variant.name, variant.weight, _over(variant, place, plain, own_locales)))
    return RuleContent(plain, tuple(made))


def _over(variant: VariantText, place: str, plain: LocalisedContent, own_locales: Mapping[str, ContentTemplate]) -> LocalisedContent:
    """A variant's contents, laid over those of the rule."""
    content, locales = _content(variant, place), _locales(variant.locales, place)
    for tag, of_rule in own_locales.items():
        translated = locales.get(tag, ContentTemplate())
        lacking = [name for name in of_rule.members if name in content.members and name not in translated.members]
        if of_rule.summary and content.summary and not translated.summary:
            lacking.append("summary")
        if lacking:  # else these users would get it in the language of the variant
            raise Invalid(f"needs {', '.join(lacking)}, as the rule's locale has", f"{place}locales.{tag}")
    layers = LocalisedContent(ContentTemplate(), locales)
    return LocalisedContent(
        content.over(plain.default),
        {tag: layers.in_locale(tag).over(content.over(plain.in_locale(tag))) for tag in {**plain.locales, **locales}},
    )


def _locales(written: Mapping[str, ContentText], place: str) -> dict[str, ContentTemplate]:
    for tag in written:
        if not tag or _LOCALE.fullmatch(tag) is None:
            raise Invalid("a language tag of BCP 47, such as en, zh-CN or de-AT", f"{place}locales.{tag[:32]}")
    return {tag.lower(): _content(content, f"{place}locales.{tag}.") for tag, content in written.items()}


def _content(written: ContentText, place: str) -> ContentTemplate:
    shapes = {name: text for name, text in (("title", written.title), ("body", written.body)) if text}
    members = {name: at_field(f"{place}data.{name}", parse_shape, value) for name, value in {**shapes, **written.data}.items()}
    texts = {name: at_field(f"{place}template.{name}", parse_content, text) for name, text in written.template.items()}
    if written.summary:
        at_field(f"{place}summary", parse_template, written.summary)
    return ContentTemplate({**members, **texts}, written.summary)
