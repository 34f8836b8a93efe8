"""The Ray cluster under the engine: one started on this machine, or a running one that the engine joins.

A local Ray ends with the process that started it: Ray sets a parent-death signal for its main processes; their child processes sometimes
wait without end to report the loss, and a small sentinel process kills those. So a killed engine leaves no processes behind. Ray listens on
every interface of the machine, and whoever can call it can run code: its token authentication is therefore switched on explicitly.

The settings below were measured with an idle engine: Ray's own processes go from 2.4 % of a core to 0.7 %, an actor's process from 0.85 %
to 0.6 %. The rest is a signal check every 10 ms in each actor, for which Ray 2.60 has no setting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil

import engine
from engine.cli.fork_server import ForkServer
from engine.cli.node_packages import NodePackages, look_everywhere, look_here, requirements, runtime_env
from engine.cli.ray_parts import without_unused_parts
from engine.config import SECRETS, Config
from engine.errors import EngineError

log = logging.getLogger(__name__)

LOCAL_SETTINGS: Final = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 by default: clients on the same machine would starve the engine
    "RAY_enable_metrics_collection": "0",  # the engine has its own
    "RAY_event_stats": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_worker_prestart": "0",  # nobody submits tasks here; the first few are still started ahead, for the actors
    "RAY_memory_monitor_refresh_ms": "1000",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_raylet_check_gc_period_milliseconds": "5000",
    "RAY_object_manager_timer_freq_ms": "1000",
    "RAY_local_fs_monitor_interval_ms": "1000",  # 100 by default: how full the disk is, which batches of some kilobytes do not change
    "RAY_raylet_client_connect_timeout_milliseconds": "50",  # 1000 by default: until a raylet tries again to reach its own object store,
    "RAY_raylet_client_num_connect_attempts": "200",  # 10 by default, which often begins to listen some milliseconds too late
    "RAY_kill_idle_workers_interval_ms": "5000",
    "RAY_kill_worker_timeout_milliseconds": "500",  # 5000 by default: a hung actor is ended for good so long after it was told to end
    "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",
    "RAY_DASHBOARD_AGGREGATOR_AGENT_CHECK_MAIN_THREAD_LIVENESS_INTERVAL_SECONDS": "5",  # 0.1 by default
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",  # 5000 by default: figures of every process for the dashboard, which is not started
}
"""Environment of a local Ray's processes. Variables that are set already keep their values."""

HEAD_SETTINGS: Final = {
    "RAY_health_check_period_ms": "2000",  # 3000, 10 000 and 5 by default: 15 s for a node that vanished, 65 s for one that hangs
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}
"""Environment of the head node of a cluster: the time until actors of a lost node start elsewhere. `deploy/node` sets them."""

NODE_SETTINGS: Final = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",  # 60 by default: every process of a cluster ends when its head is away for so long
    "RAY_preload_python_modules": "engine.actors.spare_process",  # what a process that waits for an actor imports
}
"""Environment of all nodes of a cluster, and of `engine up` in it: messages flow without the head."""

LOCAL_RESOURCES: Final = {"engine_shard": 32, "engine_scheduler": 16, "engine_edge": 64}
"""A local node has room for as many actors as the configuration allows; in a cluster these resources place the actors."""

_OTHER_VERSION: Final = "install the engine into the Python that the cluster's Ray runs with, and start it there"
_NOT_JOINED: Final = (
    "start one with `ray start --head`, or leave --address out; if it asks for a token, copy its ~/.ray/auth_token to this machine and set "
    "RAY_AUTH_MODE=token"
)

_OBJECT_STORE_BYTES: Final = 256 << 20  # of a local Ray: link batches above 100 KB pass through it
_LEFTOVER_TIMEOUT_S: Final = 1.0
_OTHER_ENGINE_S: Final = 5.0  # for the answer of another engine's controller

# Waits for the end of its standard input, which the engine holds open. A byte before the end means an orderly stop; without one the
# engine was killed. A pidfd refers to its process even when the pid is reused.
_SENTINEL: Final = """
import os, signal, sys
watched = []
for pid in sys.argv[1:]:
    try:
        watched.append(os.pidfd_open(int(pid)))
    except ProcessLookupError:
        pass
if not sys.stdin.buffer.read():
    for fd in watched:
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
"""


class ClusterError(EngineError):
    """Ray cannot be started or joined; the message says what to do."""


