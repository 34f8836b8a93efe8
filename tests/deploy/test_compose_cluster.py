"""deploy/compose.cluster.yaml: its commands make a Redis Cluster, and an engine on it delivers through a fail-over.

The services run without Docker, in namespaces (`tests.support.containers`).
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from redis import Redis

from tests.support.composition import Composition
from tests.support.hosts import Network, require_namespaces
from tests.support.readers import accepted, assert_kept
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT: Final = Path(__file__).parents[2]
FILES: Final = (ROOT / "deploy" / "compose.yaml", ROOT / "deploy" / "compose.cluster.yaml")
NODES: Final = ("redis", "redis-2", "redis-3", "redis-4", "redis-5", "redis-6")


def commands(file: Path) -> str:
    """Those at the head of a file that make secrets."""
    return "\n".join(re.findall(r"^#   ((?:mkdir|P=|echo|printf|openssl rand -hex 32).*)$", file.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the commands at the heads of both files make them, one after the other."""
    folder = tmp_path_factory.mktemp("compose")
    (folder / "deploy").mkdir()
    for file in FILES:
        subprocess.run(["sh", "-ec", commands(file)], cwd=folder, check=True)
    return folder / "deploy" / "secrets"


@pytest.fixture(scope="module")
def composition(secrets: Path) -> Iterator[Composition]:
    require_namespaces()
    with Network() as network:
        dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
        made = Composition(
            network, FILES, (*NODES, "redis-create", "engine"), secrets, dict(re.findall(r"((?:ENGINE|RAY)_\w+)=(\S+)", dockerfile))
        )
        made.up()
        yield made


@pytest.fixture(scope="module")
def running(composition: Composition, secrets: Path) -> RunningEngine:
    found = RunningEngine(secrets.parent, env={"ENGINE_JWT_SECRET": (secrets / "jwt-secret").read_text().strip()})
    found.state = {"url": f"http://{composition.containers['engine'].host.address}:8000"}
    return found


def node(composition: Composition, secrets: Path, name: str) -> Redis:
    password = (secrets / "redis-auth").read_text().split()[1]
    return Redis(host=composition.containers[name].host.address, password=password, socket_timeout=5)


def masters(composition: Composition, secrets: Path) -> set[str]:
    found = set()
    for name in composition.running.keys() & set(NODES):
        with node(composition, secrets, name) as client:
            found |= {name} if client.info("replication")["role"] == "master" else set()
    return found


async def ready(running: RunningEngine) -> bool:
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        try:
            return (await client.get(f"{running.url}/readyz")).status_code == 200
        except httpx.HTTPError:
            return False


async def test_three_masters_have_a_replica_each_and_the_engine_delivers(
    composition: Composition, secrets: Path, running: RunningEngine
) -> None:
    found = masters(composition, secrets)
    assert len(found) == 3
    for name in found:
        with node(composition, secrets, name) as client:
            await until(lambda client=client: client.info("replication")["connected_slaves"] == 1)  # type: ignore[misc]
    await until(lambda: ready(running), 110, look_s=0.2)
    await until(lambda: accepted(running, "first"), 30, look_s=0.2)
    await assert_kept(running, "first")
    assert all(store["alive"] for store in running.status()["redis"]["stores"])


async def test_a_master_that_is_killed_is_replaced_and_nothing_is_lost(
    composition: Composition, secrets: Path, running: RunningEngine
) -> None:
    (killed, *_) = masters(composition, secrets)
    await asyncio.to_thread(composition.kill, killed)
    await until(lambda: len(masters(composition, secrets)) == 3, 60, look_s=0.1)
    await asyncio.to_thread(composition.start, killed)  # as `restart: unless-stopped` does
    await until(lambda: accepted(running, "second"), 60, look_s=0.2)
    await assert_kept(running, "first", "second")


async def test_a_second_up_leaves_the_cluster_as_it_is(composition: Composition, secrets: Path) -> None:
    before = masters(composition, secrets)
    await asyncio.to_thread(composition.start, "redis-create")
    assert await asyncio.to_thread(composition.running["redis-create"].wait, 30) == 0
    assert masters(composition, secrets) == before
