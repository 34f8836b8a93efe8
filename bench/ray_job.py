"""A job on the engine's Ray cluster, as a program: publishes a dataset and prints how long it took. `bench.ray` tells it which, as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import ray

from engine.client import SyncPublisher
from engine.ray import NotificationSink

BLOCK_ROWS = 10_000


def row(id_: int, job: dict[str, Any]) -> dict[str, Any]:
    return {"user": f"r{id_ % job['users']}", "row": f"{job['run']}-{id_}", "report": f"report/{id_}", "pages": id_ % 40, "score": id_ / 7}


def over_http(job: dict[str, Any]) -> Callable[[pa.Table], pa.Table]:
    """What a job does with the client of HTTP."""

    def publish(table: pa.Table) -> pa.Table:
        with SyncPublisher(job["url"], job["token"], batch_max=1000, retry_for_s=600) as publisher:
            results = publisher.publish_many(
                {
                    "user": one["user"],
                    "type": "report.ready",
                    "id": one["row"],
                    "data": {name: one[name] for name in ("report", "pages", "score")},
                }
                for one in table.to_pylist()
            )
        return pa.table({"accepted": [sum(result.status == "accepted" for result in results)]})  # no row of it for each one published

    return publish


def main() -> None:
    job = json.load(sys.stdin)
    ray.init(address=job["address"], namespace="bench", log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    blocks = max(job["tasks"], job["rows"] // BLOCK_ROWS)
    ds = ray.data.range(job["rows"], override_num_blocks=blocks)
    ds = ds.map_batches(lambda batch: pa.Table.from_pylist([row(int(id_), job) for id_ in batch["id"].to_pylist()]), batch_format="pyarrow")
    ds = ds.materialize()
    began_s = time.monotonic()
    if job["carrier"] == "ray":
        sink = NotificationSink(user="user", type="report.ready", id="row", data=["report", "pages", "score"])
        ds.write_datasink(sink, concurrency=job["tasks"])
        accepted = sink.counts.get("accepted", 0)
    else:
        counts = ds.map_batches(over_http(job), batch_format="pyarrow", batch_size=None, concurrency=job["tasks"]).take_all()
        accepted = sum(one["accepted"] for one in counts)
    print(json.dumps({"seconds": time.monotonic() - began_s, "accepted": accepted}))


if __name__ == "__main__":
    main()
