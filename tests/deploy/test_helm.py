"""deploy/helm: by default the chart gives the objects of deploy/kuberay.yaml; its values reach the places they name."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.missing_programs import PREFIX

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "notification-engine"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())

Objects = dict[tuple[str, str], dict[str, Any]]


def objects(text: str) -> Objects:
    """Kubernetes objects by kind and name."""
    return {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(text) if part}


def rendered(*options: str) -> subprocess.CompletedProcess[str]:
    """`helm template` with these options."""
    helm = shutil.which("helm") or shutil.which("helm", path=Path.home() / "go" / "bin")
    if helm is None:
        pytest.skip(PREFIX + "no Helm: the chart was not rendered (make helm)")
    return subprocess.run([helm, "template", "engine", CHART, *options], capture_output=True, text=True, check=False, timeout=60)


def with_values(*options: str) -> Objects:
    done = rendered(*options)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def test_the_chart_has_the_versions_of_the_engine_and_of_its_ray() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == version
    plain = objects((ROOT / "deploy" / "kuberay.yaml").read_text())
    assert VALUES["rayVersion"] == plain["RayCluster", "engine"]["spec"]["rayVersion"]


def test_the_default_values_give_the_objects_of_kuberay_yaml() -> None:
    assert with_values() == objects((ROOT / "deploy" / "kuberay.yaml").read_text())


def test_values_reach_the_cluster_its_redis_and_the_settings_of_the_engine() -> None:
    given = (
        "image=example.com/engine@sha256:1", "engine.shards=12", "engine.jwtSecret=false", "engine.settings.jwt_jwks_url=https://id/keys",
        "engine.secretSettings.history_url=history", "redis.storageClass=fast", "redis.maxmemory=6gb", "workers.max=20", "workers.shards=3",
    )  # fmt: skip
    found = with_values(*(word for value in given for word in ("--set", value)))
    (up,) = found["Deployment", "engine"]["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value") or one["valueFrom"]["secretKeyRef"] for one in up["env"]}
    assert up["image"] == "example.com/engine@sha256:1"
    assert "ENGINE_JWT_SECRET" not in environment
    assert environment["ENGINE_SHARDS"] == "12"
    assert environment["ENGINE_JWT_JWKS_URL"] == "https://id/keys"
    assert environment["ENGINE_HISTORY_URL"] == {"name": "engine-settings", "key": "history"}
    (workers, edges) = found["RayCluster", "engine"]["spec"]["workerGroupSpecs"]
    assert (workers["maxReplicas"], edges["maxReplicas"]) == (20, VALUES["edgeWorkers"]["max"])
    assert '\\"engine_shard\\": 3' in workers["rayStartParams"]["resources"]
    (claim,) = found["StatefulSet", "engine-redis"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert "maxmemory 6gb" in found["ConfigMap", "engine-redis"]["data"]["redis.conf"]


@pytest.mark.parametrize(("value", "named"), [("shards=2", "shards"), ("workers.min=0", "min"), ("redis.memory=lots", "memory")])
def test_a_value_that_is_unknown_or_impossible_is_refused_by_name(value: str, named: str) -> None:
    done = rendered("--set", value)
    assert done.returncode != 0
    assert named in done.stderr
