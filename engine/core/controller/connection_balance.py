"""How many connections each edge gives away when another edge joins. Pure: counts and the time go in, numbers to release come out.

Connections stay at their edge for days, so an edge that joins would serve new clients only. Nobody can send a client to a certain edge:
the kernel, or the load balancer, chooses. So an edge with many releases what it has above the mean; some of these come back to it, and
the others go elsewhere.

    even        nothing is done. An edge process that was not there before begins `spreading`
    spreading   edges with more than the mean, by a quarter of it and by `uneven_min`, release the difference; then nobody releases
                anything until the clients are back. After `_ROUNDS_MAX` rounds, or as soon as no edge has that much more, `even`.
                While an edge does not answer, its connections are not known, and it stays `spreading`

A load balancer that always sends a client to the same edge makes the rounds useless. Therefore their number is bounded. A new controller
begins with `spreading`: its predecessor may have died between two rounds. Long polls are not counted: each ends within seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_UNEVEN: Final = 1.25
"""Times the mean that an edge must have before it releases connections."""

_ROUNDS_MAX: Final = 8
"""With two edges, of which one is new, each round halves the difference."""

_RETURN_MS: Final = 10_000
"""Time after a release until its clients count at other edges: they reconnect, and a round of the controller counts them."""


class ConnectionBalance:
    """The policy.

    Args:
        per_s: connections that an edge releases in a second.
        uneven_min: connections above the mean that are worth a round.
    """

    def __init__(self, per_s: int, uneven_min: int) -> None:
        self._per_s = per_s
        self._uneven_min = uneven_min
        self._known: dict[int, Any] = {}  # by edge, its process when it served last
        self._rounds = 0  # that are left
        self._after_ms = 0.0  # no round before

    def observe(self, counts: Mapping[int, int], processes: Mapping[int, Any], now_ms: float, *, silent: int = 0) -> dict[int, int]:
        """The connections to release, by edge; empty when there is nothing to do.

        Args:
            counts: connections of each edge that serves.
            processes: of the same edges, another value after each start.
            now_ms: milliseconds that never step.
            silent: edges that are to serve and did not answer.
        """
        if any(self._known.get(edge) != process for edge, process in processes.items()):
            self._rounds = _ROUNDS_MAX
        self._known.update(processes)
        if not self._rounds or now_ms < self._after_ms:
            return {}
        mean = sum(counts.values()) / max(len(counts), 1)
        surplus = {edge: count - int(mean) for edge, count in counts.items() if count > _UNEVEN * mean and count >= mean + self._uneven_min}
        if surplus:
            self._rounds -= 1
            self._after_ms = now_ms + max(surplus.values()) * 1000 // self._per_s + _RETURN_MS
        elif not silent:
            self._rounds = 0
        return surplus
