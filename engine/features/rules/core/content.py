"""What a rule's notification contains: by the user's language, and by a split of the users into variants.

    title = "{actor} liked your post"
    locales = { de = { title = "{actor} mag deinen Beitrag" } }
    variants = [{ name = "plain", weight = 3 }, { name = "warm", title = "...", locales = { de = { title = "..." } } }]

A content has members (`title`, `body`, those of `data` and `template`) and the summary of a window. A more special one needs only the
members that differ. They are laid over each other in this order, when the file is parsed: the rule's own, its locale's, the variant's,
its locale's.

Locale: the user's language tag is looked up as RFC 4647 (section 3.4) says: `de-AT`, then `de`, then the rule's own content.

Variant: weighted rendezvous hashing (Thaler & Ravishankar 1998) of rule, tenant, user and the variant's name. So a user has the same
variant each time and on every edge; a variant that is added, or gets more weight, takes users from the others and moves nobody else.
The split of one rule does not depend on that of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from math import log
from typing import Any, Final

from msgspec import Struct

from engine.core.model.placeholders import Scope
from engine.features.rules.core.jinja_content import JinjaContent
from engine.features.rules.core.shapes import Shape, render_shape

_HASHES: Final = 1 << 64


class ContentTemplate(Struct, frozen=True):
    """Members of `data` by name, and the template of a window's summary, "" for none."""

    members: Mapping[str, Shape | JinjaContent] = {}
    summary: str = ""

    def over(self, other: ContentTemplate) -> ContentTemplate:
        """This one laid over another: what it lacks is taken from there."""
        return ContentTemplate({**other.members, **self.members}, self.summary or other.summary)

    def render(self, scope: Scope, names: Mapping[str, Any]) -> dict[str, Any]:
        """The `data` of a notification, without members that have no value.

        Args:
            scope: for placeholders.
            names: for Jinja2.

        Raises:
            Invalid: a text cannot be rendered with these values.
        """
        data: dict[str, Any] = {}
        for name, member in self.members.items():
            if isinstance(member, JinjaContent):
                data[name] = member.render(names)
            elif (value := render_shape(member, scope)) is not None and value != "":
                data[name] = value
        return data


class LocalisedContent(Struct, frozen=True):
    """A content, and those for users of other languages by language tag in lower case, each complete."""

    default: ContentTemplate = ContentTemplate()
    locales: Mapping[str, ContentTemplate] = {}

    def in_locale(self, locale: str) -> ContentTemplate:
        """The content for a user with this language tag, "" for none."""
        tag = locale.lower()
        while tag:
            found = self.locales.get(tag)
            if found is not None:
                return found
            tag = tag.rpartition("-")[0]
            if len(tag) > 1 and tag[-2] == "-":  # a lone character only introduces what follows it
                tag = tag[:-2]
        return self.default


class Variant(Struct, frozen=True):
    """One of several contents: `weight` says how many users get it, in proportion to the others."""

    name: str
    weight: float
    content: LocalisedContent


class RuleContent(Struct, frozen=True):
    """All contents of a rule; without variants everybody has `content`."""

    content: LocalisedContent = LocalisedContent()
    variants: tuple[Variant, ...] = ()

    @property
    def every(self) -> list[ContentTemplate]:
        """Every content that some user gets."""
        localised = [self.content, *(variant.content for variant in self.variants)]
        return [content for one in localised for content in (one.default, *one.locales.values())]

    def variant_of(self, rule: str, tenant: str, user: str) -> Variant | None:
        """The variant that this user gets; None where there are none."""
        if not self.variants:
            return None
        return max(self.variants, key=lambda variant: variant.weight / -log(_fraction(f"{rule}\n{variant.name}\n{tenant}:{user}")))


def _fraction(text: str) -> float:
    """A number between 0 and 1, exclusively, that depends on the text alone."""
    return (int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") + 0.5) / _HASHES
