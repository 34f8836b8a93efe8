"""A search of Ray Tune that tells a user of its progress and its end.

.venv/bin/pip install 'ray[tune]'
.venv/bin/engine up   # in another terminal; it prints the address of its Ray
RAY_AUTH_MODE=token .venv/bin/python examples/ray_tune.py ADDRESS USER
"""

from __future__ import annotations

import sys
import tempfile

import ray
from ray import tune

from ray_notifications.ray import TuneProgress


def trial(config: dict[str, float]) -> None:
    """What each trial does."""
    tune.report({"score": config["rate"] ** 2})


def main() -> None:
    """Search among two rates."""
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else "auto", log_to_driver=False)
    progress = TuneProgress("my-search", sys.argv[2:3] or ["ann"], after_s=0)
    with tempfile.TemporaryDirectory() as folder:
        search = tune.RunConfig(name="my-search", storage_path=folder, callbacks=[progress], verbose=0)
        tune.Tuner(trial, param_space={"rate": tune.grid_search([0.1, 0.2])}, run_config=search).fit()


if __name__ == "__main__":
    main()
