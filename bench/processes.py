"""What every process of an engine costs, read from /proc: CPU seconds and resident memory by role."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ROLES = {
    "ray::Edge": "edge",
    "ray::Shard": "shard",
    "ray::Scheduler": "scheduler",
    "ray::Controller": "controller",
    "redis-server": "redis",
    "raylet": "raylet",
    "gcs_server": "gcs",
}


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
    """Which part of the engine the process is; `others` for Ray's helpers and the starter."""
    try:
        name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0].decode(errors="replace")
    except OSError:
        return "others"
    name = name.split(" ", 1)[0].rsplit("/", 1)[-1].split(".", 1)[0]
    return _ROLES.get(name, "others")


def cpu_seconds(pid: int) -> dict[str, float]:
    """User and system time by role, of the processes that live now."""
    spent: dict[str, float] = {}
    for process in tree(pid):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        role = role_of(process)
        spent[role] = spent.get(role, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return spent


def rss_bytes(pid: int) -> dict[str, int]:
    """Resident memory by role."""
    held: dict[str, int] = {}
    for process in tree(pid):
        try:
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except OSError:
            continue
        role = role_of(process)
        held[role] = held.get(role, 0) + pages * _PAGE_BYTES
    return held


class Meter:
    """CPU spent from its making on, per message."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = cpu_seconds(pid)

    def per_message_us(self, messages: int) -> dict[str, float]:
        """Microseconds of CPU per message by role, and `total`."""
        after = cpu_seconds(self._pid)
        spent = {role: round((after[role] - self._before.get(role, 0.0)) * 1e6 / max(messages, 1), 1) for role in sorted(after)}
        return {**spent, "total": round(sum(spent.values()), 1)}
