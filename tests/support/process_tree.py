"""The processes of an engine, found from the one that was started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

_ROLES = {
    "ray::Edge": "edge",
    "ray::Shard": "shard",
    "ray::Scheduler": "scheduler",
    "ray::Controller": "controller",
    "ray::Archivist": "archivist",
    "ray::Ingester": "ingester",
    "redis-server": "redis",
    "valkey-server": "redis",
    "raylet": "raylet",
    "gcs_server": "gcs",
}


def rss_bytes(pid: int) -> int:
    """The memory that a process has in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> list[int]:
    found, stack = [], [pid]
    while stack:
        current = stack.pop()
        try:
            for thread in os.listdir(f"/proc/{current}/task"):
                with open(f"/proc/{current}/task/{thread}/children", "rb", 0) as children:  # not by Path, which costs as much again
                    stack += map(int, children.read().split())
        except OSError:
            continue  # it ended meanwhile
        found.append(current)
    return found


def role_of(pid: int) -> str:
    """The role of a process of an engine, by its program."""
    try:
        name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0].decode(errors="replace")
    except OSError:
        return "others"
    name = name.split(" ", 1)[0].rsplit("/", 1)[-1].split(".", 1)[0]
    return _ROLES.get(name, "others")


def end_ray_node(node: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a `ray start --block`, within `patience_s` in order, and then the engine's actors that it has left.

    Where actors of others outlived their job, as those of Ray Data do, Ray does not end: then everything is killed.
    """
    family = tree(node.pid)
    node.terminate()
    in_order = True
    try:
        node.wait(patience_s)
    except subprocess.TimeoutExpired:
        in_order = False
        node.kill()
        node.wait()
    for pid in family:
        if pid != node.pid and not (in_order and role_of(pid) == "others"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
