"""Publish from tasks of the engine's Ray cluster: a task that Ray runs again publishes once. Listen for the results in the driver.

.venv/bin/engine up   # in another terminal; it prints the address of its Ray
RAY_AUTH_MODE=token .venv/bin/python examples/ray_task.py ADDRESS
"""

from __future__ import annotations

import asyncio
import sys
from uuid import uuid4

import ray

from ray_notifications.ray import Publisher, listen

MODELS = 3


@ray.remote(max_retries=3, retry_exceptions=True, num_cpus=0)
def train(model: int, run: str, attempts: ray.actor.ActorHandle) -> None:
    """A task whose first attempt fails too late."""
    with Publisher() as publisher:
        publisher.publish(user="ml-team", type="model.trained", context=run, data={"model": model, "accuracy": 0.9 + model / 100})
    if ray.get(attempts.add.remote()) == 1:  # Ray runs this task again, and its second publish is a duplicate
        raise RuntimeError("the first attempt fails after it has published")


@ray.remote(num_cpus=0)
class Attempts:
    """Counts the attempts of all tasks."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        """One more."""
        self.count += 1
        return self.count


async def show(run: str) -> None:
    """One message for each model."""
    trained = 0
    async for notification in listen("ml-team"):
        if notification.context != run:
            continue  # the last one of an earlier run, which ended before it was acknowledged
        print(notification.seq, notification.type, notification.data, flush=True)
        trained += 1
        if trained == MODELS:
            return


def main() -> None:
    """Train, and show what the team gets."""
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else "auto", log_to_driver=False)
    attempts = Attempts.remote()
    run = uuid4().hex
    ray.get([train.remote(model, run, attempts) for model in range(MODELS)])
    asyncio.run(show(run))


if __name__ == "__main__":
    main()
