"""`engine up --address` on a Ray cluster that somebody else started, with a Redis on the network."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.store.embedded_redis import dying_with_parent
from engine.store.server_program import find_server
from tests.support.free_port import free_port
from tests.support.running_engine import START_TIMEOUT_S, RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"nothing listens on {port}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="engine-cluster-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def network_redis(folder: Path) -> Iterator[str]:
    port = free_port()
    options = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync always --dir {folder}"
    process = subprocess.Popen(dying_with_parent([find_server(), *options.split()]), stdout=subprocess.DEVNULL)
    wait_for_port(port, process)
    yield f"redis://127.0.0.1:{port}/0"
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[str]:
    """Address of a one-node Ray cluster that offers what the engine's actors ask for."""
    port = free_port()
    resources = '{"engine_shard": 2, "engine_scheduler": 1, "engine_edge": 1}'
    checkout = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        dying_with_parent([
            Path(sys.executable).with_name("ray"), "start", "--head", "--block", f"--port={port}", f"--resources={resources}",
            "--include-dashboard=false", "--num-cpus=2", f"--temp-dir={folder}/ray", "--disable-usage-stats",
        ]),
        env=os.environ | {"PYTHONPATH": str(checkout)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for_port(port, process)
    yield f"127.0.0.1:{port}"
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()


async def test_an_engine_joins_a_running_cluster_serves_and_leaves_it_running(folder: Path, cluster: str, network_redis: str) -> None:
    running = RunningEngine(folder, "--address", cluster, "--redis", network_redis, "--port", str(free_port()))
    running.start()
    try:
        (result,) = await running.publish({"user": "guest", "type": "test.message"})
        async with running.connect("guest") as socket:
            frame = await running.receive(socket, "messages")
        assert [message["id"] for message in frame["messages"]] == [result["id"]]
    finally:
        assert running.stop() == 0
    host, port = cluster.split(":")
    with socket_to(host, int(port)):
        pass  # the cluster is not ours to stop


def socket_to(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=5)
