"""Scaling: full load with 1, 2 and 4 shards and as many edges; the cost of a message must not grow with their number.

As `delivery`, on an engine of its own for each number: with as many publishers, the load that calls for so many; and with one, the load
of a single shard spread over all of them, so that every batch becomes smaller. What it leaves out: more machines, which `cluster` has. On
this one all of them share the cores, so the rate cannot grow beyond what the cores give; what shows is the cost that more actors and
links add.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

import uvloop

from bench import delivery
from bench.server import engine
from bench.workloads import WINDOW


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--counts", default="1,2,4", help="shards and edges, separated by commas (default %(default)s)")
    parser.add_argument("--messages", type=int, default=50_000, help="messages at full load, of each (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """One dictionary per number of shards and edges, and of publishers; `cost_ratio` is to the first of them."""
    first_us = 0.0
    counts = list(map(int, args.counts.split(",")))
    for count, publishers in dict.fromkeys(pair for number in counts for pair in ((number, number), (number, 1))):
        with engine(shards=count, edges=count) as running:
            result = uvloop.run(delivery.measure(running, args.messages, WINDOW, args.phases, publishers=publishers))
        total_us = result["cpu_us_per_message"]["total"]
        first_us = first_us or total_us
        ratio = round(total_us / first_us, 3)
        yield {**result, "bench": "scaling", "case": {**result["case"], "shards": count, "edges": count}, "cost_ratio": ratio}
