"""What a mailbox knows of its user beside the messages: wishes, what counts against limits, and what was decided lately. Nearly no user
has one.

Part of the page. The shard owns it; it changes with journalled records only: the profile with `checkpoint.Profiled`, counters with the
messages that count, the timeline with `checkpoint.Decided`.
"""

from __future__ import annotations

from msgspec import Struct

from engine.core.policy import Counters
from engine.core.profile import Profile


class Entry(Struct, array_like=True, frozen=True, gc=False):
    """What became of a message, for its timeline.

    Args:
        id: the message's.
        at_ms: when that was decided.
        event: suppressed, deferred or digested.
        reason: a word for programs and, behind a colon, a sentence for people.
        until_ms: of what was deferred, or waits in a digest.
    """

    id: str
    at_ms: int
    event: str
    reason: str
    until_ms: int = 0


class Person(Struct, array_like=True):
    """See the module's text.

    Args:
        profile: None for who wants nothing in particular.
        counters: None while nothing counts.
        timeline: what was decided last, oldest first, at most `decisions_max`.
    """

    profile: Profile | None = None
    counters: Counters | None = None
    timeline: list[Entry] = []

    @property
    def empty(self) -> bool:
        """Is nothing known?"""
        return self.profile is None and (self.counters is None or self.counters.empty) and not self.timeline

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        size = 100 + sum(300 + len(entry.id) + len(entry.reason) for entry in self.timeline)
        if self.profile is not None:
            size += self.profile.size
        if self.counters is not None:
            size += self.counters.size
        return size

    def note(self, entry: Entry, entries_max: int) -> None:
        """One more entry; the oldest makes room. What is decided again just as before (a timer that came twice) is told once."""
        timeline = self.timeline
        if any((known.id, known.event, known.until_ms) == (entry.id, entry.event, entry.until_ms) for known in timeline if entry.until_ms):
            return
        timeline.append(entry)
        del timeline[:-entries_max]
