"""deploy/redis-cluster.yaml: the API accepts it, and its commands make a Redis Cluster that outlives its pods' addresses and a lost volume.

The pods run without Kubernetes, in namespaces (`tests.support.containers`). A Service's address is a second one of its pod's host.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from redis import Redis
from redis.exceptions import RedisError

from engine.cli.settings import load
from engine.config import Config, store_urls
from tests.support.containers import Container
from tests.support.hosts import Network, require_namespaces
from tests.support.kubernetes import service_variables
from tests.support.readers import accepted, assert_kept
from tests.support.running_engine import RunningEngine, running_engine
from tests.support.waiting import until

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
TEXT: Final = (DEPLOY / "redis-cluster.yaml").read_text()
PARTS: Final[list[dict[str, Any]]] = yaml.safe_load(TEXT)["items"]
ENGINE: Final[list[dict[str, Any]]] = list(yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text()))
SETS: Final = [part for part in PARTS if part["kind"] == "StatefulSet"]
PODS: Final = {f"{part['metadata']['name']}-{n}": part["spec"]["template"] for part in SETS for n in range(part["spec"]["replicas"])}
(JOB,) = (part["spec"]["template"] for part in PARTS if part["kind"] == "Job")
(FILES,) = (part["data"] for part in PARTS if part["kind"] == "ConfigMap")
(URL,) = re.findall(r'--from-literal=url="(.*)"', TEXT)
PASSWORD: Final = "for-tests-only"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part['kind']} {part['metadata']['name']}")
def test_the_api_accepts_every_part(part: dict[str, Any]) -> None:
    import kubernetes_validate  # 0.3 s, of which other tests need nothing

    kubernetes_validate.validate(part, kubernetes_validate.latest_version(), strict=True)


def test_every_pod_has_its_service_and_each_selector_finds_pods() -> None:
    labels = [{"statefulset.kubernetes.io/pod-name": name, **pod["metadata"]["labels"]} for name, pod in PODS.items()]
    for part in PARTS:
        name, spec = part["metadata"]["name"], part.get("spec", {})
        if part["kind"] == "Service":
            found = [pod for pod in labels if spec["selector"].items() <= pod.items()]
            assert len(found) == (1 if name in PODS else len(PODS)), name
            assert found[0]["statefulset.kubernetes.io/pod-name"] == name or name not in PODS
        if part["kind"] in ("StatefulSet", "PodDisruptionBudget", "NetworkPolicy"):
            wanted = spec["podSelector" if part["kind"] == "NetworkPolicy" else "selector"]["matchLabels"]
            found = [pod for pod in labels if wanted.items() <= pod.items()]
            assert len(found) == (spec["replicas"] if part["kind"] == "StatefulSet" else len(PODS)), name
    assert {part["metadata"]["name"] for part in PARTS if part["kind"] == "Service"} > PODS.keys()
    for part in SETS:
        pod = part["spec"]["template"]
        (spread,) = pod["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"] == part["spec"]["selector"]


def test_the_settings_of_its_nodes_are_those_of_the_other_files() -> None:
    def settings(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]

    files = [(DEPLOY / name).read_text() for name in ("redis.conf", "redis-cluster.conf")]
    assert settings(FILES["redis.conf"]) == [*settings(files[0]), *settings(files[1]), "include /etc/redis-auth/auth.conf"]


def test_the_engine_of_kuberay_has_a_shard_for_each_store() -> None:
    (up,) = (part for part in ENGINE if part["kind"] == "Deployment")
    (container,) = up["spec"]["template"]["spec"]["containers"]
    own = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    services = [part for part in PARTS if part["kind"] == "Service" and part["spec"].get("clusterIP") != "None"]
    ports = [(part["metadata"]["name"], port) for part in services for port in part["spec"]["ports"]]
    variables: dict[str, str] = {}
    for name, port in ports:
        variables |= service_variables(name, port["name"], port["port"])
    url = URL.replace("$C", PASSWORD)
    config = load(
        env=variables | {name: value for name, value in own.items() if name.startswith("ENGINE_")} | {"ENGINE_REDIS_URL": url},
        toml_path="none",
    )
    assert config.shards >= len(store_urls(config.redis_url)) == 4
    assert set(re.findall(r"engine-redis-\w-\d", url)) <= PODS.keys()
    policy = next(part["spec"] for part in PARTS if part["kind"] == "NetworkPolicy")
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"app": up["spec"]["template"]["metadata"]["labels"]["app"]}}}]


# -- The pods run. -----------------------------------------------------------------------------------------------------
class Pods:
    """The pods of the file, each with the address of its Service beside its own."""

    def __init__(self, network: Network) -> None:
        self.containers = {name: Container(network, name) for name in (*PODS, "job")}
        prefix = self.containers["job"].host.address.rpartition(".")[0]
        self.addresses = {name: f"{prefix}.{100 + number}" for number, name in enumerate(PODS)}
        self._prefix, self._next = prefix, 200
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        auth = re.findall(r'auth\.conf="(requirepass \$C)\n# +(masterauth \$C)"', TEXT)
        services = {f"{name}.notifications.svc": address for name, address in self.addresses.items()} | self.addresses
        for name, container in self.containers.items():
            # A pod's own name is its own address, before any DNS is asked.
            container.name({name: container.host.address} | {other: address for other, address in services.items() if other != name})
            for file, text in FILES.items():
                container.write(f"/etc/redis/{file}", text)
            container.write("/etc/redis-auth/auth.conf", "\n".join(auth[0]).replace("$C", PASSWORD) + "\n")
        for name, address in self.addresses.items():
            self._ip(name, "address", "add", f"{address}/32", "dev", "eth0")
            self.start(name)

    def _ip(self, name: str, *words: str) -> None:
        subprocess.run(self.containers[name].host.command("ip", *words), check=True)

    def start(self, name: str) -> None:
        (container,) = PODS[name]["spec"]["containers"]
        self.running[name] = self.containers[name].start(container["command"], self._environment(name, container))

    def kill(self, name: str) -> None:
        self.containers[name].host.kill_processes()
        self.running.pop(name).wait(60)

    def give_other_address(self, name: str) -> None:
        """As a pod gets that is started again."""
        host = self.containers[name].host
        self._ip(name, "address", "del", f"{host.address}/24", "dev", "eth0")
        host.address = f"{self._prefix}.{self._next}"
        self._next += 1
        self._ip(name, "address", "add", f"{host.address}/24", "dev", "eth0")
        self._ip(name, "route", "replace", "default", "via", f"{self._prefix}.254")

    def lose_volume(self, name: str) -> None:
        (container,) = PODS[name]["spec"]["containers"]
        assert self.containers[name].succeeds(["find", "/data", "-mindepth", "1", "-delete"], self._environment(name, container))

    def make_cluster(self) -> None:
        """What the job does."""
        (container,) = JOB["spec"]["containers"]
        process = self.containers["job"].start(container["command"], self._environment("job", container))
        try:
            assert process.wait(90) == 0
        except (AssertionError, subprocess.TimeoutExpired):
            raise AssertionError(self.containers["job"].host.output()) from None

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        fields = {"metadata.name": name, "metadata.namespace": "notifications"}
        given = {variable["name"]: variable["valueFrom"] for variable in container["env"]}
        return {key: fields[source["fieldRef"]["fieldPath"]] if "fieldRef" in source else PASSWORD for key, source in given.items()}

    def succeeds(self, name: str, probe: str) -> bool:
        (container,) = PODS[name]["spec"]["containers"]
        return self.containers[name].succeeds(container[probe]["exec"]["command"], self._environment(name, container))

    def role(self, name: str) -> tuple[str, str]:
        """Whether a node is a master, and the set of its master."""
        with Redis(host=self.addresses[name], password=PASSWORD, socket_timeout=5) as client:
            told = client.info("replication")
        of = told.get("master_host", self.addresses[name])
        return told["role"], next(other for other, address in self.addresses.items() if address == of)[:-2]

    def masters(self) -> list[str]:
        found = []
        for name in self.running:
            try:
                found += [name] if self.role(name)[0] == "master" else []
            except RedisError:
                continue
        return found


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    require_namespaces()
    with Network() as network:
        made = Pods(network)
        made.make_cluster()
        yield made


@pytest.fixture(scope="module")
def running(pods: Pods) -> Iterator[RunningEngine]:
    url = re.sub(r"engine-redis-\w-\d", lambda found: pods.addresses[found[0]], URL.replace("$C", PASSWORD))
    with running_engine("--shards", "4", "--redis", url, env={"ENGINE_REDIS_REPLICAS_MIN": "1"}) as started:
        yield started


@pytest.mark.engine
@pytest.mark.slow
async def test_each_set_has_one_master_and_its_pods_are_ready(pods: Pods) -> None:
    for name in PODS:
        await until(lambda name=name: pods.succeeds(name, "readinessProbe"))  # type: ignore[misc]
        assert pods.succeeds(name, "startupProbe")
        assert pods.role(name) == ("master" if name.endswith("-0") else "slave", name[:-2])


@pytest.mark.engine
@pytest.mark.slow
async def test_an_engine_delivers_through_the_loss_of_a_master(pods: Pods, running: RunningEngine) -> None:
    await until(lambda: accepted(running, "first"), 30)
    pods.kill("engine-redis-b-0")
    await until(lambda: accepted(running, "second"), 60, look_s=0.2)
    await assert_kept(running, "first", "second")


@pytest.mark.engine
@pytest.mark.slow
async def test_a_node_that_lost_its_volume_is_taken_back_into_its_set(pods: Pods, running: RunningEngine) -> None:
    pods.lose_volume("engine-redis-b-0")
    pods.start("engine-redis-b-0")
    await asyncio.to_thread(pods.make_cluster)
    assert pods.role("engine-redis-b-0") == ("slave", "engine-redis-b")
    await until(lambda: pods.succeeds("engine-redis-b-0", "readinessProbe"))
    assert {name[:-2] for name in pods.masters()} == {part["metadata"]["name"] for part in SETS}


@pytest.mark.engine
@pytest.mark.slow
async def test_all_pods_come_back_with_other_addresses_and_everything_is_there(pods: Pods, running: RunningEngine) -> None:
    for name in PODS:
        pods.kill(name)
    for name in PODS:
        pods.give_other_address(name)
        pods.start(name)
    await until(lambda: accepted(running, "third"), 90, look_s=0.2)
    await assert_kept(running, "first", "second", "third")
    for name in PODS:
        await until(lambda name=name: pods.succeeds(name, "readinessProbe"))  # type: ignore[misc]


def test_the_head_of_the_file_makes_every_secret_it_needs() -> None:
    made = TEXT[TEXT.index("secret generic engine-redis-cluster ") :].partition("#   2.")[0]
    for key in ("password", "auth.conf"):
        assert f"--from-literal={key}=" in made
    assert Config(redis_url=URL.replace("$C", PASSWORD))
