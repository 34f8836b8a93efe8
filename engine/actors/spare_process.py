"""What a process of Ray imports while it has nothing to do, so that a shard or an edge which takes it starts at once.

Imported by every Python process of a node whose Ray was started with `RAY_preload_python_modules=engine.actors.spare_process`. A process
that is given something to do at once, such as a task of somebody's job, loads nothing of the engine: only one that is idle `_IDLE_S` after
its start does. `engine.actors.spares` sees to it that a node has one.
"""

from __future__ import annotations

import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Final

_IDLE_S: Final = 1.0
_IDLE_NAME: Final = b"ray::IDLE"
_NEEDED: Final = ("engine.actors.ray_actors", "engine.actors.shard", "engine.actors.edge")


def _warm() -> None:
    time.sleep(_IDLE_S)
    if Path("/proc/self/cmdline").read_bytes().startswith(_IDLE_NAME):  # Ray names a process after what it runs
        code = import_module("engine.actors.loaded_code")
        code.remember()  # the package, which was imported when the process began: loading the rest takes seconds on a busy machine
        for name in _NEEDED:
            import_module(name)
        code.remember()


threading.Thread(target=_warm, name="engine-spare", daemon=True).start()
