"""The controller actor: creates the other actors, checks their health, replaces those that hang, returns the engine's status.

It has no state of its own: actors are found by their names, the slot map and the wanted numbers of actors are in Redis. When it dies, Ray
restarts it and it finds the running actors; messages flow without it. `engine.actors.reconciler` brings about the wanted numbers: those of
the settings when an engine starts, and what an operator or the autoscaler wants while it runs.

A round calls `stats()` of every actor, every `health_ms`, and once more when the status is asked for and the last round is older than
`FRESH_MS`. `engine.core.controller.health` decides what the results mean.

Repairs: Ray restarts a process that died, under the same handle; a process that runs and does not answer is killed here, so that Ray
restarts it; an actor that Ray has given up is created anew here; a shard or scheduler that has lost its node, and finds no place on another
for `takeover_ms`, starts there without one (`engine.actors.fleet`).

A controller whose node is cut off from the others sees all of them silent, and Ray carries out what it asked for as soon as the cut is
over. So it kills nobody whose storage did not answer in this round, and silence counts from the next answer of storage (`Fleet.excuse`).
Meanwhile Ray may have started a successor elsewhere: each controller leaves a fencing epoch in storage, and one that finds another's there
ends itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine import __version__
from engine.actors.actor_process import REAL, RETRY_S, TOO_OLD_S, USERS_RETRY_S, ProcessContext
from engine.actors.carrier import Peer
from engine.actors.controller_features import FEATURES as OWN_FEATURES
from engine.actors.engine_key import ConfigLock
from engine.actors.feature_actors import FEATURE_ROLES, FEATURES
from engine.actors.fleet import ROLES, ActorKey, Fleet
from engine.actors.lifelines import Lifelines
from engine.actors.ray_actors import CONTROLLER, RayActors
from engine.actors.reconciler import Reconciler
from engine.actors.replacements import Replacements, name_of
from engine.actors.spares import Spares
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config
from engine.core.controller.connection_balance import ConnectionBalance
from engine.core.controller.health import HealthWatch, LatencyWindow, merge, totals
from engine.core.controller.wanted import WantedNumbers
from engine.core.model.routing import RoutingTable
from engine.core.shard.slow_connections import SlowConnection, slowest
from engine.core.wire.records import POLL, TRANSPORTS
from engine.errors import ConfigError, Fenced, FormatsTooNew, StorageUnavailable
from engine.store.cluster import node_of
from engine.store.controller_feature import ActorRows, ControllerFeature, ControllerPorts
from engine.store.epoch import controller_epoch, take_control
from engine.store.redis_client import claim_data_epoch, display_url
from engine.store.redis_lease import claim_redis, end_lease, renew_lease
from engine.store.sealed_config import SealedConfig
from engine.store.slot_map import claim_slot_map, read_routing_table
from engine.store.stores import connect_each
from engine.store.wanted_numbers import read_wanted, write_wanted

log = logging.getLogger(__name__)

FRESH_MS: Final = 400
"""Age of a round beyond which the status starts another one. With the edges' cache of the status, counters are shown within a second."""

_ALL_READY_S: Final = 3.0  # for an upgrade to begin; an edge waits longer for the answer
_ANSWER_TIMEOUTS: Final = 4  # a round gives up on an answer after this part of the health timeout
_CAPACITY_S: Final = 2.0  # for Ray to say what the nodes offer
_HELD_UP: Final = 2  # a round of answers that takes so many times what it may was held up by this process itself
_LATENCY_WINDOW_MS: Final = 10_000  # the past that the quantiles of the status cover
_LEASE_ROUNDS: Final = 5  # an engine that was killed keeps its Redis from another, on another machine, for so many
_STOPPED_S: Final = 5.0  # for who had the engine stopped to end the controller
_STRAYS_MS: Final = 30_000  # between two looks for actors that nobody looks after
_STRAYS_S: Final = 0.5  # for Ray to name its actors; while its control service is away that is not known
_REFRESH_TIMEOUT_S: Final = 0.5  # an actor that hangs must not hold up the status, which says so
_LATENCIES: Final = {"latency": "", "send_latency": "send_", "ack_latency": "ack_"}  # shards' histograms: prefix of their quantiles


