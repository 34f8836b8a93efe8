"""One simulated world: an engine, its users and publishers, and everything that goes wrong.

The run is a function of the seed and the set of fault classes that are switched on. A seed also chooses the engine's size and
limits and which faults are frequent: many small, different worlds find more than one large one.

A run has two parts: `steps` steps with faults, then everything is healed, publishers bring to an end what they began, clients
acknowledge what they get, and within a bounded time nothing may be left over.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from engine.config import Config
from engine.core.controller.wanted import WantedNumbers
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.routing import NOBODY, SlotMap, partitions_of, slot_of, store_of, topic_of
from engine.core.wire.records import POLL, SSE, SSE_EXPLICIT, WEBSOCKET
from engine.errors import Fenced, StorageUnavailable
from engine.store.keys import META_KEY, WANTED_FIELD
from tests.sim.books import Books
from tests.sim.clients import Device
from tests.sim.cluster import SPARE_SLOTS, Cluster, layout_of
from tests.sim.cuts import CALLS, CONTROLLER, OUTSIDE, RAY, REDIS, SECOND_REDIS, TCP
from tests.sim.faults import CLASSES, Faults
from tests.sim.inboxbook import check_inbox
from tests.sim.known import Violation
from tests.sim.loop import Process, SimLoop
from tests.sim.ownership import ProcessBook
from tests.sim.publishers import Manners, Publisher
from tests.sim.storage import Storage
from tests.sim.taps import ShardTap
from tests.sim.tenantbook import check_tenants
from tests.sim.windowbook import Broken

EPISODES: Final = {
    "crash-shard": 0.5,
    "crash-scheduler": 0.3,
    "crash-edge": 0.2,
    "zombie": 0.25,
    "split": 0.2,
    "stall": 0.3,
    "storage-slow": 0.4,
    "storage-refuse": 0.3,
    "storage-stuck": 0.3,
    "call-slow": 0.4,
    "partition": 0.4,
    "clock-step": 0.1,
}
"""Faults that last, and how often they begin, per second."""

LATER_EPISODES: Final = {"crash-again": 0.15, "crash-node": 0.1}
"""The same; which of them a world has is drawn apart, so that the others' worlds stay what they were."""

MOVES_PER_S: Final = (0.0, 0.0, 1.0, 5.0, 20.0)
"""How often slots move, in worlds with more than one shard."""

SCALINGS_PER_S: Final = (0.0, 0.6, 2.4)
"""How often the number of schedulers changes."""

SCHEDULERS_MAX: Final = 3

SHARD_SCALINGS_PER_S: Final = (0.0, 0.0, 1.0, 3.0)
"""How often the number of shards changes, in worlds with a controller."""

SHARDS_MAX: Final = 4

UPGRADES_PER_S: Final = (0.0, 0.0, 0.0, 0.0, 1.0)
"""How often every process is to be replaced, in worlds with a controller. It takes some seconds, so faults strike there for longer."""

_UPGRADE_STEPS: Final = 3

HOST_EPISODES: Final = {"partition": 1.0, "cut-host": 0.4, "crash-controller": 0.2}
"""Of worlds with several hosts, in place of the above."""

_CUT_S: Final = (0.05, 0.2, 0.5, 0.9, 1.5, 4.0)
"""Below, around and far above the leases of links, the timeouts of storage, of the controller and of Ray."""

_FIREWALL_S: Final = (0.0, 0.0, 0.6, 100.0)
"""From the beginning on: no connections between hosts, only calls."""

_QUIET_INTERVALS_S: Final = (0.15, 0.3, 0.6)
"""Between publishes where cuts are to last: a world ends after so many steps."""

LASTING: Final = 0.15
"""Of the worlds: idle mailboxes leave memory early, and aggregation windows, where there are any, outlast that."""

TWO_STORES: Final = 0.07
"""Of the worlds: there are two stores, each with shards and schedulers of its own."""

_TWO_STORES_URL: Final = "redis+cluster://node/2"

_USERS_OF_TWO: Final = ("t:u0", "t:u4", "t:u1")
"""Slots of the first store, of the second one, of the first one."""

STORAGE_FAULTS: Final = frozenset(name for name in CLASSES if name.startswith("storage-"))

_SOON_MS: Final = 10_000
"""Longer than any window."""

QUIET_S: Final = 60.0
"""How long a healed world may take until nothing is left over."""

_FULL_CHECK_STEPS: Final = 50


class Options(Struct, frozen=True):
    """What is run. `enabled`: fault classes that may strike, before step `fault_steps`."""

    seed: int
    steps: int = 2000
    enabled: frozenset[str] = frozenset(CLASSES)
    fault_steps: int = 1 << 60
    stop_after: int = 1 << 60  # shrinking: nothing later can matter
    quiet_s: float = QUIET_S


class Outcome(Struct):
    """What came of it."""

    seed: int
    steps: int  # all of them, with those after healing
    seconds: float  # of virtual time
    failure: str = ""
    user: str = ""
    failed_step: int = 0
    struck: Counter[str] = Counter()
    seen: Counter[str] = Counter()


