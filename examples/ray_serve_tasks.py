"""A consumer of tasks in Ray Serve that tells a user of the progress and the end of a task, however long it takes.

    .venv/bin/pip install 'ray[serve]' 'celery[redis]'
    .venv/bin/engine up   # in another terminal; it prints the address of its Ray
    RAY_AUTH_MODE=token .venv/bin/python examples/ray_serve_tasks.py ADDRESS redis://localhost:6379

The second argument is the broker of the tasks, here a Redis. Ray Serve hands a task that was lost with its replica out again. It has the
same id then, so it goes on with the message of the first run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any
from uuid import uuid4

import ray
from ray import serve
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

from ray_notifications.ray import RunMessages, listen

STEPS = 5


def consumer(tasks: TaskProcessorConfig) -> Any:
    """The deployment."""

    @serve.deployment(ray_actor_options={"num_cpus": 0})
    @task_consumer(task_processor_config=tasks)
    class Reports:
        """Writes reports, for a quarter of a second each."""

        @task_handler(name="write")
        def write(self, report: str, user: str) -> str:
            """Whoever asked for it is told."""
            with RunMessages("report", report, [user], id=report, after_s=0, every_s=0.05) as run:
                for step in range(1, STEPS + 1):
                    time.sleep(0.05)
                    run.progress(step / STEPS, text=f"page {step} of {STEPS}")
                run.done(url=f"/reports/{report}")
            return report

    return Reports


async def show(user: str, report: str) -> None:
    """What the user gets of this report."""
    async for notification in listen(user):
        if notification.type.startswith("report.") and notification.data["run"] == report:
            print(notification.type, notification.data, flush=True)
            if notification.type == "report.done":
                return


def main() -> None:
    """Deploy the consumer, give it a task, and wait for its end as its user."""
    ray.init(address=sys.argv[1], log_to_driver=False)
    broker = sys.argv[2]
    tasks = TaskProcessorConfig(queue_name="reports", adapter_config=CeleryAdapterConfig(broker_url=broker, backend_url=broker))
    serve.start(proxy_location="Disabled")
    serve.run(consumer(tasks).bind(), name="reports", route_prefix=None)
    report = f"report-{uuid4().hex[:8]}"
    instantiate_adapter_from_config(tasks).enqueue_task_sync("write", kwargs={"report": report, "user": "analyst"})
    asyncio.run(show("analyst", report))
    serve.delete("reports")
    serve.shutdown()


if __name__ == "__main__":
    main()
