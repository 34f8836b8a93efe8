"""Counter signals (views, heat) on an edge: merged by name in memory, added to Redis in batches, each batch once.

    POST --> CounterMerge --every signals_flush_ms, or full--> Redis
                          <--no answer: the same batch again---

A signal is no message: 202 means that it is counted in the memory of this edge. A crash loses what was not added yet, of
`signals_flush_ms` at most. An edge that drains adds it first.

Limits: one batch holds `signals_names_max` different names, which tenants share (`engine.features.signals.core`), and storage holds
`tenant_signal_names_max` of one tenant. A signal whose name has no room is dropped, which the answer and a metric count; the answer names
the limit, and is a 429 when all are dropped. An edge knows a second late that a tenant is full; names that came meanwhile are dropped by
storage.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.names import is_id
from engine.core.model.period import until_next
from engine.errors import Invalid, StorageUnavailable
from engine.features.signals import description
from engine.features.signals.core import CounterMerge
from engine.features.signals.figures import METRICS
from engine.features.signals.store import CounterSums
from engine.gateway.metrics import Figures
from engine.gateway.tenant_quotas import TenantQuotas
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import RETRY_AFTER_S, bad_request, over_quota
from engine.publish import media_types

log = logging.getLogger(__name__)

AMOUNT_MAX: Final = 1_000_000_000
"""Of one signal: a sum of them reaches the end of Redis's integers in no time that matters."""


_NEW_NAMES_S: Final = 60
"""`Retry-After` for a new name of a tenant that is full: names are never removed, so an operator has to raise the quota."""


class _Signal(Struct, forbid_unknown_fields=True):
    name: str
    amount: int = 1


_SIGNALS: Final = msgspec.json.Decoder(list[_Signal] | _Signal)


class CounterSignals:
    """The signals of one edge.

    Args:
        writer: unique among all edges and their restarts.
        clock: milliseconds that never step.
        quotas: whose tenants may be full.
    """

    def __init__(self, config: Config, store: CounterSums, writer: str, clock: Callable[[], int], quotas: TenantQuotas) -> None:
        self._config = config
        self._store = store
        self._writer = writer
        self._clock = clock
        self._quotas = quotas
        self._merge = CounterMerge(config.signals_names_max, config.signals_flush_ms)
        self._counted = 0
        self._dropped = 0  # for want of room
        self._adding = asyncio.Lock()  # what stops waits for the batch that is under way, and adds the next one

    async def take(self, body: bytes, tenant: str) -> dict[str, int | str]:
        """Count the signals of a request: `{"counted": n, "dropped": n}`, with `quota` when some are dropped.

        Raises:
            Problem: 400, 413, 422, 429 or 503; then none is counted.
        """
        signals = self._read(body)
        names = {signal.name for signal in signals}
        full = self._quotas.is_full("signal_names", tenant)
        known = await self._store.known(tenant, list(names)) if full else names
        counted, quota = 0, ""
        for signal in signals:
            if signal.name not in known:
                quota = "tenant_signal_names_max"
            elif self._merge.add(tenant, signal.name, signal.amount, self._clock()):
                counted += 1
            else:
                quota = "signals_names_max"
        dropped = len(signals) - counted
        self._counted += counted
        self._dropped += dropped
        if not dropped:
            return {"counted": counted, "dropped": 0}
        if not counted:
            if quota == "signals_names_max":
                raise over_quota(quota, "this edge has as many names of this tenant's signals as it may gather at once", RETRY_AFTER_S)
            raise over_quota(quota, "this tenant has as many names of signals as it may", _NEW_NAMES_S)
        return {"counted": counted, "dropped": dropped, "quota": quota}

    def _read(self, body: bytes) -> list[_Signal]:
        found = decode_body(_SIGNALS, body, _Signal)
        signals = found if isinstance(found, list) else [found]
        if len(signals) > self._config.items_max:
            raise media_types.too_many(self._config)
        for index, signal in enumerate(signals):
            place = f"$[{index}]" if isinstance(found, list) else "$"
            if not is_id(signal.name, self._config.id_chars_max):
                raise media_types.unacceptable(Invalid(f"printable text of 1 to {self._config.id_chars_max} characters", f"{place}.name"))
            if not 0 < signal.amount <= AMOUNT_MAX:
                raise media_types.unacceptable(Invalid(f"1 to {AMOUNT_MAX}", f"{place}.amount"))
        return signals

    async def sums(self, tenant: str, names: Sequence[str]) -> dict[str, Any]:
        """The sums in storage, by name: `{"signals": {...}}`.

        Raises:
            Problem: 400 for invalid names, 503 when storage does not answer.
        """
        if not 0 < len(names) <= self._config.items_max or not all(is_id(name, self._config.id_chars_max) for name in names):
            raise bad_request(f"the query parameter `name` is needed, 1 to {self._config.items_max} times, with names of signals")
        return {"signals": dict(zip(names, await self._store.read(tenant, names), strict=True))}

    def figures(self) -> Figures:
        """See `EdgeMetrics.figures`."""
        return {"signals": [(self._counted,)], "signals_dropped": [(self._dropped,)]}

    async def run(self) -> None:
        """Add the gathered signals to storage whenever a batch is due. Runs until cancelled."""
        while True:
            await asyncio.sleep(until_next(time.monotonic(), self._config.signals_flush_ms / 1000))
            await self._add(self._clock())

    async def drain(self) -> None:
        """The edge stops: add what was gathered, if storage answers."""
        await self._add(self._clock() + self._config.signals_flush_ms)

    async def _add(self, now_ms: int) -> None:
        async with self._adding:
            while (batch := self._merge.take(now_ms)) is not None:
                try:
                    self._dropped += await self._store.add(self._writer, batch)
                except StorageUnavailable as error:
                    log.warning("signals wait for storage: %s", error)
                    self._merge.failed()
                    return
                self._merge.done()


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    gateway, config = ports.gateway, ports.config
    sums = CounterSums(ports.redis, config.tenant_signal_names_max)
    signals = CounterSignals(config, sums, gateway.incarnation, gateway.clock, gateway.tenant_quotas)
    return feature_of(ports, signals)


def feature_of(ports: EdgePorts, signals: CounterSignals) -> EdgeFeature:
    """The feature, of its parts."""
    ports.gateway.metrics.of_features.append(signals.figures)
    return EdgeFeature("signals", lambda access: table(access, signals), signals.run, signals.drain, metrics=METRICS)


def table(access: Access, signals: CounterSignals) -> EndpointTable:
    """The endpoints."""

    async def count(request: Request) -> Response:
        principal = access.authenticate(request, "publish")
        access.gateway.storage.check_room()
        return json_answer(await signals.take(await access.body(request), principal.tenant), 202)

    async def sums(request: Request) -> Response:
        principal = access.authenticate(request, "publish")
        return json_answer(await signals.sums(principal.tenant, request.query_params.getlist("name")))

    return EndpointTable([route("/v1/signals", GET=sums, POST=count)], description)
