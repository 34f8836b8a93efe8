"""Chaos: break a part of a loaded engine; count what was lost, repeated or disordered, and time until service is back.

Every scenario runs under 600 messages a second for 40 users, 6 of whom are away until its end, on real parts: Ray, Redis, sockets. Service
is back when every connected user has received something that was sent after the fault (after a kill, or after the part may
run again). `silence_s` is the longest that any of them went without a message. What it leaves out: networks between machines;
the deterministic simulator has those (`make sim`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import faults
from bench.chaos_report import write_table
from bench.disk import CannotMount, small_disk
from bench.faults import Fault
from bench.movable_clock import MovableClock
from bench.sentinel_group import SentinelGroup
from bench.server import Engine, engine
from bench.traffic import Traffic, now_s
from bench.two_nodes import TwoNodes
from bench.victim import Victim

STEADY_S: Final = 3.0
DISK_BYTES: Final = 64 << 20
RECONNECTS: Final = 10_000


class NotHere(Exception):
    """This machine cannot do it; says what is missing."""


@dataclass(frozen=True)
class Place:
    """An engine to break, and what only this kind of engine can suffer."""

    victim: Victim
    own_fault: Fault | None = None


@dataclass(frozen=True)
class Scenario:
    """One fault. `place` is where it can happen; scenarios that share one share an engine."""

    name: str
    what: str
    fault: Fault | None = None
    place: str = "plain"
    within_s: float = 60


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
    Scenario("redis-memory", "Redis out of memory for 4 s", faults.out_of_memory),
    Scenario("redis-readonly", "Redis read-only for 4 s", faults.read_only),
    Scenario("never-reads", "a client that never reads", faults.never_reads),
    Scenario("never-acks", "a client that never acknowledges", faults.never_acknowledges),
    Scenario("garbage", "a publisher and clients that send garbage", faults.garbage),
    Scenario("reconnects", f"{RECONNECTS} reconnects at once", faults.reconnects(RECONNECTS), within_s=180),
    Scenario("disk-full", "the disk of Redis full for 4 s", faults.disk_full, "small disk"),
    Scenario("clock", "wall clocks step +1 h, -2 h, +1 h", None, "movable clock"),
    Scenario("sentinel", "kill -9 the Redis master; Sentinel promotes a replica", None, "sentinel"),
    Scenario(
        "frozen-node", "stop the second node until its shard is replaced, then let it go on", None, "two nodes to freeze", within_s=150
    ),
    Scenario("node", "kill -9 the raylet of the second node; a third joins", None, "two nodes", within_s=150),
)


# -- places ------------------------------------------------------------------------------------------------------------
def _victim(running: Engine, data_dir: Path) -> Victim:
    def token(user: str, scopes: str) -> str:
        return running.token(user, *scopes.split())

    return Victim(running.pid, f"http://127.0.0.1:{running.port}", token, data_dir)


@contextlib.contextmanager
def _engine(folder: Path, **options: object) -> Iterator[Victim]:
    data_dir = folder / "data"
    with engine(shards=2, data_dir=data_dir, log_level="WARNING", **options) as running:
        yield _victim(running, data_dir)


@contextlib.contextmanager
def _plain(folder: Path) -> Iterator[Place]:
    with _engine(folder) as victim:
        yield Place(victim)


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Place]:
    try:
        with small_disk(folder / "disk", DISK_BYTES) as disk, _engine(disk) as victim:
            yield Place(victim)
    except CannotMount as error:
        raise NotHere(f"mounting a tmpfs: {error}") from error


@contextlib.contextmanager
def _movable_clock(folder: Path) -> Iterator[Place]:
    clock = MovableClock(folder)
    with clock.running(), _engine(folder) as victim:
        yield Place(victim, faults.clock_steps(clock))


@contextlib.contextmanager
def _sentinel(folder: Path) -> Iterator[Place]:
    """Three servers, and a write counts when one replica has it."""
    with SentinelGroup(folder, replicas=2) as group, _engine(folder, redis_url=group.url, redis_replicas_min=1) as victim:

        async def fail_over(_victim: Victim) -> None:
            master = group.master()
            master.kill()
            await asyncio.to_thread(group.await_other, master)

        yield Place(victim, fail_over)


@contextlib.contextmanager
def _two_nodes(folder: Path) -> Iterator[Place]:
    """One shard on each of two nodes of a Ray cluster."""
    with TwoNodes(folder) as nodes, _engine(folder, address=nodes.address, redis_url=nodes.redis_url) as victim:

        async def lose_a_node(_victim: Victim) -> None:
            await asyncio.to_thread(nodes.lose_second)

        yield Place(victim, lose_a_node)


@contextlib.contextmanager
def _two_nodes_to_freeze(folder: Path) -> Iterator[Place]:
    """The same; the first engine_shard of a third node is where the second's shard goes."""
    with TwoNodes(folder) as nodes, _engine(folder, address=nodes.address, redis_url=nodes.redis_url) as victim:
        yield Place(victim, faults.node_frozen(nodes))


