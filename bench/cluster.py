"""Cluster: one engine on one host and on two, over each carrier of links; what a message between hosts costs, and how long it takes.

A host is a set of network, process and mount namespaces with an address of its own, a Ray node and a cable (a veth pair) to a switch. Of
two hosts, the first has Redis, edges and schedulers, the second all shards: every message crosses the cable several times, which is the
worst of all placements. Cases take turns, so that ratios to the same engine on one host hold on a noisy machine. Each case is an engine
of its own, under the full load of `delivery` with four publishers, then at the fixed rate of `latency`; the case of many shards at the
fixed rate only. Clients are outside the hosts.

What it leaves out: the second machine's processors, since both hosts share this machine's, and the generator too, so more hosts cannot
serve more; and the delay and loss of a real network. What shows is the CPU that the way between hosts costs, and the time it adds.
Where namespaces are not permitted, the hosts are Ray nodes on loopback, and `hosts_are` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import uvloop

from bench import delivery, latency
from bench.progress import Phases
from bench.ray_nodes import RayNodes
from bench.server import Engine, Place, engine
from bench.workloads import PUBLISHERS, WINDOW
from tests.support.engine_on_hosts import EngineOnHosts
from tests.support.hosts import Network, missing_program, namespaces_refused

_CARRIERS: Final = {1: ("unix", "ray"), 2: ("tcp", "ray")}
"""By number of hosts, what links between shards and edges can travel on. The engine takes the first unless it is told to take Ray."""

_PROCESS_MIB: Final = 150
"""Of memory, an actor's process; and the cluster needs some beside its actors."""

_CLUSTER_MIB: Final = 3000

_POLL_S: Final = 0.5  # the status is up to a second old
_POLLS: Final = 120


class Size(NamedTuple):
    """How many shards and edges."""

    shards: int
    edges: int

    def __str__(self) -> str:
        return f"{self.shards}+{self.edges}"


class Case(NamedTuple):
    """One engine to measure. `full`: also under full load."""

    size: Size
    hosts: int
    carrier: str
    full: bool

    def __str__(self) -> str:
        return f"{self.size} on {self.hosts} host{'s' if self.hosts > 1 else ''}, {self.carrier}"


def cases(hosts: Sequence[int], carriers: Sequence[str], sizes: Sequence[Size], many: Sequence[Size]) -> list[Case]:
    """What to measure, in order: of each size, all hosts and carriers by turns. Sizes of `many` on the largest number of hosts."""
    found = []
    for size in (*sizes, *many):
        numbers = hosts if size in sizes else [max(hosts)]
        found += [
            Case(size, number, carrier, size in sizes)
            for place in (0, 1)
            for number in numbers
            if (carrier := _CARRIERS[number][place]) in carriers
        ]
    return found


@contextlib.contextmanager
def _places(numbers: Sequence[int], largest: Size) -> Iterator[tuple[dict[int, Place], str]]:
    """A Ray cluster for each number of hosts, all at the same time; and what the hosts are."""
    offers = {
        1: [{"engine_shard": largest.shards, "engine_edge": largest.edges, "engine_scheduler": 1}],
        2: [{"engine_edge": largest.edges, "engine_scheduler": 1}, {"engine_shard": largest.shards}],
    }
    settings = {"host": "0.0.0.0"}
    places = {}
    if refused := missing_program() or namespaces_refused():
        with contextlib.ExitStack() as stack:
            for number in numbers:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="engine-bench-", ignore_cleanup_errors=True))
                nodes = stack.enter_context(RayNodes(Path(folder), *offers[number]))
                reached = {"address": nodes.address, "redis_url": nodes.redis_url}
                places[number] = Place(settings=settings | reached, roots=nodes.roots)
            yield places, f"Ray nodes on loopback, because namespaces cannot be had: {refused}"
        return
    with Network() as network:
        for number in numbers:
            hosts = [network.host(f"{number}{letter}") for letter in "ab"[:number]]
            on_hosts = EngineOnHosts(*hosts, offers=offers[number])
            on_hosts.start_ray()
            reached = {"address": "auto", "redis_url": on_hosts.redis_url}
            head = hosts[0]
            places[number] = Place(head.address, head.command(), head.environment(), settings | reached, on_hosts.roots)
        yield places, "network namespaces"


async def _measure(case: Case, running: Engine, messages: int, rate: int, seconds: float, phases: Phases) -> list[dict[str, Any]]:
    """The results of both loads."""
    await _links_are(running, case.carrier)
    results = []
    if case.full:
        results.append(await delivery.measure(running, messages, WINDOW, phases, publishers=PUBLISHERS))
    results += [result async for result in latency.measure(running, [rate], seconds, phases)]
    return results


