"""deploy/kuberay.yaml: Kubernetes' own parts against the schemas of its API, the RayCluster against the fields of its Go types."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import ray
import yaml
from ray.scripts.scripts import start

from engine.cli.ray_cluster import LOCAL_RESOURCES, NODE_SETTINGS
from engine.cli.settings import load
from engine.config import Config
from tests.support.kubernetes import service_variables

DEPLOY = Path(__file__).parents[2] / "deploy"
PARTS: Final[list[dict[str, Any]]] = list(yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text()))
CLUSTER: Final[dict[str, Any]] = next(part["spec"] for part in PARTS if part["kind"] == "RayCluster")
GROUPS: Final[list[dict[str, Any]]] = CLUSTER["workerGroupSpecs"]
REDIS_VALUE: Final = {"value": str, "valueFrom": {"secretKeyRef": dict}}

# The fields of `ray.io/v1` that the file may use, as KubeRay 1.6 documents them (RayClusterSpec, HeadGroupSpec, WorkerGroupSpec,
# AutoscalerOptions, AuthOptions, GcsFaultToleranceOptions, RedisCredential). Pods and resources are Kubernetes' own.
FIELDS: Final[dict[str, Any]] = {
    "rayVersion": str,
    "enableInTreeAutoscaling": bool,
    "autoscalerOptions": {"idleTimeoutSeconds": int, "upscalingMode": str, "resources": dict, "env": list, "image": str},
    "authOptions": {"mode": str, "secretName": str},
    "gcsFaultToleranceOptions": {
        "redisAddress": str, "redisUsername": REDIS_VALUE, "redisPassword": REDIS_VALUE, "externalStorageNamespace": str,
    },
    "headGroupSpec": {"serviceType": str, "rayStartParams": dict, "template": dict},
    "workerGroupSpecs": [
        {
            "groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int, "idleTimeoutSeconds": int,
            "rayStartParams": dict, "template": dict,
        }
    ],
}  # fmt: skip


def check(value: Any, fields: Any, path: str) -> None:
    """The value has fields of this structure only, with values of these types."""
    if isinstance(fields, list):
        assert isinstance(value, list), path
        for index, item in enumerate(value):
            check(item, fields[0], f"{path}[{index}]")
    elif isinstance(fields, dict):
        assert value.keys() <= fields.keys(), path
        for name, item in value.items():
            check(item, fields[name], f"{path}.{name}")
    else:
        assert isinstance(value, fields), path


def pod(template: dict[str, Any]) -> dict[str, Any]:
    """The pod that a template describes."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]}


def resources(group: dict[str, Any]) -> dict[str, int]:
    """Places for actors that a pod of a group offers."""
    text = group["rayStartParams"].get("resources", "'{}'")
    found: dict[str, int] = json.loads(text.strip("'\"").replace('\\"', '"'))
    return found


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Variables of a container; those that come from a secret are `secret`."""
    return {variable["name"]: variable.get("value", "secret") for variable in container.get("env", ())}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part['kind']} {part['metadata']['name']}")
def test_the_api_accepts_every_part(part: dict[str, Any]) -> None:
    import kubernetes_validate  # 0.3 s, of which other tests need nothing

    if part["kind"] != "RayCluster":
        kubernetes_validate.validate(part, kubernetes_validate.latest_version(), strict=True)
        return
    check(CLUSTER, FIELDS, "spec")
    for group in (CLUSTER["headGroupSpec"], *GROUPS):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        kubernetes_validate.validate(pod(group["template"]), kubernetes_validate.latest_version(), strict=True)


def test_every_node_of_ray_waits_as_long_for_its_head() -> None:
    """That of `engine up`, too: without it the pod ends after a minute."""
    up = next(part["spec"] for part in PARTS if part["kind"] == "Deployment")
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    for group in (CLUSTER["headGroupSpec"], *GROUPS, up):
        (container,) = group["template"]["spec"]["containers"]
        assert environment(container).get(name) == NODE_SETTINGS[name], container["name"]


def test_the_ray_version_is_the_one_of_the_lock() -> None:
    assert CLUSTER["rayVersion"] == ray.__version__


def of_services() -> dict[str, str]:
    """What every pod of the namespace gets for the Services of the file; a pod's own variables replace those of the same name."""
    services = [part for part in PARTS if part["kind"] == "Service"]
    return {
        name: value
        for service in services
        for port in service["spec"]["ports"]
        for name, value in service_variables(service["metadata"]["name"], port["name"], port["port"]).items()
    }


