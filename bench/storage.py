"""Storage: bytes of Redis that a user costs who is away, with one message waiting and with several, and an id that its publisher chose.

Users who never connect get a message each, then `--each` more, with ids that the engine makes; then one of them gets as many with ids of
its own, each under one collapse key, so that of these only the ids stay (none of them is past its time: an engine that has run for a day
has a seventh more, which waits to be swept). Measured is the growth of `used_memory` once all is in pages and
streams and the journal is empty, and what each kind of key takes by `MEMORY USAGE`. Redis keeps an append-only file beside it, whose
size on disk is not counted.
"""

from __future__ import annotations

import asyncio
import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import uvloop
from redis import Redis

from bench.processes import CpuMeter
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import per_message_us
from bench.workloads import BATCH
from engine.core.model.routing import SLOTS
from engine.store.keys import journal_key

USERS: Final = 50_000
EACH: Final = 4
_TEXT: Final = "x" * 150  # with its envelope, some 200 bytes as stored
_KIND: Final = re.compile(rb"^[a-z]+-?\d+:([a-z]+)|^(ids):|^([a-z:-]+)")
_SETTLED_S: Final = 1.0


async def _publish(system: Engine, items: Sequence[dict[str, object]], phases: Phases, text: str) -> None:
    done, publisher = 0, await system.publisher(1)
    with phases.phase(text, len(items), lambda: done):
        for first in range(0, len(items), BATCH):
            await publisher.publish_items(items[first : first + BATCH])
            done = first + BATCH
    publisher.close()


async def _settled(redis: Redis) -> int:
    """`used_memory`, once a checkpoint has emptied the journals."""
    while any(map(redis.xlen, map(journal_key, range(SLOTS)))):
        await asyncio.sleep(_SETTLED_S)
    await asyncio.sleep(_SETTLED_S)
    return int(redis.info("memory")["used_memory"])


def _by_kind(redis: Redis) -> Counter[str]:
    """Bytes by kind of key, as `MEMORY USAGE` estimates them."""
    sizes: Counter[str] = Counter()
    keys = list(redis.scan_iter(count=1000))
    for first in range(0, len(keys), 1000):
        some = keys[first : first + 1000]
        pipeline = redis.pipeline(transaction=False)
        for key in some:
            pipeline.memory_usage(key, samples=5 if b":offline:uid:" in key else 0)
        for key, size in zip(some, pipeline.execute(), strict=True):
            found = _KIND.match(key)
            kind = next(part for part in found.groups() if part) if found is not None else b"other"
            sizes[kind.decode()] += size or 0
    return sizes


async def measure(system: Engine, users: int, each: int, phases: Phases) -> dict[str, Any]:
    """One result."""
    with system.redis() as redis:
        empty, meter = await _settled(redis), CpuMeter(system.processes)
        one = [{"user": f"away-{user:07d}", "type": "order.paid", "data": _TEXT} for user in range(users)]
        await _publish(system, one, phases, "a message for each")
        with_one, kinds = await _settled(redis), _by_kind(redis)
        spent = per_message_us(meter.spent_s(), users)
        await _publish(system, one * each, phases, f"{each} more")
        with_more = await _settled(redis)
        before_ids = sum(size for kind, size in _by_kind(redis).items() if kind == "ids")
        same: dict[str, object] = {"user": "away-0000000", "type": "order.paid", "data": _TEXT, "collapse": {"key": "one"}}
        await _publish(system, [{**same, "id": f"order-{number:012d}-paid"} for number in range(users)], phases, "ids")
        with_ids = await _settled(redis)
        ids = sum(size for kind, size in _by_kind(redis).items() if kind == "ids") - before_ids
    return {
        "bench": "storage",
        "system": system.name,
        "case": {"users": users, "more_each": each, "data_bytes": len(_TEXT)},
        "redis_bytes": {
            "offline_user_with_one_message": round((with_one - empty) / users),
            "each_further_message": round((with_more - with_one) / (users * each)),
            "accepted_id": round((with_ids - with_more) / users),
            "accepted_id_by_memory_usage": round(ids / users),
        },
        "redis_bytes_per_user_by_kind": {kind: round(size / users, 1) for kind, size in kinds.most_common() if size > users},
        "cpu_us_per_first_message": spent,
    }


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=USERS, help="who are away (default %(default)s)")
    parser.add_argument("--each", type=int, default=EACH, help="further messages for each (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, measure, stop it; one dictionary."""
    with engine() as running:
        yield uvloop.run(measure(running, args.users, args.each, args.phases))
