"""Faults with the places where they can happen, struck at a loaded engine: what was lost, repeated or disordered, and when service is back.

Every scenario runs under steady traffic (traffic.py), on real parts: Ray, Redis, sockets. Service is back when every connected user has
received something that was sent after the fault (after a kill, or after the part may run again). `silence_s` is the longest that any of
them went without a message, `silences` has the worst of those above a second, each with what was killed shortly before and meanwhile.
`python -m bench chaos` runs them all, tests/chaos the shorter ones with less of everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine.core.model.routing import mailbox_key, slot_of, store_of
from tests.support.chaos import faults
from tests.support.chaos.breakable_engine import victim_of
from tests.support.chaos.cluster_group import ClusterGroup
from tests.support.chaos.disk import CannotMount, small_disk
from tests.support.chaos.faults import Fault
from tests.support.chaos.movable_clock import MovableClock
from tests.support.chaos.sentinel_group import SentinelGroup
from tests.support.chaos.traffic import Traffic
from tests.support.chaos.victim import Victim
from tests.support.running_engine import running_engine

STEADY_S: Final = 3.0
DISK_BYTES: Final = 64 << 20

SILENCE_S: Final = 1.0
"""A user who has no message for longer is paused; so the aim says."""

_SILENCES_MAX: Final = 5

_CAUSE_S: Final = 1.0
"""What was killed so long before a silence began is named beside it."""


class NotHere(Exception):
    """This machine cannot do it; says what is missing."""


@dataclass(frozen=True)
class Place:
    """An engine to break, and what only this kind of engine can suffer."""

    victim: Victim
    own_faults: Mapping[str, Fault] = field(default_factory=dict)
    """By the name of the scenario that has none for every place."""
    store_of: Callable[[str], int] = lambda _user: 0  # see `Traffic`


@dataclass(frozen=True)
class Scenario:
    """One fault. `place` is where it can happen; scenarios that share one share an engine."""

    name: str
    what: str
    fault: Fault | None = None
    place: str = "plain"
    within_s: float = 110


NUMBERS: Final = (
    {"shards": 6, "schedulers": 2, "edges": 3},
    {"shards": 3, "schedulers": 1, "edges": 1},
    {"shards": 2},
)
"""Up, and down again to what the engine of the scenarios begins with."""

SCENARIOS: Final = (
    Scenario("kill-shard", "kill -9 a shard", faults.killed("shard")),
    Scenario("kill-edge", "kill -9 the edge", faults.killed("edge")),
    Scenario("kill-scheduler", "kill -9 the scheduler", faults.killed("scheduler")),
    Scenario("kill-controller", "kill -9 the controller", faults.killed("controller")),
    Scenario("kill-redis", "kill -9 Redis", faults.killed("redis")),
    Scenario("stall-shard", "stop a shard for 5 s", faults.stalled("shard")),
    Scenario("stall-edge", "stop the edge for 5 s", faults.stalled("edge")),
    Scenario("stall-scheduler", "stop the scheduler for 5 s", faults.stalled("scheduler")),
    Scenario("stall-controller", "stop the controller for 5 s", faults.stalled("controller")),
    Scenario("stall-redis", "stop Redis for 5 s", faults.stalled("redis")),
    Scenario("hang-shard", "stop a shard until it is replaced", faults.replaced_while_stalled("shard")),
    Scenario("hang-edge", "stop the edge until it is replaced", faults.replaced_while_stalled("edge")),
    Scenario("lose-shard", "kill -9 a shard and each next process of it, until others have its slots", faults.lost_shard),
    Scenario("redis-memory", "Redis out of memory for 4 s", faults.out_of_memory),
    Scenario("redis-readonly", "Redis read-only for 4 s", faults.read_only),
    Scenario("scale", "2 to 6, 3 and 2 shards, 1 to 3 and 1 edges, 1 to 2 and 1 schedulers", faults.scaled(*NUMBERS)),
    Scenario("scale-killing", "the same, with kill -9 of a part during every move", faults.scaled(*NUMBERS, killing=True)),
    Scenario("never-reads", "a client that never reads", faults.never_reads),
    Scenario("never-acks", "a client that never acknowledges", faults.never_acknowledges),
    Scenario("garbage", "a publisher and clients that send garbage", faults.garbage),
    Scenario("disk-full", "the disk of Redis full for 4 s", faults.disk_full, "small disk"),
    Scenario("clock", "wall clocks step +1 h, -2 h, +1 h", None, "movable clock"),
    Scenario("sentinel", "kill -9 the Redis master; Sentinel promotes a replica", None, "sentinel"),
    Scenario("cluster", "kill -9 the master of a store of a Redis Cluster; a replica is promoted", None, "cluster"),
    Scenario("cluster-nodes", "kill -9 each of the nine nodes of a Redis Cluster in turn", None, "cluster"),
    Scenario("cluster-moves", "each store of a Redis Cluster moves to another master, as a whole and back key by key", None, "cluster"),
)


# -- places ------------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def breakable(folder: Path, *options: str, **settings: str) -> Iterator[Victim]:
    """An engine of two shards with its data under this folder. `settings`: as in the environment, without `ENGINE_`."""
    env = {f"ENGINE_{name.upper()}": value for name, value in settings.items()}
    with running_engine("--shards", "2", *options, env={"ENGINE_LOG_LEVEL": "WARNING", **env}, folder=folder) as running:
        yield victim_of(running)


@contextlib.contextmanager
def _plain(folder: Path) -> Iterator[Place]:
    with breakable(folder) as victim:
        yield Place(victim)


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Place]:
    try:
        with small_disk(folder / "data", DISK_BYTES), breakable(folder) as victim:
            yield Place(victim)
    except CannotMount as error:
        raise NotHere(f"mounting a tmpfs: {error}") from error


@contextlib.contextmanager
def _movable_clock(folder: Path) -> Iterator[Place]:
    clock = MovableClock(folder)
    with clock.running(), breakable(folder) as victim:
        yield Place(victim, {"clock": faults.clock_steps(clock)})


@contextlib.contextmanager
def _sentinel(folder: Path) -> Iterator[Place]:
    """Three servers, and a write counts when one replica has it."""
    with SentinelGroup(folder, replicas=2) as group, breakable(folder, "--redis", group.url, redis_replicas_min="1") as victim:

        async def fail_over(_victim: Victim) -> None:
            master = group.master()
            master.kill()
            await asyncio.to_thread(group.await_other, master)

        yield Place(victim, {"sentinel": fail_over})


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[Place]:
    """Three masters with two replicas each, and a write counts when one replica has it."""
    with (
        ClusterGroup(folder, replicas=2) as group,
        breakable(folder, "--redis", group.url, "--shards", str(group.stores), redis_replicas_min="1") as victim,
    ):

        async def fail_over(_victim: Victim) -> dict[str, Any]:
            begin_s, stores = time.monotonic(), await asyncio.to_thread(lambda: group.stores_at(group.master(1)))
            await asyncio.to_thread(group.fail_over, 1)
            return {"touched": [(begin_s, time.monotonic(), stores)]}

        yield Place(
            victim,
            {"cluster": fail_over, "cluster-nodes": faults.nodes_killed(group), "cluster-moves": faults.stores_moved(group)},
            lambda user: store_of(slot_of(mailbox_key("default", user)), group.stores),
        )


PLACES: Final[dict[str, Callable[[Path], AbstractContextManager[Place]]]] = {
    "plain": _plain,
    "small disk": _small_disk,
    "movable clock": _movable_clock,
    "sentinel": _sentinel,
    "cluster": _cluster,
}


# -- running -----------------------------------------------------------------------------------------------------------
async def strike(place: Place, scenario: Scenario, name: str, steady_s: float = STEADY_S, **traffic_options: int) -> dict[str, Any]:
    """Load the engine, break it, wait until it is well, close the books; returns one result.

    Args:
        name: of this run: begins its users' names.
        steady_s: of undisturbed traffic before and after.
        traffic_options: see `Traffic`.
    """
    fault = scenario.fault or place.own_faults[scenario.name]
    async with Traffic(place.victim.url, place.victim.token, name, store_of=place.store_of, **traffic_options) as traffic:
        calm_s = time.monotonic()
        await asyncio.sleep(steady_s)
        began_s = time.monotonic()
        figures = await fault(place.victim) or {}
        over_s = time.monotonic()
        back_s = await traffic.flowing(over_s, scenario.within_s)
        await asyncio.sleep(steady_s)
        end_s = time.monotonic()
        if touched := figures.pop("touched", None):
            figures["others_silence_s"] = traffic.silence_of_others_s(began_s, end_s, touched)
        books = await traffic.finish(scenario.within_s)
        return {
            "bench": "chaos",
            "case": {"scenario": scenario.name},
            "what": scenario.what,
            **books,
            "fault_s": round(over_s - began_s, 2),
            "back_s": round(back_s, 2),
            "silence_s": traffic.silence_s(began_s, end_s),
            "silences": [
                {
                    "began_s": round(begin - began_s, 2),
                    "silence_s": round(end - begin, 2),
                    "users": users,
                    "kills": {f"{at_s - begin:+.2f} s": role for at_s, role in place.victim.kills if begin - _CAUSE_S <= at_s <= end},
                }
                for begin, end, users in traffic.silences(began_s, end_s, SILENCE_S)[:_SILENCES_MAX]
            ],
            "p99_before_ms": traffic.latency_ms(calm_s, began_s),
            "p99_during_ms": traffic.latency_ms(began_s, over_s + back_s + 1.0),
            **figures,
        }
