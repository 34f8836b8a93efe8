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

from engine.actors.actor_process import REAL, RETRY_S, ProcessContext
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
"""How often the slot map is read without a reason: one read of about 3 KiB. What changes it waits so long for every edge to know."""

_SLOTS_WAIT_S: Final = 0.01
"""Before the slot map is read again that a peer is about to change, doubled each time up to `RETRY_S`: users wait for it."""


class EdgeLinks:
    """The links of one edge.

    Args:
        credentials: of the edge.
        clients: of the Redis servers, each of which has a slot map; while one is away, those of the others are followed.
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

    def need_slots(self, server: int, version: int) -> None:
        """A peer waits for this version of the server's slot map: read it."""
        self._versions_wanted[server] = max(self._versions_wanted[server], version)
        self._slots_wanted[server].set()

    async def run(self, gateway: Gateway) -> None:
        """Keep a link open to every shard and scheduler of the newest slot maps. Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._add_links(tasks, gateway, gateway.slots)
            for server in range(len(self._clients)):
                tasks.create_task(self._follow(server, tasks, gateway))

    async def _follow(self, server: int, tasks: asyncio.TaskGroup, gateway: Gateway) -> None:
        wanted = self._slots_wanted[server]
        while True:
            await self._read_slots(server, tasks, gateway)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_next(asyncio.get_running_loop().time(), _SLOTS_POLL_S)):
                    await wanted.wait()

    async def _read_slots(self, server: int, tasks: asyncio.TaskGroup, gateway: Gateway) -> None:
        """Read a server's slot map, again and again while peers speak of a newer one. One that died before it stored that does not."""
        pause_s = _SLOTS_WAIT_S
        while True:
            asked = self._slots_wanted[server].is_set()
            self._slots_wanted[server].clear()
            try:
                slot_map = await require_slot_map(self._clients[server])
            except StorageUnavailable as error:
                log.warning("%s keeps its slot map: %s", self._credentials.name, error)
                pause_s = RETRY_S
            else:
                self._add_links(tasks, gateway, slot_map)
                gateway.set_slots(slot_map)
                self._drop_links(gateway)
                if slot_map.version >= self._versions_wanted[server] or (pause_s == RETRY_S and not asked):
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S)

    def _add_links(self, tasks: asyncio.TaskGroup, gateway: Gateway, slots: SlotMap | RoutingTable) -> None:
        config = self._config
        for shard in range(len(self._shards), slots.shards):
            on_records, on_reset = partial(gateway.from_shard, shard), partial(gateway.shard_reset, shard)
            on_open = partial(gateway.shard_answers, shard)
            link = self._link(f"shard-{shard}", wire.from_shard, on_records, on_reset, config.link_pacing_ms, on_open)
            self._begin(tasks, self._shards, link)
        for scheduler in range(len(self._schedulers), slots.schedulers):
            on_records, on_reset = partial(gateway.from_scheduler, scheduler), partial(gateway.scheduler_reset, scheduler)
            name, pacing_ms = f"scheduler-{scheduler}", config.link_timer_pacing_ms
            link = self._link(name, wire.scheduler_to_edge, on_records, on_reset, pacing_ms)
            self._begin(tasks, self._schedulers, link)

    def _begin(self, tasks: asyncio.TaskGroup, links: list[LinkCaller], link: LinkCaller) -> None:
        links.append(link)
        self._runs[link] = tasks.create_task(link.run())

    def _drop_links(self, gateway: Gateway) -> None:
        """Close the links to actors that the slot map has no more; what they have not answered goes to those that have its users now."""
        for name, links, count in (
            ("shard", self._shards, gateway.slots.shards),
            ("scheduler", self._schedulers, gateway.slots.schedulers),
        ):
            while len(links) > count:
                self._runs.pop(links.pop()).cancel()
                del self.links[f"{name}-{len(links)}"]
                gateway.peer_gone(len(links) if name == "shard" else ~len(links))

    def _link(self, peer: str, decoder: Any, on_records: Any, on_reset: Any, pacing_ms: float, on_open: Any = lambda: None) -> LinkCaller:
        link = self.links[peer] = LinkCaller(
            self._context.peer(peer, self._credentials),
            self._name,
            decoder,
            self._config,
            on_records=on_records,
            on_reset=on_reset,
            on_open=on_open,
            budget=self._budget,
            pacing_ms=pacing_ms,
            context=self._context,
        )
        return link
