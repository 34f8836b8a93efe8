"""Peers: what the same work costs in systems people use today, by turns with the engine.

Mosquitto with QoS 1 and persistent sessions, Centrifugo with Redis and recovery from history (each where it is installed), Django Channels
with Celery and python-socketio with acknowledgement callbacks, each as its documentation shows it, through the same load generator, books
and accounting. Then delayed tasks by a poller on a sorted set, the same with claims in Lua, Celery's ETA and APScheduler. A peer gets as
many messages as it can take in reasonable time, and the fixed rates it sustains. With `--repeat` all systems take part in each run, so that
a mood of the machine meets all of them. What the comparison leaves out: none of these peers has stored a message on disk when it accepts
it, or checks a token; only Mosquitto repeats what was not acknowledged, and clients of Centrifugo acknowledge nothing. The engine does all
of that in the figures beside theirs.

To install Mosquitto: `apt install mosquitto`. To install Centrifugo, put the binary of a release on PATH:
https://centrifugal.dev/docs/getting-started/installation. A peer that is not installed is left out.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import uvloop

from bench import delivery, fanout, idle, latency, storm
from bench import timers as engine_timers
from bench.machine import raise_file_limit
from bench.peers import delayed
from bench.peers.centrifugo import Centrifugo
from bench.peers.channels import ChannelsCelery
from bench.peers.mosquitto import Mosquitto
from bench.peers.peer import Peer
from bench.peers.socketio import SocketIo
from bench.progress import Phases
from bench.server import engine
from bench.system import System
from bench.workloads import WINDOW

PEERS: Final[dict[str, type[Peer]]] = {kind.name: kind for kind in (Mosquitto, Centrifugo, ChannelsCelery, SocketIo)}
SYSTEMS: Final = ("engine", *PEERS)
WORKLOADS: Final = ("delivery", "single", "latency", "fanout", "idle", "storm", "timers")
RATES: Final = (100, 500, 2000, 5000, 10_000)
SINGLE: Final = (128, 16)  # publishers with one message per request
_SUSTAINED_SHARE: Final = 0.8  # of its full load; beyond it a queue grows and the latency is that of the queue
_LOADS: Final = {  # messages, warm-up, broadcasts, missed by each in the storm
    "engine": (50_000, 2000, 20, 20),
    Mosquitto.name: (50_000, 2000, 20, 20),
    Centrifugo.name: (50_000, 2000, 20, 20),
    ChannelsCelery.name: (3000, 200, 5, 2),
    SocketIo.name: (10_000, 1000, 20, 20),
}


@contextlib.asynccontextmanager
async def started(name: str) -> AsyncIterator[System]:
    """The system of this name."""
    if name == "engine":
        with engine() as running:
            yield running
    else:
        async with PEERS[name]() as peer:
            yield peer
            peer.programs.check()


async def compare(name: str, workloads: list[str], quick: bool, phases: Phases) -> list[dict[str, Any]]:
    """All workloads of one system, each on a fresh one."""
    messages, warm_up, broadcasts, missed = (max(1, size // 10) if quick else size for size in _LOADS[name])
    seconds, results, per_s = (2.0 if quick else 6.0), list[dict[str, Any]](), float("inf")
    if "delivery" in workloads:
        async with started(name) as system:
            results.append(await delivery.measure(system, messages, WINDOW, phases, warm_up))
            per_s = results[-1]["per_s"]
    if "single" in workloads:
        async with started(name) as system:
            for publishers in SINGLE:
                results.append(await delivery.measure(system, messages // 2, WINDOW, phases, warm_up, publishers, batch=1))
    if "latency" in workloads:
        async with started(name) as system:
            rates = [rate for rate in RATES if rate <= per_s * _SUSTAINED_SHARE]
            results += [result async for result in latency.measure(system, rates, seconds, phases, warm_up)]
    if "fanout" in workloads:
        async with started(name) as system:
            results.append(await fanout.measure(system, fanout.CONNECTIONS, broadcasts, phases))
    if "idle" in workloads:
        async with started(name) as system:
            results += [result async for result in idle.measure(system, [4000], seconds * 2, phases)]
    if "storm" in workloads:
        async with started(name) as system:
            results.append(await storm.measure(system, storm.USERS, missed, phases))
    return results


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which, separated by commas (default %(default)s)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="which, separated by commas (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages: does it run at all?")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start each system for each workload, measure, stop it; one dictionary per result."""
    raise_file_limit()
    workloads = [name for name in WORKLOADS if name in args.workloads.split(",")]
    systems = [name for name in SYSTEMS if name in args.systems.split(",")]
    for name, kind in PEERS.items():
        if name in systems and (absence := kind.absence()):
            print(f"peers: {name} is left out: {absence}", file=sys.stderr)
            systems.remove(name)
    for result in _measured(systems, workloads, args.quick, args.phases):
        yield {**result, "compared": True}


def _measured(systems: list[str], workloads: list[str], quick: bool, phases: Phases) -> Iterator[dict[str, Any]]:
    for name in systems:
        yield from uvloop.run(compare(name, workloads, quick, phases))
    if "timers" in workloads:
        share = 10 if quick else 1
        if "engine" in systems:
            with engine() as running:
                count = engine_timers.TIMERS // share
                yield uvloop.run(engine_timers.measure(running, count, engine_timers.SPAN_S, engine_timers.LEAD_S, True, phases))
        for peer, count in delayed.SUSTAINED.items():
            yield uvloop.run(delayed.measure(peer, count // share, engine_timers.SPAN_S, phases))
