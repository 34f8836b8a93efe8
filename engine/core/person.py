"""What a mailbox knows of its user beside the messages: wishes, and what the judgement counts. Nearly no user has one.

Part of the page. The shard owns it; it changes with journalled records only: the profile with `checkpoint.Profiled`, what counts with the
messages that are counted.
"""

from __future__ import annotations

from msgspec import Struct

from engine.core.policy import Counters
from engine.core.profile import Profile


class Person(Struct, array_like=True):
    """See the module's text. `profile`: None for who wants nothing in particular; `counters`: None while nothing counts."""

    profile: Profile | None = None
    counters: Counters | None = None

    @property
    def empty(self) -> bool:
        """Is nothing known?"""
        return self.profile is None and (self.counters is None or self.counters.empty)

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        size = 100
        if self.profile is not None:
            size += self.profile.size
        if self.counters is not None:
            size += self.counters.size
        return size
