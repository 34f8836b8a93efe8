"""The processes of an engine, found from the one that was started."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from engine.actors.warm_processes import is_idle

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
    """The process and all its descendants."""
    found, stack = [], [pid]
    while stack:
        current = stack.pop()
        try:
            for thread in os.listdir(f"/proc/{current}/task"):
                stack += map(int, Path(f"/proc/{current}/task/{thread}/children").read_text().split())
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


def spare_processes(ray_logs: str) -> set[int]:
    """Processes of the Ray with these logs that have no actor, and have told that the modules of a shard are loaded."""
    marks = (Path(ray_logs).parent / "engine-spares").glob("*-*")
    return {pid for mark in marks if is_idle(pid := int(mark.name.rpartition("-")[2]))}


def free_processes(pid: int) -> set[int]:
    """Of the Ray below this process, the processes that it may give to the next actor, also those that only begin."""
    return {child for child in tree(pid) if is_idle(child) or _begins(child)}


def _begins(pid: int) -> bool:
    try:
        return any(word.endswith(b"_worker.py") for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    except OSError:
        return False


def end_ray_node(node: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a `ray start --block`, within `patience_s` in order, and then the engine's actors that it has left."""
    family = tree(node.pid)
    node.terminate()
    try:
        node.wait(patience_s)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()
    for pid in family:
        if pid != node.pid and role_of(pid) != "others":
            os.kill(pid, signal.SIGKILL)
