"""A job of Ray Data that knows nothing of notifications. Its user is told of the progress and of the end all the same.

    .venv/bin/pip install 'ray[data]'
    .venv/bin/engine up   # in another terminal; it prints the address of its Ray
    .venv/bin/engine listen ann
    RAY_AUTH_MODE=token RAY_DATA_EXECUTION_CALLBACKS=ray_notifications.ray.DataProgress RAY_NOTIFY=ann RAY_NOTIFY_AFTER_S=1 \
        .venv/bin/python examples/ray_unmodified.py ADDRESS

As a submitted job: `ray job submit --metadata-json '{"notify": "ann"}'`, with the first of these variables in its `runtime_env`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import ray


def squared(batch: dict[str, Any]) -> dict[str, Any]:
    """A tenth of a second of work."""
    time.sleep(0.1)
    return {"square": batch["id"] ** 2}


def main() -> None:
    """Square a thousand numbers."""
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else "auto", log_to_driver=False)
    squares = ray.data.range(1000, override_num_blocks=8).map_batches(squared, batch_size=None)
    print("rows:", len(squares.take_all()))


if __name__ == "__main__":
    main()
