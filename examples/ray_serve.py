"""A Ray Serve deployment that answers at once and notifies its user by one message, which shows the progress and then the end.

    .venv/bin/pip install 'ray[serve]'
    .venv/bin/engine up   # in another terminal; it prints the address of its Ray
    RAY_AUTH_MODE=token .venv/bin/python examples/ray_serve.py ADDRESS

The bell and the demo page of `film-maker` draw the progress as a bar. At the end the message is in the inbox.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from uuid import uuid4

import ray
from ray import serve

from ray_notifications.ray import AsyncPublisher, listen

STEPS = 5


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Renderer:
    """Renders films, for a quarter of a second each."""

    def __init__(self) -> None:
        self.publisher = AsyncPublisher()
        self.jobs: set[asyncio.Task[None]] = set()

    async def render(self, job: str, user: str) -> dict[str, Any]:
        """Begin; the answer does not wait for the end, and the user need not either."""
        task = asyncio.create_task(self._render(job, user))
        self.jobs.add(task)
        task.add_done_callback(self.jobs.discard)
        return {"job": job, "status": "started"}

    async def _render(self, job: str, user: str) -> None:
        async with self.publisher.stream(user=user, type="render.progress", id=job, data={"job": job}) as message:
            for step in range(1, STEPS + 1):
                await asyncio.sleep(0.05)
                await message.progress(step / STEPS, text=f"scene {step} of {STEPS}")
            await message.end(type="render.done", data={"url": f"/results/{job}"})


async def show(user: str, job: str) -> None:
    """What the user gets of this job."""
    async for notification in listen(user):
        if notification.id != job:
            continue  # of another program, or the end of an earlier job, which was not acknowledged
        print(notification.type, notification.data, flush=True)
        if notification.type == "render.done":
            return


def main() -> None:
    """Deploy, ask for a film, and wait for it as its user."""
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else "auto", log_to_driver=False)
    serve.start(proxy_location="Disabled")  # this example calls the deployment by its handle; over HTTP it is the same
    handle = serve.run(Renderer.bind(), name="renderer", route_prefix=None)
    job = f"film-{uuid4().hex[:8]}"
    print(handle.render.remote(job, "film-maker").result())
    asyncio.run(show("film-maker", job))
    serve.shutdown()


if __name__ == "__main__":
    main()
