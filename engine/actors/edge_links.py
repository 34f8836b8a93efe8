"""An edge's links to every shard and scheduler, and the slot maps that route users to shards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import redis.asyncio as redis
from msgspec import Struct

from engine.actors.actor_process import REAL, RETRY_S, USERS_RETRY_S, ProcessContext
from engine.actors.link import LinkCaller
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config
from engine.core.model.period import until_next
from engine.core.model.routing import RoutingTable, SlotMap
from engine.core.wire import records as wire
from engine.core.wire.pacing import CallBudget
from engine.errors import StorageUnavailable
from engine.gateway.gateway import Gateway
from engine.store.slot_map import require_slot_map

log = logging.getLogger(__name__)

_SLOTS_POLL_S: Final = 1.0
"""How often the slot map is read without a reason. What changes it waits so long for every edge to know."""

_SLOTS_CLOSE_S: Final = 0.05
"""How often while the link to a shard is down: others may have got its slots."""

_SLOTS_WAIT_S: Final = 0.01
"""Before the slot map is read again that a peer is about to change, doubled each time up to `RETRY_S`: users wait for it."""


class EdgeLinks:
    """The links of one edge.

    Args:
        clients: of the stores, each of which has a slot map; while one is away, those of the others are followed.
    """

    def __init__(
        self, config: Config, credentials: LinkCredentials, clients: Sequence[redis.Redis], context: ProcessContext = REAL
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._clients = clients
        self._context = context
        self._name = f"{credentials.name}/{context.session_name()}"  # of this process
        self._slots_wanted = [asyncio.Event() for _ in clients]
        self._versions_wanted = [0] * len(clients)
        self._budget = CallBudget(config.link_calls_share)
        self.links: dict[str, LinkCaller] = {}  # by name of the actor
        self._shards: list[LinkCaller] = []
        self._schedulers: list[LinkCaller] = []
        self._runs: dict[LinkCaller, asyncio.Task[None]] = {}

    @property
    def calls(self) -> int:
        """Exchanges made by all of them."""
        return sum(link.calls for link in self.links.values())

    def carriers(self) -> dict[str, str]:
        """See LinkCaller.carrier, by name of the actor."""
        return {name: link.carrier for name, link in self.links.items()}

    def send_shard(self, index: int, record: Struct, eager: bool) -> None:
        """See LinkCaller.send. For a shard that the slot map has no more it is dropped: its connections are announced elsewhere."""
        if index < len(self._shards):
            self._shards[index].send(record, eager=eager)

    def ask_shard(self, index: int, records: Sequence[Struct]) -> None:
        """See LinkCaller.send_all."""
        self._shards[index].send_all(records)

    def ask_scheduler(self, index: int, records: Sequence[Struct]) -> None:
        """See LinkCaller.send_all."""
        self._schedulers[index].send_all(records)

    def need_slots(self, store: int, version: int) -> None:
        """A peer waits for this version of the store's slot map: read it."""
        self._versions_wanted[store] = max(self._versions_wanted[store], version)
        self._slots_wanted[store].set()

    async def run(self, gateway: Gateway) -> None:
        """Keep a link open to every shard and scheduler of the newest slot maps. Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._add_links(tasks, gateway, gateway.slots)
            for store in range(len(self._clients)):
                tasks.create_task(self._follow(store, tasks, gateway))

    async def _follow(self, store: int, tasks: asyncio.TaskGroup, gateway: Gateway) -> None:
        wanted, now_s = self._slots_wanted[store], asyncio.get_running_loop().time
        while True:
            await self._read_slots(store, tasks, gateway)
            pause_s = until_next(now_s(), _SLOTS_POLL_S) if all(link.open for link in self._shards) else _SLOTS_CLOSE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await wanted.wait()

    def _look(self) -> None:
        """The slot maps may change soon: read them."""
        for wanted in self._slots_wanted:
            wanted.set()

    async def _read_slots(self, store: int, tasks: asyncio.TaskGroup, gateway: Gateway) -> None:
        """Read a store's slot map, again and again while peers speak of a newer one. One that died before it stored that does not."""
        pause_s = _SLOTS_WAIT_S
        while True:
            asked = self._slots_wanted[store].is_set()
            self._slots_wanted[store].clear()
            try:
                slot_map = await require_slot_map(self._clients[store])
            except StorageUnavailable as error:
                log.warning("%s keeps its slot map: %s", self._credentials.name, error)
                pause_s = USERS_RETRY_S
            else:
                self._add_links(tasks, gateway, slot_map)
                gateway.set_slots(slot_map)
                self._drop_links(gateway)
                if slot_map.version >= self._versions_wanted[store] or (pause_s == RETRY_S and not asked):
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S)

    def _add_links(self, tasks: asyncio.TaskGroup, gateway: Gateway, slots: SlotMap | RoutingTable) -> None:
        for shard in range(len(self._shards), slots.shards):
            self._begin(
                tasks,
                self._shards,
                f"shard-{shard}",
                wire.from_shard,
                on_records=partial(gateway.from_shard, shard),
                on_reset=partial(gateway.shard_reset, shard),
                on_open=partial(gateway.shard_answers, shard),
                on_end=self._look,
            )
        for scheduler in range(len(self._schedulers), slots.schedulers):
            self._begin(
                tasks,
                self._schedulers,
                f"scheduler-{scheduler}",
                wire.scheduler_to_edge,
                on_records=partial(gateway.from_scheduler, scheduler),
                on_reset=partial(gateway.scheduler_reset, scheduler),
                pacing_ms=self._config.link_timer_pacing_ms,
            )

    def _begin(self, tasks: asyncio.TaskGroup, links: list[LinkCaller], name: str, decoder: Any, **rest: Any) -> None:
        peer, budget = self._context.peer(name, self._credentials), self._budget
        link = LinkCaller(peer, self._name, decoder, self._config, budget=budget, context=self._context, **rest)
        self.links[name] = link
        links.append(link)
        self._runs[link] = tasks.create_task(link.run())

    def _drop_links(self, gateway: Gateway) -> None:
        """Close the links to actors that the slot map has no more. What they, and dead shards, have not answered goes to others."""
        for name, links, count in (
            ("shard", self._shards, gateway.slots.shards),
            ("scheduler", self._schedulers, gateway.slots.schedulers),
        ):
            while len(links) > count:
                self._runs.pop(links.pop()).cancel()
                del self.links[f"{name}-{len(links)}"]
                gateway.peer_gone(len(links) if name == "shard" else ~len(links))
        owners = set(gateway.slots.owners)
        for shard, link in enumerate(self._shards):
            if not link.open and shard not in owners:  # it is dead, and will not answer that its users have moved
                gateway.peer_gone(shard)
