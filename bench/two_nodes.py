"""A Ray cluster of two nodes on one machine, with a Redis on the network: `ray start` twice, as on two machines.

Each node offers one `engine_shard`, so the engine's two shards are on different nodes; edges, schedulers and the controller
are on the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from engine.cli.ray_cluster import HEAD_SETTINGS
from tests.support.chaos.sentinel_group import PASSWORD, Server
from tests.support.free_port import free_port
from tests.support.process_tree import role_of, tree

_START_S: Final = 60
_CHECKOUT: Final = Path(__file__).resolve().parent.parent


class TwoNodes:
    """Use as a context manager.

    Args:
        folder: an empty directory with a short path: Ray makes sockets in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        options = {"appendonly": "yes", "appendfsync": "always", "save": '""', "requirepass": PASSWORD}
        self._redis = Server(folder, "redis", options)
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._frozen: list[int] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def redis_url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self._redis.port}/0"

    def __enter__(self) -> TwoNodes:
        try:
            self._redis.start()
            self._start({"engine_shard": 1, "engine_scheduler": 1, "engine_edge": 1}, "--head", f"--port={self._port}")
            self._start({"engine_shard": 1}, f"--address={self.address}")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, resources: dict[str, int], *options: str) -> None:
        """A node; returns when its raylet runs."""
        node = subprocess.Popen(
            [
                Path(sys.executable).with_name("ray"), "start", "--block", "--num-cpus=2", "--disable-usage-stats",
                f"--resources={json.dumps(resources)}", *options,
                *(["--include-dashboard=false", f"--temp-dir={self._folder}/ray"] if "--head" in options else []),
            ],
            env=os.environ | HEAD_SETTINGS | {"PYTHONPATH": str(_CHECKOUT), "RAY_AUTH_MODE": "token"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._nodes.append(node)
        deadline = time.monotonic() + _START_S
        while not self._raylets(node):
            if node.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a Ray node does not start: {node.args}")
            time.sleep(0.1)

    @staticmethod
    def _raylets(node: subprocess.Popen[bytes]) -> list[int]:
        return [pid for pid in tree(node.pid) if role_of(pid) == "raylet"]

    def shards(self) -> list[int]:
        """The processes of all shards, on whatever node."""
        return [pid for node in self._nodes for pid in tree(node.pid) if role_of(pid) == "shard"]

    def lose_second(self) -> None:
        """kill -9 the raylet of the newest node; another node takes its place, as an autoscaler would see to it."""
        (raylet,) = self._raylets(self._nodes[-1])
        os.kill(raylet, signal.SIGKILL)
        self._start({"engine_shard": 1}, f"--address={self.address}")

    def freeze_second(self) -> list[int]:
        """Stop every process of the newest node; another node joins. Returns the processes of the stopped one's shards."""
        self._frozen = tree(self._nodes[-1].pid)
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)
        shards = [pid for pid in self._frozen if role_of(pid) == "shard"]
        self._start({"engine_shard": 1}, f"--address={self.address}")
        return shards

    def thaw(self) -> None:
        """What was stopped goes on."""
        for pid in self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen = []

    def stop(self) -> None:
        self.thaw()
        for node in reversed(self._nodes):
            family = tree(node.pid)
            node.terminate()
            try:
                node.wait(15)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
            for pid in family:
                if pid != node.pid and role_of(pid) != "others":
                    os.kill(pid, signal.SIGKILL)
        if self._redis.process is not None and self._redis.process.poll() is None:
            self._redis.kill()
