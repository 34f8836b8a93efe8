"""Real Redis servers as an operator runs them for availability: a master, replicas, and sentinels that fail over between them.

Everything listens on loopback, on free ports, with its files in one directory. Servers keep an append-only file, fsync always.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from engine.store.embedded_redis import dying_with_parent
from tests.support.free_port import free_port
from tests.support.redis_server import find_server
from tests.support.redis_tls import RedisTls

SERVICE = "notifications"
PASSWORD = "for-tests-only"
_START_S = 15


class Server:
    """One redis-server process, Redis or sentinel; started again it keeps its port and its files."""

    def __init__(self, folder: Path, name: str, options: dict[str, object], *, sentinel: bool = False, tls: RedisTls | None = None) -> None:
        self.port = free_port()
        self._folder = folder / name
        self._folder.mkdir()
        self._config = self._folder / "redis.conf"  # sentinels and replicas write what they learn into it
        listen = {"port": self.port} if tls is None else tls.options(self.port)
        lines = listen | {"bind": "127.0.0.1", "dir": self._folder, "logfile": self._folder / "log", "daemonize": "no"} | options
        self._config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()), "utf-8")
        self._arguments = [str(tls.program if tls else find_server()), str(self._config), *(["--sentinel"] if sentinel else [])]
        self._password = None if sentinel else PASSWORD
        self._tls: dict[str, Any] = {} if tls is None else {"ssl": True, **tls.of_client}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def client(self) -> Redis:
        return Redis(host="127.0.0.1", port=self.port, password=self._password, socket_timeout=5, **self._tls)

    def start(self) -> None:
        self.process = subprocess.Popen(dying_with_parent(self._arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_S
        with self.client() as client:
            while True:
                try:
                    answering = client.info("server")["process_id"]
                    if answering != self.pid:
                        raise RuntimeError(f"port {self.port} is that of process {answering}")
                    return
                except RedisError as error:
                    if self.process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"redis-server does not start: {error}") from error
                    time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class ServerGroup:
    """Servers that run together. Use as a context manager.

    Attributes:
        processes: in the order in which they are started.
    """

    processes: Sequence[Server]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.stop)
            for server in self.processes:
                server.start()
            self._begin()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _begin(self) -> None:
        """Return when they do what they are to do together."""
        raise NotImplementedError

    def stop(self) -> None:
        for server in reversed(self.processes):
            if server.process is not None and server.process.poll() is None:
                server.kill()


class SentinelGroup(ServerGroup):
    """One master, `replicas` of it, three sentinels that agree by two. Use as a context manager.

    Args:
        folder: an empty directory.
        down_ms: how long a master must be silent before the sentinels replace it.
    """

    def __init__(self, folder: Path, *, replicas: int = 1, down_ms: int = 1000) -> None:
        auth = {"requirepass": PASSWORD, "masterauth": PASSWORD}
        options = {"appendonly": "yes", "appendfsync": "always", "save": '""', "repl-diskless-sync": "yes", "repl-diskless-sync-delay": 0}
        self.servers = [Server(folder, "redis-0", auth | options)]
        first = self.servers[0].port
        for number in range(1, replicas + 1):
            self.servers.append(Server(folder, f"redis-{number}", auth | options | {"replicaof": f"127.0.0.1 {first}"}))
        watch = f"{SERVICE} 127.0.0.1 {first} 2\nsentinel auth-pass {SERVICE} {PASSWORD}"
        rules = f"\nsentinel down-after-milliseconds {SERVICE} {down_ms}\nsentinel failover-timeout {SERVICE} 6000"
        self.sentinels = [Server(folder, f"sentinel-{n}", {"sentinel monitor": watch + rules}, sentinel=True) for n in range(3)]
        self.processes = (*self.servers, *self.sentinels)

    @property
    def url(self) -> str:
        """For `redis_url`."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://:{PASSWORD}@{hosts}/{SERVICE}"

    def _begin(self) -> None:
        self.settled()

    def master(self) -> Server:
        """Whom the sentinels name."""
        for sentinel in self.sentinels:
            with sentinel.client() as client, contextlib.suppress(RedisError):
                _, port = client.sentinel_get_master_addr_by_name(SERVICE)
                return next(server for server in self.servers if server.port == port)
        raise RuntimeError("no sentinel answers")

    def replica(self) -> Server:
        """Some server that is not the master."""
        master = self.master()
        return next(server for server in self.servers if server is not master)

    def settled(self, within_s: float = 30) -> None:
        """Wait until every sentinel knows the others and every replica, and every living replica follows the master."""
        deadline = time.monotonic() + within_s
        while not self._is_settled():
            if time.monotonic() > deadline:
                raise RuntimeError("the sentinels do not agree")
            time.sleep(0.05)

    def _is_settled(self) -> bool:
        alive = [server for server in self.servers if server.process is not None and server.process.poll() is None]
        try:
            for sentinel in self.sentinels:
                with sentinel.client() as client:
                    state = client.sentinel_master(SERVICE)
                    known = [int(replica["port"]) for replica in client.sentinel_slaves(SERVICE) if not replica["is_disconnected"]]
                if state["num-other-sentinels"] != len(self.sentinels) - 1 or not {s.port for s in alive} <= {state["port"], *known}:
                    return False
            with self.master().client() as client:
                return int(client.info("replication")["connected_slaves"]) == len(alive) - 1
        except (RedisError, OSError):
            return False

    def await_other(self, before: Server, within_s: float = 30) -> float:
        """Wait until another server than `before` is named master and says so itself; returns the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < within_s:
            found = self.master()
            if found is not before:
                with found.client() as client, contextlib.suppress(RedisError):
                    if client.execute_command("ROLE")[0] == b"master":
                        return time.monotonic() - began
            time.sleep(0.02)
        raise RuntimeError("the sentinels name no other master")
