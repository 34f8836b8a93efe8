"""Cost of the timing wheel: microseconds to arm, cancel and fire, bytes per timer, and the longest single advance.

Timers are spread over the next minute and the clock runs in 1 ms ticks, as at a scheduler under full load.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from engine.core.scheduler.timer_wheel import TimerWheel

START = 1_790_000_000_123
SPREAD_MS = 60_000


def measure(timers: int) -> dict[str, float]:
    chance = random.Random(1)
    keys = [f"default:user-{n}" for n in range(timers)]
    dues = [START + 10 + chance.randrange(SPREAD_MS) for _ in keys]
    gc.collect()
    gc.freeze()

    wheel: TimerWheel[str] = TimerWheel(START)
    began = time.process_time()
    for key, due in zip(keys, dues, strict=True):
        wheel.arm(key, due)
    arm_s = time.process_time() - began

    fired, longest_s = 0, 0.0
    began = time.process_time()
    for now in range(START, START + SPREAD_MS + 20):
        step = time.process_time()
        fired += len(wheel.advance(now))
        longest_s = max(longest_s, time.process_time() - step)
    fire_s = time.process_time() - began
    assert fired == timers

    wheel = TimerWheel(START)
    for key, due in zip(keys, dues, strict=True):
        wheel.arm(key, due)
    began = time.process_time()
    for key in keys:
        wheel.cancel(key)
    cancel_s = time.process_time() - began

    tracemalloc.start()
    wheel = TimerWheel(START)
    for key, due in zip(keys, dues, strict=True):
        wheel.arm(key, due - START + START)  # an int of its own, as a decoded record brings
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    per_timer = 1e6 / timers
    return {
        "timers": timers,
        "arm_us": round(arm_s * per_timer, 3),
        "fire_us": round(fire_s * per_timer, 3),
        "cancel_us": round(cancel_s * per_timer, 3),
        "longest_advance_ms": round(longest_s * 1000, 3),
        "bytes_per_timer": round(held_bytes / timers, 1),
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--timers", type=int, default=500_000, help="timers armed at once (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """No engine: the wheel alone, in this process."""
    yield {"bench": "wheel", **measure(args.timers)}
