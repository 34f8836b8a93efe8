"""A Ray cluster that others use too: two nodes on this machine, a token, a Redis with a password.

first    the head, with a dashboard; room for schedulers and edges
second   room for shards. The package that it imports as `engine` is a stranger's
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.chaos.sentinel_group import PASSWORD, Server
from tests.support.free_port import free_port
from tests.support.process_tree import end_ray_node, tree
from tests.support.running_engine import RunningEngine
from tests.support.waiting import PATIENCE_S

_START_S = 300
_END_S = 6
PLACES = 3
"""For actors of each kind: those of three engines."""

EVENTS_DATABASE = 5
"""Of the engine that is told of Ray's events."""

STRANGERS_PACKAGE = "raise ImportError('this is not the engine')\n"


class SharedCluster:
    """Made by `shared_cluster`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events_port, self.events_secret = free_port(), secrets.token_hex(16)
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "0",  # half a second of CPU each
            "RAY_enable_ray_event": "1",
            "RAY_DASHBOARD_AGGREGATOR_AGENT_EVENTS_EXPORT_ADDR": f"http://127.0.0.1:{self.events_port}/v1/ray-events/{self.events_secret}",
        }
        self.dashboard = f"http://127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics_ports = [free_port(), free_port()]  # of the nodes; there are none where Ray is installed without [default]
        self.redis = Server(folder, "redis", {"appendonly": "yes", "appendfsync": "always", "save": '""', "requirepass": PASSWORD})
        self._nodes: list[subprocess.Popen[bytes]] = []

    @property
    def authorization(self) -> dict[str, str]:
        """Headers of requests to the dashboard."""
        return {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}

    def redis_url(self, database: int) -> str:
        """With the password."""
        return f"redis://:{PASSWORD}@127.0.0.1:{self.redis.port}/{database}"

    def engine(self, namespace: str, *, database: int, port: int | None = None, **env: str) -> RunningEngine:
        """An engine on this cluster that is not started yet; a port that is free unless one is given."""
        folder = self.folder / f"{namespace}-{secrets.token_hex(4)}"
        folder.mkdir()
        options = f"--address {self.address} --redis {self.redis_url(database)} --shards 1 --port {port or free_port()}"
        return RunningEngine(folder, *options.split(), env=self.environment | {"ENGINE_NAMESPACE": namespace} | env)

    def start(self) -> None:
        """Start Redis and both nodes; returns when they run."""
        self.redis.start()
        strangers = self.folder / "strangers"
        (strangers / "engine").mkdir(parents=True)
        (strangers / "engine" / "__init__.py").write_text(STRANGERS_PACKAGE)
        port = self.address.rpartition(":")[2]
        metrics = [f"--metrics-export-port={port}" for port in self.metrics_ports]
        dashboard = f"--dashboard-port={self.dashboard.rpartition(':')[2]}"
        head = ("--head", f"--port={port}", "--include-dashboard=true", dashboard, f"--temp-dir={self.folder}/ray", metrics[0])
        self._start(os.environ.get("PYTHONPATH", ""), {"engine_scheduler": PLACES, "engine_edge": PLACES}, *head)
        self._start(os.fspath(strangers), {"engine_shard": PLACES}, f"--address={self.address}", metrics[1])

    def _start(self, python_path: str, resources: dict[str, int], *options: str) -> None:
        """Start a node. Ray gives it 30 s, which a busy machine exceeds: then it is tried again."""
        output = self.folder / f"node-{len(self._nodes)}.txt"
        deadline = time.monotonic() + _START_S
        node: subprocess.Popen[bytes] | None = None
        while "Ray runtime started" not in (output.read_text() if output.exists() else ""):
            assert time.monotonic() < deadline, output.read_text()
            if node is None or node.poll() is not None:
                with output.open("wb") as file:
                    node = subprocess.Popen(
                        [
                            sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", "--disable-usage-stats",
                            "--dashboard-agent-listen-port=0", "--include-log-monitor=false",
                            f"--resources={json.dumps(resources)}", *options,
                        ],
                        env=os.environ | self.environment | {"PYTHONPATH": python_path}, cwd=self.folder,
                        stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                    )  # fmt: skip
                self._nodes.append(node)
            time.sleep(0.1)

    async def submit(self, *entrypoint: str, **metadata: str) -> None:
        """Submit a job with the request of Ray's command, whose process costs 3 s of CPU."""
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False, headers=self.authorization) as http:
            answer = await http.post(f"{self.dashboard}/api/jobs/", json={"entrypoint": shlex.join(entrypoint), "metadata": metadata})
        assert answer.status_code == 200, answer.text

    async def submit_by_command(self, *entrypoint: str, **metadata: str) -> None:
        """Submit a job, by the command of Ray."""
        program = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", self.dashboard, "--no-wait"]
        job = await asyncio.create_subprocess_exec(
            *program, "--metadata-json", json.dumps(metadata), "--", *entrypoint,
            env=os.environ | self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await job.communicate()
        assert job.returncode == 0, output.decode()

    def pids(self) -> list[int]:
        """All processes of Ray on both nodes."""
        return [pid for node in self._nodes for pid in tree(node.pid)]

    def pids_of_second(self) -> list[int]:
        """Of the node with the stranger's package."""
        return tree(self._nodes[-1].pid)

    def stop(self) -> None:
        """End everything."""
        for node in reversed(self._nodes):
            end_ray_node(node, _END_S)
        if self.redis.process is not None:
            self.redis.kill()


@contextmanager
def shared_cluster(folder: Path) -> Iterator[SharedCluster]:
    """The cluster, which runs in the block.

    Args:
        folder: an empty one with a short path: Ray makes sockets in it.
    """
    cluster = SharedCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
