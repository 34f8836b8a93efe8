"""Idle: what connections cost that say nothing, in memory and CPU, and what the engine costs that has none.

One user per connection, 4 000 and then 15 000 of them, heartbeats running. Memory is the growth of every process of the system, per
connection; what the kernel holds for sockets is given beside it, for both ends, since the clients are on the same machine. What it
leaves out: TLS, whose buffers can be larger than all of this.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvloop

from bench.books import Books, Listener, now_s
from bench.machine import raise_file_limit
from bench.processes import CpuMeter, kernel_bytes
from bench.progress import Phases
from bench.server import engine
from bench.system import System, per_message_us
from bench.workloads import connect_all

CONNECTIONS = "4000,15000"
SECONDS = 30.0  # of idling: every client is asked for a sign of life once
_STEADY_S = 3.0  # after connecting: what a handshake leaves behind is freed
_FILES_SPARE = 500  # that the generator and an edge have open beside the connections


async def measure(system: System, counts: list[int], seconds: float, phases: Phases) -> AsyncIterator[dict[str, Any]]:
    """One result per number of connections, rising; also for systems other than the engine."""
    limit = raise_file_limit() - _FILES_SPARE
    books = Books(min(max(counts), limit))
    await asyncio.sleep(_STEADY_S)
    alone_pct = await _cpu_pct(system, seconds, phases, "without connections")
    rss_alone, kernel_alone = system.processes.rss_bytes(), kernel_bytes()
    listeners: list[Listener] = []
    retries = 0
    for wanted in counts:
        count = min(wanted, limit)
        new = books.ledgers[len(listeners) : count]
        meter, began = CpuMeter(system.processes), now_s()
        with phases.phase(f"connecting up to {count}"):
            joined, failed = await connect_all(system, books, new)
        connect_s, connect_us = now_s() - began, per_message_us(meter.spent_s(), len(new))
        listeners += joined
        retries += failed
        await asyncio.sleep(_STEADY_S)
        kernel = kernel_bytes()
        idle_pct = await _cpu_pct(system, seconds, phases, f"{count} connections")
        rss = system.processes.rss_bytes()
        grown = {role: round((size - rss_alone.get(role, 0)) / count / 1024, 2) for role, size in sorted(rss.items())}
        yield {
            "bench": "idle",
            "system": system.name,
            "case": {"connections": count, **({"wanted": wanted} if wanted > count else {})},
            "kib_per_connection": {**grown, "total": round(sum(grown.values()), 2)},
            "kernel_kib_per_connection_both_ends": round((kernel - kernel_alone) / count / 1024, 2),
            "rss_mib_without_connections": round(sum(rss_alone.values()) / (1 << 20), 1),
            "cpu_pct_of_a_core": idle_pct,
            "cpu_pct_of_a_core_without_connections": alone_pct,
            "connect_per_s": round(len(new) / connect_s),
            "connect_cpu_us": connect_us,
            "connect_retries": retries,
            "disconnects": books.disconnects,
        }
    for listener in listeners:
        listener.drop()


async def _cpu_pct(system: System, seconds: float, phases: Phases, text: str) -> dict[str, float]:
    meter, began = CpuMeter(system.processes), now_s()
    with phases.phase(f"idle, {text}", seconds, lambda: now_s() - began):
        await asyncio.sleep(seconds)
    spent, took_s = meter.spent_s(), now_s() - began
    shares = {role: round(100 * cpu_s / took_s, 2) for role, cpu_s in spent.items()}
    return {**shares, "total": round(100 * sum(spent.values()) / took_s, 2)}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--connections", default=CONNECTIONS, help="how many, rising, separated by commas (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to idle at each (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary per number of connections."""
    raise_file_limit()

    async def all_counts() -> list[dict[str, Any]]:
        counts = sorted(int(count) for count in args.connections.split(","))
        return [result async for result in measure(running, counts, args.seconds, args.phases)]

    with engine() as running:
        yield from uvloop.run(all_counts())
