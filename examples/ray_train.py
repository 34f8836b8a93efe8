"""A training of Ray Train that tells a user of its progress and its end.

.venv/bin/pip install 'ray[train]'
.venv/bin/engine up   # in another terminal; it prints the address of its Ray
RAY_AUTH_MODE=token .venv/bin/python examples/ray_train.py ADDRESS USER
"""

from __future__ import annotations

import sys
import tempfile

import ray
from ray import train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from ray_notifications.ray import RunMessages, TrainProgress


def epochs() -> None:
    """What each worker does."""
    for epoch in range(3):
        train.report({"epoch": epoch, "loss": 1 / (epoch + 1)})


def main() -> None:
    """Train on one worker."""
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else "auto", log_to_driver=False)
    users = sys.argv[2:3] or ["ann"]
    with tempfile.TemporaryDirectory() as folder, RunMessages("ray.train", "my-model", users, after_s=0) as run:
        config = train.RunConfig(name="my-model", storage_path=folder, callbacks=[TrainProgress(run)])
        workers = train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.5})
        DataParallelTrainer(epochs, scaling_config=workers, run_config=config).fit()


if __name__ == "__main__":
    main()
