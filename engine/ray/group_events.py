"""What happens to a tenant's users, for actors and Data pipelines: connects, disconnects, dead letters and outcomes, at least once.

    async for event in events(group="analytics"): ...           one by one, in an actor or a driver
    async for batch in event_batches(group="analytics"): ...    many at once: a list of rows for `ray.data.from_items`

The engine stores how far a group has come. States of an event in its consumer; a crash in any of them but the last brings it again, to
whoever has the group then:

    answered      in an answer of an edge
    given out     the consumer works on it, alone or in a batch
    handled       the consumer asked for the next one; the next request has its position
    acknowledged  the engine has stored that

One consumer of a group is given events at a time, in their order; others wait, and one of them goes on where it stopped: at once when it
left, 30 s after its last request when it died. It is known by its name: a process that is started anew under the same name goes on at once.
What limits memory: one answer, and one batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Struct

from engine.client.credentials import Credentials
from engine.client.retried_requests import RetriedRequests, segment, with_query
from engine.ray.edge_calls import NAMESPACE, EdgeCalls
from engine.ray.task_publisher import TENANT

_WAIT_S: Final = 20.0
"""Of one request for events: below the time for which the engine leaves a silent consumer its group."""

_ACK_S: Final = 1.0
"""Between acknowledgements while an answer is handled one by one, so that a crash repeats little."""

_PAGE: Final = 500

PAGE_MAX: Final = 1000
"""The engine's `event_page_max`."""

_LEAVE_S: Final = 2.0


class TenantEvent(Struct, frozen=True):
    """Something that happened. Absent fields are None.

    Attributes:
        event: `connect`, `disconnect`, `suspect`, `back`, `offline`, `dead_letter`; with `outcomes` also what has become of messages,
            such as `accepted`, `sent`, `acknowledged`, `expired`, as in `/v1/history`; or `gap`: events of `source` between `since` and
            `until` may have been lost to this group.
        position: of the group when this event is handled.
        at: when, ms since the epoch.
        user: whose.
        session, device, node, transport, code: of the connection, as in `session:stream`.
        letter, id, seq, type, priority, reason, attempts, action: of a dead letter, as in `/v1/dead-letters`.
        outcome: identifies an outcome, also when it comes again; `user` is "" when it is of a topic or of everyone.
        category, until_ms, rule, scheduled_id, attempt, sent, rtt_ms, client_ts, read_ms, skew_ms: of an outcome, as in `/v1/history`.
    """

    event: str
    position: str
    at: int | None = None
    user: str | None = None
    session: str | None = None
    device: str | None = None
    node: str | None = None
    transport: str | None = None
    code: int | None = None
    letter: str | None = None
    id: str | None = None
    seq: int | None = None
    type: str | None = None
    priority: str | None = None
    reason: str | None = None
    attempts: int | None = None
    action: str | None = None
    source: str | None = None
    since: str | None = None
    until: str | None = None
    outcome: str | None = None
    category: str | None = None
    until_ms: int | None = None
    rule: str | None = None
    scheduled_id: str | None = None
    attempt: int | None = None
    sent: int | None = None
    rtt_ms: int | None = None
    client_ts: int | None = None
    read_ms: int | None = None
    skew_ms: int | None = None

    def row(self) -> dict[str, Any]:
        """The fields as a row of a dataset."""
        return msgspec.structs.asdict(self)


class _Answer(Struct):
    events: list[TenantEvent]
    position: str
    held_by: str = ""


