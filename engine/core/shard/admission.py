"""Admission of posts and questions to a shard, and its actions under pressure: it measures, rejects and frees memory by
`engine.core.shard.pressure`.

A question about a user is admitted as a post is, when it takes memory: it changes the user's state, or needs a page that is not in memory.
Questions that free memory, such as acknowledgements by request, are refused only for what waits (`URGENT`).

The limits themselves hold for every other priority and are checked once per batch of records, so they are exceeded by one batch at
most; the levels are measured at every `tick`. Calmer measurements undo every action: held messages are sent, evicted ones are read in
their turn, refused publishers retry after the time in their answer, and schedulers fire refused timers again.

`engine.publish` has the table of what each component refuses under load."""

from __future__ import annotations

from collections.abc import Sized

from engine.config import Config
from engine.core.commit.group import PostQueue, repeated
from engine.core.commit.judge import Answer, Pending
from engine.core.model.constants import PRIORITIES
from engine.core.shard.delivery import Delivery
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import ShardOutput
from engine.core.shard.page_wait import PageWait
from engine.core.shard.pressure import Load, Pressure
from engine.core.shard.user_requests import URGENT, UserRequests
from engine.core.wire.records import OVERLOADED, Rejected


class Admission:
    """Admission to one shard. `pressure.level` is its level of pressure, 0 to 3. `open`: every priority was admitted at the last check."""

    def __init__(
        self,
        config: Config,
        mailbox_store: MailboxStore,
        delivery: Delivery,
        post_queue: PostQueue,
        page_wait: PageWait,
        user_requests: UserRequests,
        output: ShardOutput,
    ) -> None:
        self.pressure = Pressure(config)
        self._config = config
        self._mailbox_store = mailbox_store
        self._delivery = delivery
        self._post_queue = post_queue
        self._page_wait = page_wait
        self._waiting: tuple[Sized, ...] = (*post_queue.lanes, user_requests.waiting)
        self._counters = output.counters
        self._full = False
        self.open = True  # to every priority, at the last check

    @property
    def waiting(self) -> int:
        """Number of posts and questions that wait for their page or their commit."""
        return sum(map(len, self._waiting)) + self._page_wait.count

    @property
    def busy(self) -> bool:
        """Whether something waits, is held back, or takes too much memory: `tick` measures it."""
        return bool(self.waiting or self.pressure.level or self._delivery.held or self.excess_bytes)

    @property
    def bytes(self) -> int:
        """Memory of mailboxes, and of posts and questions that wait, in bytes."""
        return self._mailbox_store.memory.bytes + self._post_queue.bytes + self._page_wait.bytes

    @property
    def excess_bytes(self) -> int:
        """Bytes in memory beyond what ends level 1, now. Mailboxes that nobody uses are evicted for them, and so contribute to no level."""
        return max(self.bytes - self.pressure.calm_bytes, 0)

    def look(self) -> None:
        """Check the limits that hold for every priority, and set `open`. Call before a batch."""
        config, waiting, memory = self._config, self.waiting, self._mailbox_store.memory
        self._full = (
            waiting >= config.posts_pending_max
            or waiting + memory.messages_in - memory.messages_out >= config.shard_memory_messages_max
            or self.bytes >= config.shard_memory_bytes_max
        )
        self.open = not self._full and self.pressure.level < 2

    def takes(self, priority: int) -> bool:
        """Whether a post or question of this priority is admitted."""
        if priority == URGENT:
            return self.waiting < self._config.posts_pending_max
        return not self._full and (self.pressure.level < 2 or not self.pressure.refuses(priority))

    def refuse(self, pending: Pending) -> Answer:
        """Return `OVERLOADED` for a post, with the time to retry after. A repeat of an accepted post gets its first answer instead."""
        post = pending.post
        mailbox = self._mailbox_store.mailboxes.get(post.key)
        known = None if mailbox is None else mailbox.recent.get(post.envelope.id)
        if known is not None:
            return repeated(pending, *known)
        self._counters[f"refused_{PRIORITIES[post.envelope.priority]}"] += 1
        return Answer(pending, OVERLOADED, 0, "the shard is overloaded", self.pressure.retry_ms())

    def reject(self, ref: int) -> Rejected:
        """The answer to a question that is not admitted, with the time to retry after."""
        self._counters["refused_questions"] += 1
        return Rejected(ref, OVERLOADED, "the shard is overloaded", self.pressure.retry_ms())

    def tick(self, now_ms: int) -> int:
        """Measure the pressure and act on it. Returns how many bytes of mailboxes that nobody uses are to be evicted now."""
        memory, mailbox_store, delivery = self._mailbox_store.memory, self._mailbox_store, self._delivery
        lag_ms = now_ms - self._post_queue.oldest_ms if self._post_queue.oldest_ms else 0
        waiting = self.waiting
        load = Load(lag_ms, waiting, memory.messages + waiting, self.bytes, memory.freed_bytes)
        level = self.pressure.measure(load, now_ms)
        tight = self.pressure.tight
        delivery.hold_low = level > 0
        if tight and not mailbox_store.tight:
            mailbox_store.spill_idle(delivery.held.values())
        mailbox_store.tight = tight
        if tight:
            mailbox_store.forget_ids(now_ms)
        if not level:
            delivery.release(now_ms, self._config.commit_records_max)
        return self.excess_bytes

    def stats(self) -> dict[str, int]:
        """Gauges by name: the level of pressure, bytes in memory, and counts."""
        return {
            "pressure": self.pressure.level,
            "memory_bytes": self.bytes,
            "low_spilled": self._mailbox_store.memory.low_spilled,
            "held": len(self._delivery.held),
        }