def sizes(rng: Random) -> Config:
    """An engine small enough that every limit is met, with times short enough that much happens."""
    return Config(
        shards=rng.choice((1, 1, 2)),
        schedulers=rng.choice((1, 1, 2)),
        edges=rng.choice((1, 2)),
        window=rng.choice((2, 4, 16)),
        offline_max=rng.choice((12, 60, 1000)),
        inbox_max=5,
        recent_ids=256,
        hot_messages_max=rng.choice((4, 16, 64)),
        connections_per_user_max=rng.choice((2, 8)),
        commit_records_max=rng.choice((2, 5, 100)),
        posts_pending_max=rng.choice((6, 20, 1000)),
        shard_memory_messages_max=rng.choice((30, 100_000)),
        pressure_tick_ms=50,
        pressure_lag_ms=rng.choice((20, 200)),
        pressure_calm_ms=rng.choice((50, 300)),
        conflate_offline_min=rng.choice((2, 100)),
        windows_max=rng.choice((1, 16)),
        broadcasts_max=rng.choice((4, 1000)),
        adopt_max=rng.choice((2, 250)),
        mailbox_idle_ms=rng.choice((300, 2000)),
        sweep_ms=700,
        checkpoint_ms=rng.choice((100, 400, 1500)),
        checkpoint_mailboxes=2,
        digest_ms=300,
        ack_journal_ms=rng.choice((20, 100)),
        commit_retry_ms=rng.choice((60, 300)),
        redis_timeout_ms=rng.choice((50, 150)),
        retry_first_ms=rng.choice((30, 100)),
        retry_cap_ms=400,
        ack_rtt_initial_ms=30,
        link_park_ms=250,
        link_timeout_ms=rng.choice((300, 600)),
        link_ack_pacing_ms=rng.choice((5.0, 20.0)),
        publish_timeout_ms=1500,
        heartbeat_ms=400,
        heartbeat_max_ms=400,
        pong_timeout_ms=150,
        send_stall_ms=500,
        poll_wait_s_max=1,
        timer_horizon_ms=rng.choice((200, 1000, 60_000)),
        timer_load_max=rng.choice((3, 2000)),
        timer_claim_ms=rng.choice((40, 200, 2000)),
        timer_refire_ms=rng.choice((100, 500)),
        timer_retry_first_ms=50,
        timer_retry_cap_ms=400,
        timer_compensate_ms=200,
        timer_claims_max=10,
        timer_batch=5,
        timer_memory_max=rng.choice((6, 1000)),
        slots_refresh_ms=1000,
        drain_ms=100,
    )


