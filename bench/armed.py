"""Many armed timers: memory of scheduler and Redis with a million of them, and how long a restart takes.

First spread over a long span: only the near horizon is in the scheduler's memory, so what a timer takes is what it takes in Redis. Then
the scheduler is killed, then Redis: how long until a timer can be inspected again, and another one scheduled. Then as many, all due within
the near horizon, where the scheduler keeps as many as its memory limit allows and leaves the rest to storage. Nothing fires.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

import uvloop

from bench.books import now_s
from bench.processes import CpuMeter, role_of, tree
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import SETTLE_S, per_message_us, rss_mib
from bench.workloads import BATCH
from tests.support.load.poster import Poster

TIMERS = 1_000_000
DAYS = 30.0
_TIMERS_PER_USER = 10
_NEAR_S = 50.0  # the horizon is a minute
_STATUS_AGE_S = 3.5
_PATIENCE_S = 120.0


class _Arming:
    """Timers, scheduled as publishers do."""

    def __init__(self, running: Engine, users: int) -> None:
        self._running = running
        self._users = users
        self._made = 0
        self.armed = 0

    async def arm(self, dues_ms: list[int]) -> None:
        publisher = await self._running.publisher(self._users)
        for start in range(0, len(dues_ms), BATCH):
            items = [self._item(due_ms) for due_ms in dues_ms[start : start + BATCH]]
            await publisher.publish_items(items)
            self.armed += len(items)
        publisher.close()

    def _item(self, due_ms: int) -> dict[str, object]:
        self._made += 1
        data = {"order": self._made, "text": "x" * 60}
        return {"user": f"user-{self._made % self._users}", "type": "order.paid", "data": data, "at": due_ms}


async def measure(running: Engine, timers: int, days: float, phases: Phases) -> dict[str, Any]:
    """One result: `timers` due at random moments of `days` days (0: of the near horizon, behind the time it takes to arm them)."""
    before, meter, began = rss_mib(running.processes), CpuMeter(running.processes), now_s()
    arming = _Arming(running, max(timers // _TIMERS_PER_USER, 1))
    chance = random.Random(timers)
    with phases.phase("arming", timers, lambda: arming.armed):
        if days:
            first = time.time() + 3600
            await arming.arm([round((first + chance.random() * days * 86_400) * 1000) for _ in range(timers)])
        else:
            first = time.time() + timers / 2000 + 10  # armed by then, however slowly
            await arming.arm([round((first + chance.random() * _NEAR_S) * 1000) for _ in range(timers)])
    took_s, spent = now_s() - began, meter.spent_s()
    if not days:
        await asyncio.sleep(max(0.0, first - time.time() - 5))
    await asyncio.sleep(SETTLE_S if not days else _STATUS_AGE_S)
    after = rss_mib(running.processes)
    result: dict[str, Any] = {
        "bench": "armed",
        "system": running.name,
        "case": {"timers": timers, "due": f"over {days:g} days" if days else "within the near horizon"},
        "schedule_per_s": round(timers / took_s),
        "cpu_us_per_timer": per_message_us(spent, timers),
        "rss_mib": after,
        "bytes_per_timer": {role: round((after[role] - before[role]) * (1 << 20) / timers) for role in ("scheduler", "redis")},
    }
    if days:
        poster = await Poster.open(running.port, f"Authorization: Bearer {running.token('bench', 'publish')}\r\n")
        sid = await _schedule(poster)
        result["back_s"] = {role: await _killed(running, role, poster, sid, phases) for role in ("scheduler", "redis")}
        status = await running.status()
        result["armed"] = sum(scheduler["armed"] for scheduler in status["schedulers"])  # type: ignore[attr-defined]
        poster.close()
    return result


async def _killed(running: Engine, role: str, poster: Poster, sid: str, phases: Phases) -> float:
    """Kill -9; seconds until a timer can be inspected and another one scheduled."""
    (victim, *_) = (pid for pid in tree(running.pid) if role_of(pid) == role)
    with phases.phase(f"killing the {role}"):
        os.kill(victim, signal.SIGKILL)
        began = now_s()
        while now_s() - began < _PATIENCE_S:
            status, _, _ = await poster.request("GET", f"/v1/scheduled/{sid}")
            if status == 200 and await _schedule(poster):
                return round(now_s() - began, 2)
            await asyncio.sleep(0.05)
    raise SystemExit(f"{role} was not back after {_PATIENCE_S} s")


async def _schedule(poster: Poster) -> str:
    """The scheduled id of another timer; "" when it was not taken."""
    body = json.dumps({"user": "probe", "type": "probe", "delay": 86_400}).encode()
    status, _, answer = await poster.request("POST", "/v1/notifications", body)
    return str(json.loads(answer)["results"][0]["scheduled_id"]) if status == 202 else ""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--timers", type=int, default=TIMERS, help="armed at once (default %(default)s)")
    parser.add_argument("--days", type=float, default=DAYS, help="over which they are due (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary for the long span, one for the near horizon."""
    for days in (args.days, 0.0):
        with engine() as running:
            yield uvloop.run(measure(running, args.timers, days, args.phases))
