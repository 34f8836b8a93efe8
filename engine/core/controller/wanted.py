"""How many actors of each role an engine is to have, and whether its shards are to share the slots anew."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Sharing = Literal["", "even", "load"]
"""How slots are moved: not; until all shards have as many; until all are as busy."""


class WantedNumbers(Struct, frozen=True):
    """What the controller brings about. It is kept in storage, for the controller's successor.

    Attributes:
        sharing: what moving slots is still to reach; "" once it is reached.
        by: who wanted it.
        at_ms: when, wall clock.
    """

    shards: int
    schedulers: int
    edges: int
    sharing: Sharing = ""
    by: str = ""
    at_ms: int = 0
