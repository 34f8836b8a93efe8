"""Parts of Ray that a local one starts without: what is replaced is there in this Ray, and runs where a Ray lacks the names."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ray import _raylet
from ray._private import node, services, worker

from engine.cli import agent_stand_in, worker_start
from engine.cli.ray_parts import without_unused_parts

NODE = "ab" * 28

AGENT = """
import os, socket, sys
own = socket.socket()
own.bind(("127.0.0.1", 0))
own.listen()
while True:
    connection, _ = own.accept()
    connection.sendall(" ".join([connection.recv(100).decode(), *sys.argv[1:]]).encode())
    connection.close()
"""


def test_this_ray_has_the_parts() -> None:
    assert callable(worker.listen_error_messages)
    for name in ("start_log_monitor", "start_monitor", "start_api_server"):
        assert callable(getattr(node.Node, name))
    for name in ("get_node", "start_ray_process"):
        assert callable(getattr(services, name))


def test_parts_of_ray_that_have_other_names_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before: Any = node.Node.start_monitor
    start: Any = services.start_ray_process
    monkeypatch.delattr(node.Node, "start_log_monitor")
    monkeypatch.delattr(_raylet, "persist_port")
    with without_unused_parts(Path("workers.sock")):
        assert node.Node.start_monitor is not before
        assert services.start_ray_process is start
        assert not hasattr(node.Node, "start_log_monitor")
    assert node.Node.start_monitor is before
    monkeypatch.setitem(sys.modules, "ray._private.node", None)
    with without_unused_parts(Path("workers.sock")):
        pass


def test_a_raylet_gets_stand_ins_for_its_agents_and_starts_forked_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(services, "start_ray_process", lambda command, *_arguments, **_named: started.append(command))
    agents = ["--dashboard_agent_command=python agent.py", "--runtime_env_agent_command=python 'the agent.py' --a=b"]
    worker = "--python_worker_command=python worker.py"
    with without_unused_parts(tmp_path / "workers.sock"):
        services.start_ray_process(
            ["raylet", f"--session_dir={tmp_path}", f"--node_id={NODE}", "--node_ip_address=::1", *agents, worker, "--head"], "raylet"
        )
        services.start_ray_process(["gcs_server", "--config=a=b"], "gcs_server")
    raylet, gcs = started
    assert gcs == ["gcs_server", "--config=a=b"]
    assert [raylet[0], raylet[-1], len(raylet)] == ["raylet", "--head", 8]
    unused, later, forked = (shlex.split(word.partition("=")[2]) for word in raylet[4:7])
    assert forked == [sys.executable, "-IS", worker_start.__file__, str(tmp_path / "workers.sock"), "python", "worker.py"]
    assert unused == [sys.executable, "-IS", agent_stand_in.__file__]
    assert later == [*unused, str(tmp_path / f"runtime_env_agent_port_{NODE}"), "::1", "python", "the agent.py", "--a=b"]
    ports = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert ports == dict.fromkeys((f"{name}_port_{NODE}" for name in ("metrics_agent", "metrics_export", "dashboard_agent_listen")), "-1")


def test_the_first_connection_is_served_by_the_agent(tmp_path: Path) -> None:
    port_file, agent = tmp_path / "port", tmp_path / "agent.py"
    agent.write_text(AGENT)
    command = [sys.executable, "-IS", agent_stand_in.__file__, port_file, "127.0.0.1", sys.executable, "-u", agent, "--added"]
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 20
        while not port_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for word in (b"first", b"next"):
            with socket.create_connection(("127.0.0.1", int(port_file.read_text())), timeout=20) as connection:
                connection.sendall(word)
                assert connection.recv(100) == word + b" --added"
        process.kill()


@pytest.mark.parametrize("parents", [[7, 7, 1], [1, 1]], ids=["later", "before it began"])
def test_a_stand_in_ends_with_its_raylet(monkeypatch: pytest.MonkeyPatch, parents: list[int]) -> None:
    found = iter(parents)
    monkeypatch.setenv("RAY_RAYLET_PID", "7")
    monkeypatch.setattr(os, "getppid", lambda: next(found))
    monkeypatch.setattr(agent_stand_in, "_LOOK_S", 0.01)
    with pytest.raises(SystemExit):
        agent_stand_in.main(["--added-by-the-raylet"])


def test_the_node_is_looked_up_when_it_has_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = iter([{}, {}, {"id": "node"}])

    class Client:
        def __init__(self, address: str) -> None:
            assert address == "host:1"

        def get_all_node_info(self) -> dict[str, str]:
            return next(registered)

    monkeypatch.setattr(_raylet, "GcsClient", Client)
    monkeypatch.setattr(services, "get_node", lambda _address, node_id: (node_id, list(registered)))
    with without_unused_parts(Path("workers.sock")):
        assert services.get_node("host:1", "id") == ("id", [])
