"""Which faults strike, and when: a function of the seed and of the set of classes that are switched on.

Every class draws from a random source of its own, so switching one class off leaves the draws of the others as they were. That is
what makes a failing run small: replay it without a class, and keep it off when the failure stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

CLASSES: Final = {
    "crash-shard": "a shard's process is killed and restarted",
    "crash-scheduler": "a scheduler's process is killed and restarted",
    "crash-edge": "an edge's process is killed and restarted",
    "crash-again": "a process is killed, and so are its successors, while they recover",
    "crash-node": "several processes are killed at one moment, as when their machine dies",
    "zombie": "a process stops, a successor takes over, then the old one wakes up and goes on",
    "split": "a successor takes over while the old one runs and some still talk to it",
    "stall": "a process stops for a while (SIGSTOP, SIGCONT)",
    "storage-slow": "storage answers late",
    "storage-refuse": "storage refuses connections for a while",
    "storage-cut": "a connection to storage breaks before, between or after its commands were applied",
    "storage-forgets": "storage forgets its scripts between two commands, as after a restart",
    "storage-migrates": "the hash slot of one of two stores migrates: its node refuses scripts, and commands on keys that have left",
    "storage-stuck": "storage hangs: what was sent applies later, when its sender has given up",
    "call-lost": "a call between actors fails before or after it ran",
    "call-hangs": "a call or its reply vanishes without an error",
    "call-slow": "calls take so long that others overtake them",
    "partition": "two parties (actors, Redis, Ray's control service, clients) cannot reach each other for a while, both ways or one",
    "cut-host": "a host cannot reach the others for a while, both ways or one; Ray may give it up",
    "crash-controller": "the controller's process is killed and restarted",
    "move": "slots move from one shard to another",
    "client-silent": "a client vanishes without closing its connection",
    "client-slow": "a client acknowledges late, or not at all",
    "client-cursor": "a client resumes with an old, future or foreign cursor",
    "clock-step": "the wall clock is set forward or back",
    "scale-shards": "the number of shards changes",
    "upgrade": "every process that runs is replaced by the next one, after its slots, partitions or clients have moved",
    "scale-schedulers": "the number of schedulers changes, and the controller may die meanwhile",
}


class Faults:
    """The faults of one run.

    Args:
        enabled: classes that may strike.
        last_step: none strikes after it.
    """

    def __init__(self, seed: int, enabled: frozenset[str], last_step: int, step: Callable[[], int], tell: Callable[[str], None]) -> None:
        self._rngs = {name: Random(f"{seed}:{name}") for name in CLASSES}
        self._enabled = enabled
        self._last_step = last_step
        self._step = step
        self._tell = tell
        self.healed = False
        self.struck: Counter[str] = Counter()

    def rng(self, name: str) -> Random:
        return self._rngs[name]

    def strikes(self, name: str, chance: float) -> bool:
        drawn = self._rngs[name].random() < chance
        if not drawn or self.healed or name not in self._enabled or self._step() > self._last_step:
            return False
        self.struck[name] += 1
        return True

    def happens(self, name: str, what: str) -> None:
        """Note what struck, for the trace."""
        self._tell(f"FAULT {name}: {what}")
