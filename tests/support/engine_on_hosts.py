"""An engine on several hosts, started as docs/CLUSTER.md and `deploy/ray-cluster.yaml` describe.

    head       Ray's control service, which keeps its state in Redis, and `engine up`; room for the scheduler
    workers    room for `room` shards and one edge each
    storage    Redis with a password

A host may be all of them. When a process of Ray on a node ends, `ray start --block` ends the others; a loop starts it again, as a service
manager would. Controller and shards may be anywhere; `status()` tells.
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
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import yaml

from tests.support.hosts import CHECKOUT, Host
from tests.support.redis_server import find_server
from tests.support.running_engine import START_TIMEOUT_S, RunningEngine

PORT: Final = 8000  # of the edges, on every host
_RAY_PORT: Final = 6380
_REDIS_PORT: Final = 6379
_RAY_SETTINGS: Final = {
    "RAY_AUTH_MODE": "token",  # `ray start --address` presents none by itself
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_debug_dump_period_milliseconds": "1000",  # for `objects_stored`
}
_JOINS_S: Final = 240.0
"""`ray start --head` after a kill -9 of Ray takes 5 to 30 s. Under much other load it may end, several times: where the agent of a node
needs more than the 15 s that Ray gives it (`deploy/node`). So it goes before the other load when it is tried again."""
_ROOM: Final = 2
"""Shards that a host takes, so that one takes over those of the other."""


PATIENCE = {"ENGINE_INTERNAL_HEALTH_TIMEOUT_MS": "40000"}
"""Behind a cable that was pulled for seconds, Ray's calls stay away for up to a dozen, more on a busy machine. Actors that are well must
not be replaced for it: then both shards are on one host, and the tests of its loss have nothing to lose."""


class EngineOnHosts(RunningEngine):
    """One engine on these hosts.

    Args:
        hosts: the nodes of the Ray cluster; the first is its head and has `engine up`.
        storage: the host with Redis, for the engine and for Ray's control service; the head, if left out.
        workers: the nodes with room for shards and an edge; all, if left out.
        room: shards that each of these takes.
        offers: of each node, the resources in place of these.
        settings: of the engine, as in the environment.
    """

    def __init__(
        self, *hosts: Host, storage: Host | None = None, workers: Sequence[Host] = (), room: int = _ROOM,
        offers: Sequence[Mapping[str, int]] = (), settings: Mapping[str, str] = PATIENCE,
    ) -> None:  # fmt: skip
        self.hosts = hosts
        self.storage = storage or hosts[0]
        self.workers = tuple(workers or hosts)
        self._room = room
        self._offers = offers
        self._redis: tuple[subprocess.Popen[bytes], ...] = ()
        self._password = secrets.token_hex(16)
        self._ray_token = secrets.token_hex(32)
        head = hosts[0]
        self.redis_url = f"redis://:{self._password}@{self.storage.address}:{_REDIS_PORT}/0"
        options = f"--address auto --redis {self.redis_url} --host 0.0.0.0 --port {PORT} --shards 2 --edges {len(self.workers)}"
        super().__init__(head.folder, *options.split(), env=head.environment() | dict(settings), place=head.command())

    def launch(self) -> Callable[[], None]:
        """See RunningEngine. The head may have been off since it was started last."""
        self.place = self.hosts[0].command()
        return super().launch()

    def start_ray(self) -> None:
        """Start Redis and the Ray cluster, which `start` needs; returns when all nodes are in it."""
        head, *others = self.hosts
        self.start_redis()
        joining = [self.start_node(head)]
        _wait_for_port(head, _RAY_PORT)
        joining += [self.start_node(host) for host in others]
        for joined in joining:
            joined()

    def start_redis(self) -> None:
        """Start Redis, with what it had stored."""
        redis = self.storage.start(
            f"exec {find_server()} --bind {self.storage.address} --port {_REDIS_PORT} --requirepass {self._password} "
            f"--appendonly yes --appendfsync always --maxmemory-policy noeviction --dir {self.storage.home}"
        )
        self._redis = (redis,)
        _wait_for_port(self.storage, _REDIS_PORT)

    def join(self, host: Host) -> None:
        """Let a host that was off take part again: what its machine image, or the autoscaler, would do."""
        host.boot()
        self.start_node(host)()

    def start_node(self, host: Host) -> Callable[[], None]:
        """Run a Ray node on it, which is started again whenever it ends; returns what waits until it has started."""
        (host.folder / ".ray").mkdir(exist_ok=True)
        (host.folder / ".ray" / "auth_token").write_text(self._ray_token)
        resources = {"engine_shard": self._room, "engine_edge": 1} if host in self.workers else {}
        file = yaml.safe_load((CHECKOUT / "deploy" / "ray-cluster.yaml").read_text())
        given = {"RAY_HEAD_IP": self.hosts[0].address}  # as `ray up` does
        if host is self.hosts[0]:
            resources["engine_scheduler"] = 1
            command = _ray_start(file["head_start_ray_commands"]).replace("--autoscaling-config=~/ray_bootstrap_config.yaml", "")
            command += f" --redis-password={self._password}"
            given["RAY_REDIS_ADDRESS"] = f"{self.storage.address}:{_REDIS_PORT}"
        else:
            command = _ray_start(file["worker_start_ray_commands"])
        given["RAY_OVERRIDE_RESOURCES"] = json.dumps(self._offers[self.hosts.index(host)] if self._offers else resources)
        before = _starts(host)

        def joined() -> None:
            gives_up_s = time.monotonic() + _JOINS_S
            while _starts(host) == before:
                assert time.monotonic() < gives_up_s, f"Ray does not start on {host.name}: {host.output()}"
                time.sleep(0.05)

        # A node that the others have given up ends, too.
        loop = f"niceness=0; while true; do nice -n $niceness {command} --block; niceness=-10; ray stop --force; done"
        host.start(loop, **given, **_RAY_SETTINGS)
        return joined

    def kill_ray(self, host: Host) -> None:
        """kill -9 of all that Ray runs on this host, the engine's actors among it, and of what would start it again: `start_node` does."""
        host.kill_processes(*self._redis if host is self.storage else ())

    def roots(self) -> list[int]:
        """Processes of which all others on its hosts descend, those of `start` apart."""
        return [pid for host in self.hosts for pid in host.roots()]

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


def _ray_start(commands: Sequence[str]) -> str:
    """The command by which a node of the file runs Ray, but for `--block`."""
    found = re.search(r"exec ~/engine/(deploy/node ray start .*) --block", " ".join(commands).replace("'", ""))
    assert found
    return f"{CHECKOUT}/{found[1]}"


def _starts(host: Host) -> int:
    """How often Ray was started on it."""
    return host.output().count("Ray runtime started.")


def _wait_for_port(host: Host, port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host.address, port), timeout=1):
            return
        assert time.monotonic() < deadline, f"nothing listens on port {port} of host {host.name}: {host.output()}"
        time.sleep(0.05)
