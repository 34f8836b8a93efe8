"""Spare processes on every node of a cluster that has users: started, without an actor, with the modules of shards and edges imported.

A shard or edge that is killed is a new process. Python and Ray take 0.7 s of CPU to start, the modules 0.4 and 0.7 s, and on a busy machine
both take several times as long. Ray gives an actor an idle process of its node before it starts one, and keeps as many idle ones as there
are free CPUs. It has no call that starts one; but an actor that is ended before its process is up leaves it idle, for actors of the same
job. The process imports what these need (`engine.actors.spare_process`), and ends when its code was replaced meanwhile
(`engine.actors.loaded_code`). The actors of its node tell the controller that it is there (`engine.actors.warm_processes`).

A node has one. Two are made at once while the engine is brought to other numbers of actors: that takes processes itself, and parts of it
fail together. A second one beside an idle one cannot be had, since Ray would give that to the actor that is to be ended. What makes users
wait if a part dies meanwhile, moves of slots and edges that leave, waits until there is one (`engine.actors.reconciler`).

States of a node; the owner is the controller in control, which keeps them in memory
    bare    no spare is seen, and an actor's process has started on it since one was asked for, which may have taken that; a node that is
            new here is bare. It stays bare when Ray could not start one, and has another turn after the other bare nodes
    asked   no actor's process has started since. It takes a moment until the spare is seen
    barren  it was not seen within `SOON_MS`. The node is bare again after the next start, and after `AGAIN_MS`, then twice as long, and so
            on: actors that started with it may have taken it, or Ray keeps none there. Nobody waits for its spare until one is seen
    warm    its actors see one

Crash points. The controller dies after it asked for a spare: Ray ends the actor with it, and the process stays. Its successor sees the
spares that there are. One that is being started then may become the actor that is to be ended before it is up, which ends it, and a second
one leaves another. Ray ends the spare when tasks take all CPUs of the node, or when `engine up`, whose job it is of, has ended: the next
actor starts as it would without, and the node gets another after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

EVERY_MS: Final = 5_000
"""Between two times that spares are asked for: each takes a second of CPU, and actors that end again and again would take one after the
other."""

SOON_MS: Final = 10_000
"""Until a spare that was asked for is seen: its start on a busy machine, a second of idleness, a round of the controller."""

AGAIN_MS: Final = 20_000
"""Until a spare that has not come is asked for again, if no actor starts meanwhile; then twice as long, up to `_AGAIN_MS_MAX`. Where Ray
keeps no idle process each takes a second of CPU for nothing."""

_AGAIN_MS_MAX: Final = 3_600_000

_ROLES: Final = ("shard", "edge")
"""A node that has one of these has users who wait for it."""


_Process = tuple[str, int, int]
"""Role, index and start of an actor's."""


class Placeholder:
    """The actor that is ended before its process is up."""

    async def up(self) -> None:
        """Returns when there was an idle process for it."""


class Spares:
    """Which node is to have spares next.

    Args:
        clock: monotonic milliseconds.
        kept: False where processes are forks, which take no time to start (`engine.cli.fork_server`).
    """

    def __init__(self, clock: Callable[[], float], *, kept: bool) -> None:
        self._clock = clock
        self._kept = kept
        self._warm: dict[str, set[_Process]] = {}  # by node: the processes it had when its spare was asked for
        self._asked: tuple[str, set[_Process]] = ("", set())  # the last node, and what `_warm` gets when Ray has done so
        self._asked_ms: dict[str, float] = {}  # by node
        self._at_ms = float("-inf")
        self._to_come: dict[str, float] = {}  # nodes where spares that were asked for, then, have not been seen
        self._again_ms: dict[str, float] = {}  # of nodes: how long one that has not come is waited for
        self._barren: set[str] = set()  # of these, since too long ago

    def bare(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """A node without a spare, by the `stats` of all actors; "" when there is none, or it is too early for another.

        Ask for spares there, and call `asked` when that worked, before the next call.
        """
        if not self._kept or self._clock() - self._at_ms < EVERY_MS:
            return ""
        processes, seen = self._look(rows)
        self._warm = {node: had for node, had in self._warm.items() if node in processes}
        self._asked_ms = {node: at_ms for node, at_ms in self._asked_ms.items() if node in processes}
        bare = [node for node in processes if self._is_bare(processes[node], seen[node], node)]
        if not bare:
            return ""
        node = min(bare, key=lambda node: (self._asked_ms.get(node, -1), node))
        self._again_ms[node] = min(2 * self._again_ms[node], _AGAIN_MS_MAX) if node in self._to_come else AGAIN_MS
        self._at_ms = self._asked_ms[node] = self._to_come[node] = self._clock()
        self._asked = node, processes[node]
        return node

    def asked(self) -> None:
        """Ray was asked for spares on the node that `bare` returned last."""
        node, processes = self._asked
        self._warm[node] = processes

    def expected(self, rows: Iterable[Mapping[str, Any]]) -> bool:
        """Whether a node is bare, or will have a spare in a moment. Not where the last one that was asked for has not come: where Ray was
        started without what loads the modules, or keeps no idle process.
        """
        if not self._kept:
            return False
        processes, seen = self._look(rows)
        soon_ms = self._clock() - SOON_MS
        barren = self._barren | {node for node, at_ms in self._to_come.items() if at_ms <= soon_ms}
        self._barren = {node for node in barren if node in processes and not seen.get(node, 0)}
        return any(
            not spares and (node in self._to_come or self._is_bare(processes[node], spares, node))
            for node, spares in seen.items()
            if node not in self._barren
        )

    def _look(self, rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, set[_Process]], dict[str, int]]:
        processes, seen = _nodes(rows)
        self._to_come = {node: at_ms for node, at_ms in self._to_come.items() if not seen.get(node, 0)}
        return processes, seen

    def _is_bare(self, processes: set[_Process], spares: int, node: str) -> bool:
        if spares or not processes <= self._warm.get(node, set()):
            return not spares
        return node in self._to_come and self._clock() - self._to_come[node] >= self._again_ms[node]


def _nodes(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, set[_Process]], dict[str, int]]:
    """Of the nodes with users: their processes, and how many spares they have by what is known last."""
    processes: dict[str, set[_Process]] = {}
    seen: dict[str, int] = {}
    users = set()
    for row in rows:
        if node := str(row.get("node_id", "")):
            processes.setdefault(node, set()).add((row["role"], row["index"], row["started_ms"]))
            seen[node] = min(row["spares"], seen.get(node, row["spares"]))  # of a process that has died it may be an old one
            if row["role"] in _ROLES:
                users.add(node)
    return {node: processes[node] for node in users}, {node: seen[node] for node in users}
