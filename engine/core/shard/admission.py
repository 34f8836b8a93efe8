"""What a shard takes in, and what it does under pressure: the measuring, refusing and relieving side of `engine.core.shard.pressure`.

The limits themselves hold for every priority and are looked at once per batch of records, so they are passed by one batch at most; the
levels are measured at every `tick`. Everything done here is undone by calmer measurements: what is held goes out, what left memory is
read when its turn comes, refused publishers come back when they were told to, and refused timers are fired again by their scheduler.

`engine.publish` has the table of who refuses what under load."""

from __future__ import annotations

from engine.core.commit.group import Answer, Pending, PostQueue, repeated
from engine.core.model.constants import PRIORITIES
from engine.core.shard.delivery import Delivery
from engine.core.shard.limits import ShardLimits
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import ShardOutput
from engine.core.shard.page_wait import PageWait
from engine.core.shard.pressure import Load, Pressure, PressureLimits
from engine.core.wire.records import OVERLOADED


class Admission:
    """Of one shard. `pressure.level` says how hard it is pressed."""

    def __init__(
        self,
        limits: ShardLimits,
        mailbox_store: MailboxStore,
        delivery: Delivery,
        post_queue: PostQueue,
        page_wait: PageWait,
        output: ShardOutput,
    ) -> None:
        self.pressure = Pressure(
            PressureLimits(
                limits.pressure_lag_ms,
                limits.pressure_calm_ms,
                limits.memory_bytes_max,
                limits.memory_messages_max,
                limits.posts_pending_max,
            )
        )
        self._limits = limits
        self._mailbox_store = mailbox_store
        self._delivery = delivery
        self._post_queue = post_queue
        self._page_wait = page_wait
        self._counters = output.counters
        self._full = False
        self.open = True  # to every priority, at the last look
        self._evicted_ms = 0

    @property
    def posts(self) -> int:
        """Posts that wait for their page or their commit."""
        return len(self._post_queue) + self._page_wait.posts

    @property
    def bytes(self) -> int:
        """What mailboxes and waiting posts take in memory."""
        return self._mailbox_store.memory.bytes + self._post_queue.bytes + self._page_wait.bytes

    def look(self) -> None:
        """Is a limit reached that holds for every priority? To be called before a batch."""
        limits, posts = self._limits, self.posts
        self._full = (
            posts >= limits.posts_pending_max
            or posts + self._mailbox_store.memory.messages >= limits.memory_messages_max
            or self.bytes >= limits.memory_bytes_max
        )
        self.open = not self._full and self.pressure.level < 2

    def takes(self, priority: int) -> bool:
        """Is there room for a post of this priority?"""
        return not self._full and (self.pressure.level < 2 or not self.pressure.refuses(priority))

    def refuse(self, pending: Pending) -> Answer:
        """Too much is in here for this post. One that was taken before gets its first answer all the same."""
        post = pending.post
        mailbox = self._mailbox_store.mailboxes.get(post.key)
        known = None if mailbox is None else mailbox.recent.get(post.envelope.id)
        if known is not None:
            return repeated(pending, *known)
        self._counters[f"refused_{PRIORITIES[post.envelope.priority]}"] += 1
        return Answer(pending, OVERLOADED, 0, "the shard is overloaded", self.pressure.retry_ms())

    def tick(self, now_ms: int) -> bool:
        """Measure the pressure and act on it. Returns whether idle mailboxes are to leave memory now."""
        memory, mailbox_store, delivery = self._mailbox_store.memory, self._mailbox_store, self._delivery
        lag_ms = now_ms - self._post_queue.oldest_ms if self._post_queue.oldest_ms else 0
        load = Load(lag_ms, self.posts, memory.messages + self.posts, self.bytes, memory.freed_bytes)
        level = self.pressure.measure(load, now_ms)
        tight = self.pressure.tight
        delivery.hold_low = level > 0
        if tight and not mailbox_store.tight:
            mailbox_store.spill_idle(delivery.held.values())
        mailbox_store.tight = tight
        if not level:
            delivery.release(now_ms, self._limits.commit_records_max)
        if not tight or now_ms - self._evicted_ms < self._limits.pressure_calm_ms:
            return False
        self._evicted_ms = now_ms
        return True

    def stats(self) -> dict[str, int]:
        """Plain numbers."""
        return {
            "pressure": self.pressure.level,
            "memory_bytes": self.bytes,
            "low_spilled": self._mailbox_store.memory.low_spilled,
            "held": len(self._delivery.held),
        }
