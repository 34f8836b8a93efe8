"""New actors of an engine that runs: a few of them start at a time, since those that start take the CPU of those that serve.

A process that starts takes more than a second of CPU, all it can get. With seven at once on two cores everybody's messages stood still for
a second, without any failure. So there are never more that start than nodes have actors.

States of one; nothing of this is stored. A controller's successor finds what was created by its name: shards and schedulers that the slot
map has are members to it, and so are all edges that exist, also one that starts or waits
    missing   it is to be created, in the order of its role's indexes
    starting  created, and not ready yet
    waiting   created, and no node has a place free for its role. Once one of a role waits for that, the others of that role are created
              as well: they take no CPU, and Ray's autoscaler sees what is needed
    stuck     created, and without a first answer or not ready for so long that it holds nobody up: its place may be on a node that is to
              go, or its environment cannot be made
    ready     a member (`engine.actors.fleet`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from engine.actors.fleet import ROLES, ActorKey, Fleet

CLOSE_ROUNDS_MS: Final = 60_000
"""So long the controller asks new actors often whether they are ready; then they wait for a machine, which takes minutes."""

FIRST_ANSWER_MS: Final = 15_000
"""A process that starts has answered by then: on a busy machine that takes 5 s and more. One that has not most likely takes no CPU."""


class Newcomers:
    """See the module's docstring.

    Args:
        clock: monotonic milliseconds.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._clock = clock
        self.created_ms = float("-inf")  # the last one

    def create(self, role: str, indices: Iterable[int]) -> None:
        """Create those of these actors that are missing, as far as it is their turn; none while Ray's control service is away."""
        missing = [(role, index) for index in indices if (role, index) not in self._fleet.watches]
        if not missing or not self._fleet.ray_answers:
            return
        for key in missing[: self._turns(role, len(missing))]:
            self._fleet.add(key, joining=True)
            self.created_ms = self._clock()

    def _turns(self, role: str, missing: int) -> int:
        fleet = self._fleet
        waiting = fleet.joining.keys() & set(fleet.without_room())
        if any(key[0] == role for key in waiting):
            return missing
        starting = set(self._young()) - waiting - self._silent()
        return max(max(fleet.nodes(), 1) - len(starting), 0)

    def _silent(self) -> set[ActorKey]:
        """Those without a first answer for so long that they most likely have no process."""
        fleet, since_ms = self._fleet, self._clock() - FIRST_ANSWER_MS
        return {key for key, at_ms in fleet.joining.items() if at_ms <= since_ms and not fleet.watches[key].stats}

    def unanswered(self) -> set[ActorKey]:
        """Those that may have a process that the controller does not know yet: the last question was not answered."""
        fleet = self._fleet
        return {key for key in fleet.joining if not fleet.watches[key].row()["alive"]} - self._silent()

    def _young(self) -> list[ActorKey]:
        long_ago_ms = self._clock() - CLOSE_ROUNDS_MS
        return [key for key, since_ms in self._fleet.joining.items() if since_ms > long_ago_ms]

    @property
    def about_to_be_ready(self) -> bool:
        return bool(self._young())

    def waiting(self) -> dict[str, int]:
        """How many of each role have been waiting for so long that they hold nobody up."""
        waiting = self._fleet.joining.keys() - set(self._young())
        return {f"{role}s": sum(key[0] == role for key in waiting) for role in ROLES}