class World:
    """See the module's text."""

    def __init__(self, options: Options, tell: Callable[[str, str], None] | None = None) -> None:
        random.seed(options.seed)  # the edge's farewell draws from the global source
        self.options = options
        self.loop = SimLoop()
        self.violation: Violation | None = None
        self._trace = tell
        rng = Random(f"{options.seed}:world")
        config = sizes(rng)
        moves = Random(f"{options.seed}:moves")
        moves_per_s = moves.choice(MOVES_PER_S)
        if moves_per_s:
            config = replace(config, shards=moves.choice((2, 2, 3)))
        self._lasting = lasting = Random(f"{options.seed}:lasting").random() < LASTING
        self._rests = False
        if lasting:
            config = replace(config, mailbox_idle_ms=300, checkpoint_ms=100)
        users = [f"t:u{number}" for number in range(rng.choice((1, 2, 3)))]
        stores = Random(f"{options.seed}:second store")
        two_stores = stores.random() < TWO_STORES
        if two_stores:
            users = list(_USERS_OF_TWO[: max(len(users), 2)])
            shards, schedulers = stores.choice((2, 3, 4)), max(config.schedulers, 2)
            config = replace(config, redis_url=_TWO_STORES_URL, shards=4 if moves_per_s else shards, schedulers=schedulers)
        self.faults = Faults(options.seed, options.enabled, options.fault_steps, lambda: self.loop.steps, lambda what: self.tell("", what))
        self._pace = {name: rate * rng.choice((0.0, 0.0, 1.0, 1.0, 3.0)) for name, rate in EPISODES.items()}
        later = Random(f"{options.seed}:later")
        self._pace |= {name: rate * later.choice((0.0, 0.0, 1.0, 3.0)) for name, rate in LATER_EPISODES.items()}
        self._pace["move"] = moves_per_s
        self._pace["scale-schedulers"] = Random(f"{options.seed}:scaling").choice(SCALINGS_PER_S)
        layout = layout_of(options.seed)
        if layout.has_controller:
            self._pace |= {name: rate * later.choice((0.0, 1.0, 1.0, 3.0)) for name, rate in HOST_EPISODES.items()}
            config = replace(config, link_timeout_ms=300, health_ms=250, health_timeout_ms=later.choice((500, 800)))
            self._pace["scale-shards"] = Random(f"{options.seed}:scaling-shards").choice(SHARD_SCALINGS_PER_S)
            self._pace["upgrade"] = Random(f"{options.seed}:upgrades").choice(UPGRADES_PER_S)
            config = replace(config, drain_spread_ms=300) if self._pace["upgrade"] else config
        self._has_hosts = layout.has_controller
        self._to_go: Mapping[str, int] = {}  # when the processes started that ran when the last upgrade was wanted
        self._doomed: Counter[str] = Counter()  # by name: how many of its next incarnations die young
        self._settles = bool(self._pace.get("scale-shards") or self._pace.get("upgrade"))
        spare_slots = SPARE_SLOTS if self._settles else 0
        second_redis = stores.choice((*layout.hosts, "storage-2")) if two_stores else ""
        self.cluster = Cluster(self.loop, self.faults, config, users, layout, spare_slots, lambda what: self.tell("", what), second_redis)
        self._steady = stores.choice((None, 0, 1)) if two_stores else None
        if self._steady is not None:
            self.cluster.storages[self._steady].steady = True
        servers = [storage.server for storage in self.cluster.storages]
        self.books = Books(config, servers, lambda: self.cluster.writer, self.cluster.wall_ms)
        self.books.serves_beside = self.cluster.serves_beside
        if self._steady is not None and options.enabled <= STORAGE_FAULTS:
            self.books.is_undisturbed = lambda key: store_of(slot_of(key), self.cluster.stores) == self._steady
        self.books.seen["two stores"] += two_stores
        self.books.is_split = self.cluster.is_split
        self.books.on_slot_taken = self.cluster.slot_taken
        self.process_book = ProcessBook(self.cluster)
        self.books.on_owner = self.process_book.owned
        self.books.on_control = self.process_book.controlled
        self.cluster.on_kill = self._kill_asked
        self.cluster.on_recovered = self._recovered
        self.cluster.on_end = self._ended
        self.cluster.on_start = self._start
        self.cluster.on_change = lambda what: self.books.seen.update((what,))
        self.cluster.on_fenced = lambda why: self.books.seen.update(("fenced" if why == "Fenced" else "clock set back",))
        self.cluster.on_failure = lambda why: self.fail(Violation(why))
        for storage in self.cluster.storages:
            storage.on_broken = self._broken
        self._config = config
        self._slots = sorted({slot_of(user) for user in users})
        self._taps: list[ShardTap] = []
        kinds = rng.choice(((WEBSOCKET,), (WEBSOCKET,), (WEBSOCKET, SSE, POLL), (WEBSOCKET, SSE, SSE_EXPLICIT, POLL)))
        members = Random(f"{options.seed}:teams").random() < 0.5
        self.devices = [
            Device(self.cluster, self.books, self.faults, user, number, options.seed, kinds, self.tell, 8.0 if lasting else 0.6, members)
            for user in users
            for number in range(rng.choice((1, 1, 2, 3)))
        ]
        manners = Manners(
            interval_s=rng.choice(_QUIET_INTERVALS_S if layout.has_controller else (0.02, 0.05, 0.15)),
            delays=rng.random() < 0.7,
            windows=rng.random() < 0.4,
            conflation=rng.random() < 0.3,
            broadcasts=rng.random() < 0.4,
            categories=Random(f"{options.seed}:categories").random() < 0.4,
            members=members,
        )
        if manners.windows and lasting:
            manners = replace(manners, lasting=True, interval_s=1.0)
        sleep = Random(f"{options.seed}:sleep")
        if not (manners.windows or manners.broadcasts or manners.categories) and sleep.random() < 0.5:
            manners = replace(manners, wishes=True)
            self.cluster.clock_offset_ms = -sleep.choice((400, 1000, 1800))
        free = not (manners.windows or manners.categories or manners.wishes)
        if free and Random(f"{options.seed}:choices").random() < 0.3:
            manners = replace(manners, choices=True)
        self.publishers = [Publisher(self.cluster, self.books, users, number, options.seed, manners, self.tell) for number in range(2)]
        self._healed = False

    @property
    def _actors(self) -> tuple[str, ...]:
        return (*self.cluster.names, *((CONTROLLER,) if self._has_hosts else ()))

    def tell(self, user: str, what: str) -> None:
        """One line of the trace; `user` "" concerns everybody."""
        if self._trace is not None:
            self._trace(user, f"{self.loop.steps:6d} {self.loop.time():9.4f}  {what}")

    # -- What the parts report. ---------------------------------------------------------------------------------------
    def fail(self, violation: Violation) -> None:
        if self.violation is None:
            self.violation = violation
            self.tell(violation.user, f"VIOLATION {violation}")

    def _broken(self, error: BaseException) -> None:
        self.fail(error if isinstance(error, Violation) else Violation(f"storage: {error!r}"))

    def _kill_asked(self, controller: Process, name: str) -> None:
        self.tell("", f"{controller} asks for the end of {name}")
        self.books.seen["replaced"] += 1
        role, _, index = name.partition("-")
        if self.cluster.actors[controller]._fleet.told_to_end((role, int(index))):
            return  # by an upgrade: it was asked to drain
        try:
            self.process_book.kills(controller, name)
        except Violation as violation:
            self.fail(violation)

    def _recovered(self, process: Process, actor: Any) -> None:
        if process.name.startswith("shard"):
            self._taps.append(ShardTap(self.books, process, actor, self.fail))
            if process.incarnation > 1:
                self.books.seen["recoveries"] += 1
                self.books.seen["recoveries of two stores"] += self.cluster.stores > 1

    def _ended(self, process: Process) -> None:
        """As Ray does: whoever died is started again after a while; its clients notice."""
        for device in self.devices:
            device.edge_died(process)
        if self.cluster.newest(process.name) is process and process.name in self._actors:
            delay_s = 0.05 if self._healed else self.faults.rng("crash-shard").choice((0.02, 0.1, 0.4))
            self._later(delay_s, self.cluster.control.restart, process)

    def _restart(self, process: Process) -> None:
        """Beside one that is alive, or instead of it: Ray was wrong about it."""
        if self.cluster.newest(process.name) is process:
            self.books.seen["two owners in two stores"] += self.cluster.stores > 1
            self._start(process.name, self.faults.rng("zombie").choice(self.cluster.layout.hosts) if self._has_hosts else "")

    def _start(self, name: str, host: str) -> None:
        if name not in self._actors:
            return  # the controller ended it meanwhile
        self.cluster.start(name, host)
        if self._doomed[name] and not self._healed:
            self._doomed[name] -= 1
            rng = self.faults.rng("crash-again")
            self._later(rng.choice((0.002, 0.01, 0.1)) * rng.random(), self._die_young, name)

    def _later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(delay_s, act, *args, context=self.loop.outside)

    # -- Faults that last. --------------------------------------------------------------------------------------------
    def _plan(self, name: str) -> None:
        rate = self._pace[name]
        if rate:
            self._later(self.faults.rng(name).expovariate(rate), self._strike, name)

    def _strike(self, name: str) -> None:
        if self._healed:
            return
        self._plan(name)
        if self.faults.strikes(name, 1.0):
            self.books.history.disturbed()
            rng = self.faults.rng(name)
            method = name.replace("-", "_")
            getattr(self, f"_do_{method}", lambda rng: self._do_crash(rng, name.removeprefix("crash-")))(rng)

    def _strike_at_once(self, name: str) -> None:
        if self.faults.strikes(name, 1.0):
            self._do_crash(self.faults.rng(name), name.removeprefix("crash-"))

    def _victim(self, rng: Random, *roles: str) -> Process | None:
        name = rng.choice([name for name in self._actors if name.partition("-")[0] in roles])
        process = self.cluster.newest(name)
        return process if process.alive else None

    def _do_crash(self, rng: Random, role: str) -> None:
        process = self._victim(rng, role)
        if process is not None:
            self.faults.happens(f"crash-{role}", f"{process} is killed")
            self.cluster.kill(process)

    def _do_crash_again(self, rng: Random) -> None:
        """Every crash point of a recovery is a crash point too: between fences, in the middle of a replay."""
        process = self._victim(rng, "shard", "scheduler")
        if process is not None:
            self._doomed[process.name] = rng.choice((1, 2, 4))
            self.faults.happens("crash-again", f"{process} is killed, and {self._doomed[process.name]} after it soon after their start")
            self.cluster.kill(process)

    def _die_young(self, name: str) -> None:
        process = self.cluster.newest(name)
        if process.alive and not self._healed:
            self.faults.happens("crash-again", f"{process} is killed")
            self.cluster.kill(process)

    def _do_crash_node(self, rng: Random) -> None:
        """What one actor repeats to another after its death is gone when both died."""
        names = rng.sample(self.cluster.names, rng.randint(2, len(self.cluster.names)))
        if self._has_hosts:
            host = rng.choice(self.cluster.layout.hosts)
            names = [process.name for process in map(self.cluster.newest, self._actors) if process.place.host == host]
        self.faults.happens("crash-node", f"{names} are killed")
        for name in names:
            self.cluster.kill(self.cluster.newest(name))

    def _do_move(self, rng: Random) -> None:
        """As a controller does it, which may die before it tells the new owner."""
        process = self._victim(rng, "shard")
        if process is None or process.state != "running":
            return
        actor = self.cluster.actors[process]
        slots = rng.sample(self._slots, rng.randint(1, len(self._slots)))
        slot_map = self._slot_map_of(actor._index)
        to = rng.choice(slot_map.local(slot_map.shards))
        told = rng.random() < 0.7
        self.faults.happens("move", f"{process} is to hand {slots} over to shard {to}")

        def adopt(done: asyncio.Task[int]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.books.seen["hand-overs"] += 1
                self.books.seen["hand-overs within a store"] += self.cluster.stores > 1 and done.result() > slot_map.version
                target = self.cluster.newest(f"shard-{to}")
                if told and target.alive:
                    target.context.run(self.loop.create_task, self.cluster.actors[target].adopt(done.result()))

        process.context.run(self.loop.create_task, actor.hand_over(slots, to)).add_done_callback(adopt, context=self.loop.outside)

    def _do_stall(self, rng: Random) -> None:
        process = self._victim(rng, "shard", "scheduler", "edge", CONTROLLER)
        if process is not None and process.state == "running":
            seconds = rng.choice((0.05, 0.3, 1.5))
            self.faults.happens("stall", f"{process} stops for {seconds} s")
            self.loop.freeze(process)
            self._later(seconds, self.loop.thaw, process)

    def _do_zombie(self, rng: Random) -> None:
        process = self._victim(rng, "shard", "scheduler")
        if process is not None and process.state == "running":
            replaced_s, wakes_s = rng.random() * 0.4, 0.4 + rng.random()
            self.faults.happens("zombie", f"{process} stops, is replaced after {replaced_s:.2f} s and wakes after {wakes_s:.2f} s")
            self.loop.freeze(process)
            self._later(replaced_s, self._restart, process)
            self._later(replaced_s, self._cancel_meanwhile, process)
            self._later(wakes_s, self._wake_zombie, process)
            self._later(wakes_s + 1.5, self.cluster.kill, process)

    def _wake_zombie(self, process: Process) -> None:
        if process.state == "frozen":
            self.books.seen["zombies woken"] += 1
            self.loop.thaw(process)

    def _cancel_meanwhile(self, process: Process) -> None:
        """A scheduler has a successor: now is when a cancel is hardest to promise."""
        if process.name.startswith("scheduler"):
            self._cancel_some("split")

    def _cancel_some(self, fault: str) -> None:
        for publisher in self.publishers:
            for _ in range(4):
                self._later(0.15 * self.faults.rng(fault).random(), publisher.cancel_next)

    def _do_split(self, rng: Random) -> None:
        process = self._victim(rng, "shard", "scheduler", *(("edge", CONTROLLER) if self._has_hosts else ()))
        if process is not None and process.state == "running":
            callers = [name for name in self.cluster.names if rng.random() < 0.5]
            self.faults.happens("split", f"{process} is replaced and runs on; {callers} still reach it")
            for caller in callers:
                self.cluster.network.keep_route(caller, process.name, 0.2 + rng.random())
            self._restart(process)
            self._cancel_meanwhile(process)
            self._later(1.5, self.cluster.kill, process)

    def _do_storage_slow(self, rng: Random) -> None:
        self._storage_fault("storage-slow", self._storage(rng).slow, rng.choice((0.1, 0.5)))

    def _do_storage_refuse(self, rng: Random) -> None:
        seconds = rng.choice((0.05, 0.3, 0.8))
        self._storage_fault("storage-refuse", self._storage(rng).refuse, seconds)
        self._crash_in_doubt(rng, seconds)

    def _do_storage_stuck(self, rng: Random) -> None:
        seconds = rng.choice((0.03, 0.2, 0.7))
        self._storage_fault("storage-stuck", self._storage(rng).stick, seconds)
        self._crash_in_doubt(rng, seconds)

    def _crash_in_doubt(self, rng: Random, seconds: float) -> None:
        """A shard that dies while nobody knows what storage took, and publishers were told already, is the hardest case of all."""
        if rng.random() < 0.4:
            self._later(self._config.commit_retry_ms / 1000 + seconds * rng.random(), self._strike_at_once, "crash-shard")

    def _storage(self, rng: Random) -> Storage:
        """One that a fault may strike."""
        storages = [storage for storage in self.cluster.storages if not storage.steady]
        return storages[0] if len(storages) == 1 else rng.choice(storages)

    def _storage_fault(self, name: str, act: Callable[[float], None], seconds: float) -> None:
        self.faults.happens(name, f"for {seconds} s")
        act(seconds)

    def _do_call_slow(self, rng: Random) -> None:
        self._storage_fault("call-slow", self.cluster.network.slow, rng.choice((0.1, 0.5)))

    def _do_partition(self, rng: Random) -> None:
        if self._has_hosts:
            for _ in range(rng.choice((1, 1, 2, 4))):
                self._cut_pair(rng)
            return
        one, other = rng.sample(self.cluster.names, 2)
        self._cut(rng, "partition", one, [other], rng.choice((0.1, 0.6, 1.2)))

    def _cut_pair(self, rng: Random) -> None:
        """Any two parties, of which one is an actor."""
        one = rng.choice(self._actors)
        clients = rng.choice((*(device.name for device in self.devices), *(publisher.name for publisher in self.publishers)))
        redis = (REDIS, REDIS) if self.cluster.stores == 1 else (REDIS, SECOND_REDIS)
        other = rng.choice([name for name in (*self._actors, *self._actors, *redis, RAY, clients) if name != one])
        self._cut(rng, "partition", one, [other], rng.choice(_CUT_S), rng.choice(("", "", TCP, CALLS)) if other in self._actors else "")
        for process in map(self.cluster.newest, self._actors):
            self.cluster.control.cut_off(process.place.host)

    def _do_cut_host(self, rng: Random) -> None:
        if self._has_hosts:
            layout = self.cluster.layout
            every = sorted({*layout.hosts, *(storage.place.host for storage in self.cluster.storages), layout.ray})
            one = rng.choice(every)
            others = [host for host in (*every, *(() if rng.random() < 0.5 else (OUTSIDE,))) if host != one]
            self._cut(rng, "cut-host", one, others, rng.choice(_CUT_S))
            for host in layout.hosts:
                self.cluster.control.cut_off(host)

    def _cut(self, rng: Random, fault: str, one: str, others: list[str], seconds: float, carrier: str = "") -> None:
        way = rng.choice(("both", "to", "from", "both"))
        what = {"both": "and they reach each other", "to": "reaches", "from": "is reached by"}[way]
        self.faults.happens(fault, f"{one} no longer {what} {others} for {seconds} s{f' by {carrier}' if carrier else ''}")
        if way != "from":
            self.cluster.cuts.cut([one], others, seconds, carrier)
        if way != "to":
            self.cluster.cuts.cut(others, [one], seconds, carrier)

    def _set_up_firewall(self, seconds: float) -> None:
        if seconds and self.faults.strikes("partition", 1.0):
            hosts = self.cluster.layout.hosts
            self.faults.happens("partition", f"no connections between {hosts} for {seconds} s")
            self.cluster.cuts.cut(hosts, hosts, seconds, TCP)

    def _do_clock_step(self, rng: Random) -> None:
        step_ms = rng.choice((-3_600_000, -1000, 1000, 3_600_000))
        self.faults.happens("clock-step", f"the wall clock is set by {step_ms} ms")
        self.books.look_at_clock()
        self.cluster.clock_offset_ms += step_ms
        self.books.look_at_clock()

    def _do_scale_schedulers(self, rng: Random) -> None:
        """By the controller; where there is none, by the steps that it takes, the last of which it may not live to take."""
        least, now = self.cluster.stores, self.cluster.slot_map.schedulers
        count = rng.choice([number for number in range(least, SCHEDULERS_MAX + 1) if number != now])
        self.faults.happens("scale-schedulers", f"there are to be {count} schedulers")
        if self._has_hosts:
            self._ask_controller("scale-schedulers", schedulers=count)
            return
        self._add_schedulers(count)
        self._later(rng.choice((0.0, 0.02, 0.3)) * rng.random(), self._set_schedulers, rng, count)

    def _do_scale_shards(self, rng: Random) -> None:
        least, now = self.cluster.stores, self.cluster.slot_map.shards
        count = rng.choice([number for number in range(least, SHARDS_MAX + 1) if number != now])
        self.faults.happens("scale-shards", f"there are to be {count} shards")
        self._ask_controller("scale-shards", shards=count)

    def _do_upgrade(self, _rng: Random) -> None:
        self.faults.happens("upgrade", "every process is to be replaced")
        process, controller = self.cluster.network.routes[CONTROLLER]
        if process.state == "running":
            network = self.cluster.network
            running = {name: actor._started_ms for name, (_, actor) in network.routes.items() if network.reaches_newest(process, name)}
            upgrading = process.context.run(self.loop.create_task, controller.upgrade())
            upgrading.add_done_callback(partial(self._upgrade_begun, running), context=self.loop.outside)

    def _upgrade_begun(self, running: Mapping[str, int], upgrading: asyncio.Task[Any]) -> None:
        self._scaling_begun("upgrade", upgrading)
        if not upgrading.cancelled() and upgrading.exception() is None:
            self._to_go = running

    def _ask_controller(self, fault: str, **numbers: int) -> None:
        """Ask the controller for other numbers. It may die before it has them in storage."""
        process, controller = self.cluster.network.routes[CONTROLLER]
        if process.state == "running":
            scaling = process.context.run(self.loop.create_task, controller.scale(**numbers))
            scaling.add_done_callback(partial(self._scaling_begun, fault), context=self.loop.outside)

    def _scaling_begun(self, fault: str, scaling: asyncio.Task[Any]) -> None:
        if scaling.cancelled() or isinstance(scaling.exception(), StorageUnavailable | Fenced):
            return
        scaling.result()
        self.books.seen["scaled"] += 1
        self._cancel_some(fault)

    def _add_schedulers(self, count: int) -> None:
        for index in range(count):
            self.cluster.add_actor(f"scheduler-{index}")

    def _set_schedulers(self, rng: Random, count: int) -> None:
        self._add_schedulers(count)  # one may have been ended meanwhile
        versions = self.cluster.set_schedulers(count)
        self.tell("", f"slot map {versions[0]} has {count} schedulers")
        self._cancel_some("scale-schedulers")
        if rng.random() < 0.3:
            return
        for name in self.cluster.names_of("scheduler"):
            if rng.random() < 0.9:
                version = versions[store_of(int(name.partition("-")[2]), self.cluster.stores)]
                self._later(0.02 * rng.random(), self._follow, name, version)
        if rng.random() < 0.7:
            self._later(rng.choice((0.05, 0.5)) * rng.random(), self._end_schedulers, versions[0])

    def _follow(self, name: str, version: int) -> None:
        process, actor = self.cluster.network.routes[name]
        if process.alive:
            following = process.context.run(self.loop.create_task, actor.follow(version))
            following.add_done_callback(partial(self._followed, actor, version), context=self.loop.outside)

    def _followed(self, actor: Any, version: int, following: asyncio.Task[None]) -> None:
        if following.cancelled():
            return
        following.result()
        self.books.seen["followed"] += 1
        if not actor._ready.is_set() or actor._term.core.slots_version < version:
            self.fail(Violation(f"scheduler {actor._index} does not serve by slot map {version}, and said so"))

    def _end_schedulers(self, version: int) -> None:
        """Those that the slot map has no more, unless there is a newer one."""
        slot_map = self.cluster.slot_map
        for index in range(slot_map.schedulers if slot_map.version == version else SCHEDULERS_MAX, SCHEDULERS_MAX):
            self.cluster.remove_actor(f"scheduler-{index}")

    def _idle_schedulers(self) -> list[str]:
        """Those that do not serve what the slot map gives them, yet."""
        slot_maps = self.cluster.slot_maps
        indices = [index for slot_map in slot_maps for index in slot_map.local(slot_map.schedulers)]
        return [f"scheduler-{index}" for index in indices if not self._serves(index, slot_maps[store_of(index, len(slot_maps))].schedulers)]

    def _serves(self, index: int, schedulers: int) -> bool:
        actor = self.cluster.actor(f"scheduler-{index}")
        return actor._ready.is_set() and tuple(actor._term.core.partitions) == tuple(partitions_of(index, schedulers, self.cluster.stores))

    def _slot_map_of(self, index: int) -> SlotMap:
        """That of the store of this shard."""
        return self.cluster.slot_maps[store_of(index, self.cluster.stores)]

    def _unsettled(self) -> str:
        """What is not as it is wanted, in worlds where shards come and go; "" when nothing is left to do."""
        if not self._settles:
            return ""
        stored, names = self.cluster.server.execute("HGET", META_KEY, WANTED_FIELD), self.cluster.names
        if stored is None:
            return "nothing is wanted yet"
        wanted = msgspec.json.decode(stored, type=WantedNumbers)
        there = [len(self.cluster.names_of(role)) for role in ("shard", "scheduler")]
        slot_maps = self.cluster.slot_maps
        for slot_map in slot_maps:
            if not [wanted.shards, wanted.schedulers] == [slot_map.shards, slot_map.schedulers] == there:
                has = f"{slot_map.shards} shards and {slot_map.schedulers} schedulers"
                return f"{wanted} is wanted, the slot map has {has}; there are {names}"
        left = [name for name in names if self.cluster.actor(name)._started_ms == self._to_go.get(name)]
        if left:
            return f"{left} were to be replaced, and were not"
        if wanted.replacing or len(self.cluster.names_of("edge")) != wanted.edges:
            return f"{wanted} is wanted, and there are {names}"
        for slot_map in slot_maps:
            slots = Counter(owner for owner in slot_map.owners if owner != NOBODY)
            uneven = max(slots.values()) - min(slots.values()) > 1 and not self._pace["move"]
            if wanted.sharing or uneven or set(slots) != set(slot_map.local(slot_map.shards)):
                return f"{wanted} is wanted, and the shards have {slots} slots"
        return ""

    # -- Running. -----------------------------------------------------------------------------------------------------
    def run(self) -> Outcome:
        """Both parts; the outcome says what broke first, if anything."""
        loop = self.loop
        logging.disable(logging.CRITICAL)
        for name in self._actors:
            self._later(0.0, self.cluster.start, name)
        for name in self._pace:
            self._plan(name)
        if self._has_hosts:
            self._later(0.001, self._set_up_firewall, self.faults.rng("partition").choice(_FIREWALL_S))
        try:
            steps = self.options.steps * (_UPGRADE_STEPS if self._pace.get("upgrade") else 1) * self.cluster.stores
            loop.run(lambda: self.violation is None and loop.steps < steps, self._after_step)
            if self.violation is None and loop.steps < self.options.stop_after:
                self._heal()
                deadline = loop.time() + self.options.quiet_s
                loop.run(lambda: self.violation is None and loop.time() < deadline and not self._is_quiet(), self._after_step)
                if self.violation is None:
                    self._check_quiet()
        except Violation as violation:
            self.fail(violation)
        except AssertionError as error:
            self.fail(Violation(f"{type(error).__name__}: {error}"))
        return self._close()

    def _close(self) -> Outcome:
        violation, steps, seconds = self.violation, self.loop.steps, self.loop.time()
        self.violation = Violation("over")  # what unwinding processes do is nobody's business
        self.cluster.on_end = lambda _process: None
        for storage in self.cluster.storages:
            storage.on_broken = lambda _error: None
            storage.server.watch = lambda _how, _key, _detail: None
        self.cluster.end()
        self.loop.run(lambda: False, lambda: None)
        logging.disable(logging.NOTSET)
        outcome = Outcome(self.options.seed, steps, seconds, struck=self.faults.struck, seen=self.books.seen)
        if violation is not None:
            outcome.failure, outcome.user, outcome.failed_step = str(violation), violation.user, steps
        return outcome

    def _after_step(self) -> None:
        loop = self.loop
        if loop.failures:
            context = loop.failures.pop()
            error = context.get("exception")
            self.fail(error if isinstance(error, Violation) else Violation(f"{context.get('message')}: {error!r}"))
        if self.cluster.network.broken:
            self.fail(Violation(self.cluster.network.broken[0]))
        if loop.steps % _FULL_CHECK_STEPS == 0:
            self._full_check()

    def _full_check(self) -> None:
        """The limits, the figures of tenants, and that every number of a mailbox in memory is in some state: one in none is lost."""
        config = self._config
        self._check_tenants()
        try:
            self.process_book.look()
        except Violation as violation:
            self.fail(violation)
        for name in self.cluster.names_of("shard"):
            _, actor = self.cluster.network.routes.get(name, (None, None))
            core = getattr(actor, "_core", None)
            if core is None:
                continue
            index = core.index
            if len(core.post_queue) > config.posts_pending_max + config.timer_claims_max * SCHEDULERS_MAX:
                self.fail(Violation(f"[8] {len(core.post_queue)} posts wait in shard {index}"))
            memory, mailboxes = core.mailbox_store.memory, core.mailboxes.values()
            hot = sum(len(mailbox.hot) + len(mailbox.dying) for mailbox in mailboxes)
            cold = sum(mailbox.cold[1] - mailbox.cold[0] + 1 for mailbox in mailboxes if mailbox.cold)
            windows = sum(mailbox.judge_state.held for mailbox in mailboxes if mailbox.judge_state is not None)
            counted = memory.messages, memory.cold, memory.held
            if counted != (hot, cold, windows):
                self.fail(Violation(f"[8] shard {index} counts {counted}, and has {hot} messages, {cold} cold ones, {windows} windows"))
            self.books.seen[f"pressure {core.admission.pressure.level}"] += 1
            self.books.seen["spilled low"] = max(self.books.seen["spilled low"], memory.low_spilled)
            for mailbox in mailboxes:
                if len(mailbox.connections) > config.connections_per_user_max:
                    self.fail(Violation(f"[8] {len(mailbox.connections)} connections of {mailbox.key}", mailbox.key))
                stateless = _stateless(mailbox)
                if stateless:
                    self.fail(Violation(f"[3] {stateless} of {mailbox.key} are neither settled nor gone, hot nor cold", mailbox.key))

    def _heal(self) -> None:
        self.tell("", "HEALED")
        self._healed = self.faults.healed = True
        for storage in self.cluster.storages:
            storage.heal()
        self.cluster.network.heal()
        self.cluster.cuts.heal()
        for process in self.cluster.processes:
            self.loop.thaw(process)
        for publisher in self.publishers:
            publisher.stop()
        self._rests = self._lasting
        for device in self.devices:
            if self._rests:
                device.rest()
            else:
                device.heal()

    def _end_rest(self) -> None:
        """When all windows have ended, also those of users whom nobody has loaded. A clock that was set back puts some off: not those."""
        soon_ms = self.cluster.wall_ms() + _SOON_MS
        windows = [window for user in self.books.users.values() for window in user.windows.open.values()]
        if not any(publisher.open for publisher in self.publishers) and all(window.closes_ms > soon_ms for window in windows):
            self._rests = False
            for device in self.devices:
                device.heal()

    def _is_quiet(self) -> bool:
        if self._rests:
            self._end_rest()
            return False
        if self.loop.steps % 20 or any(publisher.open for publisher in self.publishers) or self.books.pending():
            return False
        if any(True for _ in self.books.unfinished()):
            return False
        if any(self.books.is_owed(sid, timer) for sid, timer in self.books.timers.items()):
            return False
        return not self._idle_schedulers() and not self._unsettled()

    def _check_quiet(self) -> None:
        for publisher in self.publishers:
            for item in publisher.open:
                raise Violation(f"{item.id or 'an item without id'} of {item.key} was never answered", item.key)
        self.books.check_end()
        if idle := self._idle_schedulers():
            raise Violation(f"{idle} do not serve their partitions")
        if unsettled := self._unsettled():
            raise Violation(unsettled)
        self._check_tenants()
        self._check_inboxes()

    def _check_tenants(self) -> None:
        for storage in self.cluster.storages:
            check_tenants(storage.server, [key for key in self.books.users if self.cluster.storage_of(slot_of(key)) is storage])

    def _check_inboxes(self) -> None:
        """In the memory of those that hold the journals: of two incarnations the newer one may hold none, and be dead."""
        for user in self.books.users.values():
            if topic_of(user.key) is not None:
                continue
            holder, _ = self.books.holders.get(f"s{slot_of(user.key)}:epoch".encode(), (None, 0))
            if holder is None or not holder.alive:
                continue  # the next one starts
            shard = self.cluster.actors[holder]
            if not shard._ready.is_set() or shard._core.slot_map.owner(user.key) != shard._core.index:
                continue  # it starts, or the slot is on its way
            core = shard._core
            config, now_ms = self._config, self.books.latest_ms
            try:
                server = self.cluster.storage_of(slot_of(user.key)).server
                held = check_inbox(self.books, user, core, server, config.inbox_max, config.offline_max, now_ms)
            except Broken as broken:
                raise Violation(f"the inbox of {user.key}: {broken}", user.key) from None
            self.books.seen["in inboxes"] += held


def _stateless(mailbox: Mailbox) -> list[int]:
    known = mailbox.hot.keys() | mailbox.acked | mailbox.dying.keys()
    for first, last in mailbox.gone:
        known.update(range(first, last + 1))
    left = set(range(mailbox.floor + 1, mailbox.head + 1)) - known
    return sorted(seq for seq in left if not mailbox.is_cold(seq))
