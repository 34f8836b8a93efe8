"""Redis servers: full load with the data on one and on two of them, by turns; what a second one costs where the cores are shared.

As `delivery`, with as many shards, schedulers and edges each time, so only the number of servers differs. Each is a process of its own
with its log on the same disk, fsync before every answer. Where a server is what bounds the rate, two of them take twice as much; on a
machine whose cores the engine fills it is the cores, and what shows is the cost of a message.
"""

from __future__ import annotations

import contextlib
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench import delivery
from bench.server import Place, engine
from bench.workloads import WINDOW
from tests.support.redis_server import RedisServer, start_redis


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--counts", default="1,2", help="Redis servers, separated by commas (default %(default)s)")
    parser.add_argument("--messages", type=int, default=50_000, help="messages at full load, of each (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """One dictionary per number of servers; `cost_ratio` is to the first of them."""
    counts = list(map(int, args.counts.split(",")))
    most, first_us = max(counts), 0.0
    for count in counts:
        with _redis_servers(count) as servers:
            place = Place(roots=lambda servers=servers: [server.process.pid for server in servers if server.process is not None])  # type: ignore[misc]
            urls = " ".join(server.url for server in servers)
            with engine(place, shards=most, schedulers=most, edges=most, redis_url=urls) as running:
                result = uvloop.run(delivery.measure(running, args.messages, WINDOW, args.phases, publishers=most))
        total_us = result["cpu_us_per_message"]["total"]
        first_us = first_us or total_us
        ratio = round(total_us / first_us, 3)
        yield {**result, "bench": "servers", "case": {**result["case"], "redis_servers": count}, "cost_ratio": ratio}


@contextlib.contextmanager
def _redis_servers(count: int) -> Iterator[list[RedisServer]]:
    with tempfile.TemporaryDirectory(prefix="engine-servers-") as folder, contextlib.ExitStack() as stack:
        servers = []
        for number in range(count):
            own = Path(folder, str(number))
            own.mkdir()
            servers.append(start_redis(own))
            stack.callback(servers[-1].stop)
        yield servers
