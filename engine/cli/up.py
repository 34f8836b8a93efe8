"""`engine up`: starts an engine, prints where it runs, and stops it in order.

Starts the data directory's lock, the secret, the port, Redis, Ray and the controller, which creates the other actors; stops them in
reverse, so that nothing loses what it depends on. The first Ctrl-C or SIGTERM drains, the second ends at once; then, as after a SIGKILL,
the kernel ends Redis and Ray with this process, and the journal has everything that was accepted.

In a cluster the actors and Ray outlive this process: killed, or failed, it leaves them running. Started again, on whatever node, it finds
them by their names and watches them; a signal to it stops them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine import __version__
from engine.actors.tcp_carrier import tls_contexts
from engine.auth.keyring import Keyring, public_key_text, weaknesses
from engine.auth.tokens import load_or_create_secret, mint
from engine.cli.demo import is_demo, with_demo
from engine.cli.feature_checks import check_at_start
from engine.cli.machine_checks import interpreter
from engine.cli.ray_cluster import ClusterError, RayCluster
from engine.cli.settings import variable
from engine.cli.state_file import STATE_FILE, EngineState, read_state, remove_state, write_state
from engine.config import CATCH_MAILS, SECRETS, Config, store_urls
from engine.core.model.routing import shards_for
from engine.errors import ConfigError, EngineError, NotProven
from engine.store.embedded_redis import DataDirLock, EmbeddedRedis
from engine.store.redis_client import connect, display_url, durability_warnings, wait_ready
from engine.store.sealed_config import engine_key, proof, seal
from engine.store.slot_map import read_slot_map
from engine.store.stored_secret import claim_link_key
from engine.store.stores import each_store

log = logging.getLogger(__name__)

FORCED_EXIT: Final = 130
_ALONE_S: Final = 0.1  # for Redis of its own before Ray starts beside it: without data it takes less, with much many seconds
_POLL_S: Final = 0.1  # of the status while actors start
_SLOW_POLL_S: Final = 0.5  # the same when it takes longer: with an autoscaler it may be many minutes
_WATCH_S: Final = 5.0  # of Ray's processes, and of the actors' restarts while the engine runs
_NEXT_CONTROLLER_S: Final = 10.0  # for the next process of one that dies while the actors stop: twice what Ray takes
_EDGES_OF_KILLED_S: Final = 10.0  # Ray ends the actors of a killed engine within about 3 s
_DEMO_TOKEN_TTL_S: Final = 3600  # the demo link is for trying, not for keeping
_HINT_S: Final = 5.0  # before the message says what the cluster lacks: actors take some time in any case


def up(config: Config, console: Console) -> int:
    """Run an engine until a signal; returns the exit code: 0 after a drain, 1 when a part of it died for good.

    Must be called from the main thread: signals, and the children that die with their parent, belong to it.

    Raises:
        EngineError: it cannot start; the message says what to do.
    """
    data_dir = Path(config.data_dir)
    lock = DataDirLock(data_dir)
    try:
        _close_to_others(data_dir)
        demo = is_demo(config)
        config = with_keys(config)
        for name in SECRETS:
            os.environ.pop(variable(name), None)  # what this process starts inherits the rest
        warn(config, console)
        check_at_start(config)
        with reserved_port(config) as port:
            config = msgspec.structs.replace(config, port=port)
            return asyncio.run(_Run(with_demo(config, port) if demo else config, console).run())
    finally:
        lock.release()


def _close_to_others(data_dir: Path) -> None:
    try:
        data_dir.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"data_dir: {data_dir} cannot be closed to others ({error.strerror}); choose another --data-dir") from error


def warn(config: Config, console: Console) -> None:
    """Print the weaknesses of its keys, and an interpreter that makes it slow."""
    told = [f"{weakness}; on another host than loopback the engine refuses to start" for weakness in weaknesses(config)]
    told += [f"{one.found}; {one.advice}" for one in interpreter() if one.level == "warning"]
    for warning in told:
        console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True, highlight=False)


def with_keys(config: Config) -> Config:
    """The configuration with all keys in it: the engine's own secret when none is configured, a public key as text.

    Raises:
        ConfigError: a key is not valid, or it is weak and others can reach the engine; the files of `link_tls_*` cannot be used.
    """
    if not (config.jwt_secret or config.jwt_public_key or config.jwt_jwks_url):
        config = msgspec.structs.replace(config, jwt_secret=load_or_create_secret(config.data_dir))
    if config.jwt_public_key:
        config = msgspec.structs.replace(config, jwt_public_key=public_key_text(config.jwt_public_key))
    Keyring(config)
    tls_contexts(config)
    return config


@contextlib.contextmanager
def reserved_port(config: Config) -> Iterator[int]:
    """The port of the edges, reserved while the block runs: a free one for 0, else `config.port`.

    The reserving socket does not listen, so connections go to the edges, which share the port with it (SO_REUSEPORT). The edges of a
    killed engine end with a delay: when the state file of one is there, a port in use is retried for `_EDGES_OF_KILLED_S`. In a cluster
    the edges run on other nodes, and the port is not reserved.

    Raises:
        ConfigError: it is in use, or this machine does not have the address.
    """
    if config.address:
        if config.port == 0:
            raise ConfigError("port: 0 picks a port that is free on this machine; in a cluster give one that is free on all nodes")
        yield config.port
        return
    retry_s = _EDGES_OF_KILLED_S if read_state(config.data_dir) else 0.0
    with _bind_until(config.host, config.port, time.monotonic() + retry_s) as keeper:
        yield int(keeper.getsockname()[1])


def _bind_until(host: str, port: int, deadline: float) -> socket.socket:
    while True:
        try:
            return _bind(host, port)
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(
                    f"host: this machine has no address {host} ({error.strerror}); choose another with --host, or 0.0.0.0 for all"
                ) from error
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"port: cannot listen on {host}:{port} ({error.strerror}); choose another with --port, or --port 0 for a free one"
                ) from error
            time.sleep(_POLL_S)


def _bind(host: str, port: int) -> socket.socket:
    """A socket bound to the port, which edges can share and on which nothing listens. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))  # without SO_REUSEPORT: fails when the port is in use
        address = probe.getsockname()
    keeper = socket.socket(family)
    try:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(address)
    except OSError:
        keeper.close()
        raise
    return keeper


