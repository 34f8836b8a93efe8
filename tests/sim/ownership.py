"""The book of processes: one owner each, one controller, and links that come back.

    owner        a shard or an edge that another process has taken over from ends when it reaches storage
    controller   it ends nobody while storage does not answer it, since it may be the one that is cut off; one that another has replaced
                 ends nobody, and ends itself when it reaches storage
    links        two actors that can reach each other by calls have a link, whatever else is cut; by a socket, when they can have one

Each holds from some time after the last disturbance; times are those of the loop, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from engine.actors.link import LinkCaller
from tests.sim.cluster import Cluster
from tests.sim.cuts import CALLS, CONTROLLER, TCP
from tests.sim.known import Violation
from tests.sim.loop import RUNNING, Process

_OPENING_S: Final = 0.7
"""The longest pause between two attempts, and a connection that fails."""

_OWNER_S: Final = 0.7
"""Beyond two of its looks at storage: storage that is slow, a process that is."""


class ProcessBook:
    """See the module's text. `ready_at` is filled at each look."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._config = cluster.config
        lease_s = (cluster.config.link_timeout_ms + cluster.config.link_park_ms) / 1000
        self._link_s = 3 * lease_s + _OPENING_S  # a session that ends, an opening that fails, a call that hangs
        self._open_at: dict[tuple[Process, str], tuple[float, float]] = {}  # when a link was last seen open, and by a socket
        self._begun_at: dict[tuple[Process, str], float] = {}  # since when there is to be a link
        self._ready_at: dict[Process, float] = {}
        self._taken_at: dict[str, float] = {}  # by name: when the newest took its epoch
        self._owners: dict[str, Process] = {}
        self.control: tuple[int, float] = 0, 0.0  # the epoch of the controller that took control last, and when

    # -- What is written. ---------------------------------------------------------------------------------------------
    def owned(self, name: str, process: Process) -> None:
        """A process took the epoch of an actor."""
        self._owners[name] = process
        self._taken_at[name] = self._cluster.loop.time()

    def controlled(self, epoch: int) -> None:
        self.control = epoch, self._cluster.loop.time()

    # -- What the controller does. ------------------------------------------------------------------------------------
    def kills(self, controller: Process, name: str) -> None:
        """A controller asks for the end of an actor's process."""
        now_s = self._cluster.loop.time()
        storages = (self._cluster.storage, self._cluster.storage_of_actor(name))  # of an actor in a store that answers silence counts
        failed_s = now_s - max(storage.failed_at.get(controller, float("-inf")) for storage in storages)
        # A round asks twice at once and has failed with the first failure; the other one may come as much later.
        if failed_s < (self._config.health_timeout_ms - self._config.redis_timeout_ms) / 1000:
            raise Violation(f"[health] {controller} ends {name}, and storage did not answer it {1000 * failed_s:.0f} ms ago")
        epoch, taken_at = self.control
        round_s = (self._config.health_timeout_ms / 4 + 2 * self._config.redis_timeout_ms) / 1000
        if self._cluster.actors[controller]._epoch != epoch and now_s - max(taken_at, controller.thawed_at) > round_s:
            raise Violation(f"[health] {controller} ends {name}, {now_s - taken_at:.2f} s after another took control")

    # -- What must be so after a while. -------------------------------------------------------------------------------
    def look(self) -> None:
        """Raises Violation."""
        cluster, now_s = self._cluster, self._cluster.loop.time()
        for process in cluster.processes:
            if process.state is not RUNNING:
                continue
            actor = cluster.actors[process]
            if process.name == CONTROLLER:
                self._look_at_controller(process, actor, now_s)
            elif actor._ready.is_set():
                self._ready_at.setdefault(process, now_s)
                if not process.name.startswith("scheduler"):  # one without timers does not look
                    self._look_at_owner(process, now_s)
            else:
                self._ready_at.pop(process, None)  # a scheduler between two terms waits for storage
        links = list(self._links())
        self._begun_at = {(caller, name): self._begun_at.get((caller, name), now_s) for caller, name, _ in links}
        for caller, name, link in links:
            self._look_at_link(caller, name, link, now_s)

    def _reached_storage_at(self, process: Process) -> float:
        """Since when nothing has kept it from storage, for all we know."""
        storage = self._cluster.storage_of_actor(process.name)
        return max(storage.failed_at.get(process, 0.0), storage.undisturbed_at(process.place), process.thawed_at)

    def _look_at_controller(self, process: Process, controller: Any, now_s: float) -> None:
        epoch, taken_at = self.control
        since_s = now_s - max(taken_at, self._reached_storage_at(process))
        round_ms = self._config.health_timeout_ms / 4 + 2 * self._config.redis_timeout_ms
        if controller._epoch not in (0, epoch) and since_s > (self._config.health_ms + 2 * round_ms) / 1000:
            raise Violation(f"[health] {process} goes on, {since_s:.2f} s after another took control")

    def _look_at_owner(self, process: Process, now_s: float) -> None:
        owner = self._owners.get(process.name)
        if owner is None or owner is process:
            return
        looks_at = self._ready_at[process]  # one that starts may wait for another store
        since_s = now_s - max(self._taken_at[process.name], self._reached_storage_at(process), looks_at)
        period_ms = self._config.checkpoint_ms if process.name.startswith("shard") else self._config.health_ms
        if since_s > 2 * period_ms / 1000 + _OWNER_S:
            raise Violation(f"[4] {process} goes on, {since_s:.2f} s after {owner} took its epoch")

    def _links(self) -> Iterator[tuple[Process, str, LinkCaller]]:
        cluster = self._cluster
        for caller in map(cluster.newest, cluster.names):
            if caller in self._ready_at and caller.state is RUNNING:
                actor = cluster.actors[caller]
                if caller.name.startswith("edge"):
                    for name, link in actor.links.items():
                        yield caller, name, link
                elif caller.name.startswith("shard"):
                    for scheduler, (link, _) in actor._schedulers._callers.items():
                        yield caller, f"scheduler-{scheduler}", link

    def _look_at_link(self, caller: Process, name: str, link: LinkCaller, now_s: float) -> None:
        cluster = self._cluster
        callee = cluster.newest(name)
        if callee.state is not RUNNING or callee not in self._ready_at:
            return
        ready_at = max(self._begun_at[caller, name], self._ready_at[caller], self._ready_at[callee], caller.thawed_at, callee.thawed_at)
        control, route_at = cluster.control.place, cluster.network.kept_until(caller.name, name)
        open_at, connected_at = self._open_at.get((caller, name), (0.0, 0.0))
        if link.open:
            open_at, connected_at = now_s, connected_at if link.carrier == "ray" else now_s
            self._open_at[caller, name] = open_at, connected_at
        could_at = max(ready_at, route_at, cluster.cuts.both_open_at(caller.place, control))
        could_at = max(could_at, cluster.cuts.both_open_at(caller.place, callee.place, CALLS))
        if now_s - max(could_at, open_at) > self._link_s:
            raise Violation(f"[link] {caller} has no link to {callee} since {open_at:.2f} s, and could call it since {could_at:.2f} s")
        could_at = max(could_at, cluster.cuts.both_open_at(caller.place, callee.place, TCP))
        if cluster.layout.sockets and now_s - max(could_at, connected_at) > self._link_s:
            raise Violation(f"[link] {caller} has not connected to {callee} since {connected_at:.2f} s, and could since {could_at:.2f} s")