PLACES: Final[dict[str, Callable[[Path], AbstractContextManager[Place]]]] = {
    "plain": _plain,
    "small disk": _small_disk,
    "movable clock": _movable_clock,
    "sentinel": _sentinel,
    "two nodes": _two_nodes,
    "two nodes to freeze": _two_nodes_to_freeze,
}


# -- running -----------------------------------------------------------------------------------------------------------
async def strike(place: Place, scenario: Scenario, name: str, steady_s: float = STEADY_S, **traffic_options: int) -> dict[str, Any]:
    """Load the engine, break it, wait until it is well, close the books; returns one result.

    Args:
        name: of this run: begins its users' names.
        steady_s: of undisturbed traffic before and after.
        traffic_options: see `Traffic`.
    """
    fault = scenario.fault or place.own_fault
    assert fault is not None
    async with Traffic(place.victim.url, place.victim.token, name, **traffic_options) as traffic:
        calm_s = now_s()
        await asyncio.sleep(steady_s)
        began_s = now_s()
        figures = await fault(place.victim) or {}
        over_s = now_s()
        back_s = await traffic.flowing(over_s, scenario.within_s)
        await asyncio.sleep(steady_s)
        end_s = now_s()
        books = await traffic.finish(scenario.within_s)
        return {
            "bench": "chaos",
            "case": {"scenario": scenario.name},
            "what": scenario.what,
            **books,
            "fault_s": round(over_s - began_s, 2),
            "back_s": round(back_s, 2),
            "silence_s": traffic.silence_s(began_s, end_s),
            "p99_before_ms": traffic.latency_ms(calm_s, began_s),
            "p99_during_ms": traffic.latency_ms(began_s, over_s + back_s + 1.0),
            **figures,
        }


def arguments(parser: ArgumentParser) -> None:
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenario", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument(
        "--seconds", type=float, default=STEADY_S, help="undisturbed traffic before and after each fault (default %(default)s)"
    )
    parser.add_argument("--report", action="store_true", help="put the table into docs/RELIABILITY.md")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Every scenario chosen; one dictionary each. What this machine cannot do is said on stderr and left out."""
    chosen = [scenario for scenario in SCENARIOS if scenario.name in args.scenario]
    results = []
    for place_name, make in PLACES.items():
        here = [scenario for scenario in chosen if scenario.place == place_name]
        if not here:
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="engine-chaos-", ignore_cleanup_errors=True) as folder, make(Path(folder)) as place:
                for scenario in here:
                    with args.phases.phase(scenario.name):
                        result = uvloop.run(strike(place, scenario, scenario.name, args.seconds))
                    results.append(result)
                    yield result
        except NotHere as error:
            print(f"NOT RUN: {', '.join(scenario.name for scenario in here)}: this machine lacks {error}", file=sys.stderr)
    if args.report:
        write_table(results)
