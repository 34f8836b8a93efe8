"""The receivers of broadcasts on this shard: the mirror of the log, and the mailboxes behind it.

Adoptions are committed with the posts of a journal group: `take` returns them, then exactly one of `committed` and `refused` reports the
result.

Broadcasts come after posts in everything: in a group, in memory, and under pressure. While low-priority posts are refused,
low-priority broadcasts stay in the log, at no cost and without loss; more urgent ones are adopted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from engine.config import Config
from engine.core.commit.broadcast_step import Adoption, BroadcastStep
from engine.core.mailbox.broadcast_log import Broadcast, BroadcastEntry, BroadcastMirror, Channel
from engine.core.model.message import with_due
from engine.core.model.routing import split_key, topic_of
from engine.core.shard.delivery import Delivery
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import Timer


class Announcement(Struct):
    """A broadcast to append to the log, as the effect of the durable timer with id `sid`."""

    entry: BroadcastEntry
    sid: str


class BroadcastAudience:
    """The broadcasts of one shard; see the module's text."""

    def __init__(
        self, config: Config, mailbox_store: MailboxStore, broadcast_step: BroadcastStep, delivery: Delivery, output: ShardOutput
    ) -> None:
        self.log: BroadcastMirror = mailbox_store.log
        self._mailbox_store = mailbox_store
        self._broadcast_step = broadcast_step
        self._delivery = delivery
        self._output = output
        self.announcements: Final[list[Announcement]] = []
        self._offline_max = config.offline_max

    def read(self, broadcasts: Iterable[Broadcast], reached: int, first: int) -> None:
        """Add the next entries of the broadcast log, read through `reached`. The log begins at `first`, 0 when it is empty."""
        self._broadcast_step.read(broadcasts)
        self.log.head = max(self.log.head, reached)
        self.log.drop_before(first)

    def lose(self, dropped: Iterable[tuple[int, Channel | None]], horizon: int = 0) -> None:
        """Entries have left the log: their positions and, of retained ones, for whom they were. The log was read beyond them since.

        What is older than `horizon` may be lost without being among them.
        """
        log = self.log
        positions = []
        for pos, channel in dropped:
            positions.append(pos)
            if channel is not None:
                self._broadcast_step.lose(*channel, pos)
        log.drop(positions)
        self._broadcast_step.forget(horizon)
        log.head = max(log.head, log.lost_head)

    def announce(self, timer: Timer, now_ms: int) -> None:
        """Queue a due broadcast for the log under the timer's id, so that it is appended once however often the timer fires."""
        tenant, topic = split_key(timer.key)[0], topic_of(timer.key)
        assert topic is not None, "it is for a user"
        expires_ms = timer.due_ms + timer.ttl_ms
        envelope = with_due(timer.envelope, timer.due_ms)
        if envelope.collapse:  # what it could be cancelled by; in mailboxes it would replace what was sent before
            envelope = msgspec.structs.replace(envelope, collapse="")
        entry = BroadcastEntry(tenant, topic, envelope, expires_ms, now_ms)
        self.announcements.append(Announcement(entry, timer.sid))

    def take_announcements(self) -> list[Announcement]:
        """Remove and return the broadcasts to append to the log; answer with `FiredTimers.done` or `failed`."""
        taken = self.announcements.copy()
        self.announcements.clear()
        return taken

    def take(self, now_ms: int, *, low: bool, high: bool, changing: Collection[str]) -> Sequence[Adoption]:
        """Remove and return the adoptions of the next group.

        `low` and `high` admit broadcasts of low priority and more urgent ones. `changing`: keys of the mailboxes whose topics the group
        changes.
        """
        adoptions = self._broadcast_step.take(now_ms, low=low, high=high, changing=changing)
        for mailbox, messages in self._broadcast_step.expired:
            self._output.expired(mailbox, messages, now_ms)
        self._broadcast_step.expired.clear()
        return adoptions

    def committed(self, adoptions: Sequence[Adoption], now_ms: int) -> None:
        """Apply a durable group: broadcasts go into the mailboxes, and are sent to clients."""
        mailboxes = [adoption.mailbox for adoption in adoptions]
        self._output.counters["adopted"] += self._broadcast_step.committed(adoptions)
        for mailbox in mailboxes:
            self._mailbox_store.mark(mailbox)
            if mailbox.head - mailbox.floor > self._offline_max:
                self._output.trimmed(mailbox, mailbox.trim(self._offline_max), now_ms)
        self._delivery.fan_out(mailboxes, now_ms)