async def events(
    group: str,
    *,
    namespace: str = NAMESPACE,
    tenant: str = TENANT,
    consumer: str = "",
    begin: str = "newest",
    outcomes: bool = False,
    retry_for_s: float = 60.0,
) -> AsyncIterator[TenantEvent]:
    """The events of a tenant behind the group's position, for as long as it is iterated.

        async for event in events(group="presence-board"):
            await handle(event)  # acknowledged when the next one is asked for

    Args:
        group: 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`; made at first use. At most 16 for a tenant.
        namespace, tenant, retry_for_s: as `AsyncPublisher`.
        consumer: this consumer's name, unique in its group; a new one if left out. Give one that outlives the process, such as the name
            of an actor, so that its successor need not wait.
        begin: of a new group: `newest` for what comes, or `oldest` for everything that the engine still has.
        outcomes: give what has become of messages too, three events or so for each. The engine needs its setting `history_url`.

    Raises:
        Forbidden: the tenant is not in the engine's `ray_listen`.
        Refused: 404, no group may have this name; 409, the tenant has as many as it may, or the engine records no outcomes.
        Unreachable: no engine answered for `retry_for_s`. Iterate anew to go on.
    """
    reader = _Reader(group, namespace, tenant, consumer, begin, outcomes, retry_for_s)
    try:
        while True:
            found = await reader.poll(_PAGE, _WAIT_S)
            acked_s = time.monotonic()
            for event in found:
                yield event
                reader.position = event.position
                if time.monotonic() - acked_s > _ACK_S:
                    await reader.acknowledge()
                    acked_s = time.monotonic()
    finally:
        await reader.leave()


async def event_batches(
    group: str,
    *,
    size: int = 1000,
    within_s: float = 5.0,
    namespace: str = NAMESPACE,
    tenant: str = TENANT,
    consumer: str = "",
    begin: str = "newest",
    outcomes: bool = False,
    retry_for_s: float = 60.0,
) -> AsyncIterator[list[TenantEvent]]:
    """The same in batches, each acknowledged as a whole when the next one is asked for.

        async for batch in event_batches(group="lake"):
            ray.data.from_items([event.row() for event in batch]).write_parquet(path)

    Whoever takes longer than 30 s with a batch may lose the group, and its successor begins with that batch too.

    Args:
        size: at most, from 1 to 1000.
        within_s: how long a batch that is smaller waits for others behind its first event.
        group, namespace, tenant, consumer, begin, outcomes, retry_for_s: as `events`.

    Raises: as `events`.
    """
    if not 1 <= size <= PAGE_MAX:
        raise ValueError(f"size must be 1 to {PAGE_MAX}")
    reader = _Reader(group, namespace, tenant, consumer, begin, outcomes, retry_for_s)
    try:
        while True:
            batch = await reader.poll(size, _WAIT_S)
            if not batch:
                continue
            if len(batch) < size and within_s > 0:
                await asyncio.sleep(within_s)
                batch = await reader.poll(size, 0) or batch  # from the same position: it includes what was there before
            yield batch
            reader.position = batch[-1].position
    finally:
        await reader.leave()


class _Reader:
    """One consumer. `position`: everything up to it was handled; "" while nothing was."""

    def __init__(self, group: str, namespace: str, tenant: str, consumer: str, begin: str, outcomes: bool, retry_for_s: float) -> None:
        self._path = f"/v1/event-groups/{segment(group)}"
        self._consumer = consumer or uuid4().hex
        self._begin = {"begin": begin, "outcomes": outcomes}
        self._carrier = EdgeCalls(namespace, tenant, inflight_max=1)
        self._requests = RetriedRequests(lambda: self._carrier, Credentials(""), timeout_s=_WAIT_S + 10, retry_for_s=retry_for_s)
        self.position = ""

    async def poll(self, limit: int, wait_s: float) -> list[TenantEvent]:
        """Acknowledge, and wait for events; none when there are none, or another consumer has the group."""
        query = {"consumer": self._consumer, **self._begin, "limit": limit, "wait": f"{wait_s:g}", "position": self.position}
        found = await self._requests.fetch(_Answer, "GET", with_query(f"{self._path}/events", **query))
        if not found.events and not found.held_by:
            self.position = found.position  # behind what is not the tenant's
        return found.events

    async def acknowledge(self) -> None:
        """Store the position."""
        await self._requests.send("POST", f"{self._path}/ack", self._body(leave=False))

    async def leave(self) -> None:
        """Store the position, and let the next consumer go on. Tried once: without an answer the group is free 30 s later."""
        with contextlib.suppress(OSError):
            await self._carrier.request("POST", f"{self._path}/ack", {}, self._body(leave=True), timeout_s=_LEAVE_S)

    def _body(self, *, leave: bool) -> bytes:
        reached = {"position": self.position} if self.position else {}
        return msgspec.json.encode({"consumer": self._consumer, "leave": leave, **reached})
