"""The categories that messages may name, and the ones that are predefined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.model.category import DAY_MS, Category, PolicyTerms
from engine.core.model.step import ChannelStep

TOUCH: Final = Category(cap=3, cap_ms=DAY_MS, same_type_ms=3 * DAY_MS)
"""For messages meant to bring a user back: three a day, each type once in three days."""

CATEGORIES: Final[Mapping[str, Category]] = {"touch": TOUCH}
"""Categories that exist without being defined; `rules.toml` may define them otherwise."""


class DefinedCategories(Struct, frozen=True, kw_only=True):
    """Categories, and what messages get by their category, tenant or type.

    Attributes:
        categories: by name.
        titles: of categories, for people; those that have one.
        linked: categories whose messages carry an unsubscribe link.
        default_categories: by tenant, "*" for all others: of messages to users that name none.
        steps: by category, those that have some: the other channels by which users are told of its messages.
        kept: by type, or beginning that ends in `.*`: how long its messages stay in the inbox, ms.
    """

    categories: Mapping[str, Category] = msgspec.field(default_factory=lambda: CATEGORIES)
    titles: Mapping[str, str] = {}
    linked: frozenset[str] = frozenset()
    steps: Mapping[str, tuple[ChannelStep, ...]] = {}
    default_categories: Mapping[str, str] = {}
    kept: Mapping[str, int] = {}

    def channels_of(self, category: str) -> frozenset[str]:
        """The channels by which users are told of a category's messages at their own addresses."""
        return frozenset(step.channel for step in self.steps.get(category, ()) if not step.to)

    def default_terms(self, tenant: str) -> PolicyTerms | None:
        """What holds for messages of a tenant to its users that name no category."""
        name = self.default_categories.get(tenant) or self.default_categories.get("*")
        return PolicyTerms(name, self.categories[name]) if name else None
