"""Chaos: break a part of a loaded engine; count what was lost, repeated or disordered, and time until service is back.

600 messages a second (`--rate`) for 40 users, 6 of whom are away until the end; the scenarios are those of
tests/support/chaos/scenarios.py, the longest and largest ones, and those of bench/chaos_on_hosts.py, for which this machine becomes four
hosts with cables between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import chaos_on_hosts
from bench.chaos_report import write_tables
from bench.garbage import uncollected
from bench.ray_nodes import SHARD_EACH, RayNodes
from tests.support.chaos import scenarios
from tests.support.chaos.faults import Fault, end_of_zombies
from tests.support.chaos.scenarios import STEADY_S, NotHere, Place, Scenario, breakable, strike
from tests.support.chaos.traffic import RATE
from tests.support.chaos.victim import Victim
from tests.support.free_port import free_port

RECONNECTS: Final = 10_000


def node_frozen(nodes: RayNodes, patience_s: float = 90.0) -> Fault:
    """A whole node stops, its shard is replaced on another, then the node goes on: its processes do not know that they are replaced."""

    async def fault(_victim: Victim) -> dict[str, Any]:
        before = set(nodes.shards())
        zombies = await asyncio.to_thread(nodes.freeze_last)
        try:
            async with asyncio.timeout(patience_s):
                while not set(nodes.shards()) - before:
                    await asyncio.sleep(0.1)
        finally:
            nodes.thaw()
        return await end_of_zombies(set(zombies))

    return fault


def reconnects(clients: int) -> Fault:
    """So many clients of their own process connect, drop their connections without a word, and all come back at once."""

    async def fault(victim: Victim) -> dict[str, Any]:
        tokens = json.dumps([victim.token(f"storm-{n}", "connect") for n in range(clients)])
        command = [sys.executable, "-m", "bench.reconnects", str(victim.port)]
        done = await asyncio.to_thread(subprocess.run, command, input=tokens, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the clients failed:\n{done.stderr[-2000:]}")
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures

    return fault


SCENARIOS: Final = (
    *scenarios.SCENARIOS,
    Scenario("reconnects", f"{RECONNECTS} reconnects at once", reconnects(RECONNECTS), within_s=600),
    Scenario(
        "frozen-node", "stop the second node until its shard is replaced, then let it go on", None, "two nodes to freeze", within_s=150
    ),
    Scenario("node", "kill -9 the raylet of the second node; a third joins", None, "two nodes", within_s=150),
)


def _on(nodes: RayNodes, folder: Path) -> AbstractContextManager[Victim]:
    return breakable(folder, "--address", nodes.address, "--redis", nodes.redis_url, "--port", str(free_port()))


@contextlib.contextmanager
def _two_nodes(folder: Path) -> Iterator[Place]:
    """One shard on each of two nodes of a Ray cluster."""
    with RayNodes(folder, *SHARD_EACH) as nodes, _on(nodes, folder) as victim:

        async def lose_a_node(_victim: Victim) -> None:
            await asyncio.to_thread(nodes.lose_last)

        yield Place(victim, {"node": lose_a_node})


@contextlib.contextmanager
def _two_nodes_to_freeze(folder: Path) -> Iterator[Place]:
    """The same; the first engine_shard of a third node is where the second's shard goes."""
    with RayNodes(folder, *SHARD_EACH) as nodes, _on(nodes, folder) as victim:
        yield Place(victim, {"frozen-node": node_frozen(nodes)})


PLACES: Final[dict[str, Callable[[Path], AbstractContextManager[Place]]]] = {
    **scenarios.PLACES,
    "two nodes": _two_nodes,
    "two nodes to freeze": _two_nodes_to_freeze,
}


def arguments(parser: ArgumentParser) -> None:
    names = [scenario.name for scenario in (*SCENARIOS, *chaos_on_hosts.SCENARIOS)]
    parser.add_argument("--scenario", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument(
        "--seconds", type=float, default=STEADY_S, help="undisturbed traffic before and after each fault (default %(default)s)"
    )
    parser.add_argument("--rate", type=int, default=RATE, help="messages a second, of the scenarios of one machine (default %(default)s)")
    parser.add_argument("--report", action="store_true", help="put the results into the tables of docs/RELIABILITY.md")


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
                    with args.phases.phase(scenario.name), uncollected():
                        result = uvloop.run(strike(place, scenario, scenario.name, args.seconds, rate=args.rate))
                    results.append(result)
                    yield result
        except NotHere as error:
            print(f"NOT RUN: {', '.join(scenario.name for scenario in here)}: this machine lacks {error}", file=sys.stderr)
    for on_hosts in chaos_on_hosts.SCENARIOS:
        if on_hosts.name not in args.scenario:
            continue
        try:
            with args.phases.phase(on_hosts.name), uncollected():
                result = chaos_on_hosts.run_one(on_hosts, args.seconds)
            results.append(result)
            yield result
        except NotHere as error:
            print(f"NOT RUN: {on_hosts.name}: this machine lacks {error}", file=sys.stderr)
    if args.report:
        write_tables(results)
