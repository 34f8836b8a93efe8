"""Leaves out each feature with those that need it, and checks every promise that none of them keeps. A part of `make sim`.

python -m tests.conformance.without_features
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from engine.config import Config
from tests.conformance.connections import Server
from tests.conformance.server_promises import PROMISES
from tests.support.engine_in_process import engine_in_process
from tests.support.feature_folders import FOLDERS, with_dependants
from tests.support.redis_server import redis_to_break

SECRET = "a secret of these tests, long enough"


def config_of(redis_url: str, folder: Path) -> Config:
    return Config(
        redis_url=redis_url, redis_durability="reported", jwt_secret=SECRET, data_dir=str(folder), drain_ms=1000, log_level="ERROR"
    )


async def check_at_once(server: Server, gone: Collection[str]) -> int:
    """Every promise that no feature keeps that is gone. Returns how many these are; raises what the first broken one raises."""
    promises = [promise for promise, feature in PROMISES.items() if feature not in gone]
    async with asyncio.TaskGroup() as tasks:
        for promise in promises:
            tasks.create_task(promise(server, random.Random(promise.__name__)), name=promise.__name__)
    return len(promises)


async def check_without(gone: Collection[str]) -> int:
    """The same on an engine of its own without these features."""
    with redis_to_break() as redis, tempfile.TemporaryDirectory() as folder:
        config = config_of(redis.url, Path(folder))
        async with engine_in_process(config, gone) as url:
            server = Server(url, config.jwt_secret)
            async with server.http:
                return await check_at_once(server, gone)


def main() -> int:
    """Check and report. Returns the exit code."""
    broken = 0
    closures = {frozenset(with_dependants(name)) for name in FOLDERS} | {frozenset(FOLDERS)}
    for gone in sorted(closures, key=lambda gone: (len(gone), sorted(gone))):
        begin, names = time.monotonic(), ", ".join(sorted(gone))
        try:
            kept = asyncio.run(check_without(gone))
            print(f"without {names}: {kept} promises kept in {time.monotonic() - begin:.0f} s", flush=True)
        except Exception as error:
            broken += 1
            print(f"without {names}: BROKEN {error!r}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
