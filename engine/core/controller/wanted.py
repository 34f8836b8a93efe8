"""What an engine is to be brought to: numbers of actors, slots shared anew, processes replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

Sharing = Literal["", "even", "load"]
"""How slots are moved: not; until all shards have as many; until all are as busy."""


class WantedNumbers(Struct, frozen=True):
    """What the controller brings about. It is kept in storage, for the controller's successor.

    Attributes:
        sharing: what moving slots is still to reach; "" once it is reached.
        by: who wanted it.
        at_ms: when, wall clock.
        replacing: of an upgrade: when the process started, by its own clock, that is to be replaced, by the name of its actor. An actor
            whose process started at another time has been replaced. Empty once all have.
        stopped: why the last upgrade ended before all had; "" otherwise.
    """

    shards: int
    schedulers: int
    edges: int
    sharing: Sharing = ""
    by: str = ""
    at_ms: int = 0
    replacing: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""
