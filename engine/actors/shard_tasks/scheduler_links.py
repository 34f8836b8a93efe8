"""A shard's links to the schedulers that use its store: it arms retry timers there, and gets due timers from there.

Schedulers keep retry timers in memory only. So a session that begins anew, and another number of schedulers, make the core arm again what
was armed there; nothing that is dropped on the way is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from engine.actors.actor_process import ProcessContext
from engine.actors.link import LinkCaller
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config
from engine.core.model.routing import SlotMap, partition_of
from engine.core.shard.delivery import ARM_AHEAD_MS
from engine.core.shard.shard import ShardCore
from engine.core.wire import records as wire
from engine.core.wire.pacing import CallBudget
from engine.store.shard_feature import ShardObserver


class SchedulerLinks:
    """The links of one shard.

    Args:
        feed: applies an event to the core and carries out what follows.
        look: called when a scheduler ends its session, which it does when the slot map has changed.
        observers: of the shard.
    """

    def __init__(
        self,
        config: Config,
        credentials: LinkCredentials,
        context: ProcessContext,
        core: ShardCore,
        budget: CallBudget,
        *,
        slot_map: SlotMap,
        feed: Callable[[Callable[[], None]], None],
        look: Callable[[], None],
        now_ms: Callable[[], int],
        observers: Sequence[ShardObserver] = (),
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._context = context
        self._core = core
        self._budget = budget
        self._slot_map = slot_map
        self._feed = feed
        self._look = look
        self._now_ms = now_ms
        self._observers = observers
        self._tasks: asyncio.TaskGroup
        self._callers: dict[int, tuple[LinkCaller, asyncio.Task[None]]] = {}
        self.arming = False  # `arm_later` was called, and the timers are not sent yet

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Open the links, whose tasks belong to this group."""
        self._tasks = tasks
        self.follow(self._slot_map)

    def carriers(self) -> dict[str, str]:
        """See LinkCaller.carrier, by name of the actor."""
        return {f"scheduler-{scheduler}": caller.carrier for scheduler, (caller, _) in self._callers.items()}

    def send(self, told: Iterable[tuple[int, Struct]]) -> None:
        """Send (timer partition, record) pairs to the schedulers of the partitions, in this order.

        Without a link they are dropped: a new session arms again, and an unconfirmed timer fires again.
        """
        if not self._callers:
            return
        by_scheduler: dict[int, list[Struct]] = {}
        for partition, record in told:
            by_scheduler.setdefault(self._slot_map.scheduler(partition), []).append(record)
        for scheduler, records in by_scheduler.items():
            self._callers[scheduler][0].send_all(records)

    def arm_later(self) -> None:
        """Send the retry timers that the core wants, when the first of its `unarmed` mailboxes may need one: most are settled by then.

        Those that follow it are looked at together, `link_ack_pacing_ms` later at the earliest.
        """
        self.arming = True
        first_ms, pacing_ms = self._config.retry_first_ms, self._config.link_ack_pacing_ms
        _, since_ms = next(iter(self._core.delivery.unarmed.values()))
        in_ms = min(max(since_ms + first_ms - ARM_AHEAD_MS - self._now_ms(), pacing_ms), first_ms)  # a clock that is set back delays none
        asyncio.get_running_loop().call_later(in_ms / 1000, self._feed, self._arm)

    def _arm(self) -> None:
        """Runs as an event: what is left is scheduled again by the look at the core that follows."""
        self.arming = False
        arms = self._core.delivery.arms(self._now_ms())
        if arms:
            self.send([(partition_of(key), wire.Arm(key, at_ms)) for key, at_ms in arms])

    def follow(self, slot_map: SlotMap) -> None:
        """Keep a link to each scheduler of this slot map."""
        self._slot_map = slot_map
        schedulers = slot_map.local(slot_map.schedulers)
        if len(schedulers) == len(self._callers):
            return
        while len(self._callers) > len(schedulers):
            self._callers.popitem()[1][1].cancel()
        for scheduler in schedulers[len(self._callers) :]:
            caller = LinkCaller(
                self._context.peer(f"scheduler-{scheduler}", self._credentials),
                self._credentials.name,
                wire.scheduler_to_shard,
                self._config,
                on_records=self.receive,
                on_reset=partial(self._reset, scheduler),
                budget=self._budget,
                pacing_ms=self._config.link_timer_pacing_ms,
                context=self._context,
            )
            self._callers[scheduler] = (caller, self._tasks.create_task(caller.run()))
        self._feed(partial(self._core.delivery.scheduler_reset, lambda _key: True))  # what was armed elsewhere

    def _reset(self, scheduler: int) -> None:
        """A new session: the scheduler is another process, or has other partitions. It has no retry timers of this shard."""
        slots = self._slot_map
        self._feed(partial(self._core.delivery.scheduler_reset, lambda key: slots.scheduler(partition_of(key)) == scheduler))
        self._look()

    def receive(self, records: list[Any]) -> None:
        """Timers that are due."""
        for record in records:
            if isinstance(record, wire.Due):
                self._feed(partial(self._core.delivery.due, record.keys, self._now_ms()))
            else:
                for observer in self._observers:
                    observer.fired(record.timers)
                self._feed(partial(self._core.fire, record.timers, self._now_ms()))
