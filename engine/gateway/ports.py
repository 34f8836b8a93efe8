"""The ports of a gateway: time, ids and links, which its process gives it, and the observers of its connections."""

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


SentMessages = Sequence[tuple[int, int, bytes]]
"""(seq, attempt, body) of each."""


class TargetCall(NamedTuple):
    """One call of the target of an action, which has ended.

    Args:
        id: of the message, or of the action.
        body: of the action, JSON.
        target: as metrics name it.
        tries: with this one.
        begun_ns: since the epoch.
        error: why it failed, "" where it did not.
    """

    id: str
    tenant: str
    body: bytes
    target: str
    tries: int
    begun_ns: int
    error: str


class ConnectionObserver(Protocol):
    """A feature that is told what connections are sent and acknowledge. They are named by their ids."""

    def sent(self, connection: int, kind: int, messages: SentMessages, begun_ns: int, /) -> None:
        """These messages were written to a connection of this kind since `begun_ns`, since the epoch."""

    def acknowledged(self, connection: int, seq: int, /) -> None:
        """The client has handled everything up to `seq`."""

    def settled(self, connection: int, ids: Sequence[str], error: str = "", /) -> None:
        """The client has handled these messages, or refused them with a reason."""

    def ended(self, connection: int, /) -> None:
        """The connection has ended."""


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
