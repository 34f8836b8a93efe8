"""An edge's links to every shard and scheduler, and the slot map that routes users to shards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

import redis.asyncio as redis
from msgspec import Struct

from engine.actors.actor_process import REAL, RETRY_S, ProcessContext
from engine.actors.link import LinkCaller
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config
from engine.core.wire import records as wire
from engine.core.wire.pacing import CallBudget
from engine.errors import StorageUnavailable
from engine.gateway.gateway import Gateway
from engine.store.slot_map import require_slot_map

log = logging.getLogger(__name__)

_SLOTS_POLL_S: Final = 5.0
"""How often the slot map is read without a reason: one read of about 3 KiB."""


class EdgeLinks:
    """The links of one edge.

    Args:
        credentials: of the edge.
        client: reads the slot map.
    """

    def __init__(self, config: Config, credentials: LinkCredentials, client: redis.Redis, context: ProcessContext = REAL) -> None:
        self._config = config
        self._credentials = credentials
        self._client = client
        self._context = context
        self._name = f"{credentials.name}/{context.session_name()}"  # of this process
        self._slots_wanted = asyncio.Event()
        self._budget = CallBudget(config.link_calls_share)
        self.links: dict[str, LinkCaller] = {}  # by name of the actor
        self._shards: list[LinkCaller] = []
        self._schedulers: list[LinkCaller] = []

    @property
    def calls(self) -> int:
        """Exchanges made by all of them."""
        return sum(link.calls for link in self.links.values())

    def carriers(self) -> dict[str, str]:
        """See LinkCaller.carrier, by name of the actor."""
        return {name: link.carrier for name, link in self.links.items()}

    def send_shard(self, index: int, record: Struct, eager: bool) -> None:
        """See LinkCaller.send."""
        self._shards[index].send(record, eager=eager)

    def ask_shard(self, index: int, records: Sequence[Struct]) -> None:
        """See LinkCaller.send_all."""
        self._shards[index].send_all(records)

    def ask_scheduler(self, index: int, records: Sequence[Struct]) -> None:
        """See LinkCaller.send_all."""
        self._schedulers[index].send_all(records)

    def need_slots(self, _version: int) -> None:
        """A shard has a newer slot map: read it."""
        self._slots_wanted.set()

    def tasks(self, gateway: Gateway) -> Iterable[Coroutine[Any, Any, None]]:
        """The coroutines that keep the links open and the slot map new. None returns."""
        config = self._config
        for shard in range(config.shards):
            on_records, on_reset = partial(gateway.from_shard, shard), partial(gateway.shard_reset, shard)
            on_open = partial(gateway.shard_answers, shard)
            link = self._link(f"shard-{shard}", wire.from_shard, on_records, on_reset, config.link_pacing_ms, on_open)
            self._shards.append(link)
        for scheduler in range(config.schedulers):
            on_records, on_reset = partial(gateway.from_scheduler, scheduler), partial(gateway.scheduler_reset, scheduler)
            name, pacing_ms = f"scheduler-{scheduler}", config.link_timer_pacing_ms
            link = self._link(name, wire.scheduler_to_edge, on_records, on_reset, pacing_ms)
            self._schedulers.append(link)
        return [self._follow_slots(gateway), *(link.run() for link in self.links.values())]

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

    async def _follow_slots(self, gateway: Gateway) -> None:
        """Read the slot map when a shard has a newer one, and every `_SLOTS_POLL_S`."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SLOTS_POLL_S):
                    await self._slots_wanted.wait()
            self._slots_wanted.clear()
            try:
                gateway.set_slots(await require_slot_map(self._client))
            except StorageUnavailable as error:
                log.warning("%s keeps its slot map: %s", self._credentials.name, error)
            await asyncio.sleep(RETRY_S)
