"""What became of the messages of each tenant, in a shard: plain integers, which the hot paths add to.

A mailbox has the tally of its tenant, so counting is one addition. Tenants are bounded in number (`BoundedNames`); those without a place
share a tally.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from engine.core.model.bounded_names import BoundedNames
from engine.core.model.routing import split_key
from engine.core.wire.records import TRANSPORTS

TallyRows = list[tuple[str | int, ...]]
"""Labels, and a number behind them."""

COUNTED: Final = ("acknowledged", "expired", "trimmed", "dead_lettered", "suppressed", "deferred", "digested", "inboxed", "step_skipped")
"""Counted by tenant alone; sends also by transport."""


class Tally:
    """The messages of one tenant since the start of the shard.

    Attributes:
        sent: first sends to connections, by their kind (`engine.core.wire.records.TRANSPORTS`).
        repeated: further sends, likewise.
    """

    __slots__ = (*COUNTED, "repeated", "sent")

    def __init__(self) -> None:
        self.sent = [0] * len(TRANSPORTS)
        self.repeated = [0] * len(TRANSPORTS)
        self.acknowledged = 0
        self.expired = 0
        self.trimmed = 0
        self.dead_lettered = 0
        self.suppressed = 0
        self.deferred = 0
        self.digested = 0
        self.inboxed = 0
        self.step_skipped = 0

    def add(self, event: str, count: int = 1) -> None:
        """Count an event of `COUNTED`, where it is not on a hot path."""
        setattr(self, event, getattr(self, event) + count)


UNCOUNTED: Final = Tally()
"""Of mailboxes that belong to no shard. Nobody reads it."""


class Tallies:
    """The tallies of one shard."""

    __slots__ = ("_names", "_tallies")

    def __init__(self, names: BoundedNames | None = None) -> None:
        self._names = BoundedNames() if names is None else names
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)

    def of(self, key: str) -> Tally:
        """The tally of the tenant whose mailbox this is."""
        tenant = split_key(key)[0]
        return self._tallies.get(tenant) or self._tallies[self._names.of(tenant)]

    def rows(self) -> dict[str, TallyRows]:
        """By what is counted: (tenant, number), of sends (tenant, transport, number). Without what was never counted."""
        found: dict[str, TallyRows] = {}
        for tenant, tally in self._tallies.items():
            for name in ("sent", "repeated"):
                by_transport = dict.fromkeys(TRANSPORTS, 0)
                for transport, count in zip(TRANSPORTS, getattr(tally, name), strict=True):
                    by_transport[transport] += count
                found.setdefault(name, []).extend((tenant, transport, count) for transport, count in by_transport.items() if count)
            for name in COUNTED:
                if count := getattr(tally, name):
                    found.setdefault(name, []).append((tenant, count))
        return found
