"""A job that publishes rows in every way that `engine.ray` has, and listens for them, while somebody breaks the engine.

Run as a program, `python -m tests.support.ray_rows ADDRESS`. It begins with a line on its output, and publishes until its input ends, and
at least `ROWS_MIN` rows in each way. Then it waits until its listeners have what was accepted, and prints, as one JSON object by user,

    published    rows that were accepted
    missing      ids of rows that nobody received
    twice        ids of rows that have more than one number
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib.util
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import ray

from engine.ray import AsyncPublisher, Publisher, listen

ENOUGH = threading.Event()
BATCH = 10
ROWS_MIN = 110
PAUSE_S = 0.05
HANGS_S = 60


def batches(user: str) -> Iterator[list[dict[str, Any]]]:
    """Rows of a user, until it is enough."""
    number = 0
    while not ENOUGH.wait(PAUSE_S) or number < ROWS_MIN:
        yield [{"user": user, "type": "row", "id": f"{user}-{number + at}", "data": number + at} for at in range(BATCH)]
        number += BATCH


async def by_coroutine(user: str) -> int:
    """`AsyncPublisher`."""
    count = 0
    async with AsyncPublisher(retry_for_s=120) as publisher:
        for rows in batches(user):
            count += len(await publisher.publish_many(rows))
            await asyncio.sleep(0)
    return count


def by_queue(user: str) -> int:
    """`Publisher`, which a queue feeds."""
    count = 0
    with Publisher(retry_for_s=120) as publisher:
        for rows in batches(user):
            for row in rows:
                publisher.post(**row)
            count += len(rows)
    return count


def by_sink(user: str) -> int:
    """`NotificationSink`, as a write task of Ray Data calls it."""
    import pyarrow as pa

    from engine.ray import NotificationSink

    sink = NotificationSink(user="user", type="row", data="data", id="id", batch_max=BATCH, retry_for_s=120)
    return sum(sink.write((pa.Table.from_pylist(rows) for rows in batches(user)), None).counts.values())


def in_thread(publish: Callable[[str], int]) -> Callable[[str], Any]:
    return lambda user: asyncio.to_thread(publish, user)


def end_with_input() -> None:
    """Wait for the end of the input; what hangs then is told on the error output."""
    sys.stdin.read()
    ENOUGH.set()
    faulthandler.dump_traceback_later(HANGS_S, exit=True)


async def main() -> None:
    ray.init(address=sys.argv[1], namespace="rows", log_to_driver=False)
    ways: dict[str, Callable[[str], Any]] = {
        "by-coroutine": in_thread(lambda user: asyncio.run(by_coroutine(user))),
        "by-queue": in_thread(by_queue),
    }
    if importlib.util.find_spec("pyarrow") is not None:
        ways["by-sink"] = in_thread(by_sink)
    numbers: dict[str, dict[str, set[int]]] = {user: defaultdict(set) for user in ways}

    async def hear(user: str) -> None:
        async for notification in listen(user, retry_for_s=120):
            numbers[user][notification.id].add(notification.seq)

    listening = [asyncio.ensure_future(hear(user)) for user in ways]
    print("publishing", flush=True)
    threading.Thread(target=end_with_input, daemon=True).start()
    published = dict(zip(ways, await asyncio.gather(*(way(user) for user, way in ways.items())), strict=True))
    ids = {user: {f"{user}-{number}" for number in range(count)} for user, count in published.items()}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(90):
            while any(ids[user] - numbers[user].keys() for user in ways):
                await asyncio.sleep(0.2)
                for task in listening:
                    if task.done():
                        await task
    print(
        json.dumps(
            {
                user: {
                    "published": published[user],
                    "missing": sorted(ids[user] - numbers[user].keys()),
                    "twice": sorted(id for id, seqs in numbers[user].items() if len(seqs) > 1),
                }
                for user in ways
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main())
