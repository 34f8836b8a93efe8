"""A queue that several tenants share: each gets the same part of the service, in its own order of arrival.

Start-time fair queueing (Goyal, Vin, Cheng 1996). An item starts where the one before it of its tenant ends, or now, when its tenant has
none waiting; "now" is the start of the item that was taken last, and an item ends `cost` behind its start. The item that starts first is
taken. So a tenant with many items waits for its own, and one with few waits for one item of each other tenant.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from msgspec import Struct

Key = TypeVar("Key", bound=Hashable)
LaneItem = TypeVar("LaneItem")

_STALE_MAX: Final = 16


class _Tenant(Struct, Generic[Key, LaneItem]):
    """What waits of one tenant: (start, item) by key, in order; and where its last item ends."""

    items: OrderedDict[Key, tuple[float, LaneItem]]
    end: float


class FairLane(Generic[Key, LaneItem]):
    """The items of all tenants that wait. A tenant without one costs nothing."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[Key, LaneItem]] = {}
        self._tenant_of: dict[Key, str] = {}
        self._heads: list[tuple[float, int, str, Key]] = []  # a heap of each tenant's first item; stale entries are skipped
        self._pushed = 0
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._tenant_of

    def append(self, tenant: str, key: Key, item: LaneItem, cost: float = 1.0) -> None:
        """Let an item wait. `cost`: of serving it, in any unit; `key` is not waiting yet."""
        waiting = self._tenants.get(tenant)
        if waiting is None:
            waiting = self._tenants[tenant] = _Tenant(OrderedDict(), self._now)
        start = max(waiting.end, self._now)
        waiting.end = start + cost
        waiting.items[key] = (start, item)
        self._tenant_of[key] = tenant
        if len(waiting.items) == 1:
            self._push(tenant, key, start)

    def pop(self, key: Key) -> LaneItem | None:
        """Take this item out of its order; None when it does not wait."""
        tenant = self._tenant_of.pop(key, None)
        if tenant is None:
            return None
        items = self._tenants[tenant].items
        was_first = next(iter(items)) == key
        _, item = items.pop(key)
        if not items:
            del self._tenants[tenant]
        elif was_first:
            first, (start, _) = next(iter(items.items()))
            self._push(tenant, first, start)
        if not self._tenants:
            self._heads.clear()  # what is left is stale
        return item

    def pop_next(self) -> tuple[Key, LaneItem]:
        """Take the item whose turn it is. Raises IndexError when none waits."""
        while True:
            start, _, tenant, key = heapq.heappop(self._heads)
            if self._is_first(tenant, key):
                self._now = max(self._now, start)
                item = self.pop(key)
                assert item is not None, "its key is in the lane"
                return key, item

    def _push(self, tenant: str, key: Key, start: float) -> None:
        self._pushed += 1
        heapq.heappush(self._heads, (start, self._pushed, tenant, key))
        if len(self._heads) > 2 * len(self._tenants) + _STALE_MAX:  # of a lane that is never served, whose items are taken out
            self._heads = [head for head in self._heads if self._is_first(*head[2:])]
            heapq.heapify(self._heads)

    def _is_first(self, tenant: str, key: Key) -> bool:
        waiting = self._tenants.get(tenant)
        return waiting is not None and next(iter(waiting.items)) == key

    def first_of(self, tenant: str) -> LaneItem | None:
        """The item of this tenant that has waited longest."""
        waiting = self._tenants.get(tenant)
        return None if waiting is None else next(iter(waiting.items.values()))[1]

    def in_order(self) -> Iterator[Iterator[tuple[Key, LaneItem]]]:
        """What waits, tenant by tenant, each in its order of arrival. The lane must not change meanwhile."""
        for waiting in self._tenants.values():
            yield ((key, item) for key, (_, item) in waiting.items.items())
