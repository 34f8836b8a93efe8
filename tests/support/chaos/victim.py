"""A running engine as somebody sees it who is about to break it: its processes, its Redis, its front door."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis

from tests.support.process_tree import role_of, tree


@dataclass(frozen=True)
class Victim:
    """What a fault needs.

    Attributes:
        pid: of `engine up`.
        url: `http://host:port` of its edges.
        token: (user, scopes) -> a token.
        data_dir: where its own Redis is.
        kills: what `kill` has ended so far: (when on the monotonic clock, the part).
    """

    pid: int
    url: str
    token: Callable[[str, str], str]
    data_dir: Path
    kills: list[tuple[float, str]] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def pids(self, role: str) -> list[int]:
        """The living processes of a part: edge, shard, scheduler, controller, redis, raylet, gcs."""
        return [pid for pid in tree(self.pid) if role_of(pid) == role]

    def pid_of(self, role: str) -> int:
        return min(self.pids(role))

    def kill(self, role: str) -> int:
        """SIGKILL to one process of a part; returns its id."""
        pid = self.pid_of(role)
        os.kill(pid, signal.SIGKILL)
        self.kills.append((time.monotonic(), role))
        return pid

    @contextmanager
    def stopped(self, role: str) -> Iterator[int]:
        """One process of a part does not run while the block does: SIGSTOP, then SIGCONT, if it is still there."""
        pid = self.pid_of(role)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            if pid in self.pids(role):
                os.kill(pid, signal.SIGCONT)

    def redis(self) -> Redis:
        """A client of the engine's own Redis."""
        folder = self.data_dir / "redis"
        folder = folder / "run" if (folder / "run").exists() else folder
        return Redis(unix_socket_path=str(folder / "redis.sock"), socket_timeout=5)
