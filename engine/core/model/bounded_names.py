"""Names as labels of metrics: a bounded number of them, and one name for all others.

Tenants, categories and rules are named by those who use the engine. Each name is a series in whoever stores the metrics, and a place in
what an actor reports at every check of its health, so their number needs a limit: the first names get a place, and keep it until the
process ends.
"""

from __future__ import annotations

from typing import Final

OTHER: Final = "(other)"
"""Stands for every name without a place. No tenant can have this name; the parentheses are not among what names of tenants may hold."""

NAMES_MAX: Final = 100
"""Names with a place. With eight shards and a dozen metrics some 10 000 series, which a Prometheus stores in 30 MB."""


class BoundedNames:
    """The first `names_max` different names, and `OTHER` in place of every further one."""

    __slots__ = ("_names", "_names_max")

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._names: dict[str, str] = {}
        self._names_max = names_max

    def of(self, name: str) -> str:
        """The name itself, or `OTHER`."""
        known = self._names.get(name)
        if known is not None:
            return known
        if len(self._names) >= self._names_max:
            return OTHER
        self._names[name] = name
        return name
