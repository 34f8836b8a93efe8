"""What all actors of the engine share: what their process costs, read by itself, and how they find each other by name."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import psutil
import ray

_FIND_S = 0.1  # between two looks for an actor that is being created
_self = psutil.Process()


def vitals(role: str, index: int, started_ms: int) -> dict[str, Any]:
    """The part of `stats()` that all actors share; about 20 us.

    `cpu_s` is the process's CPU time so far, all threads: its growth per second is the share of a core; `rss_bytes` is its
    resident memory.
    """
    return {
        "role": role,
        "index": index,
        "pid": os.getpid(),
        "node": ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        "started_ms": started_ms,
        "cpu_s": time.process_time(),
        "rss_bytes": _self.memory_info().rss,
    }


async def find_actor(name: str, namespace: str) -> Any:
    """The handle of a named actor. Raises ValueError when there is none."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: ray.get_actor(name, namespace=namespace))


async def await_actor(name: str, namespace: str) -> Any:
    """The handle of a named actor, as soon as there is one."""
    while True:
        try:
            return await find_actor(name, namespace)
        except ValueError:
            await asyncio.sleep(_FIND_S)
