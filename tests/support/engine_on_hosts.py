"""An engine on several hosts, started as README's "On a cluster" and `deploy/ray-cluster.yaml` describe.

    host a    Redis with a password, Ray's head, `engine up`; room for the scheduler
    all       room for `room` shards and one edge

Controller and shards may be anywhere; `status()` tells.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import secrets
import socket
import subprocess
import time
from typing import Final

import yaml

from engine.store.server_program import find_server
from tests.support.hosts import CHECKOUT, Host
from tests.support.running_engine import START_TIMEOUT_S, RunningEngine

PORT: Final = 8000  # of the edges, on every host
_RAY_PORT: Final = 6380
_REDIS_PORT: Final = 6379
_RAY_SETTINGS: Final = {
    "RAY_AUTH_MODE": "token",  # `ray start --address` presents none by itself
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_debug_dump_period_milliseconds": "1000",  # for `objects_stored`
}
_ROOM: Final = 2
"""Shards that a host takes, so that one takes over those of the other."""


PATIENCE = {"ENGINE_INTERNAL_HEALTH_TIMEOUT_MS": "40000"}
"""Behind a cable that was pulled for seconds, Ray's calls stay away for up to a dozen, more on a busy machine. Actors that are well must
not be replaced for it: then both shards are on one host, and the tests of its loss have nothing to lose."""


class EngineOnHosts(RunningEngine):
    """One engine on these hosts.

    Args:
        hosts: the first has Redis, the head of the Ray cluster and `engine up`.
    """

    def __init__(self, *hosts: Host) -> None:
        self.hosts = hosts
        self._password = secrets.token_hex(16)
        self._ray_token = secrets.token_hex(32)
        head = hosts[0]
        redis_url = f"redis://:{self._password}@{head.address}:{_REDIS_PORT}/0"
        options = f"--address auto --redis {redis_url} --host 0.0.0.0 --port {PORT} --shards 2 --edges {len(hosts)}"
        super().__init__(head.folder, *options.split(), env=head.environment() | PATIENCE, place=head.command())

    def start_ray(self) -> None:
        """Start Redis and the Ray cluster, which `start` needs; returns when all nodes are in it."""
        head, *others = self.hosts
        head.start(
            f"exec {find_server()} --bind {head.address} --port {_REDIS_PORT} --requirepass {self._password} "
            f"--appendonly yes --appendfsync always --maxmemory-policy noeviction --dir {head.home}"
        )
        joining = [self._start_ray(head)]
        _wait_for_port(head, _RAY_PORT)
        joining += [self._start_ray(host) for host in others]
        for process, host in zip(joining, self.hosts, strict=True):
            assert process.wait(START_TIMEOUT_S) == 0, host.output()

    def join(self, host: Host) -> None:
        """Let a host that was off take part again: what its machine image, or the autoscaler, would do."""
        host.boot()
        assert self._start_ray(host).wait(START_TIMEOUT_S) == 0, host.output()

    def _start_ray(self, host: Host) -> subprocess.Popen[bytes]:
        (host.folder / ".ray").mkdir(exist_ok=True)
        (host.folder / ".ray" / "auth_token").write_text(self._ray_token)
        resources = {"engine_shard": _ROOM, "engine_edge": 1}
        file = yaml.safe_load((CHECKOUT / "deploy" / "ray-cluster.yaml").read_text())
        if host is self.hosts[0]:
            resources["engine_scheduler"] = 1
            command = file["head_start_ray_commands"][1].replace("--autoscaling-config=~/ray_bootstrap_config.yaml", "")
        else:
            command = file["worker_start_ray_commands"][1]
        # Ray gives a node 30 s for its start, which a busy machine exceeds.
        command = f"until {{ {command}; }}; do ray stop --force; done"
        given = {"RAY_OVERRIDE_RESOURCES": json.dumps(resources), "RAY_HEAD_IP": self.hosts[0].address}  # as `ray up` does
        return host.start(command, **given, **_RAY_SETTINGS)

    def objects_stored(self, host: Host) -> int:
        """How many objects Ray's object store on this host has taken, made there or received; up to a second old."""
        (report,) = (host.folder / "ray").glob("session_[0-9]*/logs/debug_state.txt")
        found = re.search(r"ObjectManager\.ObjectAdded - (\d+) total", report.read_text())
        return int(found[1]) if found else 0

    def at(self, host: Host) -> RunningEngine:
        """The engine as clients of the edge on this host see it."""
        seen = copy.copy(self)
        seen.state = self.state | {"url": f"http://{host.address}:{PORT}"}
        return seen

    def shard_on(self, host: Host) -> int:
        """A shard that is on this host."""
        status = self.status_when(lambda status: any(row["node"] == host.address for row in status["shards"]), START_TIMEOUT_S)
        return next(row["index"] for row in status["shards"] if row["node"] == host.address)


def _wait_for_port(host: Host, port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host.address, port), timeout=1):
            return
        assert time.monotonic() < deadline, f"nothing listens on port {port} of host {host.name}: {host.output()}"
        time.sleep(0.05)
