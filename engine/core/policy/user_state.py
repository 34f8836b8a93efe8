"""The state of a user beside the messages: profile, counters, recent decisions, events and followers. Nearly no user has any.

Part of the page. The shard owns it; it changes with journalled records only: the profile with `checkpoint.Profiled`, counters with the
messages that count, the timeline with `checkpoint.Decided`, events and followers with `checkpoint.Noticed`; and a timer that took effect
follows no more.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from msgspec import Struct

from engine.core.policy.profile import Profile

EVENTS_MAX: Final = 64
"""Events of a user whose last time is kept, the latest ones: as many as the rules of a file may refer to. About 100 bytes each."""

DELIVERIES_MAX: Final = 8
"""Latest events that are recognised when repeated: a publisher without an answer repeats within seconds."""

FOLLOWERS_MAX: Final = 16
"""Inactivity rules that may follow a user: each has one timer per user."""


class TimelineEntry(Struct, array_like=True, frozen=True, gc=False):
    """A decision about a message, for its timeline.

    Args:
        id: the message's.
        at_ms: when that was decided.
        event: suppressed, deferred, digested or inboxed.
        reason: a word for programs and, behind a colon, a sentence for people.
        until_ms: of what was deferred, or waits in a digest.
    """

    id: str
    at_ms: int
    event: str
    reason: str
    until_ms: int = 0


class Recent(Struct, array_like=True):
    """When a category was sent lately: ascending times, at most its cap, which count for `span_ms`."""

    span_ms: int
    times: list[int]


class Counters(Struct, array_like=True):
    """What a user was sent lately, where a limit applies. Part of the user's page."""

    sent: dict[str, Recent] = {}  # by category, the one not sent for longest first
    last: dict[str, tuple[int, int]] = {}  # type -> when, and until when that counts; the longest ago first

    @property
    def empty(self) -> bool:
        """Whether nothing is counted."""
        return not (self.sent or self.last)

    @property
    def size(self) -> int:
        """Bytes they take in memory, about."""
        return 300 + sum(250 + 32 * len(recent.times) for recent in self.sent.values()) + 200 * len(self.last)

    def copy(self) -> Counters:
        """A deep copy."""
        return Counters({name: Recent(recent.span_ms, list(recent.times)) for name, recent in self.sent.items()}, dict(self.last))


class UserState(Struct, array_like=True):
    """See the module's text.

    Args:
        profile: None for a user without one.
        counters: None while nothing is counted.
        timeline: the latest decisions, oldest first, at most `decisions_max`.
        events: when each event last came, ms, of those that some rule refers to; the one that came longest ago first.
        follows: by inactivity rule, the scheduled id of the timer that follows the user.
        deliveries: the ids of the latest events whose repeats may have another time.
    """

    profile: Profile | None = None
    counters: Counters | None = None
    timeline: list[TimelineEntry] = []
    events: dict[str, int] = {}
    follows: dict[str, str] = {}
    deliveries: list[str] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to keep."""
        nothing = self.profile is None and (self.counters is None or self.counters.empty)
        return nothing and not (self.timeline or self.events or self.follows or self.deliveries)

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        size = 100 + sum(300 + len(entry.id) + len(entry.reason) for entry in self.timeline)
        if self.profile is not None:
            size += self.profile.size
        if self.counters is not None:
            size += self.counters.size
        return size + 100 * len(self.events) + 150 * len(self.follows) + 100 * len(self.deliveries)

    def note(self, entry: TimelineEntry, entries_max: int) -> None:
        """Append an entry; the oldest is dropped beyond `entries_max`.

        The same decision again (of a timer that fired twice, or replayed on a page that has it) is kept once.
        """
        timeline = self.timeline
        if entry in timeline or any(
            (known.id, known.event, known.until_ms) == (entry.id, entry.event, entry.until_ms) for known in timeline if entry.until_ms
        ):
            return
        timeline.append(entry)
        del timeline[:-entries_max]

    def is_new(self, delivery: str) -> bool:
        """Whether this delivery of an event is none of the latest ones, which it belongs to from now on."""
        if delivery in self.deliveries:
            return False
        self.deliveries.append(delivery)
        del self.deliveries[:-DELIVERIES_MAX]
        return True

    def notice(self, event: str, at_ms: int) -> None:
        """Keep the time of an event of the user."""
        last_ms = max(at_ms, self.events.pop(event, 0))
        self.events[event] = last_ms
        if len(self.events) > EVENTS_MAX:
            del self.events[next(iter(self.events))]

    def follow(self, timers: Mapping[str, str], ended: Container[str]) -> None:
        """Let these timers follow the user, each for its rule, unless one does already that has not `ended`."""
        for rule, sid in timers.items():
            if self.follows.get(rule, "") in ended or rule not in self.follows:
                self.follows.pop(rule, None)
                self.follows[rule] = sid
        while len(self.follows) > FOLLOWERS_MAX:
            del self.follows[next(iter(self.follows))]

    def took_effect(self, sid: str) -> None:
        """The timer took effect: it does not follow the user any more."""
        for rule in [rule for rule, follower in self.follows.items() if follower == sid]:
            del self.follows[rule]