class RayCluster:
    """The Ray that this process is connected to. Call `start` first, from the main thread, and `stop` last.

    Args:
        redis_pid: of a Redis that is a child of this process, which may have been started after Ray; None where there is none.

    Attributes:
        address: of its control service, `host:port`.
        runtime_env: with which the actors of a cluster that was joined get this package; empty when its nodes have it.
        session: name of this start of the cluster, the same on all its nodes.
        logs: directory of the logs of Ray and of the actors on this node.
    """

    def __init__(self, config: Config, redis_pid: Callable[[], int | None] = lambda: None) -> None:
        self._config = config
        self._redis_pid = redis_pid
        self._local = not config.address
        self._before: set[psutil.Process] = set()  # children that are not Ray's
        self._processes: set[psutil.Process] = set()
        self._sentinel: subprocess.Popen[bytes] | None = None
        self._workers: ForkServer | None = None
        self.address = ""
        self.runtime_env: dict[str, Any] = {}
        self.session = ""
        self.logs = ""

    def start(self) -> None:
        """Start a local Ray, or join the one at `config.address`. Blocks for 4-10 s.

        Raises:
            ClusterError: Ray does not start or cannot be joined.
        """
        if self._config.address.startswith("ray://"):
            raise ClusterError("address: ray:// is for remote clients; run `engine up` on a node of the cluster with --address auto")
        address = self._start_local() if self._local else self._join()
        self.address = str(address["gcs_address"])
        self.session = Path(address["session_dir"]).name
        self.logs = str(Path(address["session_dir"]) / "logs")

    def _start_local(self) -> dict[str, Any]:
        """Start a local Ray. It gives its processes 30 s; on a busy machine that is retried, for `start_timeout_s`."""
        for name, value in LOCAL_SETTINGS.items():
            os.environ.setdefault(name, value)
        _keep_auth_token(Path(self._config.data_dir))
        package = Path(engine.__file__).resolve().parent
        if package.parent.name not in ("site-packages", "dist-packages"):
            # From a checkout: the actors' processes must find the package too.
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package.parent), os.environ.get("PYTHONPATH"))))
        self._before = _descendants()
        deadline = time.monotonic() + self._config.start_timeout_s
        while True:
            workers = ForkServer()
            try:
                with without_unused_parts(workers.path):
                    found = self._init(
                        address="local",
                        include_dashboard=False,
                        object_store_memory=_OBJECT_STORE_BYTES,
                        resources=LOCAL_RESOURCES,
                    )
                self._processes = _descendants() - self._before
                # The fork server notices by itself that this process was killed; it ends its workers, and removes its socket.
                self._sentinel = _start_sentinel({each for each in self._processes if each.pid != workers.pid})
                self._workers = workers
                return found
            except Exception as error:  # Ray raises plain exceptions here
                workers.stop()
                self._end(_descendants() - self._before)
                if "timed out during startup" not in str(error) or time.monotonic() > deadline:
                    raise ClusterError(f"Ray does not start: {error}") from error
                log.warning("Ray did not start within 30 s; trying again")

    def _join(self) -> dict[str, Any]:
        for name, value in NODE_SETTINGS.items():
            os.environ.setdefault(name, value)
        if _auth_token_exists():
            # `ray start` protects a cluster with this token unless told otherwise, but `ray.init` would not present it.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        wanted = requirements()
        names = [one.name for one in wanted]
        try:
            found = self._init(address=self._config.address)
            self.runtime_env = runtime_env(NodePackages(*look_here(names)), look_everywhere(names), wanted)
            if self.runtime_env:  # of the whole job: Ray takes a local package with no smaller part
                import ray

                ray.shutdown()
                found = self._init(address=self._config.address, runtime_env=self.runtime_env)
        except Exception as error:  # here too
            told = " ".join(str(error).split())  # in one line
            raise ClusterError(
                f"address: cannot join the Ray cluster at {self._config.address!r} ({told}); "
                + (_OTHER_VERSION if "Version mismatch" in told else _NOT_JOINED)
            ) from error
        return found

    def _init(self, **options: Any) -> dict[str, Any]:
        import ray  # after the environment is prepared: Ray reads some of it when it is imported

        with _without_secrets_in_entrypoint(self._config):
            context: Any = ray.init(namespace=self._config.namespace, log_to_driver=False, logging_level=logging.ERROR, **options)
        found: dict[str, Any] = context.address_info
        return found

    def cores(self) -> float:
        """Of all nodes that are in the cluster now."""
        import ray

        return float(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]

    def places(self) -> dict[str, tuple[float, float]]:
        """Per resource that an actor asks for: how many the nodes of the cluster offer, and how many of these are free."""
        import ray

        if self._config.place == "anywhere":  # none is asked for
            return dict.fromkeys(LOCAL_RESOURCES, (math.inf, math.inf))

        offered, free = ray.cluster_resources(), ray.available_resources()  # type: ignore[no-untyped-call]
        return {name: (offered.get(name, 0), free.get(name, 0)) for name in LOCAL_RESOURCES}

    async def other_engines(self) -> dict[str, Config]:
        """The engines of other namespaces in a cluster that was joined, by namespace, with what they tell everyone; those that answer."""
        if self._local:
            return {}
        import ray

        from engine.actors.carrier import find_actor
        from engine.actors.ray_actors import CONTROLLER

        found: dict[str, Config] = {}
        named: Any = ray.util.list_named_actors(all_namespaces=True)
        for entry in named:
            namespace = entry["namespace"]
            if entry["name"] != CONTROLLER or namespace == self._config.namespace:
                continue
            try:
                async with asyncio.timeout(_OTHER_ENGINE_S):
                    answer = await (await find_actor(CONTROLLER, namespace)).public_config.remote()
            except (AttributeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
                log.info("the actor %r of the namespace %r is no engine's that runs: %r", CONTROLLER, namespace, error)
                continue
            if isinstance(answer, Config):
                found[namespace] = answer
        return found

    def failure(self) -> str | None:
        """The processes of a local Ray that died, as an error message; None when all run, or when the cluster was joined."""
        if not self._local:
            return None
        try:
            from ray._private import worker

            node: Any = worker._global_node
            dead = [name for name, _ in node.dead_processes()] if node is not None else ["everything"]
        except (ImportError, AttributeError):  # this Ray has others; actors that do not answer tell the same, later
            return None
        return f"Ray's {', '.join(dead)} died; logs: {self.logs}" if dead else None

    def stop(self) -> None:
        """Leave the cluster; stops a local one, with all its processes. Idempotent."""
        if not self.address:
            return
        import ray

        if ray.is_initialized():
            if self._local:
                self._processes |= _descendants() - self._before
            ray.shutdown()
        if self._sentinel is not None:
            self._sentinel.communicate(b".")
            self._sentinel = None
        if self._workers is not None:
            self._workers.stop()
        self._end(self._processes - _tree_of(self._redis_pid()))  # Redis is stopped after Ray, by who started it
        self._processes = set()

    @staticmethod
    def _end(processes: set[psutil.Process]) -> None:
        """Wait for these processes, most of which are ending, and kill those that take too long."""
        deadline = time.monotonic() + _LEFTOVER_TIMEOUT_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except psutil.TimeoutExpired:
                process.kill()
            except psutil.NoSuchProcess:
                continue


@contextlib.contextmanager
def _without_secrets_in_entrypoint(config: Config) -> Iterator[None]:
    """While the block runs, Ray takes this process's command line without secrets: it shows it to everyone, as the job's entrypoint.

    Raises:
        ClusterError: a secret is on the command line, and this Ray lacks the function, which is no public one.
    """
    secrets = [value for name in SECRETS if (value := str(getattr(config, name)))]
    try:
        from ray._private import utils

        original: Any = utils.get_entrypoint_name
    except (ImportError, AttributeError):
        if any(value in argument for value in secrets for argument in sys.argv):
            raise ClusterError("a secret is on the command line, which this Ray shows to everyone: give it by the environment") from None
        yield
        return

    def redacted() -> str:
        text = str(original())
        for value in secrets:
            text = text.replace(value, "***")
        return text

    utils.get_entrypoint_name = redacted
    try:
        yield
    finally:
        utils.get_entrypoint_name = original


def _start_sentinel(processes: set[psutil.Process]) -> subprocess.Popen[bytes]:
    """A process that kills these when this one is killed. In a session of its own, so that Ctrl-C does not reach it."""
    pids = [str(process.pid) for process in processes]
    return subprocess.Popen([sys.executable, "-ISc", _SENTINEL, *pids], stdin=subprocess.PIPE, start_new_session=True)


def _keep_auth_token(data_dir: Path) -> None:
    """Keep the cluster token in the data directory where Ray cannot make one: the home of a container may be read-only.

    Raises:
        ClusterError: it cannot be written.
    """
    home = Path.home() / ".ray"
    if _auth_token_exists() or os.access(next(folder for folder in (home, *home.parents) if folder.exists()), os.W_OK):
        return
    path = data_dir / "ray-auth-token"
    try:
        if not path.exists() or not path.stat().st_size:  # empty where the disk was full
            path.touch(0o600)
            path.write_text(secrets.token_hex(32), "utf-8")
    except OSError as error:
        raise ClusterError(f"data_dir: the token of Ray cannot be written: {path}: {error.strerror}") from error
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(path.resolve())


def _auth_token_exists() -> bool:
    """Whether there is a cluster token where Ray looks for one."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").is_file()


def _tree_of(pid: int | None) -> set[psutil.Process]:
    """A process and all that it has started."""
    if pid is None:
        return set()
    try:
        process = psutil.Process(pid)
        return {process, *process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))
