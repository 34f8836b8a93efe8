"""What an actor's process costs, read by itself: the controller may run on another machine."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
import ray

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