async def _links_are(running: Engine, carrier: str) -> None:
    """Returns when every actor serves and all links between edges and shards travel on this.

    Raises:
        RuntimeError: they keep to something else.
    """
    found: set[str] = set()
    for _ in range(_POLLS):
        status: Any = await running.status()
        found = {used for row in status["edges"] for callee, used in row.get("links", {}).items() if callee.startswith("shard-")}
        if status["ready"] and found == {carrier}:
            return
        await asyncio.sleep(_POLL_S)
    raise RuntimeError(f"links between edges and shards travel on {sorted(found)} instead of {carrier}")


def _beside(result: dict[str, Any], base: dict[str, Any]) -> dict[str, float]:
    """A result, held against that of the same engine on one host with sockets."""
    cost, cost_there = result["cpu_us_per_message"]["total"], base["cpu_us_per_message"]["total"]
    more_ms = {f"{name}_more_ms": round(result["latency_ms"][name] - base["latency_ms"][name], 2) for name in ("p50", "p99")}
    return {"cpu_ratio": round(cost / cost_there, 3), **more_ms}


def _size(text: str) -> Size:
    shards, _, edges = text.partition("+")
    if not (shards.isdecimal() and edges.isdecimal() and int(shards) and int(edges)):
        raise ArgumentTypeError(f"{text!r} is not a size; sizes are SHARDS+EDGES, such as 4+4")
    return Size(int(shards), int(edges))


def _sizes(text: str) -> list[Size]:
    return [_size(part) for part in text.split(",") if part]


def _hosts(text: str) -> list[int]:
    numbers = sorted({int(part) if part.isdecimal() else 0 for part in text.split(",")})
    if not set(numbers) <= set(_CARRIERS):
        raise ArgumentTypeError(f"{text!r} is not allowed; allowed are 1, 2, and 1,2")
    return numbers


def _carriers(text: str) -> list[str]:
    known = list(dict.fromkeys(carrier for carriers in _CARRIERS.values() for carrier in carriers))
    if not set(text.split(",")) <= set(known):
        raise ArgumentTypeError(f"{text!r} is not allowed; carriers are {', '.join(known)}")
    return text.split(",")


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--hosts", type=_hosts, default="1,2", help="numbers of hosts (default %(default)s)")
    parser.add_argument("--carriers", type=_carriers, default="unix,tcp,ray", help="unix on one host, tcp on two (default %(default)s)")
    parser.add_argument("--sizes", type=_sizes, default="1+1,4+4,8+4", help="SHARDS+EDGES, separated by commas (default %(default)s)")
    parser.add_argument(
        "--many", type=_sizes, default="24+4", help='sizes on the most hosts, at the fixed rate only; "" for none (default %(default)s)'
    )
    parser.add_argument("--messages", type=int, default=30_000, help="messages at full load, of each case (default %(default)s)")
    parser.add_argument("--rate", type=int, default=2000, help="messages per second of the fixed rate (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of the fixed rate (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """One dictionary per case and load. What does not fit into the memory is named on stderr and left out."""
    chosen = []
    room_mib = psutil.virtual_memory().available / (1 << 20) - _CLUSTER_MIB
    for case in cases(args.hosts, args.carriers, args.sizes, args.many):
        if (needed := _PROCESS_MIB * sum(case.size)) < room_mib:
            chosen.append(case)
        else:
            print(f"NOT RUN: {case}: its processes need {needed} MiB, {room_mib:.0f} are free for them", file=sys.stderr)
    if not chosen:
        raise SystemExit("nothing to run: unix is for one host, tcp for two")
    largest = Size(max(case.size.shards for case in chosen), max(case.size.edges for case in chosen))
    bases: dict[tuple[Size, Any], dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        with args.phases.phase("starting Ray"):
            numbers = sorted({case.hosts for case in chosen})
            places, hosts_are = stack.enter_context(_places(numbers, largest))
        for number, case in enumerate(chosen, 1):
            phases = Phases(f"cluster, {number} of {len(chosen)}: {case}")
            transport = "ray" if case.carrier == "ray" else "auto"
            options = {"shards": case.size.shards, "edges": case.size.edges, "link_transport": transport}
            with contextlib.ExitStack() as life:
                with phases.phase("starting the engine"):
                    running = life.enter_context(engine(places[case.hosts], **options))
                measured = uvloop.run(_measure(case, running, args.messages, args.rate, args.seconds, phases))
            for result in measured:
                load = result["case"].get("rate", "full")
                named = {"hosts": case.hosts, "shards": case.size.shards, "edges": case.size.edges, "carrier": case.carrier, "load": load}
                if case.hosts == 1 and case.carrier == "unix":
                    bases[case.size, load] = result
                base = bases.get((case.size, load))
                result |= {"bench": "cluster", "case": named, "hosts_are": hosts_are}
                yield result | ({"of_one_host": _beside(result, base)} if base is not None else {})