def public_url(config: Config, status: dict[str, Any]) -> str:
    """The URL of an edge for clients on this machine."""
    host = config.host
    if host in ("0.0.0.0", "::"):
        host = str(status["edges"][0]["node"]) if config.address else "127.0.0.1"
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


@contextlib.contextmanager
def progress(console: Console) -> Iterator[Callable[[str], None]]:
    """A function that shows the current step: in one changing line on a terminal, in a line per change in a log."""
    if console.is_terminal:
        with console.status("starting") as line:
            yield line.update
        return
    last = ""

    def show(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            console.print(text, soft_wrap=True, markup=False, highlight=False)
            console.file.flush()

    yield show


class _Run:
    """One engine, from start to stop."""

    def __init__(self, config: Config, console: Console) -> None:
        self._config = config
        self._console = console
        self._redis: EmbeddedRedis | None = None
        self._opening: asyncio.Task[None] | None = None  # storage
        self._supervisor: asyncio.Task[None] | None = None
        self._cluster = RayCluster(config, lambda: None if self._redis is None else self._redis.pid)
        self._controller: Any = None
        self._lives_on = False  # the engine, when this process ends without having been told to
        self._key = b""  # the engine key
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._started = time.monotonic()

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._handle_signals()
        code = 0
        try:
            with progress(self._console) as show:
                await self._start(show)
            if not self._stop.is_set():
                code = await self._serve()
        finally:
            await self._shut_down()
        return code

    # -- signals ------------------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        """Install the signal handlers; again after the start of Ray, which installs its own."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._stop.is_set():
            os._exit(FORCED_EXIT)  # Redis and Ray end with this process
        self._stop.set()
        self._loop.call_soon_threadsafe(lambda: None)  # wake the loop, whatever it waits for

    # -- up -----------------------------------------------------------------------------------------------------------

    async def _start(self, show: Callable[[str], None]) -> None:
        own = not (self._config.redis_url or self._config.address)
        show("starting Redis" if own else f"connecting to Redis at {display_url(self._config.redis_url)}")
        self._opening = asyncio.ensure_future(self._start_redis())
        await asyncio.wait({self._opening}, timeout=_ALONE_S if own else None)
        opened = self._opening.done()
        if opened:
            await self._check_storage()
        if self._stop.is_set():
            return
        reading = "" if opened else "; Redis reads its data meanwhile"
        show(f"starting Ray{reading}" if not self._config.address else f"joining Ray at {self._config.address}")
        self._cluster.start()
        self._handle_signals()
        if not opened:  # no request before: Ray's start stops this loop, and the reply would count as late
            await self._check_storage()
        if self._cluster.runtime_env:
            sent = ", ".join(["this package", *self._cluster.runtime_env.get("pip", ())])
            self._console.print(f"not all nodes have the packages of this one: Ray takes to them {sent}", soft_wrap=True, highlight=False)
        if self._stop.is_set():
            return
        await self._choose_numbers()
        actors = asyncio.ensure_future(self._start_actors(show))
        while not (await asyncio.wait({actors}, timeout=_WATCH_S))[0]:
            if failure := self._cluster.failure():  # which no actor would answer
                actors.cancel()
                raise ClusterError(failure)
        status = actors.result()
        if status is not None:
            self._announce(status)

    async def _start_actors(self, show: Callable[[str], None]) -> dict[str, Any] | None:
        await self._create()
        return await self._wait_ready(show)

    async def _start_redis(self) -> None:
        """Start it, or wait until it answers. Raises EngineError."""
        config = self._config
        if config.address and (not config.redis_url or config.redis_url.startswith("unix:")):
            raise ConfigError("redis_url: with --address every node must reach Redis; give --redis redis://HOST:6379/0")
        if not config.redis_url:
            self._redis = EmbeddedRedis(config)
            await self._redis.start()
            if lacking := self._redis.server.lacking_fixes:
                self._console.print(
                    f"[yellow]warning:[/] {self._redis.server} lacks the fixes of {lacking}, unless the operating system has ported them; "
                    "install a newer redis-server or valkey-server",
                    soft_wrap=True,
                )
            self._supervisor = asyncio.ensure_future(self._redis.supervise())
            data_dir = str(self._redis.data_dir)  # absolute: the controller, which takes snapshots, has another working directory
            self._config = msgspec.structs.replace(config, redis_url=self._redis.url, redis_durability="reported", data_dir=data_dir)
            return
        for store in each_store(config):
            async with connect(store) as client:
                await wait_ready(client, store, config.redis_timeout_ms / 1000)
                for warning in await durability_warnings(client, config):
                    self._console.print(f"[yellow]warning:[/] {warning}")

    async def _check_storage(self) -> None:
        """It is open, and its data are of a release. Before anything is written. Not waited for after a signal. Raises EngineError."""
        assert self._opening is not None
        await self._unless_stopped(self._opening)
        if not self._opening.done():
            return
        for store in each_store(self._config):
            async with connect(store) as client:
                await read_slot_map(client)

    async def _choose_numbers(self) -> None:
        """Of schedulers, one for each store at least; where no number of shards is given, that of the stored data, which must not change by
        itself, or for new data by the cores."""
        stores = len(store_urls(self._config.redis_url))
        if self._config.schedulers < stores:
            self._console.print(f"{stores} schedulers, one for each store of redis_url", highlight=False)
            self._config = msgspec.structs.replace(self._config, schedulers=stores)
        if self._config.shards:
            return
        async with connect(self._config) as client:
            stored = await read_slot_map(client)
        cores, (room, _) = self._cluster.cores(), self._cluster.places()["engine_shard"]
        shards = stored.shards if stored else shards_for(cores, room, stores)
        reason = "as the stored data has" if stored else f"for {cores:g} cores"
        self._console.print(f"{shards} {'shard' if shards == 1 else 'shards'}, {reason}; --shards sets another number", highlight=False)
        self._config = msgspec.structs.replace(self._config, shards=shards)

    async def _create(self) -> None:
        """Create the controller, which creates the other actors; one that runs already keeps its configuration."""
        import ray

        from engine.actors.ray_actors import CONTROLLER, Controller, actor_options, remote_class

        self._key = await self._engine_key()
        options = actor_options(self._config, CONTROLLER, {})
        await self._refuse_used_port()
        self._lives_on = bool(self._config.address)
        sealed = seal(self._config, self._key)
        controller: Any = remote_class(Controller).options(**options).remote(sealed, engine=self._name())
        try:
            given = await self._unless_stopped(controller.unlock.remote(self._key))
            self._controller = controller  # it is this engine's, and ends with it; where it has not answered, the stop finds out
            if given is None:
                return
            await self._unless_stopped(controller.created.remote())
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            self._lives_on &= not isinstance(cause, ConfigError | NotProven)  # then nothing was created
            if isinstance(cause, NotProven):
                raise ClusterError(
                    f"namespace: an engine with another Redis runs in the namespace {self._config.namespace!r} of this cluster, or its "
                    "Redis has lost the link key since; for one more engine set ENGINE_NAMESPACE, else stop the one that runs"
                ) from error
            raise cause if isinstance(cause, EngineError) else ClusterError(f"the controller failed: {error}") from error
        except ray.exceptions.RayError as error:
            raise ClusterError(f"the controller does not start: {error}") from error
        running = given.opened(self._key)
        if running != self._config:
            self._console.print("[yellow]warning:[/] this engine was already running in the cluster and keeps its configuration")
            self._config = msgspec.structs.replace(running, data_dir=self._config.data_dir)  # of this process, maybe on another machine

    async def _unless_stopped(self, call: Awaitable[Any]) -> Any:
        """What the call returns; None when a signal has come, which cancels it. Raises what the call raises."""
        called, stopped = asyncio.ensure_future(call), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({called, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return called.result() if called.done() else None
        finally:
            called.cancel()
            stopped.cancel()

    def _name(self) -> str:
        """Of this engine, the same when it starts again; "" when its Redis is its own."""
        if self._redis is not None:
            return ""
        where = f"Ray cluster {self._cluster.session}" if self._config.address else f"{Path(self._config.data_dir).absolute()}"
        return f"{self._config.namespace!r} of {where}{'' if self._config.address else f' on {socket.gethostname()}'}"

    async def _refuse_used_port(self) -> None:
        """Edges of two engines on one node would share the port, and get clients of each other. Raises ConfigError."""
        for namespace, other in (await self._cluster.other_engines()).items():
            if other.port == self._config.port:
                raise ConfigError(
                    f"port: the edges of the engine in the namespace {namespace!r} of this cluster listen on {other.port}, on any of its "
                    "nodes; choose another with --port"
                )

    async def _engine_key(self) -> bytes:
        async with connect(self._config) as client:
            return engine_key(await claim_link_key(client))

    async def _wait_ready(self, show: Callable[[str], None]) -> dict[str, Any] | None:
        """The status when all actors are ready; None when a signal came first.

        On one machine that is bounded by `start_timeout_s`. In a cluster machines may have to be started first, which takes as long as it
        takes: to give up would end the actors that have a place already, and whoever starts this process again would begin anew.

        Raises:
            ClusterError: not ready in time, on one machine; stopped elsewhere, in a cluster.
        """
        began = time.monotonic()
        while not self._stop.is_set():
            status = await self._status()
            if self._controller is None:
                raise ClusterError("the engine that ran in this cluster ended meanwhile; start it again")
            if status is not None and status["ready"]:
                return status
            waited_s = time.monotonic() - began
            if status is None:
                text = "waiting for the controller"
            else:
                text = waiting_for(status, self._cluster.places() if waited_s > _HINT_S and self._config.place == "offered" else {})
            if late := waited_s > self._config.start_timeout_s:
                text += f"; not ready after {self._config.start_timeout_s} s, logs: {self._cluster.logs}"
            show(text)
            if late and not self._config.address:
                raise ClusterError(text)
            await self._pause(_POLL_S if waited_s <= _HINT_S else _SLOW_POLL_S)
        return None

    def _announce(self, status: dict[str, Any]) -> None:
        config = self._config
        url = public_url(config, status)
        state = EngineState(
            url=url,
            pid=os.getpid(),
            pid_started_s=psutil.Process().create_time(),
            version=__version__,
            ray_address=self._cluster.address,
            ray_logs=self._cluster.logs,
            namespace=config.namespace,
            redis_url=display_url(config.redis_url),
        )
        show = self._console.print
        try:
            write_state(config.data_dir, state)
        except OSError as error:  # which is no reason to stop what serves
            path = Path(config.data_dir) / STATE_FILE
            show(f"[yellow]warning:[/] {escape(str(path))} cannot be written ({error.strerror}): commands need --url", soft_wrap=True)
        show(placement_table(status))
        show(f"ready in {time.monotonic() - self._started:.1f} s; logs of the actors: {self._cluster.logs}", soft_wrap=True)
        show(ray_line(self._cluster.address, os.environ.get("RAY_AUTH_MODE", "")), soft_wrap=True, markup=False, highlight=False)
        if config.address and config.host == "127.0.0.1":
            show("[yellow]warning:[/] the edges listen on 127.0.0.1 of their own node only; --host 0.0.0.0 lets others reach them")
        link = url
        if config.jwt_secret and not config.address:  # what a job of a cluster prints, every other job may read
            token = mint(
                config.jwt_secret, "demo", ("connect", "publish", "operator"), _DEMO_TOKEN_TTL_S,
                now_s=time.time(), issuer=config.jwt_issuer, audience=config.jwt_audience,
            )  # fmt: skip
            link = f"{url}/#token={token}"
        # In one piece and without colours, so that it can be clicked, copied and read by programs.
        if config.smtp_url == CATCH_MAILS:
            show("mails are not sent but shown on the page; smtp_url names a mail server")
        show(f"\nopen {link}", soft_wrap=True, markup=False, highlight=False)
        show("stop with Ctrl-C, or `engine down`\n")
        sys.stdout.flush()

    # -- serving ------------------------------------------------------------------------------------------------------

    async def _serve(self) -> int:
        """Wait for a signal, here or elsewhere (returns 0), or for the death of a part that nothing restarts (returns 1).

        In a cluster nothing of Ray is a part of this process: with the head away, or the controller, it waits for their return.
        """
        reported: dict[str, int] = {}
        answered = True
        while not self._stop.is_set():
            if failure := self._cluster.failure():
                self._console.print(f"[red]error:[/] {failure}", soft_wrap=True)
                return 1
            status = await self._status()
            if self._controller is None:  # stopped elsewhere
                return 0
            if status is not None:
                self._report_restarts(status, reported)
            if answered != (status is not None):
                answered = status is not None
                text = "answers again" if answered else "does not answer: what runs goes on, and nothing that ends is started again"
                self._console.print(f"{time.strftime('%H:%M:%S')} the controller {text}", highlight=False, soft_wrap=True)
            await self._pause(_WATCH_S)
        return 0

    async def _status(self) -> dict[str, Any] | None:
        """The controller's last status; None when it does not answer within the health timeout.

        In a cluster two processes may watch one engine, and a signal to either stops it: then the other one ends as well, by this call.
        """
        import ray

        try:
            async with asyncio.timeout(self._config.health_timeout_ms / 1000):
                status: dict[str, Any] = await self._controller.status.remote(fresh=False, proof=proof(self._key, "status"))
                return status
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, NotProven):
                raise
            self._controller.unlock.remote(self._key)  # it started again on a node that does not have the key
            return None
        except ray.exceptions.ActorDiedError:
            if self._config.address:  # nobody starts it again: it was ended by another process like this one
                self._console.print("the engine was stopped elsewhere", highlight=False)
                self._controller = None
                self._stop.set()
            return None
        except (ray.exceptions.RayError, TimeoutError) as error:
            log.info("the controller does not answer: %s", type(error).__name__)
            return None

    def _report_restarts(self, status: dict[str, Any], reported: dict[str, int]) -> None:
        """Print a line for every part that was restarted since the last call; `reported` has the restarts by name."""
        rows = [(f"{row['role']}-{row['index']}", row) for kind in ("edges", "shards", "schedulers") for row in status[kind]]
        for name, row in [*rows, ("redis", status["redis"])]:
            if row["restarts"] > reported.get(name, 0):
                self._console.print(f"{time.strftime('%H:%M:%S')} {name} was restarted (pid {row.get('pid')})", highlight=False)
            reported[name] = row["restarts"]

    async def _pause(self, seconds: float) -> None:
        """A sleep that a signal ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    # -- down ---------------------------------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        """Stop what runs, in reverse order; a failure is printed and does not keep the rest running.

        In a cluster the actors are stopped only by a signal to this process. When it fails, they run on, and the next one that is started
        watches them.
        """
        try:
            remove_state(self._config.data_dir)
        except OSError as error:
            path = Path(self._config.data_dir) / STATE_FILE
            self._console.print(f"[yellow]warning:[/] {escape(str(path))} is left behind ({error.strerror})", soft_wrap=True)
        began = time.monotonic()
        if self._lives_on and not self._stop.is_set():
            self._console.print("the actors run on in the cluster; start `engine up` again to watch them, and stop that to stop them")
        elif self._controller is not None and self._cluster.failure() is None:
            self._console.print("draining; Ctrl-C again ends at once")
            await self._stop_actors()
        self._cluster.stop()
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._redis is not None:
            await self._redis.stop()
        self._console.print(f"stopped in {time.monotonic() - began:.1f} s")

    async def _stop_actors(self) -> None:
        import ray

        config, until = self._config, time.monotonic() + _NEXT_CONTROLLER_S
        while True:
            try:
                async with asyncio.timeout((config.drain_ms + 2 * config.stop_timeout_ms) / 1000 + 1):
                    await self._controller.unlock.remote(self._key)  # it may have started again on a node that does not have the key
                    await self._controller.stop.remote(proof(self._key, "stop"))
                break
            except (ray.exceptions.RayError, TimeoutError) as error:
                if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, NotProven):
                    return  # it is another engine's, and a signal came before it said so
                if not isinstance(error, ray.exceptions.ActorUnavailableError) or time.monotonic() > until:
                    left = "; what runs on in the cluster ends with the next `engine up` that is stopped" if config.address else ""
                    why = f"not all actors stopped in order ({type(error).__name__}); the journal has it all{left}"
                    self._console.print(f"[yellow]warning:[/] {why}", soft_wrap=True)
                    break
                await asyncio.sleep(_POLL_S)  # it has died: Ray starts the next one, which finds the actors that are left
        try:
            ray.kill(self._controller, no_restart=True)
        except ray.exceptions.RayError as error:
            log.info("the controller is gone already: %s", error)


def waiting_for(status: dict[str, Any], places: Mapping[str, tuple[float, float]]) -> str:
    """What the start waits for, in one line: the parts that are not ready, and which places for them the nodes do not offer.

    Args:
        places: per resource of an actor how many the nodes offer, and how many of these are free; empty for not known.
    """
    found, lacking = [], False
    for kind in ("shards", "schedulers", "edges"):
        absent = [f"{row['role']}-{row['index']}" for row in status[kind] if not row["ready"]]
        if not absent:
            continue
        text = ", ".join(absent)
        resource = f"engine_{kind.removesuffix('s')}"
        if places and not all(row["pid"] for row in status[kind]):
            offered, free = places[resource]
            text += f" (nodes offer {offered:g} `{resource}`, {free:g} free"
            if (more := len(status[kind]) - offered) > 0:
                lacking = True
                text += (
                    f"; {more:g} more needed: from the autoscaler, or `ray start --address=... --resources='{{\"{resource}\": {more:g}}}'`"
                )
            text += ")"
        found.append(text)
    hint = "; to try it on these nodes as they are: --place anywhere" if lacking else ""
    return f"waiting for {', '.join(found) or 'Redis'}{hint}"


def ray_line(address: str, auth_mode: str) -> str:
    """Where other programs join the engine's Ray, and what Ray 2.60 does not find out by itself when they do."""
    return f"address of its Ray: {address}{'; programs that join it need RAY_AUTH_MODE=token' if auth_mode == 'token' else ''}"


def placement_table(status: dict[str, Any]) -> Table:
    """A row for every process, with its node and address."""
    table = Table("part", "pid", "node", "address", box=None, header_style="bold", pad_edge=False)
    for kind in ("edges", "shards", "schedulers"):
        for row in status[kind]:
            address = f"port {row['port']}" if "port" in row else ""
            table.add_row(f"{row['role']}-{row['index']}", str(row["pid"]), str(row["node"]), address)
    controller, redis = status["controller"], status["redis"]
    table.add_row("controller", str(controller["pid"]), str(controller["node"]), "")
    table.add_row("redis", str(redis.get("pid", "")), "", f"{redis['url']} ({redis.get('version', '?')})")
    return table
