"""What `engine up` decides before it creates the actors, what it prints while it waits, and what it does when it is not answered."""

from __future__ import annotations

import asyncio
import errno
import io
import itertools
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from redis.asyncio import Redis
from rich.console import Console

from engine.cli import up
from engine.cli.ray_cluster import ClusterError
from engine.cli.state_file import STATE_FILE
from engine.cli.up import _Run, ray_line, waiting_for
from engine.config import Config
from engine.core.model.routing import shards_for, spread
from engine.core.model.sealed import sealed
from engine.errors import ConfigError, NotProven, StorageUnavailable
from engine.store.keys import SLOTS_KEY
from engine.store.sealed_config import SealedConfig, seal
from engine.store.slot_map import claim_slot_map
from tests.support.redis_server import RedisServer

NOWHERE = {"pid": None, "ready": False}
STARTING = {"pid": 17, "ready": False}
READY = {"pid": 18, "ready": True}


def _status(shards: list[dict[str, Any]], edges: list[dict[str, Any]]) -> dict[str, Any]:
    rows = {"shards": shards, "schedulers": [READY], "edges": edges}
    return {kind: [row | {"role": kind[:-1], "index": index} for index, row in enumerate(group)] for kind, group in rows.items()}


@pytest.mark.parametrize(
    ("shards", "edges", "places", "text"),
    [
        ([STARTING], [READY], {}, "waiting for shard-0"),
        ([READY], [READY], {}, "waiting for Redis"),
        (
            [READY, NOWHERE, NOWHERE],
            [READY],
            {"engine_shard": (1.0, 0.0)},
            "waiting for shard-1, shard-2 (nodes offer 1 `engine_shard`, 0 free; 2 more needed: from the autoscaler, or "
            "`ray start --address=... --resources='{\"engine_shard\": 2}'`); to try it on these nodes as they are: --place anywhere",
        ),
        # Room enough: another engine has it, or the actor is starting.
        ([NOWHERE], [READY], {"engine_shard": (4.0, 0.0)}, "waiting for shard-0 (nodes offer 4 `engine_shard`, 0 free)"),
        # Every part has a place: there is nothing to say about nodes.
        ([STARTING], [STARTING], {"engine_shard": (1.0, 0.0), "engine_edge": (1.0, 0.0)}, "waiting for shard-0, edge-0"),
        ([STARTING], [NOWHERE], {"engine_shard": (1.0, 0.0), "engine_edge": (3.0, 3.0)},
         "waiting for shard-0, edge-0 (nodes offer 3 `engine_edge`, 3 free)"),
    ],
)  # fmt: skip
def test_a_start_names_the_parts_it_waits_for_and_the_places_they_lack(
    shards: list[dict[str, Any]], edges: list[dict[str, Any]], places: dict[str, tuple[float, float]], text: str
) -> None:
    assert waiting_for(_status(shards, edges), places) == text


def test_a_start_warns_of_a_python_without_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(options: str) -> str:
        monkeypatch.setattr(sysconfig, "get_config_var", lambda _: options)
        text = io.StringIO()
        up.warn(Config(jwt_secret="x" * 32), Console(file=text))
        return text.getvalue()

    monkeypatch.setattr(sys, "base_prefix", "/opt/python")
    assert printed("'--enable-optimizations'") == ""
    assert "built without --enable-optimizations, a message costs 10 to 20 % more CPU; use your" in printed("'--enable-shared'")


@pytest.mark.parametrize("host", ["203.0.113.99", "[::1]"])
def test_an_address_of_no_machine_is_told_as_the_host(host: str, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"^host: this machine has no address"),
        up.reserved_port(Config(host=host, data_dir=str(tmp_path))),
    ):
        pass


def test_a_data_directory_open_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ConfigError, match=r"data_dir: .* cannot be closed to others"):
        up.up(Config(data_dir=str(tmp_path)), Console(file=io.StringIO()))


async def chosen(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, shards: int, cores: float = 8.0) -> tuple[int, str]:
    """The number of shards on a machine with so many cores, and what is printed."""
    printed = io.StringIO()
    run = _Run(Config(redis_url=redis_server.url, shards=shards), Console(file=printed))
    monkeypatch.setattr(run._cluster, "cores", lambda: cores)
    monkeypatch.setattr(run._cluster, "places", lambda: {"engine_shard": (1024, 1024)})
    await run._choose_numbers()
    return run._config.shards, printed.getvalue()


