"""Brings the engine to the numbers of actors that are wanted, and replaces processes that are to go, while it serves.

One task per role, each of which looks at what is wanted, at the slot map and at the actors, takes the next step, and looks again.
There is no other plan, so nothing is to be undone or resumed. One more task per store gives the slots of its dead shards away, and waits
for nobody else.

    who owns what
    wanted numbers          the controller in control, fenced by its epoch, in storage before anybody acts on them
    slot map: numbers       the controller, by compare-and-set
    slot map: owners        the shard that hands slots over, by compare-and-set, once their pages are written; of a dead shard the
                            controller
    slots                   the shard that the map names, fenced by the slots' epochs

Each store has a map of its own (`engine.core.model.routing`), and slots move between shards of one store. A step looks at all maps.
A number is changed in one after the other; where a controller died in between, the next one first gives all the larger number: the actors
beyond the smaller one exist, and own nothing in that map.

    shards, growing         create -> ready -> number in the map -> sets of slots move to them
    shards, shrinking       sets of slots move away -> number in the map -> everybody has read it -> drain -> end
    schedulers, growing     create -> ready -> number in the map -> all follow it
    schedulers, shrinking   number in the map -> all follow it -> everybody has read it -> drain -> end
    edges, growing          create
    edges, shrinking        the clients are handed over and have left -> end

A shard that has died and has no next process after `failover_ms`, or at once where its node has no spare one for it (`Fleet.broke`), loses
its slots to those that serve, by one change of the map: they take a higher epoch on them, and read their journals. A process of it that
lives all the same, cut off or hung, may write until then, which is read too, and is fenced from then on. Its next process begins without
slots, and gets its share like a new shard.

An actor whose process is to be replaced (`engine.actors.replacements`) stays in the map, and Ray starts its next process:

    shard                   sets of slots move away -> everybody has read the map -> drain -> end the process -> its share moves to the next
    scheduler               drain -> end the process. Its timers wait for the next one, and edges keep their requests
    edge                    the clients are handed over, to edges that serve; it ends its process
    actor of a feature      drain -> end the process. Its input waits in storage
    controller              ends its process, when all others are replaced

Where nobody else could take slots or clients, one actor more is created until it is done (one shard for each store).

Crash points. The controller dies:
    before the wanted numbers are stored    nobody was promised anything. Where storage took them and its answer was lost, it goes by them
    after a create                          the successor finds the actor by its name
    in the middle of a set of slots         the source goes on, or takes them back by itself; the map says how it ended
    between two sets                        the next plan is what is left of this one (`engine.core.controller.slot_moves`)
    before an actor is ended                it is above every number: the successor ends it. An edge may have served anew meanwhile
    before a process is replaced            it is the process that is to go: the successor empties it and ends it
A shard, source or target, dies: Ray starts it again, it reads the map, and its slots are not part of a step until it serves, or until
others have them. The wanted numbers change in the middle: the next step goes by the new ones. Two controllers, one of which was cut off:
every change of the map is a compare-and-set, so slots may move once more than needed, and the one that writes the wanted numbers or checks
its epoch ends itself.

Before sets of slots move to other shards, and before edges leave, the nodes get the spare processes again that new actors have taken
(`engine.actors.spare_wait`).

New actors are created a few at a time (`engine.actors.newcomers`). New shards that wait for a machine hold nobody up: after `_JOIN_MS`
those that are ready begin. A map has shards 0 to n, and Ray fills places in any order: one that got a place before a lower one is ended, so
that the lower one gets it, and created again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from ray.exceptions import RayError
from redis.asyncio import Redis

from engine.actors.actor_process import RETRY_S, ProcessContext
from engine.actors.feature_actors import FEATURE_ROLES
from engine.actors.fleet import ROLES, ActorKey, Fleet
from engine.actors.newcomers import CLOSE_ROUNDS_MS, Newcomers
from engine.actors.replacements import Replacements, name_of
from engine.actors.spare_wait import SpareWait
from engine.config import Config
from engine.core.controller.slot_moves import Move, away_moves, even_moves, load_moves, moved, next_sets, slots_in
from engine.core.controller.wanted import WantedNumbers
from engine.core.model.formats import FIRST, FORMATS
from engine.core.model.routing import SLOTS, RoutingTable, store_of
from engine.errors import StorageUnavailable
from engine.store.epoch import has_ended
from engine.store.slot_map import require_slot_map, swap_slot_map
from engine.store.wanted_numbers import read_wanted, write_wanted

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S: Final = 1.0
"""Between two looks when a role has nothing to do. When none has, the next look is after the controller's next round (`look`)."""

