"""Which transport is tried next: pure, without I/O, clock or random source. The browser client steps alike (`static/client`).

The ladder has the transports of a client, best first; it stands on one, the *current*. It is told how each attempt ended:

    opened           stays, also when that link is lost later: what got through will again
    unreachable      no connection at all: back to the best one, there is no reason to step down
    busy             429, or 503 with Retry-After: an engine that wants to be left alone for a while, on any transport: stays
    blocked          silence, a reset, another 5xx: the path, or the engine behind it. The next transport, and after the last one the
                     first; but a WebSocket is tried again unless there was silence, as a restart looks the same
    refused          another 4xx than 401: a proxy does not let it through, or the engine takes no such client. The next one that has
                     not been refused since a link was open; when all have been, the client is given up

A step to the next transport is made at once, a further round after the delay of the session, so that a client behind a proxy that
passes no WebSockets is connected within a second or two.

While a link other than the best is open, the better ones are tried beside it after `upgrade_after_s`, and again after twice that, up to
ten minutes; the interval begins anew when the best one is open. It goes on over the ends of links: one that is cut each minute is no
reason to stay with it. An attempt that the end of its link interrupts counts as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.client.links.transport_link import LinkEnded
from engine.client.protocol import TRANSPORTS, Transport

WEBSOCKET_ATTEMPTS: Final = 2
UPGRADE_MAX_S: Final = 600.0
UPGRADE_JITTER: Final = 0.3
BUSY: Final = frozenset({408, 425, 429, 503})


class TransportLadder:
    """Where one client stands.

    Args:
        transports: those that may be used, best first.
        upgrade_after_s: when a better one than the current is tried for the first time.

    Raises:
        ValueError: no transport, an unknown one, or one twice.
    """

    def __init__(self, transports: Sequence[Transport] = TRANSPORTS, upgrade_after_s: float = 60.0) -> None:
        if isinstance(transports, str) or not transports or len(set(transports)) < len(transports) or set(transports) - set(TRANSPORTS):
            raise ValueError(f"transports: some of {', '.join(TRANSPORTS)}, each once, best first; these are {transports!r}")
        if not upgrade_after_s > 0:
            raise ValueError(f"upgrade_after_s: more than 0, not {upgrade_after_s!r}")
        self._transports = tuple(transports)
        self._upgrade_after_s = upgrade_after_s
        self._upgrade_s = upgrade_after_s
        self._upgrade_at_s: float | None = None  # on the clock of `upgrade_in_s`; None when it has not been asked since the last attempt
        self._rung = 0
        self._websocket_failures = 0
        self._refused: set[Transport] = set()

    @property
    def current(self) -> Transport:
        """The one to try next, or that is open."""
        return self._transports[self._rung]

    @property
    def exhausted(self) -> bool:
        """Every transport has been refused since a link was open."""
        return len(self._refused) == len(self._transports)

    @property
    def size(self) -> int:
        return len(self._transports)

    def better(self, transport: Transport) -> tuple[Transport, ...]:
        """Those above this one, best first."""
        return self._transports[: self._transports.index(transport)]

    def opened(self, transport: Transport) -> None:
        """A link has shown that messages come over it."""
        self._rung = self._transports.index(transport)
        self._refused.clear()
        if transport == "websocket":
            self._websocket_failures = 0
        if self._rung == 0:
            self._upgrade_s = self._upgrade_after_s
            self._upgrade_at_s = None

    def failed(self, end: LinkEnded) -> bool:
        """The current transport could not be opened. Returns whether the next one is to be tried at once."""
        before, transport = self._rung, self.current
        busy = end.status in BUSY and (end.status != 503 or end.retry_after_s is not None)
        if not end.reached:
            self._rung = 0
            self._websocket_failures = WEBSOCKET_ATTEMPTS - 1
        elif 400 <= end.status < 500 and not busy:
            self._refused.add(transport)
            if not self.exhausted:
                self._step()
        elif not busy:
            if transport == "websocket":
                self._websocket_failures += WEBSOCKET_ATTEMPTS if end.silent else 1
            if transport != "websocket" or self._websocket_failures >= WEBSOCKET_ATTEMPTS:
                self._step()
        return self._rung > before

    def _step(self) -> None:
        """To the next one that has not been refused, in turn."""
        self._rung = (self._rung + 1) % len(self._transports)
        while self.current in self._refused:
            self._rung = (self._rung + 1) % len(self._transports)

    def upgrade_in_s(self, now_s: float, random: float) -> float:
        """After how long the better ones are to be tried. Clients that fell back together do not come back together.

        Args:
            now_s: of any clock that is not set back, always the same.
            random: uniformly distributed in [0, 1).
        """
        if self._upgrade_at_s is None:
            self._upgrade_at_s = now_s + self._upgrade_s * (1 + UPGRADE_JITTER * (2 * random - 1))
        return max(0.0, self._upgrade_at_s - now_s)

    def upgrade_tried(self) -> None:
        """The better ones are being tried now: unless the best one opens, again after twice as long."""
        self._upgrade_s = min(self._upgrade_s * 2, UPGRADE_MAX_S)
        self._upgrade_at_s = None
