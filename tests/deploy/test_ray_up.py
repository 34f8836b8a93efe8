"""The commands of deploy/ray-cluster.yaml and its units on two hosts, as Ray runs them: see tests/support/ray_up.py."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.hosts import CHECKOUT, Host, Network, require_namespaces
from tests.support.process_tree import role_of
from tests.support.ray_up import RayUp
from tests.support.redis_server import find_server

pytestmark = [pytest.mark.slow, pytest.mark.engine]

LATE_S = 300  # a node whose start failed is started again
PASSWORD, RAY_PASSWORD = "of-redis", "of-ray"


def until(check: Callable[[], Any], what: Callable[[], str]) -> None:
    """Wait for this; else fail and print that."""
    deadline = time.monotonic() + LATE_S
    while not check():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


def logs(host: Host) -> str:
    return "".join(RayUp.log(host, unit)[-3000:] for unit in ("ray", "engine"))


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    require_namespaces()
    with Network() as network:
        yield network.host("head"), network.host("worker")


@pytest.fixture(scope="module")
def ray_up(hosts: tuple[Host, Host]) -> RayUp:
    """Both machines set up, with a Redis on the first."""
    head = hosts[0]
    rights = "resetchannels resetkeys ~RAY* ~DUMMY -@all +@read +@write +@connection -@dangerous +info"
    (head.folder / "redis-auth.conf").write_text(f"requirepass {PASSWORD}\nuser ray on >{RAY_PASSWORD} {rights}\n")
    head.start(f"exec {find_server()} {CHECKOUT}/deploy/redis.conf --include {head.home}/redis-auth.conf --dir {head.home}")
    settings = (CHECKOUT / "deploy" / "engine.env.example").read_text()
    for placeholder, value in (
        ("REDIS-HOST", head.address), ("CHANGE-ME-TOO", RAY_PASSWORD), ("CHANGE-ME", PASSWORD), ("SHARDS=4", "SHARDS=1"),
        ("EDGES=4", "EDGES=1"),
    ):  # fmt: skip
        settings = settings.replace(placeholder, value)
    started = RayUp(head, settings + "ENGINE_START_TIMEOUT_S=1\n", "0123456789abcdef" * 4)
    for host in hosts:
        started.set_up(host)
    return started


@pytest.fixture(scope="module")
def serving(ray_up: RayUp, hosts: tuple[Host, Host]) -> RayUp:
    """The worker is started when the engine says that it waits for one."""
    head, worker = hosts
    ray_up.start_head()
    until(lambda: "1 more needed: from the autoscaler" in ray_up.log(head, "engine"), lambda: logs(head))
    ray_up.start_worker(worker, "engine")
    until(lambda: "stop with" in ray_up.log(head, "engine"), lambda: logs(worker) + logs(head))
    return ray_up


def test_a_start_waits_for_machines_far_beyond_its_timeout_and_prints_which(serving: RayUp) -> None:
    log = serving.log(serving.head, "engine")
    assert "shard-0 (nodes offer 0 `engine_shard`, 0 free; 1 more needed" in log
    assert "not ready after 1 s" in log
    assert float(re.findall(r"ready in ([0-9.]+) s", log)[-1]) > 5


def test_clients_reach_the_edge_on_the_worker(serving: RayUp, hosts: tuple[Host, Host]) -> None:
    url = f"http://{hosts[1].address}:8000"
    assert serving.run(serving.head, f"engine publish alice hello --data '{{}}' --url {url}")
    assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200


def test_every_process_of_ray_asks_for_the_token_and_none_has_the_engines_secrets(serving: RayUp, hosts: tuple[Host, Host]) -> None:
    for host in hosts:
        of_ray = [pid for pid in host.pids() if role_of(pid) in ("raylet", "gcs", "shard", "edge", "scheduler")]
        assert of_ray
        for pid in of_ray:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
            assert b"RAY_AUTH_MODE=token" in environment
            assert PASSWORD.encode() not in environment
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                assert PASSWORD.encode() not in file.read()


def test_a_node_whose_raylet_died_is_started_again(serving: RayUp, hosts: tuple[Host, Host]) -> None:
    worker = hosts[1]
    (raylet,) = [pid for pid in worker.pids() if role_of(pid) == "raylet"]
    started = serving.log(worker, "ray").count("Ray runtime started")
    serving.run(worker, "pkill --signal KILL --exact raylet")
    until(lambda: [pid for pid in worker.pids() if role_of(pid) == "raylet" and pid != raylet], lambda: serving.log(worker, "ray"))
    until(lambda: serving.log(worker, "ray").count("Ray runtime started") > started, lambda: serving.log(worker, "ray"))


def test_an_engine_that_was_told_to_stop_stays_down(serving: RayUp) -> None:
    serving.run(serving.head, "engine down")
    until(lambda: not (serving.head.folder / "engine@root.pid").exists(), lambda: serving.log(serving.head, "engine"))