_SHARED_MS: Final = 100
"""When none has, they share what was read so long ago."""

_BUSY_S: Final = 0.1
"""Between two looks while an actor has to become ready, or to serve again."""

_JOIN_MS: Final = 10_000
"""New shards are waited for so long after the last actor was created: moving slots once to all of them moves fewer than to one by one."""

_MOVE_TIMEOUT_S: Final = 15.0
"""For one set of slots. A shard that has not handed them over by then keeps them, or the map says that it has."""

_FOLLOW_S: Final = 10.0
"""For everybody to read a new slot map, which they do within a second or when they need it."""

_RESTART_MS: Final = 2000
"""For the next process of a shard that a record has ended: ten times what it takes where a process is spare."""

_ANSWER_S: Final = 2.0
"""For an actor's `stats`."""

_SLOW_MS: Final = 200
_QUICK_MS: Final = 100
"""A set that took longer is followed by one of half as many slots, a quicker one by one of twice as many: users wait for so long."""

_SET_MAX: Final = 4
_SET_FIRST: Final = 1

_REBALANCED_MAX: Final = SLOTS // 4
"""Slots that one rebalancing moves at most: then the load is measured anew."""


class Reconciler:
    """See the module's docstring.

    Args:
        clients: of the stores, the first one first.
        replacements: the processes that are to go.
        prove: the proof for a call of this method.
        wanted: what was wanted last.
        epoch: of the controller.
        spares_expected: whether a node is about to have a spare process (`engine.actors.spares`).
    """

    def __init__(
        self,
        config: Config,
        clients: Sequence[Redis],
        fleet: Fleet,
        replacements: Replacements,
        context: ProcessContext,
        prove: Callable[[str], bytes],
        wanted: WantedNumbers,
        epoch: int,
        spares_expected: Callable[[], bool] = lambda: False,
    ) -> None:
        self.wanted = wanted
        self._config = config
        self._clients = clients
        self._fleet = fleet
        self._replacements = replacements
        self._end_process = context.end_process
        self._wall_ns = context.wall_ns
        self._now_ms = context.monotonic_ms
        self._prove = prove
        self._epoch = epoch
        self.spare_wait = SpareWait(spares_expected, self._now_ms)
        self.newcomers = Newcomers(fleet, self._now_ms)
        self._wanted_ms = self._now_ms()
        self._slots: RoutingTable | None = None
        self._read_ms = float("-inf")  # when it was read last
        self._left = 0  # slots that are still to be moved
        self._moved = 0
        self._under_way: dict[int, Move] = {}  # by source
        self._set_size = _SET_FIRST
        self._gap_until_ms = 0.0  # until then no shard is created above the lowest one that waits
        self._by_load: list[Move] | None = None  # of the rebalancing that is under way
        self._progress: tuple[int, ...] = ()  # of an upgrade
        self._progress_ms = 0.0
        self._wake = {role: asyncio.Event() for role in (*ROLES, "controller")}
        self._deaths = [asyncio.Event() for _ in clients]  # by store: a shard may have been dead for long enough
        self._writing = asyncio.Lock()
        self._asked_ms = 0  # of the last request, which storage may not have taken
        self._storing = asyncio.Lock()  # of the slot maps' numbers, so that nobody sees them differ between two stores

    async def want(self, *, at_ms: int, **changes: Any) -> None:
        """Store and bring about other numbers. Raises StorageUnavailable: they may have been stored, and are brought about if they were."""
        async with self._writing:
            self._asked_ms = max(at_ms, self._asked_ms + 1, self.wanted.at_ms + 1)
            wanted = msgspec.structs.replace(self.wanted, at_ms=self._asked_ms, **changes)
            await self._ask(0, write_wanted, wanted, self._epoch)
            self._take(wanted)

    def _take(self, wanted: WantedNumbers) -> None:
        self.wanted = wanted
        self._wanted_ms = self._now_ms()
        self._by_load = None
        self._wake_all()

    def look(self) -> None:
        """The controller has asked all actors how they are: look at the engine as it is now, every `_POLL_S` at most.

        While it is not as it is wanted, the role that found that looks often, and the others may sleep since they had nothing to do.
        """
        if not self.settled or self._now_ms() - self._read_ms >= _POLL_S * 1000 - _SHARED_MS:
            self._wake_all()

    def look_at_shards(self) -> None:
        """One of them may have been dead for long enough."""
        for event in self._deaths:
            event.set()

    def _wake_all(self) -> None:
        self.look_at_shards()
        for event in self._wake.values():
            event.set()

    @property
    def settled(self) -> bool:
        """Whether the engine is as it is wanted: no actor is to come or to leave, and no slot is to move."""
        return self.steady and not self._fleet.joining

    @property
    def steady(self) -> bool:
        """Whether nothing is under way: the engine is as it is wanted, or lacks only actors that have been waiting for long."""
        slots, wanted, fleet, waiting = self._slots, self.wanted, self._fleet, self.newcomers.waiting()
        return (
            slots is not None
            and slots.shards + waiting["shards"] == wanted.shards
            and (slots.schedulers == wanted.schedulers or bool(waiting["schedulers"]))
            and len(fleet.joining) == sum(waiting.values())
            and set(range(slots.shards)) <= set(slots.owners)
            and not ((wanted.sharing and not waiting["shards"]) or self._left or self._under_way or fleet.leaving)
            and all(len(fleet.keys(role)) == getattr(wanted, f"{role}s") for role in ("shard", "scheduler", "edge"))
            and not (wanted.replacing or self._replacements.on_draining_nodes())
            and self._replacements.waiting_ms() is None
        )

    @property
    def in_a_hurry(self) -> bool:
        """Whether an actor is about to become ready."""
        waiting_ms = self._replacements.waiting_ms()
        return (waiting_ms is not None and waiting_ms < CLOSE_ROUNDS_MS) or self.newcomers.about_to_be_ready

    @property
    def looked(self) -> bool:
        """Whether it knows how the engine is."""
        return self._slots is not None

    def status(self) -> dict[str, Any]:
        slots, wanted, fleet = self._slots, self.wanted, self._fleet
        have = {"shards": slots.shards, "schedulers": slots.schedulers} if slots is not None else {"shards": 0, "schedulers": 0}
        return {
            "settled": self.settled,
            "wanted": {"shards": wanted.shards, "schedulers": wanted.schedulers, "edges": wanted.edges},
            "by": wanted.by,
            "wanted_at_ms": wanted.at_ms,
            "have": {**have, "edges": sum(fleet.serves(key) for key in fleet.keys("edge"))},
            "sharing": wanted.sharing,
            "slots_version": sum(slot_map.version for slot_map in slots.maps) if slots is not None else 0,
            "slots_left": self._left,
            "slots_moved": self._moved,
            "moves": [
                {"from": f"shard-{move.source}", "to": f"shard-{move.target}", "slots": len(move.slots)}
                for _, move in sorted(self._under_way.items())
            ],
            "joining": [f"{role}-{index}" for role, index in sorted(fleet.joining)],
            "leaving": [f"{role}-{index}" for role, index in sorted(fleet.leaving)],
            "upgrading": self._replacements.left(wanted),
            "stopped": wanted.stopped,
            "formats": FIRST if slots is None else slots.formats,
            "draining": [name_of(key) for key in self._replacements.on_draining_nodes()],
        }

    async def run(self) -> None:
        """Runs until cancelled. Raises Fenced: another controller has taken control."""
        async with asyncio.TaskGroup() as tasks:
            steps: dict[str, Callable[[], Awaitable[float]]] = {
                "shard": self._step_shards,
                "scheduler": self._step_schedulers,
                "edge": self._step_edges,
                **{role: partial(self._step_feature, role) for role in FEATURE_ROLES},
                "controller": self._step_controller,
            }
            for role, step in steps.items():
                tasks.create_task(self._repeat(step, self._wake[role]))
            for store, wake in enumerate(self._deaths):
                tasks.create_task(self._repeat(partial(self._step_dead_shards, store), wake))

    async def _repeat(self, step: Callable[[], Awaitable[float]], wake: asyncio.Event) -> None:
        while True:
            wake.clear()
            try:
                pause_s = await step()
            except (StorageUnavailable, RayError, TimeoutError) as error:
                log.info("the next look is at the engine as it is then: %s: %s", type(error).__name__, error)
                if isinstance(error, StorageUnavailable):
                    self._fleet.excuse()
                pause_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if pause_s == _POLL_S and self.settled else pause_s):
                    await wake.wait()

    # -- shards -------------------------------------------------------------------------------------------------------

    async def _step_shards(self) -> float:
        slots, wanted = await self._read(), self.wanted
        going = self._replacements.turn("shard", wanted)
        wall_ms = self._wall_ns() // 1_000_000
        if late := [key for key in going if self._replacements.is_late(key, wall_ms) and self._fleet.serves(key)]:
            log.warning("the nodes of %s go before their slots have moved", [name_of(key) for key in late])
            await self._start_anew(late)
            return _BUSY_S
        count = self._count(wanted.shards, going, len(slots.maps))
        gap = self._ready_after(slots.shards, count, 0)
        self._add("shard", slots.shards, gap + 1 if self._now_ms() < self._gap_until_ms and gap < count else count)
        if count > slots.shards:
            joined = self._ready_after(slots.shards, count, _JOIN_MS)
            if joined > slots.shards:
                log.info("%d shards are ready", joined - slots.shards)
                await self._swap(slots, shards=joined)
                return 0
            self._give_place_to_lower(gap)
        kept = min(slots.shards, count)
        if going:  # before the first slot leaves: one that dies while it is emptied is to go no more
            await self._share_anew()
        moves = self._moves_away(slots, kept, going) if going else await self._moves(slots, kept)
        self._left = slots_in(moves)
        if moves and not going and self.spare_wait.holds_back():
            return _BUSY_S
        if moves:
            return 0 if await self._move(moves) else _BUSY_S
        held = set(slots.owners)
        if empty := [key for key in going if key[1] not in held or self._alone(key)]:
            await self._replace(empty, slots)
            return _BUSY_S
        if slots.shards > kept > max(slots.owners):
            log.info("the slots of %d shards have moved away", slots.shards - kept)
            await self._swap(slots, shards=kept)
            return 0  # whatever else is wanted is for those that are left
        if wanted.sharing and kept == wanted.shards and not (going or self._upgrading_shards()):
            await self._shared(wanted)
        await self._end_surplus("shard", slots, max(slots.shards, count))
        if not self.settled:
            return _BUSY_S
        self.spare_wait.end()
        return _POLL_S

    async def _step_dead_shards(self, store: int) -> float:
        """Give the slots of this store's dead shards to those that serve. No other step, and no other store, holds it up."""
        fleet, stores = self._fleet, len(self._clients)
        dead = [shard for shard in fleet.dead("shard") if store_of(shard, stores) == store]
        if not dead:
            return _POLL_S
        try:
            slot_map = await self._ask(store, require_slot_map)
            ended = {shard for shard in dead if await self._ask(store, has_ended, name_of(("shard", shard)))}
        except StorageUnavailable:
            fleet.doubt(("shard", shard) for shard in dead)
            raise
        late = fleet.dead("shard", _RESTART_MS)  # one that a record has ended starts again with its slots: the record comes with them
        lost = [shard for shard in fleet.dead("shard") if shard in dead and (shard in late or shard not in ended)]
        going = self._replacements.turn("shard", self.wanted)
        homes = [key[1] for key in fleet.keys("shard") if fleet.serves(key) and key not in going]
        moves = away_moves(slot_map, lost, homes)
        after = moved(slot_map, moves)
        if bool(moves) and await self._ask(store, swap_slot_map, after):
            log.error("the slots of shards %s, which do not come back, are given to others: %d of them", lost, slots_in(moves))
            self._slots = None if self._slots is None else self._slots.with_map(after)
            self._read_ms = float("-inf")
            self._wake["shard"].set()  # the dead ones get their share again
            handles = [fleet.handles["shard", move.target] for move in moves]
            with contextlib.suppress(TimeoutError):  # one that does not hear it reads the map by itself
                async with asyncio.timeout(_ANSWER_S):
                    await asyncio.gather(
                        *(each.adopt.remote(after.version, self._prove("adopt")) for each in handles), return_exceptions=True
                    )
        return _BUSY_S  # a set that was on its way to one of them may arrive now

    def _ready_after(self, count: int, wanted: int, join_ms: float) -> int:
        """How many shards there are with those new ones that can begin; none before all can, for so long."""
        ready = count
        while ready < wanted and self._fleet.serves(("shard", ready)):
            ready += 1
        return ready if ready == wanted or self._now_ms() - max(self._wanted_ms, self.newcomers.created_ms) > join_ms else count

    def _give_place_to_lower(self, gap: int) -> None:
        """End the last new shard that serves while a lower one waits for a place. It is created again once that one serves, or did not
        get the place within `_JOIN_MS`."""
        fleet = self._fleet
        if not any(entry["actor"] == name_of(("shard", gap)) for entry in fleet.waiting()):
            return
        if passed := [key for key in fleet.keys("shard") if key[1] > gap and fleet.serves(key)]:
            log.info("shard %d gives its place to shard %d", passed[-1][1], gap)
            fleet.end(passed[-1])
            self._gap_until_ms = self._now_ms() + _JOIN_MS

    def _moves_away(self, slots: RoutingTable, kept: int, going: Sequence[ActorKey]) -> Sequence[Move]:
        """What is still to be moved from shards that are to go; into all others that serve, of these the emptiest first."""
        sources = {shard for _, shard in going} | set(range(kept, slots.shards))
        homes = [shard for shard in range(kept) if shard not in sources and self._fleet.serves(("shard", shard))]
        return [move for slot_map in slots.maps for move in away_moves(slot_map, sorted(sources), homes)]

    async def _moves(self, slots: RoutingTable, kept: int) -> Sequence[Move]:
        """What is still to be moved."""
        if self.wanted.sharing == "load" and kept == slots.shards == self.wanted.shards:
            if self._by_load is None:
                loads, each = await self._loads(), _REBALANCED_MAX // len(slots.maps)
                self._by_load = [move for slot_map in slots.maps for move in load_moves(slot_map, loads, each)]
            still = ((move, tuple(slot for slot in move.slots if slots.owners[slot] == move.source)) for move in self._by_load)
            return [Move(move.source, move.target, left) for move, left in still if left]
        held = set(slots.owners)
        leaving, empty = any(shard in held for shard in range(kept, slots.shards)), any(shard not in held for shard in range(kept))
        if empty:  # a dead shard's slots were given away
            await self._share_anew()
        even = empty or (self.wanted.sharing == "even" and kept == self.wanted.shards)
        if leaving or (even and not self._upgrading_shards()):
            return [move for slot_map in slots.maps for move in even_moves(slot_map, kept)]
        return []

    def _alone(self, key: ActorKey) -> bool:
        """Whether this is a guest that moves to a place, and no other shard can have its slots meanwhile: its users wait for its start."""
        fleet, stores = self._fleet, len(self._clients)
        others = (other for other in fleet.keys("shard") if other != key and store_of(other[1], stores) == store_of(key[1], stores))
        return key in fleet.guests and not any(map(fleet.serves, others))

    def _upgrading_shards(self) -> bool:
        """Whether shards are still to be replaced: then those that were wait for the slots of the next ones."""
        return any(name.startswith("shard-") for name in self._replacements.left(self.wanted))

    async def _loads(self) -> Mapping[int, float]:
        """Of every slot. What a slot got at its last owners counts there, ever less of it: only the sum is what it gets."""
        keys = [key for key in self._fleet.keys("shard") if self._fleet.serves(key)]
        async with asyncio.timeout(_MOVE_TIMEOUT_S):
            answers = await asyncio.gather(*(self._fleet.handles[key].slot_loads.remote(self._prove("slot_loads")) for key in keys))
        loads: defaultdict[int, float] = defaultdict(float)
        for answer in answers:
            for slot, load in answer.items():
                loads[slot] += load
        return loads

    async def _move(self, moves: Sequence[Move]) -> bool:
        """Take the next step of the plan. Returns whether every set of it has moved."""
        serves = self._fleet.serves
        possible = [move for move in moves if serves(("shard", move.source)) and serves(("shard", move.target))]
        results = await asyncio.gather(*map(self._move_set, next_sets(possible, self._set_size)), return_exceptions=True)
        for error in results:
            if isinstance(error, RayError | TimeoutError):
                log.warning("a set of slots did not move: %s: %s", type(error).__name__, error)
            elif isinstance(error, BaseException):
                raise error
        return bool(results) and not any(results)

    async def _move_set(self, move: Move) -> None:
        source, target = (self._fleet.handles["shard", shard] for shard in (move.source, move.target))
        self._under_way[move.source] = move
        began_ms = self._now_ms()
        try:
            async with asyncio.timeout(_MOVE_TIMEOUT_S):
                version = await source.hand_over.remote(list(move.slots), move.target, self._prove("hand_over"))
                await target.adopt.remote(version, self._prove("adopt"))
        finally:
            del self._under_way[move.source]
        self._moved += len(move.slots)
        took_ms = self._now_ms() - began_ms
        if took_ms > _SLOW_MS:
            self._set_size = max(self._set_size // 2, 1)
        elif took_ms < _QUICK_MS:
            self._set_size = min(self._set_size * 2, _SET_MAX)

    async def _share_anew(self) -> None:
        """Store that all shards are to get their share of the slots again."""
        if self.wanted.sharing != "even":
            await self._reached(self.wanted, sharing="even")

    async def _shared(self, wanted: WantedNumbers) -> None:
        """The slots are shared as it was wanted."""
        await self._reached(wanted, sharing="")
        self._by_load = None

    async def _reached(self, wanted: WantedNumbers, **changes: Any) -> None:
        """Store that this part of what was wanted is done, unless something else is wanted by now."""
        async with self._writing:
            if self.wanted is wanted:
                reached = msgspec.structs.replace(wanted, **changes)
                await write_wanted(self._clients[0], reached, self._epoch)
                self.wanted = reached

    # -- schedulers ---------------------------------------------------------------------------------------------------

    async def _step_schedulers(self) -> float:
        slots, wanted = await self._read(), self.wanted.schedulers
        before = slots.schedulers
        self._add("scheduler", before, wanted)
        serve = all(self._fleet.serves(("scheduler", index)) for index in range(before, wanted))
        if before != wanted and serve:
            slots = await self._swap(slots, schedulers=wanted)
            await self._follow(max(before, wanted), slots)
        await self._end_surplus("scheduler", slots, slots.schedulers)
        await self._replace(self._replacements.turn("scheduler", self.wanted), slots)
        return _POLL_S if self.settled else _BUSY_S

    async def _follow(self, count: int, slots: RoutingTable) -> None:
        """Let the schedulers work by the new maps. One that does not answer reads its map by itself, or when it starts."""
        handles = [(self._fleet.handles["scheduler", index], slots.version(index)) for index in range(count)]
        calls = (handle.follow.remote(version, self._prove("follow")) for handle, version in handles)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FOLLOW_S):
                await asyncio.gather(*calls, return_exceptions=True)

    # -- edges --------------------------------------------------------------------------------------------------------

    async def _step_edges(self) -> float:
        fleet, going = self._fleet, self._replacements.turn("edge", self.wanted)
        wanted = self._count(self.wanted.edges, going)
        self._add("edge", 0, wanted)
        for key in going:
            others = (other for other in fleet.keys("edge") if other not in going)
            if fleet.serves(key) and any(map(fleet.serves, others)):
                log.info("edge %d hands its clients over, and starts anew", key[1])
                fleet.drained(key)  # before it answers: no other edge may leave to it meanwhile
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        await fleet.handles[key].hand_over.remote(self._prove("hand_over"))
                except (RayError, TimeoutError):
                    fleet.kept(key)
                    raise
                self._replacements.told(key)
        surplus = [key for key in fleet.keys("edge") if key[1] >= wanted]
        if surplus and any(fleet.serves(("edge", index)) for index in range(wanted)) and not self.spare_wait.holds_back():
            fleet.leaving.update(surplus)
            await asyncio.gather(*map(self._end_edge, surplus))
        return _POLL_S if self.settled else _BUSY_S

    async def _end_edge(self, key: ActorKey) -> None:
        """Let an edge hand its clients over, and end it when they have left, before Ray starts its next process, or that has clients."""
        handle = self._fleet.handles[key]
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):  # one that waits for a machine has no clients
                pid = (await handle.stats.remote())["pid"]
            async with asyncio.timeout((self._config.drain_spread_ms + 3 * self._config.drain_ms) / 1000):
                await handle.hand_over.remote(self._prove("hand_over"))
                while (stats := await handle.stats.remote())["pid"] == pid and not stats.get("left"):
                    await asyncio.sleep(_BUSY_S)
        log.info("edge %d has left", key[1])
        self._fleet.end(key)

    # -- actors of features -------------------------------------------------------------------------------------------

    async def _step_feature(self, role: str) -> float:
        if going := self._replacements.turn(role, self.wanted):
            await self._replace(going, await self._read())
        return _POLL_S if self.settled else _BUSY_S

    # -- the controller -----------------------------------------------------------------------------------------------

    async def _step_controller(self) -> float:
        wanted = self.wanted
        if self._replacements.turn_of_self(wanted):
            log.info("the controller ends, and Ray starts the next one")
            self._end_process()
        elif wanted.replacing and not self._replacements.left(wanted) and self._fleet.ready():
            await self._reached(wanted, replacing={})
        elif wanted.replacing and (why := self._stuck(wanted)):
            log.error("the upgrade ends before every process is another: %s", why)
            await self._reached(wanted, replacing={}, stopped=why)
        await self._raise_formats()
        return _POLL_S

    async def _raise_formats(self) -> None:
        """Let everybody write the newest formats that every process reads (`engine.core.model.formats`)."""
        slots, fleet = self._slots, self._fleet
        if slots is None or slots.formats >= FORMATS or not fleet.ready() or fleet.joining or fleet.leaving:
            return
        read_by_all = min((watch.stats["formats"] for watch in fleet.watches.values()), default=FORMATS)
        formats = min(read_by_all, FORMATS)
        if formats > slots.formats:
            log.info("every process reads formats %d: they are written from now on", formats)
            await self._swap(await self._read(), formats=formats)

    def _stuck(self, wanted: WantedNumbers) -> str:
        """What an upgrade that made no progress for `upgrade_step_ms` waits for; "" while it does not."""
        left, now_ms = self._replacements.left(wanted), self._now_ms()
        progress = wanted.at_ms, len(left), self._left, self._moved
        if progress != self._progress:
            self._progress, self._progress_ms = progress, now_ms
        if now_ms - self._progress_ms <= self._config.upgrade_step_ms:
            return ""
        fleet, seconds = self._fleet, self._config.upgrade_step_ms // 1000
        absent = [name_of(key) for role in ROLES for key in fleet.keys(role) if not (fleet.serves(key) or key in fleet.leaving)]
        what = f"{', '.join(absent)} not ready" if absent else f"{left[0]} not emptied"
        return f"{what}, and no progress for {seconds} s"

    # -- of every role ------------------------------------------------------------------------------------------------

    def _count(self, wanted: int, going: Sequence[ActorKey], stores: int = 1) -> int:
        """How many actors of a role there are to be now: one more for each store while all of one that are wanted are to go; not for the
        place of a guest."""
        indices = {key[1] for key in going if key not in self._fleet.guests}
        return wanted + stores * any(indices.issuperset(range(store, wanted, stores)) for store in range(stores))

    async def _replace(self, going: Sequence[ActorKey], slots: RoutingTable) -> None:
        """End the processes of these actors, which are empty by these slot maps. Ray starts the next ones."""
        for key in [key for key in going if self._replacements.unheard(key, self._config.health_timeout_ms)]:
            log.warning("%s %d was told to end and has not; it is told again", *key)
            self._replacements.told(key)
            self._fleet.replace(key)
        going = [key for key in going if self._fleet.serves(key)]
        if going:
            await self._followed(slots)
            await self._start_anew(going)

    async def _start_anew(self, going: Sequence[ActorKey]) -> None:
        """End the processes of these actors, once they have written what they have."""
        await asyncio.gather(*map(self._drain, going))
        for key in going:
            log.info("%s %d ends, and starts anew", *key)
            self._fleet.drained(key)
            self._replacements.told(key)
            self._fleet.replace(key)

    def _add(self, role: str, have: int, wanted: int) -> None:
        """Look after all that there are, and create those that are missing, a few at a time."""
        for index in range(have):
            self._fleet.add((role, index))
        self.newcomers.create(role, range(have, wanted))

    async def _end_surplus(self, role: str, slots: RoutingTable, have: int) -> None:
        """End the actors of this role that the slot maps have no more, and nobody wants."""
        fleet = self._fleet
        wanted = self.wanted.shards if role == "shard" else self.wanted.schedulers
        surplus = [key for key in fleet.keys(role) if key[1] >= max(have, wanted)]
        if not surplus:
            return
        fleet.leaving.update(surplus)
        await self._followed(slots)
        await asyncio.gather(*map(self._drain, surplus))
        for key in surplus:
            log.info("%s %d has left", *key)
            fleet.end(key)

    async def _drain(self, key: ActorKey) -> None:
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(self._config.stop_timeout_ms / 1000):
                await self._fleet.handles[key].drain.remote(self._prove("drain"))

    async def _followed(self, slots: RoutingTable) -> None:
        """Returns when everybody who answers goes by these maps or newer ones; after `_FOLLOW_S` in any case."""
        lagging: list[ActorKey] = []
        try:
            async with asyncio.timeout(_FOLLOW_S):
                while True:
                    others = [key for key in self._fleet.watches if key not in self._fleet.leaving]
                    follow = await asyncio.gather(*(self._follows(key, slots) for key in others))
                    lagging = [key for key, follows in zip(others, follow, strict=True) if not follows]
                    if not lagging:
                        return
                    await asyncio.sleep(_BUSY_S)
        except TimeoutError:
            log.warning("not by the new slot map yet: %s", lagging)

    async def _follows(self, key: ActorKey, slots: RoutingTable) -> bool:
        if key in self._fleet.joining:
            return True  # it begins with the newest map
        role, index = key
        try:
            async with asyncio.timeout(_ANSWER_S):
                stats = await self._fleet.handles[key].stats.remote()
        except (RayError, KeyError):
            return True  # so does its successor
        except TimeoutError:
            return False
        if role == "edge":
            goes_by = stats.get("slots_versions", ())
            return all(version >= slot_map.version for version, slot_map in zip(goes_by, slots.maps, strict=False))
        return int(stats.get("slots_version", slots.version(index))) >= slots.version(index)

    async def _read(self) -> RoutingTable:
        async with self._storing:
            if self._slots is not None and self.settled and self._now_ms() - self._read_ms < _SHARED_MS:
                return self._slots
            while True:
                known = self._slots
                slots = RoutingTable(await asyncio.gather(*(self._ask(store, require_slot_map) for store in range(len(self._clients)))))
                if known is self._slots:  # else a dead shard's slots were given away meanwhile
                    break
            self._slots = slots = await self._store(slots, shards=slots.shards, schedulers=slots.schedulers)
            await self._read_wanted()
            self._read_ms = self._now_ms()
        return slots

    async def _ask(self, store: int, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        """A store's reply. Where the first one fails, no silence counts, whatever the last round found: this process may be cut off."""
        try:
            return await call(self._clients[store], *args)
        except StorageUnavailable:
            if store == 0:
                self._fleet.excuse_all()
            raise

    async def _read_wanted(self) -> None:
        """Storage may have what it did not answer for, and take it as late as it likes; or have lost what it had. The newest counts."""
        async with self._writing:
            stored = await self._ask(0, read_wanted)
            if stored is None or stored.at_ms < self.wanted.at_ms:
                await self._ask(0, partial(write_wanted, unreadable=stored is None), self.wanted, self._epoch)
            elif stored != self.wanted:
                log.info("wanted numbers are stored whose request was refused: %s", stored)
                self._take(stored)

    async def _swap(self, slots: RoutingTable, **numbers: int) -> RoutingTable:
        """Store other numbers; returns the maps that are stored then. Raises StorageUnavailable: another changed one meanwhile."""
        async with self._storing:
            self._slots = slots = await self._store(slots, **numbers)
        return slots

    async def _store(self, slots: RoutingTable, **numbers: int) -> RoutingTable:
        """Store these numbers in every map that has others."""
        for slot_map in slots.maps:
            changed = msgspec.structs.replace(slot_map, **numbers)
            if changed != slot_map:
                changed = msgspec.structs.replace(changed, version=slot_map.version + 1)
                if not await self._ask(slot_map.store, swap_slot_map, changed):
                    raise StorageUnavailable("a slot map has changed meanwhile")
                slots = slots.with_map(changed)
        return slots
