"""Publish a notification for every row of a dataset, each once, however often this runs within a day.

.venv/bin/pip install 'ray[data]'
.venv/bin/engine up   # in another terminal; it prints the address of its Ray
RAY_AUTH_MODE=token .venv/bin/python examples/ray_data.py ADDRESS
"""

from __future__ import annotations

import sys

import ray

from ray_notifications.ray import NotificationSink


def main() -> None:
    """Write the dataset, and look at what became of three of its rows."""
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else "auto", log_to_driver=False)
    reports = [{"user_id": f"user-{number % 7}", "report": f"reports/{number}", "pages": number % 30} for number in range(1000)]
    dataset = ray.data.from_items(reports)

    sink = NotificationSink(user="user_id", type="report.ready", data=["report", "pages"], id="report", priority="low")
    dataset.write_datasink(sink)
    print("written:", dict(sink.counts))

    outcomes = dataset.limit(3).map_batches(sink.results, batch_format="pyarrow", batch_size=None)
    for outcome in outcomes.take_all():
        print(outcome["id"], outcome["user"], outcome["status"])


if __name__ == "__main__":
    main()
