"""Timers: 50 000 delayed messages due within 10 s, scheduled beforehand; how late they are, and what one costs.

First for 500 connected users: lateness is taken at the clients, so it has the whole way to them in it, and every message is accounted
for. Then for 500 users who are away: a timer ends at the shard's journal. Beside them stands what the schedulers say of themselves.
Due times are whole milliseconds of the wall clock. The CPU of a timer includes what an idle engine would have spent meanwhile, which
`idle_us_per_timer` tells. What it leaves out: timers beyond the near horizon, restarts (`armed` has both), cancelling.
"""

from __future__ import annotations

import asyncio
import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

import uvloop

from bench.books import Books, now_s
from bench.figures import latency_ms
from bench.processes import CpuMeter
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import SETTLE_S, per_message_us, rss_mib
from bench.workloads import BATCH, connect_all

USERS = 500
TIMERS = 50_000
SPAN_S = 10.0
LEAD_S = 15.0
_STATUS_AGE_S = 3.5  # the status is at most this old
_PATIENCE_S = 20.0
_EARLY_S = 0.0005  # two readings of the wall clock by two processes


async def measure(running: Engine, timers: int, span_s: float, lead_s: float, connected: bool, phases: Phases) -> dict[str, Any]:
    """One result: `timers` due at random moments of `span_s`, the first `lead_s` from now."""
    books = Books(USERS, time.time)
    listeners = (await connect_all(running, books, books.ledgers))[0] if connected else []
    publisher = await running.publisher(USERS)
    meter, began = CpuMeter(running.processes), now_s()
    before = await _settled(running)
    idle = sum(meter.spent_s().values()) / (now_s() - began)

    meter, began = CpuMeter(running.processes), now_s()
    chance, first = random.Random(timers), time.time() + lead_s
    dues = sorted(round(first + chance.random() * span_s, 3) for _ in range(timers))
    with phases.phase("scheduling", timers, lambda: books.sent):
        for start in range(0, timers, BATCH):
            messages = [books.write(n % USERS, dues[n]) for n in range(start, min(start + BATCH, timers))]
            items: list[dict[str, object]] = [
                {"user": _user(running, data.to, connected), "type": "order.paid", "data": data, "at": round(data.due * 1000)}
                for data in messages
            ]
            books.bytes_published += await publisher.publish_items(items)
    schedule_s, scheduled = now_s() - began, meter.spent_s()
    in_time = time.time() < first

    meter, firing = CpuMeter(running.processes), now_s()
    with phases.phase("firing", timers, lambda: books.received):
        await asyncio.sleep(max(0.0, dues[-1] - time.time()))
        if connected:
            await books.reach(timers, _PATIENCE_S)
            await asyncio.sleep(SETTLE_S)
            fired, fire_s = meter.spent_s(), now_s() - firing
            after = await _settled(running)
        else:
            fired, after = await _fired(running, meter, before["published"] + timers)
            fire_s = now_s() - firing - _STATUS_AGE_S
    publisher.close()
    for listener in listeners:
        listener.drop()
    schedule_us, fire_us = per_message_us(scheduled, timers), per_message_us(fired, timers)
    arrived = books.received if connected else after["published"] - before["published"]
    late = books.latencies_s
    return {
        "bench": "timers",
        "system": running.name,
        "case": {"timers": timers, "span_s": span_s, "until": "acknowledged by the client" if connected else "journalled by the shard"},
        "lost": timers - arrived,
        "doubled": books.repeated if connected else max(arrived - timers, 0),
        "early": sum(lateness < -_EARLY_S for lateness in late),
        **({"lateness_ms": latency_ms(late)} if late else {}),
        "scheduler_lateness_ms_at_most": _lateness(before["lateness"], after["lateness"]),
        "cpu_us_per_timer": {"schedule": schedule_us, "fire": fire_us, "total": round(schedule_us["total"] + fire_us["total"], 1)},
        "idle_us_per_timer": round(idle * (schedule_s + fire_s) * 1e6 / timers, 1),
        "scheduled_in_time": in_time,
        "schedule_per_s": round(timers / schedule_s),
        "rss_mib": rss_mib(running.processes),
    }


def _user(running: Engine, user: int, connected: bool) -> str:
    return running.user_name(user) if connected else f"away-{user}"


async def _settled(running: Engine) -> dict[str, Any]:
    """What shards and schedulers have counted up to now; takes some seconds, because the status is that old."""
    await asyncio.sleep(_STATUS_AGE_S)
    status: dict[str, Any] = await running.status()
    buckets: dict[int, int] = {}
    for scheduler in status["schedulers"]:
        for upper_ms, count in scheduler["lateness"]:
            buckets[upper_ms] = buckets.get(upper_ms, 0) + count
    return {"published": sum(shard["published"] for shard in status["shards"]), "lateness": buckets}


async def _fired(running: Engine, meter: CpuMeter, published: int) -> tuple[dict[str, float], dict[str, Any]]:
    """CPU spent, and the counts, once so many messages are journalled, or nothing more is for a while."""
    give_up_s = now_s() + _PATIENCE_S
    while True:
        spent = meter.spent_s()
        counted = await _settled(running)
        if counted["published"] >= published or now_s() > give_up_s:
            return spent, counted


def _lateness(before: dict[int, int], after: dict[int, int]) -> dict[str, float]:
    """Quantiles of a histogram: the upper bounds of the buckets they fall into; -1 is beyond the last."""
    counts = [(upper_ms, after[upper_ms] - before.get(upper_ms, 0)) for upper_ms in after]
    total = sum(count for _, count in counts)
    found, seen, wanted = {}, 0, [("p50", 0.5), ("p99", 0.99), ("max", 1.0)]
    for upper_ms, count in counts:
        seen += count
        while wanted and total and seen >= wanted[0][1] * total:
            found[wanted.pop(0)[0]] = float(upper_ms)
    return found


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--timers", type=int, default=TIMERS, help="delayed messages (default %(default)s)")
    parser.add_argument("--span", type=float, default=SPAN_S, help="seconds within which they are due (default %(default)s)")
    parser.add_argument("--lead", type=float, default=LEAD_S, help="seconds to schedule them in (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary for users who are connected, one for users who are away."""
    with engine() as running:
        for connected in (True, False):
            yield uvloop.run(measure(running, args.timers, args.span, args.lead, connected, args.phases))