def test_pods_offer_each_resource_that_an_actor_asks_for_and_enough_to_begin_with() -> None:
    head, up = CLUSTER["headGroupSpec"], next(part for part in PARTS if part["kind"] == "Deployment")
    (container,) = up["spec"]["template"]["spec"]["containers"]
    own = {name: value for name, value in environment(container).items() if value != "secret" and name.startswith("ENGINE_")}
    config = load(env=of_services() | own, toml_path="none")
    room = dict.fromkeys(LOCAL_RESOURCES, 0)
    for group, count in ((head, 1), *((group, group["minReplicas"]) for group in GROUPS)):
        for name, places in resources(group).items():
            room[name] += count * places
    assert room["engine_shard"] >= config.shards
    assert room["engine_scheduler"] >= config.schedulers
    assert room["engine_edge"] >= config.edges
    assert (config.address, config.host, config.port, config.link_ports) == ("auto", "0.0.0.0", Config().port, Config().link_ports)


def test_rays_settings_are_those_of_nodes_on_machines() -> None:
    words = [DEPLOY / "node", "env"]
    printed = subprocess.run(
        words, env={"HOME": "/nonexistent", "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True
    ).stdout
    given_otherwise = ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED")  # by the operator, by the image
    wanted = dict(line.split("=", 1) for line in printed.splitlines() if line.startswith("RAY_") and not line.startswith(given_otherwise))
    assert wanted
    for group in (CLUSTER["headGroupSpec"], *GROUPS):
        (container,) = group["template"]["spec"]["containers"]
        assert wanted.items() <= environment(container).items()
        assert (
            "secret" not in environment(container).values()
        )  # the operator gives the token; the engine's secrets are not for Ray's workers


def test_the_parameters_of_ray_start_exist() -> None:
    known = {option for parameter in start.params for option in parameter.opts}
    for group in (CLUSTER["headGroupSpec"], *GROUPS):
        assert {f"--{name}" for name in group["rayStartParams"]} <= known


def test_probes_ask_ports_that_something_listens_on() -> None:
    for group in (CLUSTER["headGroupSpec"], *GROUPS):
        (container,) = group["template"]["spec"]["containers"]
        assert container["livenessProbe"]["tcpSocket"]["port"] == int(group["rayStartParams"]["node-manager-port"])
    for group in GROUPS:
        (container,) = group["template"]["spec"]["containers"]
        assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "edge"}
        assert {"name": "edge", "containerPort": Config().port} in container["ports"]


def test_services_disruption_budgets_and_policies_select_pods_that_exist() -> None:
    of_ray = [group["template"] for group in (CLUSTER["headGroupSpec"], *GROUPS)]
    pods = of_ray + [part["spec"]["template"] for part in PARTS if part["kind"] in ("StatefulSet", "Deployment")]
    for part in PARTS:
        selector = part.get("spec", {}).get("selector" if part["kind"] != "NetworkPolicy" else "podSelector")
        if part["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            labels = selector.get("matchLabels", selector)
            found = [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]
            assert found, part
            if part["kind"] == "PodDisruptionBudget" and found[0] in of_ray:
                assert isinstance(part["spec"]["minAvailable"], int)  # else Kubernetes asks for the scale of a RayCluster, which has none
            for port in part["spec"].get("ports", ()):
                named = {
                    opened["name"] for pod in found for container in pod["spec"]["containers"] for opened in container.get("ports", ())
                }
                assert port["targetPort"] in named


def test_its_redis_is_that_of_the_other_files_and_reads_the_passwords() -> None:
    def settings(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]

    (config,) = [part["data"]["redis.conf"] for part in PARTS if part["kind"] == "ConfigMap"]
    assert settings(config) == [*settings((DEPLOY / "redis.conf").read_text()), "include /etc/redis-auth/auth.conf"]


def test_secrets_that_it_asks_for_are_those_that_its_head_says_how_to_make() -> None:
    text = (DEPLOY / "kuberay.yaml").read_text()
    asked: set[tuple[str, str]] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            if "secretKeyRef" in value:
                asked.add((value["secretKeyRef"]["name"], value["secretKeyRef"]["key"]))
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    collect(PARTS)
    assert asked
    for name, key in asked | {("engine-redis", "auth.conf"), (CLUSTER["authOptions"]["secretName"], "auth_token")}:
        made = text[text.index(f"secret generic {name} ") :].partition("kubectl --namespace")[0]
        assert f"--from-literal={key}=" in made
