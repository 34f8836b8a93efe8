"""Endurance: everything that may happen to an engine, at random for hours, under the checker of histories.

Forty users at a steady rate, six of them away until the end; Redis behind Sentinel with two replicas; a wall clock that can be moved. Every
minute something happens, drawn by the seed: a process is killed or stopped, the numbers of actors change, all processes are replaced by an
upgrade, Redis fails over, the wall clock steps, or a third of the clients reconnect. The result has what the checker found, and the memory
of every role: its median by quarter of the time, and the growth between quarters. It leaves out damaged storage and lost hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import uvloop

from bench.figures import by_quarter
from bench.progress import Phases
from engine.config import Config
from tests.support.chaos import faults
from tests.support.chaos.movable_clock import MovableClock
from tests.support.chaos.scenarios import NUMBERS, breakable
from tests.support.chaos.sentinel_group import SentinelGroup
from tests.support.chaos.traffic import AWAY, ONLINE, Traffic
from tests.support.chaos.victim import Victim
from tests.support.process_tree import role_of, rss_bytes, tree

_USERS: Final = ONLINE + AWAY
PERIOD_S: Final = 60.0
WITHIN_S: Final = 150.0
_READ_S: Final = 5.0
_SETTLED_S: Final = 240.0

Event = Callable[[], Awaitable[object]]


class Endurance:
    """One run.

    Args:
        group: the Redis servers of the engine.
        clock: the wall clock of its processes.
    """

    def __init__(self, victim: Victim, group: SentinelGroup, clock: MovableClock, traffic: Traffic, dice: random.Random) -> None:
        self._victim = victim
        self._group = group
        self._traffic = traffic
        self._dice = dice
        self.rss_mib: list[dict[str, float]] = []
        self.happened: Counter[str] = Counter()
        self.slowest: tuple[float, str] = (0.0, "")  # until service was back: seconds, after what
        kills = {f"kill-{role}": faults.killed(role) for role in ("shard", "edge", "scheduler", "controller")}
        stalls = {f"stall-{role}": faults.stalled(role) for role in ("shard", "scheduler")}
        others = {"scale": faults.scaled(*NUMBERS), "clock": faults.clock_steps(clock)}
        self._events: dict[str, Event] = {
            **{name: lambda fault=fault: fault(victim) for name, fault in {**kills, **stalls, **others}.items()},  # type: ignore[misc]
            "fail-over": self._fail_over,
            "upgrade": self._upgrade,
            "reconnects": self._reconnect,
        }

    async def run(self, seconds: float) -> None:
        """Let things happen until the time is over."""
        end_s = time.monotonic() + seconds
        reading = asyncio.create_task(self._read())
        try:
            while (left_s := end_s - time.monotonic()) > 0:
                name = self._dice.choice(sorted(self._events))
                began_s = time.monotonic()
                await self._events[name]()
                over_s = time.monotonic()
                back_s = await self._traffic.flowing(over_s, WITHIN_S)
                self.happened[name] += 1
                self.slowest = max(self.slowest, (round(back_s, 1), name))
                await asyncio.sleep(max(0.0, min(PERIOD_S - (time.monotonic() - began_s), left_s)))
        finally:
            reading.cancel()

    async def _read(self) -> None:
        """The memory of each role, again and again. A process that has just ended is left out."""
        while True:
            found: Counter[str] = Counter()
            for pid in tree(self._victim.pid):
                with contextlib.suppress(OSError):
                    found[role_of(pid)] += rss_bytes(pid)
            self.rss_mib.append({role: size / (1 << 20) for role, size in found.items()})
            await asyncio.sleep(_READ_S)

    async def _fail_over(self) -> None:
        master = self._group.master()
        master.kill()
        await asyncio.to_thread(self._group.await_other, master)
        master.start()
        await asyncio.to_thread(self._group.settled)

    async def _upgrade(self) -> None:
        async with httpx.AsyncClient(base_url=self._victim.url, timeout=10, trust_env=False) as http:
            await faults.asked(http, self._victim, "POST", "/v1/upgrade")
            async with asyncio.timeout(_SETTLED_S):
                settled = False
                while not settled:
                    await asyncio.sleep(1)
                    status = await faults.asked(http, self._victim, "GET", "/v1/status")
                    settled = status.get("ready") and status["scaling"].get("settled")

    async def _reconnect(self) -> None:
        self._traffic.reconnect(self._dice.sample(range(len(self._traffic.online)), len(self._traffic.online) // 3))


async def measure(victim: Victim, group: SentinelGroup, clock: MovableClock, args: Namespace, phases: Phases) -> dict[str, Any]:
    seconds = args.hours * 3600
    async with Traffic(victim.url, victim.token, "endures", rate=args.rate) as traffic:
        run, began_s = Endurance(victim, group, clock, traffic, random.Random(args.seed)), time.monotonic()
        with phases.phase(f"{args.hours} h, seed {args.seed}", seconds, lambda: time.monotonic() - began_s):
            await run.run(seconds)
        books = await traffic.finish(WITHIN_S)
    quarter = max(1, len(run.rss_mib) // 4)
    roles = sorted({role for reading in run.rss_mib for role in reading})
    return {
        "bench": "endurance",
        "case": {"hours": args.hours, "seed": args.seed, "rate": args.rate},
        **books,
        "happened": dict(sorted(run.happened.items())),
        "slowest_back": run.slowest,
        "rss_mib_by_quarter": {
            role: [
                round(statistics.median(reading.get(role, 0) for reading in run.rss_mib[at : at + quarter]))
                for at in range(0, 4 * quarter, quarter)
                if run.rss_mib[at : at + quarter]
            ]
            for role in roles
        },
        "growth_mib_by_quarter": {role: by_quarter([reading.get(role, 0) for reading in run.rss_mib]) for role in roles},
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--hours", type=float, default=2.0, help="how long (default %(default)s)")
    parser.add_argument("--rate", type=int, default=60, help="messages a second (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of what happens when (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """One dictionary. Exits with 1 when the checker found anything."""
    with tempfile.TemporaryDirectory(prefix="engine-endurance-", ignore_cleanup_errors=True) as name:
        folder, clock = Path(name), MovableClock(Path(name))
        kept = max(Config().offline_max, int(args.hours * 3600 * args.rate / _USERS * 2))  # of those who are away: all that comes, and more
        with (
            SentinelGroup(folder, replicas=2) as group,
            clock.running(),
            breakable(folder, "--redis", group.url, redis_replicas_min="1", offline_max=str(kept)) as victim,
        ):
            result = uvloop.run(measure(victim, group, clock, args, args.phases))
    yield result
    if result["lost"] or result["out_of_order"] or result["wrong"]:
        sys.exit(1)
