"""How far the timers of a scheduler are claimed: the line in storage between "may have been handed out" and "cancelled for sure".

Each partition has a horizon H in storage: whatever is due until H may have been handed out to a shard. Three rules:

    hand out   only what is due until the reach, the lowest H of this scheduler's partitions that storage has confirmed
    advance    H is written with the fenced turns, `timer_claim_ms` ahead of the clock and of all partitions at once, as soon as something
               is due within half of that beyond the reach: about one write per half of `timer_claim_ms` while timers fire, none while
               none are due
    take over  the fence and the reading of H are one script: an older incarnation cannot advance H any more, so it never hands out
               anything beyond what its successor has read, however long it lives and whatever any clock says

A successor takes what is due until the H it read, or until its start, for claimed: such a timer is neither cancelled nor moved (409),
and fires when it is due. Those stored or moved under this incarnation's own epoch are no predecessor's; storage marks the few of them
that are due until then as *young*, and they can be cancelled like any other. The mark ends with the incarnation.

Who owns what: H and the marks belong to the holder of the partition's epoch, the reach is memory. What a crash does at each point:

    before H is written                nothing beyond the old H was handed out
    H written, answer lost             written again, or found by the successor: timers of up to `timer_claim_ms` are claimed for nothing
    H written, nothing handed out      the same: they fire at their time, only their cancel is refused
    storage away, out of memory        H stays, and timers beyond it wait: the shards could not journal them either
    down for long                      everything that came due meanwhile counts as claimed, and fires
    clock set back                     H stays ahead of the clock: what was stored before and is due until H cannot be cancelled until it
                                       has fired; whatever is scheduled from then on can
    clock set forward                  what became due waits for one write of H
    storage loses H (fail-over)        as other confirmed writes: `redis_replicas_min`; what was due at the start is claimed all the same
"""

from __future__ import annotations

from engine.config import Config
from engine.core.scheduler.timer_wheel import NEVER


class ClaimHorizon:
    """The claims of one scheduler.

    Args:
        furthest_ms: the highest H of its partitions, as the take-over read it; 0 when none has one.
        reach_ms: the lowest.
        started_ms: when this incarnation began, after the take-over.
    """

    def __init__(self, config: Config, furthest_ms: int, reach_ms: int, started_ms: int) -> None:
        self._ahead_ms = config.timer_claim_ms
        self.inherited_ms = max(started_ms, furthest_ms)
        """What was stored before the start and is due until then counts as claimed by an earlier incarnation."""
        self.reach_ms = reach_ms
        """What is due until then may be handed out. Set when storage has confirmed a claim."""

    def asks_at(self, due_ms: int) -> int:
        """When H has to be advanced for a timer due then, ms; NEVER when the reach covers it."""
        return due_ms - self._ahead_ms // 2 if self.reach_ms < due_ms < NEVER else NEVER

    def to_claim(self, due_ms: int, now_ms: int) -> int:
        """H as it is to be written now, when a timer is due at `due_ms` at the earliest; 0 when there is no need yet."""
        return now_ms + self._ahead_ms if self.reach_ms < due_ms <= now_ms + self._ahead_ms // 2 else 0
