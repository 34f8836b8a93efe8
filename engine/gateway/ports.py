"""What a gateway gets from its process: time, ids and links. An actor passes the real ones, the simulator and tests their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct


class EdgeContext(NamedTuple):
    """The identity of one edge process, and its sources of time and ids.

    Args:
        incarnation: unique among all edges and their restarts; connection names start with it.
        wall_ms: returns milliseconds since the epoch; may step.
        clock: returns milliseconds that never step.
        new_id: returns a new UUID, for messages.
        new_timer_name: returns a new unguessable text, for `engine.core.model.routing.timer_id`.
    """

    incarnation: str
    wall_ms: Callable[[], int]
    clock: Callable[[], int]
    new_id: Callable[[], str]
    new_timer_name: Callable[[], str]


class PeerLinks(Protocol):
    """The links of one edge to every shard and scheduler (`engine.actors.edge_links.EdgeLinks`).

    A record may be dropped when a link session ends; `Gateway.shard_reset` or `Gateway.scheduler_reset` follows then.
    """

    def send_shard(self, index: int, record: Struct, eager: bool, /) -> None:
        """Send a record of a connection to its shard `index`. Not `eager`: it may wait for the next batch."""

    def ask_shard(self, index: int, records: Sequence[Struct], /) -> None:
        """Send requests to shard `index`."""

    def ask_scheduler(self, index: int, records: Sequence[Struct], /) -> None:
        """Send requests to scheduler `index`."""

    def need_slots(self, server: int, version: int, /) -> None:
        """A peer speaks of this version of its server's slot map, which it may be about to store: read it and call `Gateway.set_slots`.

        Called again for as long as something waits for it: what was refused is sent again, and refused again."""
