"""Power cuts of the machine that Redis runs on: what it did not sync is lost, to a random byte.

A program with the server's name stands before the real one on PATH. It preloads a library that notes how much of each file is synced
(synced.c). A cut kills the server with -9; before the next one starts, each append-only file is cut to a length between what was synced and
what was written. Bytes within that length stay as they are: file systems that show unwritten blocks within it are not modelled, nor a lost
rename. The engine lives on, as it does when Redis has a machine of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.support.chaos.breakable_engine import victim_of
from tests.support.chaos.traffic import Traffic
from tests.support.chaos.victim import Victim
from tests.support.redis_server import find_server
from tests.support.running_engine import running_engine
from tests.support.waiting import until

SOURCE: Final = Path(__file__).with_name("synced.c")
WITHIN_S: Final = 110.0
COMPILER: Final = "cc"


class PowerCuts:
    """A Redis server whose machine loses power. `environment`: of the engine.

    Args:
        seed: of how much of the unsynced bytes each cut leaves.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        real = find_server()
        self._folder = folder
        self.lost_bytes = folder / "lost_bytes"
        library, program = folder / "synced.so", folder / "bin" / real.name
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        program.parent.mkdir()
        cut = shlex.join([sys.executable, "-m", "tests.proof.unsynced", str(folder), str(seed)])
        program.write_text(
            f"#!/bin/bash\n"
            f'[ "$1" = --version ] && exec {real} --version\n'
            f'(cd {Path(__file__).parents[2]} && PYTHONPATH=. {cut} "$OLDPWD") || exit 1\n'
            f'LD_PRELOAD={library} SYNCED_LOG={folder}/synced CUT_BEFORE_SYNC={folder}/before_sync exec -a {real.name} {real} "$@"\n'
        )
        program.chmod(0o755)
        self.environment = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "ENGINE_INTERNAL_REDIS_RESTART_MAX_MS": "100"}

    async def cut(self, victim: Victim, *, at_a_sync: bool) -> None:
        """Now; or when the server is about to sync what it wrote."""
        (self._folder / "armed").touch()
        if not at_a_sync:
            victim.kill("redis")
            return
        (self._folder / "before_sync").touch()
        await until(lambda: not (self._folder / "armed").exists(), WITHIN_S, look_s=0.01)


async def endure(folder: Path, cuts: int, seed: int, fsync: str, tell: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    """Load an engine, cut the power so many times, and close the books.

    Args:
        fsync: `redis_fsync` of the engine.
        tell: is told how many there were.

    Returns:
        The books of `Traffic`, with `cuts`, `lost_bytes` (unsynced, of all cuts), `cuts_that_lost` and `epochs` that clients saw.
    """
    power, dice = PowerCuts(folder, seed), random.Random(seed)
    env = {**power.environment, "ENGINE_REDIS_FSYNC": fsync, "ENGINE_LOG_LEVEL": "ERROR"}
    with running_engine(env=env, folder=folder) as engine:
        victim = victim_of(engine)
        async with Traffic(engine.url, engine.token, "power", online=12, away=2, rate=200) as traffic:
            for number in range(cuts):
                await asyncio.sleep(dice.uniform(0.05, 1.2))
                await power.cut(victim, at_a_sync=dice.random() < 0.5)
                await traffic.flowing(time.monotonic(), WITHIN_S)
                tell(number + 1)
            books = await traffic.finish(WITHIN_S)
            epochs = len(traffic.epochs)
    lost = [int(line) for line in power.lost_bytes.read_text().split()]
    return {**books, "cuts": len(lost), "lost_bytes": sum(lost), "cuts_that_lost": sum(map(bool, lost)), "epochs": epochs}


def can_cut() -> bool:
    """Is there a compiler for the preloaded library?"""
    return shutil.which(COMPILER) is not None
