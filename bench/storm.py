"""Storm: many users lose their connections, miss messages, and return all at once, each with its cursor.

1 000 users get one message each, drop TCP without a word, 20 messages each are stored while they are away, and all reconnect in the
same moment; CPU per recovered message has the reconnect in it. What it leaves out: TLS handshakes, and clients that wait as the
server advises before they return, which spreads the storm. For this one an edge admits any number of connections a second.

With `--cut N`, instead: N users lose their connections at once while messages to them go on, and return as the server advises: after the
delays of the welcome, with their jitter, and after `Retry-After` where an edge admits no more. Users that were not cut get messages all
the while, from and to a process of their own; their latency is that of slices before the cut and after it until all are back, and of all
their messages meanwhile: the first seconds, when all ask at once, show in the slices only. An edge admits `--admit` connections a second.
Those who are cut are a process at the lowest priority: in production they have machines of their own. `cores` is the CPU of the engine's
processes in each slice, `first_attempts_s` when the first and the last cut user asked again.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

import uvloop

from bench import beside, herd
from bench.books import Books, now_s
from bench.processes import CpuMeter
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import Measurement, System, per_message_us
from bench.workloads import BATCH, connect_all, full_load, senders
from engine.config import Config

USERS = 1000
EACH = 20
_DEFAULTS = Config()
_UNTOUCHED = 200
_UNTOUCHED_PER_S = 200.0
_CUT_PER_S = 300.0  # messages to those who are cut, before, meanwhile and after
_SLICE_S = 8.0
_BETWEEN_S = 1.0  # from the end of a slice to the next: its last messages arrive
_SLICES_BEFORE = 3
_START_S = 6.0  # for the process of the untouched users to connect
_NOTICE_S = 1.0  # for the system to notice that the clients have gone, and to write what it must


async def measure(system: System, users: int, each: int, phases: Phases) -> dict[str, Any]:
    """One result; also for systems other than the engine."""
    books = Books(users)
    with phases.phase("connecting"):
        listeners, _ = await connect_all(system, books, books.ledgers)
    (sender,) = await senders(system, books, 1)
    await full_load([sender], books, users)  # so that every client has a cursor
    await asyncio.sleep(_NOTICE_S)
    for listener in listeners:
        listener.drop()
    await asyncio.sleep(_NOTICE_S)

    meter, missed = CpuMeter(system.processes), users * each
    with phases.phase("storing", missed, lambda: books.sent - users):
        for first in range(0, missed, BATCH):
            await sender.send([now_s()] * min(BATCH, missed - first))
        await system.digested()
        await asyncio.sleep(_NOTICE_S)
    store_us = per_message_us(meter.spent_s(), missed)
    before = books.received

    measurement = await Measurement(system, books).begin()
    began = now_s()
    with phases.phase("returning", missed, lambda: books.received - before):
        listeners, failed = await connect_all(system, books, books.ledgers, at_once=users)
        connected_s = now_s() - began
        await books.reach(before + missed)
    figures = await measurement.end()
    recovered = figures.pop("messages")
    for key in ("lost", "per_s", "latency_ms", "bytes_per_message"):  # of messages that were sent long before they say nothing
        figures.pop(key, None)
    sender.close()
    for listener in listeners:
        listener.drop()
    server_us, generator_us = figures.pop("cpu_us_per_message"), figures.pop("generator_cpu_us_per_message")
    return {
        "bench": "storm",
        "system": system.name,
        "case": {"users": users, "missed_each": each, "recovers": system.recovers or "nothing"},
        "recovered": recovered,
        "lost": missed - recovered,
        "wall_s": round(books.last_s - began, 3) if recovered else None,
        "all_connected_s": round(connected_s, 3),
        "connect_retries": failed,
        "cpu_us_per_recovered": server_us if recovered else None,
        "generator_cpu_us_per_recovered": generator_us if recovered else None,
        "cpu_us_per_stored": store_us,
        **figures,
    }


async def measure_cut(system: Engine, users: int, admit_per_s: int, phases: Phases) -> dict[str, Any]:
    """One result of `--cut`."""
    period_s = _SLICE_S + _BETWEEN_S
    lead_s = _SLICES_BEFORE * period_s
    slices = math.ceil((users / admit_per_s + 2 * max(_DEFAULTS.reconnect_delays_ms) / 1000) / period_s)
    with phases.phase("connecting"):
        crowd = await herd.Elsewhere.start(herd.Task(system.pid, system.port, users, _CUT_PER_S, lead_s, slices * period_s))
    start_s = now_s() + _START_S
    cut_s = start_s + lead_s
    starts = [start_s + number * period_s for number in range(_SLICES_BEFORE + slices)]
    task = beside.Task(system.pid, system.port, users, _UNTOUCHED, _UNTOUCHED_PER_S, _SLICE_S, starts)
    with phases.phase("messages before, meanwhile and after"):
        measuring = asyncio.ensure_future(beside.measure_elsewhere(task))
        returning = asyncio.ensure_future(crowd.cut(cut_s))
        await asyncio.sleep(start_s - now_s())
        spent = []
        for number in range(_SLICES_BEFORE + slices):
            meter = CpuMeter(system.processes)
            await asyncio.sleep(start_s + number * period_s + _SLICE_S - now_s())
            spent.append({role: round(seconds / _SLICE_S, 3) for role, seconds in meter.spent_s().items()})
            await asyncio.sleep(start_s + (number + 1) * period_s - now_s())
        untouched, back = await measuring, await returning
    status: dict[str, Any] = await system.status()
    last = _SLICES_BEFORE + max(math.ceil(back.all_back_s / period_s), 1)
    alone, meanwhile = untouched.figures_ms(last=_SLICES_BEFORE), untouched.figures_ms(_SLICES_BEFORE, last)
    all_before, all_meanwhile = untouched.pooled_ms(last=_SLICES_BEFORE), untouched.pooled_ms(_SLICES_BEFORE, last)
    p99_before = statistics.median(ms["p99"] for ms in alone)  # medians: one stall of the machine decides the 99th percentile of a slice
    p99s = sorted(ms["p99"] for ms in meanwhile)
    return {
        "bench": "storm",
        "system": system.name,
        "case": {"cut": users, "admitted_per_s": admit_per_s, "untouched": _UNTOUCHED},
        "first_attempts_s": back.first_attempts_s,
        "all_back_s": back.all_back_s,
        "untouched_ms": {"before": alone, "meanwhile": meanwhile},
        "untouched_all_ms": {"before": all_before, "meanwhile": all_meanwhile},
        "untouched_p99_ratio": {
            "all": round(all_meanwhile["p99"] / all_before["p99"], 2),
            "median_slice": round(statistics.median(p99s) / p99_before, 2),
            "worst_slice": round(p99s[-1] / p99_before, 2),
        },
        "cores": {"before": spent[:_SLICES_BEFORE], "meanwhile": spent[_SLICES_BEFORE:last]},
        "received": back.received,
        "repeated": back.repeated,
        "repeated_pct": round(100 * back.repeated / max(back.received, 1), 3),
        "lost": back.lost + untouched.lost,
        "refused_per_client": round(back.refused / users, 2),
        "failed_attempts": back.failed,
        "retried": status["totals"]["retried"],
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=USERS, help="who leave and return (default %(default)s)")
    parser.add_argument("--each", type=int, default=EACH, help="messages each misses (default %(default)s)")
    parser.add_argument("--cut", type=int, default=0, metavar="N", help="users who are cut and return as advised, instead of the above")
    parser.add_argument(
        "--admit", type=int, default=_DEFAULTS.connections_per_s, help="with --cut, `connections_per_s` (default %(default)s, the engine's)"
    )


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary."""
    if args.cut:
        with engine(connections_per_s=args.admit) as running:
            yield uvloop.run(measure_cut(running, args.cut, args.admit, args.phases))
        return
    with engine() as running:
        yield uvloop.run(measure(running, args.users, args.each, args.phases))
