"""A spare process on every node that has users: started, without an actor, with the modules of shards and edges imported.

A shard or edge that is killed is a new process. Python and Ray take 0.7 s of CPU to start, the modules 0.4 and 0.7 s, and on a busy machine
both take several times as long. Ray gives an actor an idle process of its node before it starts one, and keeps as many idle ones as there
are free CPUs. It has no call that starts one; but an actor that is ended before its process is up leaves it idle, for actors of the same
job. The process imports what these need (`engine.actors.spare_process`), and ends when its code was replaced meanwhile
(`engine.actors.loaded_code`).

States of a node; the owner is the controller in control, which keeps them in memory
    bare    an actor's process has started on it since its spare was asked for, and may have taken that; a node that is new here is bare. It
            stays bare when Ray could not start one, and has another turn after the other bare nodes
    warm    none has

Crash points. The controller dies after it asked for a spare: Ray ends the actor with it, and the process stays. Its successor takes all
nodes for bare: where there is a spare, the actor that was to be ended before it is up gets that one and ends it, and a second one leaves
another. Ray ends the spare when tasks take all CPUs of the node, or when `engine up`, whose job it is of, has ended: the next actor starts
as it would without, and the node gets another after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

EVERY_MS: Final = 5_000
"""Between two spares: each takes a second of CPU, and actors that end again and again would take one after the other."""

_ROLES: Final = ("shard", "edge")
"""A node that has one of these has users who wait for it."""


_Process = tuple[str, int, int]
"""Role, index and start of an actor's."""


class Placeholder:
    """The actor that is ended before its process is up."""

    async def up(self) -> None:
        """Returns when there was an idle process for it."""


class Spares:
    """Which node is to have a spare next.

    Args:
        clock: monotonic milliseconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._warm: dict[str, set[_Process]] = {}  # by node: the processes it had when its spare was asked for
        self._asked: tuple[str, set[_Process]] = ("", set())  # the last node, and what `_warm` gets when Ray has done so
        self._asked_ms: dict[str, float] = {}  # by node
        self._at_ms = clock()

    def bare(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """A node without a spare, by the `stats` of all actors; "" when there is none, or it is too early for another.

        Ask for one there, and call `asked` when that worked, before the next call.
        """
        if self._clock() - self._at_ms < EVERY_MS:
            return ""
        processes: dict[str, set[_Process]] = {}
        users = set()
        for row in rows:
            if node := str(row.get("node_id", "")):
                processes.setdefault(node, set()).add((row["role"], row["index"], row["started_ms"]))
                if row["role"] in _ROLES:
                    users.add(node)
        self._warm = {node: had for node, had in self._warm.items() if node in users}
        self._asked_ms = {node: at_ms for node, at_ms in self._asked_ms.items() if node in users}
        bare = [node for node in users if not processes[node] <= self._warm.get(node, set())]
        if not bare:
            return ""
        node = min(bare, key=lambda node: (self._asked_ms.get(node, -1), node))
        self._at_ms = self._asked_ms[node] = self._clock()
        self._asked = node, processes[node]
        return node

    def asked(self) -> None:
        """Ray was asked for a spare on the node that `bare` returned last: it is warm."""
        node, processes = self._asked
        self._warm[node] = processes