class Controller:
    """One per engine, named `controller`. The configuration is complete: `redis_url`, `port` and `shards` are what they will be.

    Ray gives it sealed. Until it has the engine key it creates nobody and checks nobody (`engine.actors.engine_key`).

    Args:
        engine: name of the engine for its lease on Redis (`engine.store.redis_lease`); "": nobody else can have this Redis.
    """

    def __init__(
        self, given: Config | SealedConfig, context: ProcessContext = REAL, actors: RayActors | None = None, engine: str = ""
    ) -> None:
        self._given = given
        self._engine = engine
        self._lock = ConfigLock(given)
        self._config = config = self._lock.public  # with its secrets from `_create_all` on
        logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._context = context
        self._actors = actors or RayActors()
        self._fleet = Fleet(given, self._actors, context.monotonic_ms)
        self._clients: list[Redis] = []  # of the stores, the first one first; none before they are known
        self._started_ms = context.wall_ns() // 1_000_000
        self._lifelines = Lifelines(self._peer, self._on_break)
        self._asking: set[asyncio.Task[None]] = set()  # those whose process has ended, and waiting for their next ones
        self._reconciler: Reconciler | None = None  # once storage has what it goes by
        self._connection_balance = ConnectionBalance(config.connection_moves_per_s, config.connection_moves_min)
        self._latencies = {name: LatencyWindow(_LATENCY_WINDOW_MS, prefix) for name, prefix in _LATENCIES.items()}
        self._round: asyncio.Future[None] | None = None
        self._round_at_ms = 0.0  # when it began
        self._strays_at_ms = context.monotonic_ms() + _STRAYS_MS  # when they are looked for next
        self._own = self._watch_of_self()
        self._replacements = Replacements(self._fleet, self._own, context.monotonic_ms, config.drain_reserve_ms)
        self._redis: dict[str, Any] = {"url": "", "alive": False, "restarts": 0}
        self._redis_runs: dict[int, str] = {}  # of each store
        self._redis_restarts: Counter[int] = Counter()
        self._features: Sequence[ControllerFeature] = ()
        self._of_features: list[asyncio.Task[None]] = []
        self._spares = Spares(context.monotonic_ms, kept=bool(config.address))
        self._sparing: asyncio.Task[None] | None = None
        self._epoch = 0
        self._stopping: asyncio.Task[None] | None = None
        self._created: asyncio.Task[None] = asyncio.ensure_future(self._create_all())
        self._watching: asyncio.Task[None] = asyncio.ensure_future(self._watch())
        self._watching.add_done_callback(self._end_when_failed)
        self._reconciling: asyncio.Task[None] = asyncio.ensure_future(self._reconcile())
        self._reconciling.add_done_callback(self._end_when_failed)

    # -- remote methods ---------------------------------------------------------------------------------------------

    async def unlock(self, key: bytes) -> Config | SealedConfig:
        """Take the engine key; returns the configuration the engine runs with, which the key opens.

        Raises:
            NotProven: it is another key: this is the controller of an engine with another Redis.
        """
        self._lock.unlock(key)
        return self._given

    async def public_config(self) -> Config:
        """The configuration the engine runs with, without secrets. Anyone may ask."""
        return self._lock.public

    async def created(self) -> None:
        """Returns when every actor is created, which does not mean that it is ready: see `status`.

        Raises:
            ConfigError: the data does not allow this configuration; nothing was created.
        """
        await asyncio.shield(self._created)

    async def status(self, fresh: bool = True, proof: bytes = b"") -> dict[str, Any]:
        """The engine as of the last round.

        Args:
            fresh: start a round when the last one began more than `FRESH_MS` ago, and wait for it, but not for actors that hang.
                Otherwise the status is up to `health_ms` old and costs the actors nothing.

        Returns:
            {"version", "ready", "shards", "schedulers", "edges", "controller", "redis", "scaling", "totals"}, and a member for each
            feature with an actor, such as "archivists". A row per actor is its `stats()`, plus `alive`, `cpu_pct` (of one core),
            `rss_bytes` and `restarts`. `totals` has sums, and quantiles of the recent past in ms: `send_p50_ms` (`p95`, `p99`) from
            acceptance to the first send, `ack_p50_ms` from the send to the ACK, and `p50_ms` from acceptance to the ACK, which includes
            the time in which a user was away.
        """
        self._lock.check("status", proof)
        old = self._context.monotonic_ms() - self._round_at_ms > FRESH_MS
        if fresh and old and self._round is not None and not self._watching.done():
            await asyncio.wait({self._begin_round()}, timeout=_REFRESH_TIMEOUT_S)
        fleet = self._fleet
        rows = self._rows()
        return {
            "version": __version__,
            "ready": self._redis["alive"] and self._created.done() and self._stopping is None and fleet.ready(),
            "shards": rows["shard"],
            "schedulers": rows["scheduler"],
            "edges": rows["edge"],
            **{f"{role}s": rows[role] for role in FEATURE_ROLES},
            "controller": self._own.row(),
            "redis": {**self._redis, **self._members("redis")},
            "scaling": self._scaling(),
            "totals": self._totals(rows),
        }

    def _rows(self) -> ActorRows:
        return {role: [self._fleet.row(key) for key in self._fleet.keys(role)] for role in ROLES}

    def _totals(self, rows: ActorRows) -> dict[str, Any]:
        """Sums over all rows, and quantiles of the recent past."""
        quantiles = {name: ms for window in self._latencies.values() for name, ms in window.quantiles().items()}
        return {**totals(row for of_role in rows.values() for row in of_role), **quantiles}

    async def connections_of(self, tenant: str, proof: bytes = b"") -> int:
        """Open connections of this tenant, at the edges that answer at once."""
        self._lock.check("connections_of", proof)
        return sum(await self._at_once("edge", "connections_of", tenant))

    async def slow_clients(self, count: int, proof: bytes = b"") -> Sequence[SlowConnection]:
        """The `count` slowest connections of the shards that answer at once, the worst first."""
        self._lock.check("slow_clients", proof)
        return slowest([one for found in await self._at_once("shard", "slow_clients", count) for one in found], count)

    async def _at_once(self, role: str, method: str, argument: Any) -> list[Any]:
        """The answers of the actors of a role that answer at once."""
        handles = [self._fleet.handles[key] for key in self._fleet.keys(role)]
        calls = [asyncio.ensure_future(getattr(handle, method).remote(argument, self._lock.proof(method))) for handle in handles]
        done, late = await asyncio.wait(calls, timeout=_REFRESH_TIMEOUT_S) if calls else (set(), set())
        for call in late:
            call.cancel()
        return [call.result() for call in done if call.exception() is None]

    async def drain_edge(self, index: int, proof: bytes = b"") -> tuple[str, int]:
        """Let an edge hand its clients over to the others and start anew (`Edge.hand_over`). Returns when it has begun.

        Returns:
            Why it is refused, "" when it is not, and how many connections the edge has.
        """
        self._lock.check("drain_edge", proof)
        fleet, key = self._fleet, ("edge", index)
        if not fleet.serves(key):
            return f"edge-{index} does not serve, or is being drained", 0
        if not any(fleet.serves(other) for other in fleet.keys("edge") if other != key):
            return f"no edge but edge-{index} serves: its clients would have nowhere to go", 0
        fleet.drained(key)
        try:
            return "", await fleet.handles[key].hand_over.remote(self._lock.proof("hand_over"))
        except RayError:
            await self._ask(key)  # it may have heard the call
            fleet.kept(key)
            raise

    async def scale(
        self,
        shards: int | None = None,
        schedulers: int | None = None,
        edges: int | None = None,
        by: str = "",
        force: bool = False,
        proof: bytes = b"",
    ) -> dict[str, Any]:
        """Run with other numbers of actors from now on. Returns when they are stored, which is before they are reached.

        Args:
            shards, schedulers, edges: None leaves the number as it is.
            by: who wants it.
            force: also more of them than the nodes carry.

        Returns:
            `scaling` of the status; or `refused`, why nothing was stored, and `fits`, the numbers that the nodes carry.

        Raises:
            StorageUnavailable: nothing was begun.
        """
        self._lock.check("scale", proof)
        numbers = {"shards": shards, "schedulers": schedulers, "edges": edges}
        if not force and (refusal := await self._beyond_capacity(numbers)):
            return refusal
        await self._want(by, **numbers)
        return self._scaling()

    async def _beyond_capacity(self, numbers: Mapping[str, int | None]) -> dict[str, Any]:
        """The refusal of numbers that grow beyond what the nodes carry; empty where none does, or Ray does not say.

        Not asked while Ray's control service is away, as in `_find_actors`.
        """
        if self._reconciler is None or not self._fleet.ray_answers:
            return {}
        local, anywhere = not self._config.address, self._config.place == "anywhere"
        try:
            async with asyncio.timeout(_CAPACITY_S):
                fits = {f"{role}s": carried for role, carried in (await self._actors.capacity(by_cores=local or anywhere)).items()}
        except (RayError, TimeoutError) as error:
            log.warning("what the nodes carry is not known: %s", error)
            self._fleet.ray_answers = False
            return {}
        wanted = self._reconciler.wanted
        beyond = [f"{number} {name}" for name, number in numbers.items() if number and number > max(fits[name], getattr(wanted, name))]
        if not beyond:
            return {}
        carried = ", ".join(f"{number} {name}" for name, number in fits.items())
        whose = "this machine carries" if local else "the nodes carry" if anywhere else "the nodes offer places for"
        return {"refused": f"{', '.join(beyond)}: {whose} {carried}; give `force` to have more all the same", "fits": fits}

    async def rebalance(self, by: str = "", proof: bytes = b"") -> dict[str, Any]:
        """Move slots from busy shards to idle ones, by what each slot gets. Returns and raises as `scale`."""
        self._lock.check("rebalance", proof)
        await self._want(by, sharing="load")
        return self._scaling()

    async def upgrade(self, by: str = "", proof: bytes = b"") -> dict[str, Any]:
        """Replace every process that runs now by one that runs the code of its node then. Returns and raises as `scale`.

        All actors are asked first: since the last round Ray may have started a process, with the code that was on its node then. So may
        a controller that was cut off have done.

        Raises:
            StorageUnavailable: nothing was begun; or not everybody serves within `_ALL_READY_S`, and the upgrade would wait for that.
        """
        self._lock.check("upgrade", proof)
        reconciler = self._running()
        newcomers = reconciler.newcomers
        try:
            async with asyncio.timeout(_ALL_READY_S):
                await self._find_actors(lambda key: self._stopping is None and key[1] < getattr(reconciler.wanted, f"{key[0]}s", 0))
                await self._ask_actors()
                while not self._fleet.ready() or newcomers.unanswered():
                    await asyncio.sleep(RETRY_S)
                    await self._ask_actors()
        except TimeoutError:
            raise StorageUnavailable("not all actors are ready") from None
        await self._want(by, replacing=self._replacements.everyone(), stopped="")
        return self._scaling()

    async def _want(self, by: str, **changes: Any) -> None:
        reconciler = self._running()
        given = {name: value for name, value in changes.items() if value is not None}
        if given.get("shards", reconciler.wanted.shards) != reconciler.wanted.shards:
            given["sharing"] = "even"
        await reconciler.want(**given, by=by, at_ms=self._wall_ms())

    def _running(self) -> Reconciler:
        if self._reconciler is None or self._stopping is not None:
            raise StorageUnavailable("the engine is starting" if self._stopping is None else "the engine is stopping")
        return self._reconciler

    def _scaling(self) -> dict[str, Any]:
        reconciled = {} if self._reconciler is None else self._reconciler.status()
        return {**reconciled, "waiting": self._fleet.waiting(), **self._members("scaling")}

    def _members(self, of: str) -> dict[str, Any]:
        """What features add to this member of the status."""
        found = [feature.status() for feature in self._features if feature.status is not None]
        return {name: value for members in found for name, value in members.get(of, {}).items()}

    async def stop(self, proof: bytes = b"") -> None:
        """Stop all actors in order: edges close their connections, then shards and schedulers write their state, then all end.

        Takes at most `drain_ms` and twice `stop_timeout_ms`; what an actor did not write in time is in the journal. Who asks for it ends
        the controller then; it ends itself where that does not come, or the next `engine up` would find it, and nobody that it looks after.
        """
        self._lock.check("stop", proof)
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop_all())
        await asyncio.shield(self._stopping)

    async def _stop_all(self) -> None:
        waits = not self._created.done()  # for storage, say, and does not know yet what its predecessor created
        tasks = [task for task in (self._watching, self._reconciling, self._created, self._round) if task is not None] + self._of_features
        for task in tasks:
            task.cancel()
        self._lifelines.cut()
        await asyncio.gather(*tasks, return_exceptions=True)
        if waits:
            await self._find_actors()
        margin_ms = 500
        for roles, timeout_ms in (
            (("edge",), self._config.drain_ms + margin_ms),
            (("shard",), self._config.stop_timeout_ms),
            (("scheduler", *FEATURE_ROLES), self._config.stop_timeout_ms),
        ):
            keys = [key for role in roles for key in self._fleet.keys(role)]
            await asyncio.gather(*(self._drain(key, timeout_ms) for key in keys))
            for key in keys:
                self._fleet.end(key)
        for client in self._clients:
            await self._end_lease(client)
            await client.aclose()
        asyncio.get_running_loop().call_later(_STOPPED_S, self._actors.end_self)

    async def _end_lease(self, client: Redis) -> None:
        try:
            if self._engine:
                await end_lease(client, self._engine)
        except (RedisError, OSError) as error:
            log.warning("the lease on Redis is left to expire: %s", error)

    async def _drain(self, key: tuple[str, int], timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._fleet.handles[key].drain.remote(self._lock.proof("drain"))
        except (RayError, TimeoutError) as error:
            log.warning("%s-%d did not drain: %s", *key, type(error).__name__)

    # -- creating -----------------------------------------------------------------------------------------------------

    async def _create_all(self) -> None:
        self._config = await self._lock.config()
        prove = self._lock.proof if self._lock.key else None
        self._credentials = LinkCredentials(self._config, CONTROLLER, self._context.connect, prove)  # it reads the link key once
        self._clients = connect_each(self._context.connect, self._config)
        self._redis["url"] = display_url(self._config.redis_url)
        slots, wanted = await self._prepare_storage()
        fleet, of_features = self._fleet, (actor.count(self._config) for actor in FEATURES)
        counts = slots.shards, slots.schedulers, wanted.edges, *of_features
        members = [(role, index) for role, count in zip(ROLES, counts, strict=True) for index in range(count)]
        existing = await fleet.existing()
        for key in members:
            # The edges that an engine lacks while it runs are new ones, created a few at a time; without the first one it is not ready.
            if key[0] != "edge" or key == ("edge", 0) or key in existing or not _runs(existing):
                fleet.add(key)
        for key in existing:  # what a predecessor had created, or had not ended yet
            fleet.add(key, joining=True)
            fleet.watches[key].restarting(self._context.monotonic_ms())  # its process may have hung since before
        self._reconciler = Reconciler(
            self._config,
            self._clients,
            fleet,
            self._replacements,
            self._context,
            self._lock.proof,
            wanted,
            self._epoch,
            lambda: self._spares.expected(self._all_stats()),
        )
        self._begin_features(self._reconciler)

    def _begin_features(self, reconciler: Reconciler) -> None:
        fleet, monotonic_ms = self._fleet, self._context.monotonic_ms
        ports = ControllerPorts(
            self._config,
            self._clients,
            rows=self._rows,
            serving=lambda role: [fleet.row(key) for key in fleet.keys(role) if fleet.serves(key)],
            totals=self._totals,
            redis=lambda: self._redis,
            servers=lambda: self._redis_runs,
            settled=lambda: reconciler.steady and fleet.ready(),
            waiting=reconciler.newcomers.waiting,
            want=self._want,
            now_ms=monotonic_ms,
            wall_ms=self._wall_ms,
        )
        self._features = [on_controller(ports) for on_controller in OWN_FEATURES]
        for feature in self._features:
            if feature.run is not None:
                task = asyncio.ensure_future(feature.run())
                task.add_done_callback(self._end_when_failed)
                self._of_features.append(task)

    async def _prepare_storage(self) -> tuple[RoutingTable, WantedNumbers]:
        """Write data epochs, slot maps and wanted numbers, unless an engine is running: then all exist, and none may change."""
        while True:
            try:
                if self._engine:
                    for client in self._clients:
                        await claim_redis(client, self._engine, self._lease_ms)
                self._epoch = await take_control(self._clients[0])
                for client in self._clients:
                    await claim_data_epoch(client, self._wall_ms() // 1000)
                return await self._numbers()
            except FormatsTooNew as error:  # of an engine that runs: it goes on without this controller
                log.critical("the controller ends: %s", error)
                await asyncio.sleep(TOO_OLD_S)
                raise
            except (StorageUnavailable, RedisError, OSError) as error:
                log.warning("waiting for storage: %s", error)
                await asyncio.sleep(USERS_RETRY_S)

    async def _numbers(self) -> tuple[RoutingTable, WantedNumbers]:
        """How many actors there are, and how many are wanted: what was wanted last, or for an engine that starts what the settings say."""
        config, client = self._config, self._clients[0]
        stored = await read_wanted(client)
        if _runs(await self._fleet.existing()):
            slots = await read_routing_table(self._clients)
            wanted = stored or WantedNumbers(slots.shards, slots.schedulers, config.edges)
        else:
            numbers, stores = (config.shards, config.schedulers), len(self._clients)
            slots = RoutingTable([await claim_slot_map(each, *numbers, store, stores) for store, each in enumerate(self._clients)])
            sharing = "even" if config.shards != slots.shards else stored.sharing if stored else ""
            at_ms = max(self._wall_ms(), stored.at_ms + 1 if stored else 0)
            wanted = WantedNumbers(config.shards, slots.schedulers, config.edges, sharing, "settings", at_ms)
        if wanted != stored:
            await write_wanted(client, wanted, self._epoch, unreadable=stored is None)
        return slots, wanted

    @property
    def _lease_ms(self) -> int:
        """Of its lease on Redis: several rounds."""
        return _LEASE_ROUNDS * self._config.health_ms

    def _wall_ms(self) -> int:
        return self._context.wall_ns() // 1_000_000

    # -- watching -----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        try:
            await asyncio.shield(self._created)
        except ConfigError as error:
            log.error("%s", error)  # `created()` raises it in `engine up`
            return
        period_ms, short_ms = self._config.health_ms, min(self._config.health_ms, RETRY_S * 1000)
        while True:
            # During a start the rounds are close: `engine up` waits for the last actor, or a step for a spare process.
            wait_ms = self._round_at_ms + (short_ms if self._in_a_hurry() else period_ms) - self._context.monotonic_ms()
            if self._round is not None and wait_ms > 0:
                await asyncio.sleep(wait_ms / 1000)  # a status may have begun a round meanwhile
            else:
                await asyncio.shield(self._begin_round())

    def _begin_round(self) -> asyncio.Future[None]:
        """A round of calls, or the one that is under way."""
        if self._round is None or self._round.done():
            self._round_at_ms = self._context.monotonic_ms()
            self._round = asyncio.ensure_future(self._ask_all())
            self._round.add_done_callback(self._end_when_failed)
        return self._round

    async def _ask_all(self) -> None:
        fleet = self._fleet
        await asyncio.gather(self._ask_redis(), self._ask_nodes(), self._find_strays(), self._ask_actors())
        now_ms = self._context.monotonic_ms()
        if not self._redis["alive"]:
            fleet.excuse()
        unborn = fleet.joining.keys() | set(fleet.without_room())  # until they answer they may wait for a machine
        for key, watch in fleet.watches.items():
            if key in fleet.leaving or (key in unborn and not watch.stats):
                continue
            if watch.verdict(now_ms) == "replace":
                log.error("%s-%d has been silent for %d ms; replacing it", *key, self._config.health_timeout_ms)
                fleet.replace(key)
        await self._take_over()
        self._own.answered(self._stats(), now_ms)
        for name, window in self._latencies.items():
            window.add(merge(watch.stats[name] for watch in fleet.watches.values() if name in watch.stats), now_ms)
        self._actors.show(self._config.namespace, self._all_stats(), now_ms)
        self._keep_spares()
        if self._reconciler is not None:
            self._reconciler.look()
        await self._balance_connections(now_ms)
        for feature in self._features:
            if feature.look is not None and self._redis["alive"]:
                await feature.look()

    def _keep_spares(self) -> None:
        """While everything serves, have Ray start processes on a node that lacks a spare one."""
        reconciler = self._reconciler
        if reconciler is None or not reconciler.looked or not self._fleet.ready() or reconciler.in_a_hurry:
            return
        if not (self._sparing is None or self._sparing.done()):
            return
        if node := self._spares.bare(self._all_stats()):
            self._sparing = asyncio.ensure_future(self._start_spares(node, 1 if reconciler.steady else 2))

    def _all_stats(self) -> list[Mapping[str, Any]]:
        return [watch.stats for watch in self._fleet.watches.values()]

    async def _start_spares(self, node: str, count: int) -> None:
        try:
            if await self._actors.start_spares(node, count):
                self._spares.asked()
        except Exception:  # actors that have no spare process start as they would without
            log.exception("no spare process is started on node %s", node)

    async def _ask_nodes(self) -> None:
        """Learn which nodes are to go. While Ray's control service is away, what it said last holds."""
        fleet = self._fleet
        try:
            fleet.draining_nodes, fleet.ray_answers = await self._actors.draining_nodes(), True
        except RayError as error:
            fleet.ray_answers = False
            log.info("nodes that are to go are not known: %s", error)

    async def _find_strays(self) -> None:
        """Look after the actors that exist and that nobody looks after: a surplus one is ended then.

        A controller that was cut off may have created one anew after its successor had ended it.
        """
        reconciler, now_ms = self._reconciler, self._context.monotonic_ms()
        if reconciler is None or not reconciler.settled or now_ms < self._strays_at_ms:
            return
        self._strays_at_ms = now_ms + _STRAYS_MS
        await self._find_actors(lambda _key: reconciler.settled)  # or one that has just been ended may be among them

    async def _find_actors(self, these: Callable[[ActorKey], bool] = lambda _key: True) -> None:
        """Look after the actors that exist, those for which this holds when they are known.

        Not while Ray's control service is away: the search would go on in a thread until it is back, and take it from the next question.
        """
        if not self._fleet.ray_answers:
            return
        try:
            async with asyncio.timeout(_STRAYS_S):
                existing = await self._fleet.existing()
        except (RayError, TimeoutError) as error:
            log.info("the actors that exist are not known: %s", error)
            return
        strays = [key for key in existing if key not in self._fleet.watches and these(key)]
        for key in strays:  # with the first one nothing is settled any more
            log.warning("nobody looked after %s-%d", *key)
            self._fleet.add(key, joining=True)

    async def _ask_actors(self) -> None:
        fleet, asked_ms = self._fleet, self._context.monotonic_ms()
        await asyncio.gather(*map(self._ask, list(fleet.watches)))
        took_ms = self._context.monotonic_ms() - asked_ms
        if took_ms > _HELD_UP * self._config.health_timeout_ms / _ANSWER_TIMEOUTS:
            log.warning("this process stood still: a round that gives up sooner took %d ms; nobody's silence counts", took_ms)
            fleet.excuse_all()

    def _peer(self, name: str) -> Peer:
        return self._context.peer(name, self._credentials)

    def _on_break(self, name: str, here: bool) -> None:
        """A shard's process has ended. Its slots go to others unless the next one answers in time."""
        fleet, key = self._fleet, ("shard", int(name.rpartition("-")[2]))
        if self._reconciler is None or key not in fleet.watches or key in fleet.leaving:
            return
        watch = fleet.watches[key]
        watch.failed()
        watch.restarting(self._context.monotonic_ms())
        fleet.broke(key, certain=here)
        self._beside(self._await_next(key, self._reconciler))

    async def _await_next(self, key: ActorKey, reconciler: Reconciler) -> None:
        """Returns when the next process of this shard serves, or is waited for no longer.

        It is asked again and again, since a call of a process that dies meanwhile fails late.
        """
        while self._fleet.waited_for(key):
            self._beside(self._ask(key))
            await asyncio.sleep(RETRY_S)
        reconciler.look_at_shards()

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, key: ActorKey) -> None:
        fleet = self._fleet
        if key not in fleet.watches:
            return  # ended since the round began
        watch, handle, asked_ms = fleet.watches[key], fleet.handles[key], self._context.monotonic_ms()
        watch.asked(asked_ms)
        try:
            async with asyncio.timeout(self._config.health_timeout_ms / _ANSWER_TIMEOUTS / 1000):
                stats = await handle.stats.remote()
                if stats.get("locked"):
                    await handle.unlock.remote(self._lock.key)
            if fleet.died_since(key, asked_ms):
                return  # the answer is of a process that has ended
            watch.answered(stats, self._context.monotonic_ms())
            fleet.answered(key)
            if key[0] == "shard" and fleet.serves(key):
                self._lifelines.hold(name_of(key))
        except ActorDiedError as error:
            watch.failed()
            if key in fleet.watches and key not in fleet.leaving:
                fleet.failed(key, died=True)
                log.error("%s-%d is gone for good (%s); creating it anew", *key, error)
                fleet.create(key)
                watch.restarting(self._context.monotonic_ms())  # calls of it time out until its process is up
        except (RayError, TimeoutError) as error:
            if watch.answered_since(asked_ms):
                return  # the failure is of a process before
            watch.failed()
            if isinstance(error, ActorUnavailableError):
                watch.restarting(self._context.monotonic_ms())
            if key in fleet.watches:
                fleet.failed(key, died=isinstance(error, ActorUnavailableError))
            log.info("%s-%d does not answer: %s", *key, type(error).__name__)

    async def _take_over(self) -> None:
        """Start elsewhere what has lost its node and finds no place."""
        fleet = self._fleet
        if not await fleet.look_for_places():
            return
        for key in fleet.without_place():
            if not fleet.free_places(key[0]):
                self._fleet.take_over(key)
                log.error(
                    "%s-%d has not answered for %d ms and finds no place: it starts where there is none", *key, self._config.takeover_ms
                )

    # -- scaling ------------------------------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        try:
            await asyncio.shield(self._created)
        except ConfigError:
            return  # `_watch` logs it
        assert self._reconciler is not None
        await self._reconciler.run()

    def _in_a_hurry(self) -> bool:
        """Whether somebody waits for an actor to become ready, or for a spare process."""
        reconciler = self._reconciler
        return not self._fleet.ready() or (reconciler is not None and (reconciler.in_a_hurry or reconciler.spare_wait.lasts))

    async def _balance_connections(self, now_ms: float) -> None:
        """Have edges with many connections let some go to an edge that has joined. A later round makes up for an answer that is lost."""
        fleet = self._fleet
        staying = [key for key in fleet.keys("edge") if key not in fleet.leaving and not fleet.told_to_end(key)]
        edges = {key[1]: key for key in staying if fleet.serves(key)}
        counts = {index: _lasting_connections(fleet.row(key)) for index, key in edges.items()}
        processes = {index: (index, fleet.process(key)) for index, key in edges.items()}
        released = self._connection_balance.observe(counts, processes, now_ms, silent=len(staying) - len(edges))
        if not released:
            return
        log.info("edges let connections go, as one has joined: %s", released)
        calls = (fleet.handles[edges[index]].release.remote(count, self._lock.proof("release")) for index, count in released.items())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_TIMEOUT_S):
                await asyncio.gather(*calls, return_exceptions=True)

    async def _ask_redis(self) -> None:
        try:
            epoch = await controller_epoch(self._clients[0])
        except (RedisError, OSError) as error:
            self._redis |= {"alive": False, "error": str(error)}
            self._fleet.stores_alive = ()
            return
        if epoch not in (0, self._epoch):
            raise Fenced(f"another controller has taken control, with epoch {epoch}")
        stores = await asyncio.gather(*(self._ask_store(at, store) for at, store in enumerate(self._clients)))
        self._fleet.stores_alive = [store["alive"] for store in stores]
        self._redis.pop("error", None)
        restarts = sum(store["restarts"] for store in stores)
        self._redis |= {**stores[0], "alive": all(store["alive"] for store in stores), "restarts": restarts}
        if len(stores) > 1:
            self._redis["stores"] = stores

    async def _ask_store(self, index: int, client: Redis) -> dict[str, Any]:
        """The state of one store; renews the lease on it."""
        try:
            info = await client.info()
        except (RedisError, OSError) as error:
            return {"alive": False, "restarts": self._redis_restarts[index], "error": str(error), "node": node_of(client)}
        await self._renew_lease(client)
        self._redis_restarts[index] += self._redis_runs.get(index, info["run_id"]) != info["run_id"]
        self._redis_runs[index] = info["run_id"]
        return {
            "alive": True,
            "restarts": self._redis_restarts[index],
            "version": info.get("valkey_version") or info["redis_version"],
            "pid": info["process_id"],
            "uptime_s": info["uptime_in_seconds"],
            "used_memory_bytes": info["used_memory"],
            "memory_bytes_max": info.get("maxmemory", 0),
            "aof_enabled": bool(info.get("aof_enabled")),
            "aof_bytes": info.get("aof_current_size", 0),
            "node": node_of(client),
        }

    async def _renew_lease(self, client: Redis) -> None:
        try:
            if self._engine:
                await renew_lease(client, self._engine, self._lease_ms)
        except (RedisError, OSError) as error:
            log.warning("the lease on Redis is not renewed: %s", error)

    def _watch_of_self(self) -> HealthWatch:
        now_ms = self._context.monotonic_ms()
        watch = HealthWatch("controller", 0, self._config.health_timeout_ms, now_ms)
        watch.answered(self._stats(), now_ms)
        return watch

    def _stats(self) -> dict[str, Any]:
        return {**self._context.vitals("controller", 0, self._started_ms), "ready": True}

    def _end_when_failed(self, task: asyncio.Future[None]) -> None:
        """End the process when this task failed: Ray restarts the actor, which would otherwise look alive and check nobody."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the controller ends: %r", error, exc_info=error)
            self._context.end_process()


def _runs(existing: Iterable[ActorKey]) -> bool:
    """Whether an engine with these actors runs, which a controller then continues."""
    return any(role == "shard" for role, _ in existing)


def _lasting_connections(row: Mapping[str, Any]) -> int:
    """Those of an edge that do not end by themselves after a request."""
    return sum(count for name, count in (row.get("connections") or {}).items() if name != TRANSPORTS[POLL])
