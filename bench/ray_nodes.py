"""A Ray cluster of several nodes on one machine, with a Redis on the network: `ray start` once for each, as on so many machines.

What each node offers decides which actors are where.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engine.cli.ray_cluster import HEAD_SETTINGS
from tests.support.chaos.sentinel_group import PASSWORD, Server
from tests.support.free_port import free_port
from tests.support.process_tree import end_ray_node, role_of, tree

SHARD_EACH: Final = ({"engine_shard": 1, "engine_scheduler": 1, "engine_edge": 1}, {"engine_shard": 1})
"""Two nodes with one of the engine's two shards each; edges and schedulers are on the first."""

_START_S: Final = 60
_CHECKOUT: Final = Path(__file__).resolve().parent.parent


class RayNodes:
    """Use as a context manager.

    Args:
        folder: an empty directory with a short path: Ray makes sockets in it.
        offers: resources of each node, the head first.
    """

    def __init__(self, folder: Path, *offers: Mapping[str, int]) -> None:
        self._folder = folder
        self._offers = offers
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

    def __enter__(self) -> RayNodes:
        try:
            self._redis.start()
            head, *others = self._offers
            self._start(head, "--head", f"--port={self._port}")
            for offer in others:
                self._start(offer, f"--address={self.address}")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, resources: Mapping[str, int], *options: str) -> None:
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

    def roots(self) -> list[int]:
        """Processes of which all others of it descend, Redis among them."""
        assert self._redis.process is not None
        return [self._redis.process.pid, *(node.pid for node in self._nodes)]

    def shards(self) -> list[int]:
        """The processes of all shards, on whatever node."""
        return [pid for node in self._nodes for pid in tree(node.pid) if role_of(pid) == "shard"]

    def lose_last(self) -> None:
        """kill -9 the raylet of the newest node; another node takes its place, as an autoscaler would see to it."""
        (raylet,) = self._raylets(self._nodes[-1])
        os.kill(raylet, signal.SIGKILL)
        self._start(self._offers[-1], f"--address={self.address}")

    def freeze_last(self) -> list[int]:
        """Stop every process of the newest node; another node joins. Returns the processes of the stopped one's shards."""
        self._frozen = tree(self._nodes[-1].pid)
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)
        shards = [pid for pid in self._frozen if role_of(pid) == "shard"]
        self._start(self._offers[-1], f"--address={self.address}")
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
            end_ray_node(node, 15)
        if self._redis.process is not None and self._redis.process.poll() is None:
            self._redis.kill()
