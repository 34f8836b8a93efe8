"""Programs of `examples/` that join the Ray of an engine, started as their users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from engine.store.embedded_redis import dying_with_parent
from tests.support.hosts import CHECKOUT
from tests.support.running_engine import RunningEngine

RAY_PROGRAM: Final = {"RAY_AUTH_MODE": "token", "PYTHONPATH": os.fspath(CHECKOUT), "RAY_DATA_DEFAULT_MIN_PARALLELISM": "4"}
"""Environment of a program on the Ray of an engine. Ray Data would make 200 blocks of a small dataset, and a task for each."""


def output_of(engine: RunningEngine, example: str, *words: str) -> list[str]:
    """The lines that an example prints. Fails unless it ends well."""
    done = subprocess.run(
        dying_with_parent([sys.executable, CHECKOUT / "examples" / example, engine.state["ray_address"], *words]),
        env=os.environ | RAY_PROGRAM,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
