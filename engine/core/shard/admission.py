"""What a shard takes in, and what it does under pressure: the measuring, refusing and relieving side of `engine.core.shard.pressure`.

The limits themselves hold for every priority and are looked at once per batch of records, so they are passed by one batch at most; the
levels are measured at every `tick`. Everything done here is undone by calmer measurements: what is held goes out, what left memory is
read when its turn comes, refused publishers come back when they were told to, and refused timers are fired again by their scheduler."""

from __future__ import annotations

from engine.core.commit.group import Answer, Pending, PostQueue, repeated
from engine.core.model.constants import PRIORITIES
from engine.core.shard.delivery import Delivery
from engine.core.shard.limits import ShardLimits
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.page_wait import PageWait
from engine.core.shard.pressure import Load, Pressure, PressureLimits
from engine.core.wire.records import OVERLOADED


class Admission:
    """Of one shard. `pressure.level` says how hard it is pressed."""

    def __init__(
        self, policy: ShardLimits, cabinet: MailboxStore, courier: Delivery, intake: PostQueue, parked: PageWait, counters: dict[str, int]
    ) -> None:
        self.pressure = Pressure(
            PressureLimits(
                policy.pressure_lag_ms,
                policy.pressure_calm_ms,
                policy.memory_bytes_max,
                policy.memory_messages_max,
                policy.posts_pending_max,
            )
        )
        self._policy = policy
        self._cabinet = cabinet
        self._courier = courier
        self._intake = intake
        self._parked = parked
        self._counters = counters
        self._full = False
        self.open = True  # to every priority, at the last look
        self._evicted_ms = 0

    @property
    def posts(self) -> int:
        """Posts that wait for their page or their commit."""
        return len(self._intake) + self._parked.posts

    @property
    def bytes(self) -> int:
        """What mailboxes and waiting posts take in memory."""
        return self._cabinet.memory.bytes + self._intake.bytes + self._parked.bytes

    def look(self) -> None:
        """Is a limit reached that holds for every priority? To be called before a batch."""
        policy, posts = self._policy, self.posts
        self._full = (
            posts >= policy.posts_pending_max
            or posts + self._cabinet.memory.messages >= policy.memory_messages_max
            or self.bytes >= policy.memory_bytes_max
        )
        self.open = not self._full and self.pressure.level < 2

    def takes(self, priority: int) -> bool:
        """Is there room for a post of this priority?"""
        return not self._full and (self.pressure.level < 2 or not self.pressure.refuses(priority))

    def refuse(self, pending: Pending) -> Answer:
        """Too much is in here for this post. One that was taken before gets its first answer all the same."""
        post = pending.post
        mailbox = self._cabinet.mailboxes.get(post.key)
        known = None if mailbox is None else mailbox.recent.get(post.id)
        if known is not None:
            return repeated(pending, *known)
        self._counters[f"refused_{PRIORITIES[post.priority]}"] += 1
        return Answer(pending, OVERLOADED, 0, "the shard is overloaded", self.pressure.retry_ms())

    def tick(self, now_ms: int) -> bool:
        """Measure the pressure and act on it. Returns whether idle mailboxes are to leave memory now."""
        memory, cabinet, courier = self._cabinet.memory, self._cabinet, self._courier
        lag_ms = now_ms - self._intake.oldest_ms if self._intake.oldest_ms else 0
        load = Load(lag_ms, self.posts, memory.messages + self.posts, self.bytes, memory.freed_bytes)
        level = self.pressure.measure(load, now_ms)
        tight = self.pressure.tight
        courier.hold_low = level > 0
        if tight and not cabinet.tight:
            cabinet.spill_idle(courier.held.values())
        cabinet.tight = tight
        if not level:
            courier.release(now_ms, self._policy.commit_records_max)
        if not tight or now_ms - self._evicted_ms < self._policy.pressure_calm_ms:
            return False
        self._evicted_ms = now_ms
        return True

    def stats(self) -> dict[str, int]:
        """Plain numbers."""
        return {
            "pressure": self.pressure.level,
            "memory_bytes": self.bytes,
            "low_spilled": self._cabinet.memory.low_spilled,
            "held": len(self._courier.held),
        }
