"""`python -m bench NAME`: measure a running engine; one JSON line per result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Starts an engine of its own on loopback, loads it, and prints one JSON line per result. "
        "Figures are CPU microseconds per message, by process, so that they hold on a noisy machine; quote ratios taken in one run.",
    )
    parser.add_argument(
        "name", nargs="?", default="delivery", choices=["delivery"], help="delivery: full load, then latency at fixed rates"
    )
    parser.add_argument("--messages", type=int, default=50_000, help="messages at full load (default %(default)s)")
    parser.add_argument("--rates", default="500,2000,5000,10000", help="messages per second for the latency runs (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each latency run (default %(default)s)")
    parser.add_argument("--shards", type=int, default=1, help="shards (default %(default)s)")
    parser.add_argument("--edges", type=int, default=1, help="edges (default %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="runs, each with a fresh engine (default %(default)s)")
    args = parser.parse_args()

    from bench import delivery

    rates = tuple(int(rate) for rate in args.rates.split(",") if rate)
    for _ in range(args.repeat):
        for result in delivery.run(args.messages, rates, args.seconds, shards=args.shards, edges=args.edges):
            print(json.dumps(result | {"machine": machine()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
