"""Frames that a feature shows to users without a message: they are neither numbered nor stored, and a crash loses them.

    edge --Show--> shard of the user --Shown--> edges of its connections --on_transient--> clients

    of a shard:  free --`show`--> under way --its answer, or a new link session--> free

One `Show` is under way to each shard. A feature asks `shard_of` before it makes a frame. While the shard is slow, the feature waits and
joins what it has, so nothing queues up here or on the link. A frame is lost when the link session ends, the slot moves, or the client has
not taken what was written before. So a feature's frames must tell a client what it lacks, and the client must be able to ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engine.core.model.formats import TRANSIENT
from engine.core.model.routing import NOBODY, RoutingTable
from engine.core.wire.records import UPGRADING, UPGRADING_RETRY_MS, Show
from engine.errors import Unavailable
from engine.gateway.ports import PeerLinks


class TransientFrames:
    """Of one edge.

    Args:
        slots: returns who owns what by now.
    """

    def __init__(self, slots: Callable[[], RoutingTable], links: PeerLinks) -> None:
        self._slots = slots
        self._links = links
        self._under_way: set[int] = set()

    def check(self) -> None:
        """Raises Unavailable while a process of an earlier version may run, which does not read `Show`."""
        if self._slots().formats < TRANSIENT:
            raise Unavailable(UPGRADING, UPGRADING_RETRY_MS)

    def shard_of(self, key: str) -> int:
        """The shard that takes a frame for this user now; NOBODY: none does, ask again later."""
        shard = self._slots().owner(key)
        return NOBODY if shard in self._under_way else shard

    def show(self, kind: str, by_shard: Mapping[int, Sequence[tuple[str, bytes]]]) -> None:
        """Send frames, (mailbox key, JSON object with `type`), to shards that `shard_of` named since the last call."""
        for shard, frames in by_shard.items():
            self._under_way.add(shard)
            self._links.send_shard(shard, Show(kind, list(frames)), True)

    def answered(self, shard: int) -> None:
        """The shard has answered, or a new session with it begins."""
        self._under_way.discard(shard)
