"""The book of limits: what of each user counted, and that nothing was delivered beyond what its category allows.

What a group brings counts when it is in the journal, and not any more when the group is rolled back. Nothing is checked of what was
accepted while the wall clock was behind where it once was: who forgot by the later clock what no longer counted may not be blamed for it.
"""

from __future__ import annotations

from typing import Final

from engine.core.journal.journal_records import StoredMessage
from engine.core.model.category import Category
from engine.core.model.constants import HIGH
from tests.sim.windowbook import Broken

CATEGORIES: Final = {"few": Category(cap=2, cap_ms=1500), "once": Category(same_type_ms=1000)}
"""Of which publishers make use."""


class Limits:
    """Of one user: (accepted at ms, category, number) of everything that counted, in the order of the journal."""

    def __init__(self) -> None:
        self.counted: list[tuple[int, str, int]] = []

    def count(self, record: StoredMessage, set_back_ms: int) -> bool:
        """A message is in the journal. Returns whether it counts. Raises Broken when it was one too many.

        `set_back_ms`: from there the wall clock was last set back, 0 for never.
        """
        policy_terms = record.envelope.policy_terms
        if policy_terms is None or record.envelope.priority == HIGH or not policy_terms.limits.counts:
            return False
        name, limits = policy_terms.category, policy_terms.limits
        span_ms = limits.cap_ms if limits.cap else limits.same_type_ms
        recent = sum(category == name and at_ms > record.accepted_ms - span_ms for at_ms, category, _ in self.counted)
        if recent >= (limits.cap or 1) and record.accepted_ms > set_back_ms:
            raise Broken(f"{record.envelope.id} is one too many of {name}: {recent} within {span_ms} ms before it")
        self.counted.append((record.accepted_ms, name, record.seq))
        return True

    def rolled_back(self, seq: int) -> None:
        """The group of this number never was."""
        self.counted = [entry for entry in self.counted if entry[2] != seq]

    def ever(self, name: str) -> int:
        """How many of a category there ever were."""
        return sum(category == name for _, category, _ in self.counted)
