"""The book of wishes: which users want quiet hours, as the journal says, and that they are given no number in them; others want a digest.

A profile counts from the group after the one that brings it: what stands in the same group was decided before. Quiet hours end soon after
a world begins, so that what they held back is delivered while everything goes wrong; a clock that is set back begins them anew.
"""

from __future__ import annotations

from typing import Final

from engine.core.journal.journal_records import Profiled, StoredMessage
from engine.core.model.constants import HIGH
from engine.core.policy.profile import Profile, QuietHours
from tests.sim.cluster import START_MS
from tests.sim.windowbook import Broken

_DAY_MIN: Final = 24 * 60
_END_MIN: Final = START_MS // 60_000 % _DAY_MIN
_LENGTH_MIN: Final = 120

assert START_MS % 60_000 == 0, "quiet hours end with a minute"

SLEEPER: Final = Profile(zone="UTC", quiet=(QuietHours(_END_MIN - _LENGTH_MIN, _END_MIN),))
"""Who sleeps until the world's clock, had it not been set back at the beginning, would start."""


COLLECTOR: Final = Profile(digest_types=("sim.*",))
"""Who wants everything in a digest. What is in it the book of windows knows."""


class Wishes:
    def __init__(self) -> None:
        self._profiles: list[Profile | None] = [None]
        self._fresh = False  # the last one came with the newest group

    @property
    def wanted(self) -> bool:
        """Has the journal a profile of the user?"""
        return self._profiles[-1] is not None

    def change(self, record: Profiled) -> None:
        """The journal has this."""
        self._profiles.append(record.profile)
        self._fresh = True

    def next_group(self) -> None:
        """What the newest group brought counts from now on."""
        self._fresh = False

    def rolled_back(self) -> None:
        """The newest one never was."""
        self._profiles.pop()
        self._fresh = False

    def check(self, record: StoredMessage) -> bool:
        """A message has a number. Returns whether quiet hours were looked at. Raises Broken when they are now."""
        profile = self._profiles[-2 if self._fresh else -1]
        if profile is None or not profile.quiet or record.envelope.priority == HIGH:
            return False
        if _is_quiet(record.accepted_ms):
            raise Broken(f"{record.envelope.id} is {record.seq} at {record.accepted_ms}, in quiet hours")
        return True

    def sleeps(self, now_ms: int) -> bool:
        """Does the user want to be left alone now?"""
        profile = self._profiles[-1]
        return profile is not None and bool(profile.quiet) and _is_quiet(now_ms)


def _is_quiet(at_ms: int) -> bool:
    return _END_MIN - _LENGTH_MIN <= at_ms // 60_000 % _DAY_MIN < _END_MIN
