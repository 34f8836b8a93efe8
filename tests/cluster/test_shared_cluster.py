"""Engines on a Ray cluster that is not theirs alone: what others get to see, and what two engines get to see of each other."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys

import httpx
import psutil
import pytest
from redis import Redis

from engine.store.keys import LINK_KEY_KEY
from engine.store.sealed_config import engine_key
from tests.support.hosts import CHECKOUT
from tests.support.missing_programs import missing
from tests.support.running_engine import RunningEngine
from tests.support.shared_cluster import PLACES, SharedCluster
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]


def keys_of(cluster: SharedCluster, database: int) -> list[bytes]:
    with Redis.from_url(cluster.redis_url(database)) as redis:
        link_key = redis.get(LINK_KEY_KEY)
    assert isinstance(link_key, bytes)
    return [link_key, engine_key(link_key)]


def test_a_node_with_another_package_by_that_name_runs_this_one(cluster: SharedCluster, one: RunningEngine) -> None:
    assert "Ray takes to them this package\n" in one.output.read_text()
    (shard,) = one.status()["shards"]
    assert shard["pid"] in cluster.pids_of_second()


def test_a_job_of_somebody_else_gets_to_see_no_secret(cluster: SharedCluster, one: RunningEngine, markers: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.foreign_job", cluster.address, "one"],
        env=os.environ | cluster.environment | {"PYTHONPATH": os.fspath(CHECKOUT)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    text = "\n".join(found["seen"])
    assert "--redis ***" in text, "its command line is among what was seen"
    for marker in markers:
        assert marker not in text
        assert marker.encode().hex() not in text
    for key in keys_of(cluster, 0):
        assert key.hex() not in text
        assert repr(key)[2:-1] not in text
    actors = {"controller", "shard-0", "scheduler-0", "edge-0"}
    assert {call.partition(".")[0] for call in found["answered"]} == actors
    assert {call.partition(".")[2] for call in found["answered"]} <= {"stats", "address", "created", "public_config", "request"}
    assert "Ray jobs may not do this for this tenant" in text
    assert {
        "controller.stop", "controller.status", "controller.drain_edge", "controller.connections_of", "controller.unlock",
        "controller.scale", "controller.rebalance", "controller.upgrade", "controller.slow_clients", "shard-0.slow_clients",
        "edge-0.drain", "edge-0.hand_over", "edge-0.release", "edge-0.connections_of",
        "shard-0.exchange", "shard-0.drain", "scheduler-0.exchange",
        "shard-0.hand_over", "shard-0.adopt", "shard-0.slot_loads", "scheduler-0.follow", "scheduler-0.drain",
    } <= found["refused"].keys()  # fmt: skip
    assert not [call for call, why in found["refused"].items() if "TypeError" in why], "it was called as its actors call it"
    assert not any("__ray_call__" in call for call in [*found["answered"], *found["refused"]])
    assert all(row["alive"] for row in one.status()["shards"])


def test_no_log_no_command_line_and_no_environment_of_ray_has_a_secret(
    cluster: SharedCluster, one: RunningEngine, markers: tuple[str, ...]
) -> None:
    written = [path for path in (cluster.folder / "ray").rglob("*") if path.is_file() and not path.is_symlink() and path.name != "key"]
    assert any("worker" in path.name for path in written)
    hidden = [*(marker.encode() for marker in markers), *keys_of(cluster, 0)]
    for path in written:
        with contextlib.suppress(FileNotFoundError):  # Ray deletes and rotates its files meanwhile
            content = path.read_bytes()
            for secret in hidden:
                assert secret not in content, path
    looked_at = set()
    for pid in cluster.pids():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends meanwhile, as idle workers and their children do
            process = psutil.Process(pid)
            shown = " ".join(process.cmdline()) + str(process.environ())
            assert not any(marker in shown for marker in markers), process
            looked_at.add(process.name())
    assert {"gcs_server", "raylet"} <= looked_at


def test_what_an_engine_on_a_cluster_prints_has_no_token(one: RunningEngine) -> None:
    """The output of a submitted job is for everyone who may ask Ray for it."""
    output = one.output.read_text()
    assert f"open {one.url}\n" in output
    assert "token=" not in output


def test_what_is_kept_for_actors_that_start_again_is_for_the_engine_s_user_alone(cluster: SharedCluster, one: RunningEngine) -> None:
    kept = [path for path in (cluster.folder / "ray").rglob("key") if path.is_file()]
    assert kept
    for path in kept:
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0


async def test_rays_own_metrics_have_the_engines_totals(cluster: SharedCluster, one: RunningEngine) -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        missing("Ray's metrics: install ray[default]")
    await one.publish({"user": "metrics", "type": "test.message"})
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=10) as http:

        async def shown() -> bool:
            texts = []
            for port in cluster.metrics_ports:  # the controller is on one of the nodes
                with contextlib.suppress(httpx.HTTPError):
                    texts.append((await http.get(f"http://127.0.0.1:{port}/metrics")).text)
            lines = [line for text in texts for line in text.splitlines() if line.startswith("ray_engine_published_total{")]
            return any('engine="one"' in line and float(line.rpartition(" ")[2]) >= 1 for line in lines)

        await until(shown, 60, look_s=1)


async def test_two_engines_share_the_cluster_and_one_goes_on_when_the_other_stops(cluster: SharedCluster, one: RunningEngine) -> None:
    two = cluster.engine("two", database=1)
    two.start()
    for engine, text in ((one, "of one"), (two, "of two")):
        async with engine.connect("ann") as client:
            await engine.publish({"user": "ann", "type": "test.message", "data": text})
            assert [message["data"] for message in (await engine.receive(client, "messages"))["messages"]] == [text]
    before = {row["pid"] for row in one.status()["shards"]}
    assert two.stop() == 0
    async with one.connect("bob") as client:
        await one.publish({"user": "bob", "type": "test.message", "data": "after"})
        assert [message["data"] for message in (await one.receive(client, "messages"))["messages"]] == ["after"]
    assert {row["pid"] for row in one.status()["shards"]} == before


async def test_an_engine_needs_no_places_of_nodes_when_any_node_will_do(
    cluster: SharedCluster, one: RunningEngine, engine_of_events: RunningEngine
) -> None:
    anywhere = cluster.engine("anywhere", database=3)
    schedulers = PLACES - 1  # of the two other engines, each has one place
    anywhere.options = (*anywhere.options, "--place", "anywhere", "--schedulers", str(schedulers))
    anywhere.start()
    address = anywhere.state["ray_address"]
    assert f"address of its Ray: {address}; programs that join it need RAY_AUTH_MODE=token\n" in anywhere.output.read_text()
    status = anywhere.status()
    assert len([row for row in status["schedulers"] if row["ready"]]) == schedulers
    killed = status["shards"][0]["pid"]
    os.kill(killed, signal.SIGKILL)
    anywhere.status_when(lambda status: status["ready"] and status["shards"][0]["pid"] != killed)
    async with anywhere.connect("ann") as client:
        await anywhere.publish({"user": "ann", "type": "test.message", "data": "anywhere"})
        assert [message["data"] for message in (await anywhere.receive(client, "messages"))["messages"]] == ["anywhere"]
    assert anywhere.stop() == 0


@pytest.mark.parametrize(
    ("namespace", "same", "said"),
    [
        ("three", "database", "redis_url: the engine 'one' of Ray cluster session_"),
        ("three", "port", "port: the edges of the engine in the namespace 'one' of this cluster listen on"),
        ("one", "namespace", "namespace: an engine with another Redis runs in the namespace 'one' of this cluster"),
    ],
)
def test_an_engine_that_would_be_in_the_way_of_another_is_refused_and_the_other_goes_on(
    cluster: SharedCluster, one: RunningEngine, namespace: str, same: str, said: str
) -> None:
    before = {row["pid"] for kind in ("edges", "shards") for row in one.status()[kind]} | {one.status()["controller"]["pid"]}
    port = int(one.url.rpartition(":")[2])
    other = cluster.engine(namespace, database=0 if same == "database" else 2, port=port if same == "port" else None)
    with pytest.raises(AssertionError, match="engine up ended with 1") as ended:
        other.start()
    assert said in " ".join(str(ended.value).split())
    assert "Traceback" not in str(ended.value)
    status = one.status_when(lambda status: bool(status["ready"]))
    assert {row["pid"] for kind in ("edges", "shards") for row in status[kind]} | {status["controller"]["pid"]} == before


def test_actors_that_start_where_no_key_is_left_are_handed_it(cluster: SharedCluster, one: RunningEngine) -> None:
    before = one.status_when(lambda status: bool(status["ready"]))
    for path in (cluster.folder / "ray").rglob("key"):
        path.unlink(missing_ok=True)
    ended = {before["controller"]["pid"], before["shards"][0]["pid"]}
    for pid in ended:
        os.kill(pid, signal.SIGKILL)
    one.status_when(lambda status: status["ready"] and not ended & {status["controller"]["pid"], status["shards"][0]["pid"]})
