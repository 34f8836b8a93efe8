"""The seam by which publishing learns of categories: the predefined ones, or those that a feature defines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from msgspec import Struct

from engine.core.model.defined_categories import DefinedCategories
from engine.publish.drafts import Draft

_PREDEFINED: Final = DefinedCategories()


class CategoryBook(Struct, frozen=True):
    """Knows the categories that messages may name.

    Attributes:
        in_use: those in force for a tenant; while none can be used, the predefined ones.
        unread: whether definitions could not be used since this process started: which categories there are is not known.
        link: gives drafts of these categories their unsubscribe links. Raises Problem.
    """

    in_use: Callable[[str], DefinedCategories]
    unread: Callable[[], bool]
    link: Callable[[Sequence[Draft], Collection[str]], Awaitable[None]]


async def _no_link(_drafts: Sequence[Draft], _categories: Collection[str]) -> None:
    """Of the predefined categories, none has links."""


PREDEFINED: Final = CategoryBook(lambda _tenant: _PREDEFINED, lambda: False, _no_link)
"""The book of an edge on which no feature defines categories."""
