"""What every process of a system costs, read from /proc: CPU time and resident memory, by role.

A role is a part of the system that a reader of its architecture would name. A process that ended counts with what it had spent when it
was last looked at; one that began counts from its beginning.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.support.process_tree import role_of, tree

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

BY_PROGRAM = ""
"""As a role: every process of the tree has the role of its program, as below; `others` are Ray's helpers and the starter."""


class Processes:
    """The processes under some roots.

    Args:
        roots: process id -> the role of its whole tree, or `BY_PROGRAM`.
    """

    def __init__(self, roots: Mapping[int, str]) -> None:
        self._roots = roots

    def roles(self) -> dict[int, str]:
        """Process id -> role, of those that live now."""
        return {pid: role or role_of(pid) for root, role in self._roots.items() for pid in tree(root)}

    def cpu_s(self) -> dict[tuple[int, str], tuple[str, float]]:
        """(process id, start time) -> role, and user and system time of all its threads so far, to 1/100 s."""
        spent = {}
        for pid, role in self.roles().items():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            spent[pid, fields[19]] = role, (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        return spent

    def rss_bytes(self) -> dict[str, int]:
        """Resident memory by role. What processes share is counted in each of them."""
        held: Counter[str] = Counter()
        for pid, role in self.roles().items():
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:
                continue
            held[role] += pages * _PAGE_BYTES
        return dict(held)


class CpuMeter:
    """CPU spent by a system from the making of this object on."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._before = processes.cpu_s()

    def spent_s(self) -> dict[str, float]:
        """Seconds by role; never less than zero."""
        spent: dict[str, float] = {}
        for process, (role, seconds) in self._processes.cpu_s().items():
            spent[role] = spent.get(role, 0.0) + seconds - self._before.get(process, (role, 0.0))[1]
        return dict(sorted(spent.items()))


def kernel_bytes() -> int:
    """What the kernel of this machine holds for its objects (sockets among them) and in TCP buffers; all processes together."""
    slab = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Slab:"))
    tcp = next(line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP:"))
    return int(slab.split()[1]) * 1024 + int(tcp.split()[-1]) * _PAGE_BYTES
