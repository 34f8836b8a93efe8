"""What a process of Ray imports while it has nothing to do, so that a shard or an edge which takes it starts at once.

Imported by every Python process of a node whose Ray was started with `RAY_preload_python_modules=engine.actors.spare_process`. A process
that is given something to do at once, such as a task of somebody's job, loads nothing of the engine: only one that is idle `_IDLE_S` after
its start does. `engine.actors.spares` sees to it that a node has one, which announces itself when it is warm.

Ray names a process idle until its actor is made. That loads the modules of its own role, for which users wait: loading those of every role
beside it would make 1.5 s of CPU of 1.05. Of the 0.39 s of CPU that a shard takes to serve in a process with the engine's modules, 0.15 s
are imports that Ray makes when it reads an actor's arguments, and 0.07 s are the collection of garbage before it is made
(`engine.actors.ray_actors`): both are done here.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from importlib import import_module
from typing import Final

log = logging.getLogger(__name__)

_IDLE_S: Final = 1.0
_NEEDED: Final = ("engine.actors.ray_actors", "engine.actors.shard", "engine.actors.edge")
_NEEDED_BY_RAY: Final = ("ray._common.pydantic_compat", "pyarrow")
"""Imported with the first value that a process of Ray 2.60 reads. No public names of Ray: what another Ray does not have is left out."""


def _warm() -> None:
    time.sleep(_IDLE_S)
    if any(name.startswith("engine.actors.") and name != __name__ for name in list(sys.modules)):
        return  # an actor's class is being loaded
    processes = import_module("engine.actors.warm_processes")
    code = import_module("engine.actors.loaded_code")
    code.remember()  # the package, which was imported when the process began: loading the rest takes seconds on a busy machine
    for name in _NEEDED:
        if not processes.is_idle():
            return  # it has got an actor meanwhile
        import_module(name)
    for name in _NEEDED_BY_RAY:
        try:
            import_module(name)
        except Exception as error:  # whatever a broken library raises: the actor is slower then
            log.warning("%s is not loaded before an actor needs it: %r", name, error)
    code.remember()
    gc.collect()
    gc.freeze()  # modules live as long as the process: no later collection looks at them
    processes.announce(os.getpid())


threading.Thread(target=_warm, name="engine-spare", daemon=True).start()
