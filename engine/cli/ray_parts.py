"""The parts of Ray that an engine on one machine does not use, or not at once: a local Ray starts without them.

    log monitor              sends log lines to the driver
    monitor                  scales the cluster
    API server               is the dashboard's
    dashboard agent          takes metrics and jobs for the dashboard, from the processes of its node
    runtime environment's    prepares packages and variables for tasks that ask for them, as those of somebody's job that joins this Ray may
    error listener           prints a page of text for every process that ends; the engine prints a line

The first four are processes that nobody uses here. The raylet waits for both agents until they have imported what they need, and ends when
one of them does, so each has a stand-in: a process of 10 MB that does nothing, or that becomes the agent at the first request
(`engine.cli.agent_stand_in`). Together the five took 400 MB, 1.6 % of a core, and half of the start.

Ray 2.60 has no public setting for any of this. When another Ray lacks one of the names, that part runs.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from engine.cli import agent_stand_in, worker_start

_REGISTERED_S: Final = 5.0
"""For a raylet to register. Afterwards Ray waits as it does without this, and says what is wrong."""

_POLL_S: Final = 0.02

_WORKER: Final = "--python_worker_command"
_COMMANDS: Final = frozenset({"--dashboard_agent_command", "--runtime_env_agent_command", _WORKER})
"""Options of a raylet."""


@contextlib.contextmanager
def without_unused_parts(workers: Path) -> Iterator[None]:
    """While the block runs, Ray starts without them.

    Args:
        workers: socket of the fork server, from which the raylet has its workers (`engine.cli.fork_server`).
    """
    replacements: list[tuple[Any, str, Callable[..., Any]]] = []
    with contextlib.suppress(ImportError):
        from ray._private import services, worker
        from ray._private.node import Node

        replacements = [
            (Node, "start_log_monitor", lambda _node: None),
            (Node, "start_monitor", lambda _node: None),
            (Node, "start_api_server", _no_api_server),
            (worker, "listen_error_messages", lambda *_arguments: None),
        ]
        with contextlib.suppress(ImportError, AttributeError):
            replacements += [
                (services, "get_node", _of_registered_node(services.get_node)),
                (services, "start_ray_process", _with_stand_ins(services.start_ray_process, workers)),
            ]
    originals = [(where, name, getattr(where, name)) for where, name, _ in replacements if hasattr(where, name)]
    try:
        for where, name, replacement in replacements:
            if hasattr(where, name):
                setattr(where, name, replacement)
        yield
    finally:
        for where, name, original in originals:
            setattr(where, name, original)


def _no_api_server(node: Any, **_options: Any) -> None:
    node._webui_url = ""


def _of_registered_node(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """The same, asked when the node is there: Ray looks for it at once and then once a second, and starts no worker before it is found."""
    from ray import _raylet

    raylet: Any = _raylet

    def get(gcs_address: str, node_id: str) -> Any:
        client = raylet.GcsClient(address=gcs_address)
        until = time.monotonic() + _REGISTERED_S
        while not client.get_all_node_info() and time.monotonic() < until:
            time.sleep(_POLL_S)
        return get_node(gcs_address, node_id)

    return get


def _with_stand_ins(start: Callable[..., Any], workers: Path) -> Callable[..., Any]:
    """The same, where a raylet gets stand-ins for its agents, and its workers from the fork server."""
    from ray import _raylet

    raylet: Any = _raylet  # its types lack these names
    unused = raylet.METRICS_AGENT_PORT_NAME, raylet.METRICS_EXPORT_PORT_NAME, raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME
    used, persist_port = raylet.RUNTIME_ENV_AGENT_PORT_NAME, raylet.persist_port

    def started(command: list[str], process_type: str, *arguments: Any, **named: Any) -> Any:
        given = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
        if given.keys() >= _COMMANDS:
            session, node = given["--session_dir"], given["--node_id"]
            for port in unused:
                persist_port(session, node, port, -1)  # as the agent of a Ray that was installed without its dashboard
            port_file = Path(session, f"{used}_{node}")
            given["--dashboard_agent_command"] = _program(agent_stand_in)
            later = _program(agent_stand_in, str(port_file), given["--node_ip_address"])
            given["--runtime_env_agent_command"] = f"{later} {given['--runtime_env_agent_command']}"
            given[_WORKER] = f"{_program(worker_start, str(workers))} {given[_WORKER]}"
            command = [f"{name}={given[name]}" if (name := word.partition("=")[0]) in _COMMANDS else word for word in command]
        return start(command, process_type, *arguments, **named)

    return started


def _program(module: ModuleType, *arguments: str) -> str:
    return subprocess.list2cmdline([sys.executable, "-IS", str(module.__file__), *arguments])