async def test_new_data_gets_as_many_shards_as_the_cores_call_for(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await chosen(redis_server, monkeypatch, 0) == (shards_for(8, 1024), "2 shards, for 8 cores; --shards sets another number\n")
    assert await chosen(redis_server, monkeypatch, 0, 2.0) == (1, "1 shard, for 2 cores; --shards sets another number\n")


async def test_stored_data_keeps_its_number_of_shards_whatever_the_cores(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claim_slot_map(redis_client, 3, 1)
    assert await chosen(redis_server, monkeypatch, 0) == (3, "3 shards, as the stored data has; --shards sets another number\n")


async def test_a_number_that_is_given_is_taken(redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    await claim_slot_map(redis_client, 3, 1)
    assert await chosen(redis_server, monkeypatch, 5) == (5, "")


async def test_new_data_gets_shards_by_the_cores_alone_when_any_node_will_do(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, shards in (("offered", 1), ("anywhere", shards_for(8, 1024))):
        run = _Run(Config(redis_url=redis_server.url, place=place), Console(file=io.StringIO()))
        monkeypatch.setattr(run._cluster, "cores", lambda: 8.0)
        monkeypatch.setattr(ray, "cluster_resources", dict)
        monkeypatch.setattr(ray, "available_resources", dict)
        await run._choose_numbers()
        assert run._config.shards == shards


@pytest.mark.parametrize("version", [b"", b"\x01"])
async def test_data_of_an_unreleased_version_are_refused_and_left_alone(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: bytes
) -> None:
    content = msgspec.msgpack.encode(spread(2))
    await redis_client.set(SLOTS_KEY, version + sealed(content)[1:] if version else content)
    before = await redis_client.dump(SLOTS_KEY)
    run = _Run(Config(redis_url=redis_server.url, data_dir=str(tmp_path), shards=2), Console(file=io.StringIO()))
    monkeypatch.setattr(run, "_handle_signals", lambda: None)
    monkeypatch.setattr(run._cluster, "start", lambda: pytest.fail("Ray is started"))
    with pytest.raises(ConfigError, match=r"before the first release.* Give another --data-dir"):
        await run.run()
    assert await redis_client.keys() == [SLOTS_KEY.encode()]
    assert await redis_client.dump(SLOTS_KEY) == before


def test_the_address_of_ray_is_printed_with_what_joining_it_needs() -> None:
    assert ray_line("10.0.0.1:6380", "") == "address of its Ray: 10.0.0.1:6380"
    assert ray_line("10.0.0.1:6380", "token") == "address of its Ray: 10.0.0.1:6380; programs that join it need RAY_AUTH_MODE=token"


class Controller:
    """The controller of a running engine, as `engine up` calls it. `status` gives one answer after the other, None for no answer."""

    dies = 0  # so often, when the actors are to stop

    def __init__(self, config: Config, answers: list[dict[str, Any] | Exception | None], done: Callable[[], None]) -> None:
        self.stopped = False
        self.locked = True
        self._config = config
        self._answers: Iterator[dict[str, Any] | Exception | None] = iter(answers)
        self._done = done
        for method in (self.unlock, self.created, self.status, self.stop):
            setattr(self, method.__name__, SimpleNamespace(remote=method))

    async def unlock(self, key: bytes) -> SealedConfig:
        self.locked = False
        return seal(self._config, key)

    async def created(self) -> None:
        pass

    async def status(self, fresh: bool, proof: bytes) -> dict[str, Any]:
        assert not fresh
        for answer in self._answers:
            if isinstance(answer, Exception):
                self._answers = itertools.repeat(answer)
                raise answer
            if answer is not None:
                return answer
            raise ActorUnavailableError("no route to the head", b"\0" * 16)
        self._done()
        self.locked = True  # it starts again on a node without the key
        raise ActorUnavailableError("no route to the head", b"\0" * 16)

    async def stop(self, proof: bytes) -> None:
        if self.dies:
            self.dies, self.locked = self.dies - 1, True
            raise ActorUnavailableError("its process has ended", b"\0" * 16)
        self.stopped = not self.locked


WHOLE = _status([READY], [READY | {"node": "10.0.0.1", "port": 8000}])
for _rows in WHOLE.values():
    for _row in _rows:
        _row |= {"restarts": 0, "node": "10.0.0.1"}
WHOLE |= {"ready": True, "controller": {"pid": 1, "node": "10.0.0.1"}, "redis": {"restarts": 0, "url": "redis://10.0.0.9"}}


async def _up(
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answers: list[dict[str, Any] | Exception | None],
    *,
    told: bool,
    first: Path | None = None,
) -> tuple[Controller, str]:
    """`engine up` that joins a cluster with an engine, up to the last answer; then it is told to stop, or it fails.

    Args:
        first: data directory of who started the engine; None: the same.
    """
    monkeypatch.setattr(up, "_WATCH_S", 0.001)
    monkeypatch.setattr(up, "_SLOW_POLL_S", 0.001)
    config = Config(
        address="auto", redis_url=redis_server.url, redis_durability="reported", host="0.0.0.0", port=8000, data_dir=str(tmp_path), shards=1
    )
    printed = io.StringIO()
    run = _Run(config, Console(file=printed, width=200))

    def end() -> None:
        if not told:
            raise RuntimeError("a defect")
        run._stop.set()

    controller = Controller(msgspec.structs.replace(config, data_dir=str(first or tmp_path)), answers, end)
    actor = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda _config, engine: controller))
    monkeypatch.setattr("engine.actors.ray_actors.remote_class", lambda _class: actor)
    monkeypatch.setattr(ray, "kill", lambda *_, **__: None)
    monkeypatch.setattr(run._cluster, "start", lambda: None)

    async def no_other_engines() -> dict[str, Any]:
        return {}

    async def connected() -> None:
        pass

    monkeypatch.setattr(run._cluster, "other_engines", no_other_engines)
    monkeypatch.setattr(run, "_start_redis", connected)  # which a server without a TCP port does not pass
    monkeypatch.setattr(run, "_handle_signals", lambda: None)
    if told:
        assert await run.run() == 0
    else:
        with pytest.raises(RuntimeError, match="a defect"):
            await run.run()
    return controller, printed.getvalue()


async def test_a_start_waits_for_a_controller_that_does_not_answer_and_a_signal_stops_the_engine(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    controller, printed = await _up(redis_server, monkeypatch, tmp_path, [None, None, WHOLE], told=True)
    assert "waiting for the controller" in printed
    assert "ready in" in printed
    assert controller.stopped


async def test_a_signal_stops_an_engine_whose_controller_waits_for_storage(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def created(self: Controller) -> None:
        self._done()
        await asyncio.Event().wait()

    monkeypatch.setattr(Controller, "created", created)
    async with asyncio.timeout(10):
        controller, _ = await _up(redis_server, monkeypatch, tmp_path, [], told=True)
    assert controller.stopped


async def test_a_signal_stops_an_engine_whose_controller_waits_for_a_place(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answered = Controller.unlock

    async def unlock(self: Controller, _key: bytes) -> SealedConfig:
        self.unlock = SimpleNamespace(remote=lambda key: answered(self, key))  # type: ignore[method-assign, assignment]
        self._done()
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr(Controller, "unlock", unlock)
    async with asyncio.timeout(10):
        controller, _ = await _up(redis_server, monkeypatch, tmp_path, [], told=True)
    assert controller.stopped


async def test_a_signal_does_not_end_the_controller_of_another_engine(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = list[object]()

    async def refuse(_key: bytes) -> SealedConfig:
        raise RayTaskError("unlock", "", NotProven("another key"))

    async def unlock(self: Controller, _key: bytes) -> SealedConfig:
        monkeypatch.setattr(ray, "kill", lambda handle, **_: ended.append(handle))
        self.unlock = SimpleNamespace(remote=refuse)  # type: ignore[method-assign, assignment]
        self._done()
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr(Controller, "unlock", unlock)
    async with asyncio.timeout(10):
        controller, printed = await _up(redis_server, monkeypatch, tmp_path, [], told=True)
    assert not controller.stopped
    assert not ended
    assert "warning" not in printed


async def test_the_next_process_of_a_controller_that_dies_stops_the_actors(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Controller, "dies", 2)
    controller, printed = await _up(redis_server, monkeypatch, tmp_path, [WHOLE], told=True)
    assert controller.stopped
    assert "warning" not in printed


async def test_engine_up_prints_when_the_controller_stops_answering_and_when_it_answers_again(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, printed = await _up(redis_server, monkeypatch, tmp_path, [WHOLE, WHOLE, None, None, WHOLE, WHOLE], told=True)
    assert printed.count("the controller does not answer") == 2, "once for the two that are missing, once at the end"
    assert printed.count("the controller answers again") == 1


async def test_an_engine_found_running_is_noted_in_the_own_data_directory(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted: list[str | Path] = []
    write = up.write_state
    monkeypatch.setattr(up, "write_state", lambda data_dir, state: (noted.append(data_dir), write(data_dir, state)))
    elsewhere = tmp_path / "of another machine"
    controller, _ = await _up(redis_server, monkeypatch, tmp_path, [WHOLE], told=True, first=elsewhere)
    assert noted == [str(tmp_path)]
    assert controller.stopped


async def test_an_engine_that_cannot_be_noted_serves(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    controller, printed = await _up(redis_server, monkeypatch, tmp_path, [WHOLE], told=True)
    assert f"{tmp_path / STATE_FILE} cannot be written (No space left on device)" in printed
    assert "ready in" in printed
    assert controller.stopped
    assert not list(tmp_path.iterdir())


async def test_an_engine_whose_data_directory_cannot_be_written_is_drained(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_arguments: Any, **_named: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    controller, printed = await _up(redis_server, monkeypatch, tmp_path, [WHOLE], told=True)
    assert f"{tmp_path / STATE_FILE} is left behind (Read-only file system)" in printed
    assert controller.stopped


async def test_engine_up_ends_when_another_one_has_stopped_the_engine(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with asyncio.timeout(10):
        controller, printed = await _up(redis_server, monkeypatch, tmp_path, [WHOLE, ActorDiedError()], told=True)
    assert "stopped elsewhere" in printed
    assert "run on" not in printed
    assert not controller.stopped


async def test_a_start_fails_when_the_engine_that_it_found_ends(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was being stopped. Whoever supervises this start makes another one."""
    with pytest.raises(ClusterError, match="start it again"):
        async with asyncio.timeout(10):
            await _up(redis_server, monkeypatch, tmp_path, [None, ActorDiedError()], told=True)


async def test_ray_starts_while_redis_reads_its_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, told, ray_runs = _Run(Config(data_dir=str(tmp_path)), Console(file=io.StringIO())), [], asyncio.Event()

    def start_ray() -> None:
        told.append("Ray")
        ray_runs.set()

    async def start_redis() -> None:
        await ray_runs.wait()
        told.append("Redis")
        raise StorageUnavailable("damaged")

    monkeypatch.setattr(up, "_ALONE_S", 0)
    monkeypatch.setattr(run._cluster, "start", start_ray)
    monkeypatch.setattr(run._cluster, "stop", lambda: told.append("end"))
    monkeypatch.setattr(run, "_start_redis", start_redis)
    monkeypatch.setattr(run, "_handle_signals", lambda: None)
    with pytest.raises(StorageUnavailable, match="damaged"):
        await run.run()
    assert told == ["Ray", "Redis", "end"]


async def test_no_reply_of_redis_is_awaited_while_ray_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, told = _Run(Config(data_dir=str(tmp_path)), Console(file=io.StringIO())), []

    async def read(_client: Redis) -> None:
        told.append("asked")
        await asyncio.sleep(0.05)
        told.append("answered")

    async def start_redis() -> None:
        run._config = msgspec.structs.replace(run._config, redis_url="redis://127.0.0.1:1/0")

    monkeypatch.setattr(up, "_ALONE_S", 0.001)
    monkeypatch.setattr(up, "read_slot_map", read)
    monkeypatch.setattr(run, "_start_redis", start_redis)
    monkeypatch.setattr(run, "_handle_signals", lambda: None)
    monkeypatch.setattr(run._cluster, "start", lambda: (told.append("Ray"), run._stop.set()))
    assert await run.run() == 0
    assert told == ["asked", "answered", "Ray"]


async def test_a_signal_stops_an_engine_whose_redis_still_reads_its_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, told = _Run(Config(data_dir=str(tmp_path)), Console(file=io.StringIO())), []

    async def start_redis() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("given up")

    monkeypatch.setattr(up, "_ALONE_S", 0.001)
    monkeypatch.setattr(run, "_start_redis", start_redis)
    monkeypatch.setattr(run, "_handle_signals", lambda: None)
    monkeypatch.setattr(run._cluster, "start", lambda: asyncio.get_running_loop().call_soon(run._stop.set))
    async with asyncio.timeout(10):
        assert await run.run() == 0
    assert told == ["given up"]


@pytest.mark.parametrize("waiting", ["_create", "_wait_ready"])
async def test_a_start_fails_when_its_ray_dies(waiting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = _Run(Config(data_dir=str(tmp_path)), Console(file=io.StringIO()))

    async def done(*_arguments: Any) -> None:
        pass

    async def unanswered(*_arguments: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(up, "_WATCH_S", 0.001)
    for name in ("_start_redis", "_check_storage", "_choose_numbers", "_create", "_wait_ready"):
        monkeypatch.setattr(run, name, unanswered if name == waiting else done)
    monkeypatch.setattr(run, "_handle_signals", lambda: None)
    monkeypatch.setattr(run._cluster, "start", lambda: None)
    monkeypatch.setattr(run._cluster, "failure", lambda: "Ray's raylet died")
    with pytest.raises(ClusterError, match="raylet died"):
        async with asyncio.timeout(2):
            await run.run()


async def test_an_engine_in_a_cluster_lives_on_when_engine_up_fails(
    redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    controller, printed = await _up(redis_server, monkeypatch, tmp_path, [WHOLE], told=False)
    assert not controller.stopped
    assert "the actors run on in the cluster" in printed


def test_start_loads_neither_ray_nor_unused_features_early() -> None:
    code = "import sys, engine.cli.up; print([name for name in ('ray', 'sqlalchemy', 'alembic', 'jinja2') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout == "[]\n"
