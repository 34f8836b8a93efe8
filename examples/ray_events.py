"""Read when users come and go into a dataset, batch by batch, from where the last run stopped.

.venv/bin/pip install 'ray[data]'
.venv/bin/engine up   # in another terminal; it prints the address of its Ray
RAY_AUTH_MODE=token .venv/bin/python examples/ray_events.py ADDRESS
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

import ray

from ray_notifications.ray import AsyncPublisher, event_batches, listen

USERS = ("visitor-1", "visitor-2", "visitor-3")


async def visit(user: str) -> None:
    """Come, wait for one notification, and go."""
    async with aclosing(listen(user)) as notifications:
        async for _ in notifications:
            break


async def main() -> None:
    """Let users come, and count what the group reads of them."""
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else "auto", log_to_driver=False)
    async with AsyncPublisher() as publisher:
        await publisher.publish_many([{"user": user, "type": "welcome"} for user in USERS])
    await asyncio.gather(*map(visit, USERS))

    seen: set[str] = set()
    async with aclosing(event_batches("visits", begin="oldest", within_s=1, consumer="example")) as batches:
        async for batch in batches:
            table = ray.data.from_items([event.row() for event in batch])
            for row in table.groupby("event").count().take_all():
                print(f"{row['count()']} times {row['event']}")
            seen |= {event.user for event in batch if event.event == "connect" and event.user}
            if seen.issuperset(USERS):  # this batch comes again in the next run: no other one was asked for
                break


if __name__ == "__main__":
    asyncio.run(main())
