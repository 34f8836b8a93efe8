"""An archivist without Ray: in this process for tests that look at it, or as a program that they kill.

python -m tests.support.archivist_process REDIS_URL HISTORY_URL DATA_DIR
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from engine.actors.actor_process import ProcessContext
from engine.actors.feature_actors import FEATURES
from engine.actors.feature_process import FeatureProcess, process_of
from engine.config import Config
from engine.features.history.archivist import Archivist
from tests.support.vitals import vitals_without_ray


def archivist(config: Config) -> FeatureProcess:
    """One whose end is that of its task, and not of the process."""
    context = ProcessContext(vitals=vitals_without_ray, end_process=lambda: None, tune_memory=lambda: None)
    (actor,) = (actor for actor in FEATURES if actor.role == "archivist")
    return process_of(actor)(config, 0, context)


@contextlib.asynccontextmanager
async def archiving(config: Config) -> AsyncIterator[FeatureProcess]:
    """A running archivist, which dies at the end of the block wherever it is."""
    made = archivist(config)
    made.begin()
    try:
        yield made
    finally:
        assert made._serving is not None, "it was begun"
        made._serving.cancel()
        await asyncio.gather(made._serving, return_exceptions=True)
        assert isinstance(made.work, Archivist)
        if made._ready.is_set():  # else it ends before the work has begun
            made.work.close()


async def _serve(config: Config) -> None:
    async with archiving(config):
        await asyncio.Event().wait()


if __name__ == "__main__":
    redis_url, history_url, data_dir = sys.argv[1:]
    asyncio.run(
        _serve(Config(redis_url=redis_url, redis_durability="reported", history_url=history_url, data_dir=data_dir, history_rows_max=200))
    )
