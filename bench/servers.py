"""Redis Cluster: full load with the data on one master, on two and on three, by turns; what another one costs where the cores are shared.

As `delivery`, then as `timers` for users who are away, with as many stores, shards, schedulers and edges each time, so only the number of
masters differs. Each is a process of its own with its log on the same disk, fsync before every answer. Where a master is what bounds the
rate, two of them take twice as much; on a machine whose cores the engine fills it is the cores, and what shows is the cost of a message.
The first number is measured once more before all others, and left out: the first seconds of a machine cost half as much again.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import delivery, timers
from bench.server import Place, engine
from bench.workloads import WINDOW
from tests.support.chaos.cluster_group import ClusterGroup

_EDGES: Final = 2


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--counts", default="1,2,3", help="masters, separated by commas (default %(default)s)")
    parser.add_argument("--messages", type=int, default=50_000, help="messages at full load, of each (default %(default)s)")
    parser.add_argument("--timers", type=int, default=30_000, help="delayed messages, of each (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Two dictionaries per number of masters; `cost_ratio` is to the first number."""
    first_us: dict[str, float] = {}
    counts = [int(count) for count in args.counts.split(",")]
    for number, count in enumerate([counts[0], *counts]):
        with tempfile.TemporaryDirectory(prefix="engine-cluster-") as folder, ClusterGroup(Path(folder), masters=count) as cluster:
            place = Place(roots=lambda cluster=cluster: [server.pid for server in cluster.servers])  # type: ignore[misc]
            parts = {"shards": cluster.stores, "schedulers": cluster.stores, "edges": _EDGES}
            with engine(place, redis_url=cluster.url, **parts) as running:
                for result in (
                    uvloop.run(delivery.measure(running, args.messages, WINDOW, args.phases, publishers=_EDGES)),
                    uvloop.run(timers.measure(running, args.timers, timers.SPAN_S, timers.LEAD_S, connected=False, phases=args.phases)),
                ):
                    if number == 0:
                        continue
                    of = "cpu_us_per_message" if result["bench"] == "delivery" else "cpu_us_per_timer"
                    total_us = result[of]["total"]
                    ratio = round(total_us / first_us.setdefault(of, total_us), 3)
                    yield {**result, "bench": "servers", "case": {**result["case"], "masters": count}, "cost_ratio": ratio}
