"""Who cannot reach whom: partitions between any two parties, and between hosts, in either direction, several at once.

A party is an actor, Redis, Ray's control service, or a client; each is on a host. A way from one to the other is cut while a cut names the
two parties or their two hosts. A cut may concern one carrier only, as a firewall does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

REDIS: Final = "redis"
SECOND_REDIS: Final = "redis-2"
RAY: Final = "ray"
CONTROLLER: Final = "controller"
OUTSIDE: Final = "outside"
"""The host of clients and publishers."""

TCP: Final = "tcp"
CALLS: Final = "calls"


class Place(NamedTuple):
    """A party and its host."""

    name: str
    host: str


class Cuts:
    """See the module's text. Times are those of the loop, in seconds."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until: dict[tuple[str, str, str], float] = {}  # (from, to, carrier or "" for all)

    def cut(self, senders: Iterable[str], receivers: Iterable[str], seconds: float, carrier: str = "") -> None:
        """Nothing that these parties or hosts send reaches those."""
        until_s, receivers = self._now_s() + seconds, list(receivers)
        for sender in senders:
            for receiver in receivers:
                if sender != receiver:
                    self._until[sender, receiver, carrier] = max(until_s, self._until.get((sender, receiver, carrier), 0.0))

    def heal(self) -> None:
        now_s = self._now_s()
        self._until = {way: min(until_s, now_s) for way, until_s in self._until.items()}

    def open_at(self, sender: Place, receiver: Place, carrier: str = "") -> float:
        """Since when the way is open, or from when on it will be."""
        until = self._until
        if not until:
            return 0.0
        by_name, by_host = (sender.name, receiver.name), (sender.host, receiver.host)
        whole = max(until.get((*by_name, ""), 0.0), until.get((*by_host, ""), 0.0))
        return max(whole, until.get((*by_name, carrier), 0.0), until.get((*by_host, carrier), 0.0)) if carrier else whole

    def is_cut(self, sender: Place, receiver: Place, carrier: str = "") -> bool:
        return bool(self._until) and self.open_at(sender, receiver, carrier) > self._now_s()

    def both_open_at(self, one: Place, other: Place, carrier: str = "") -> float:
        """The same for both directions together."""
        return max(self.open_at(one, other, carrier), self.open_at(other, one, carrier))
