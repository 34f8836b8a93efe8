"""The cluster file, read by the code that `ray up` reads it with."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ray.autoscaler._private.commands import warn_about_bad_start_command
from ray.autoscaler._private.util import prepare_config, validate_config

from engine.cli.ray_cluster import LOCAL_RESOURCES
from engine.cli.settings import load
from engine.config import Config, port_range
from tests.support.missing_programs import missing
from tests.support.ray_up import cluster_file

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def cluster() -> dict[str, Any]:
    return cluster_file()


@pytest.fixture
def config() -> Config:
    """As deploy/engine.env.example makes it."""
    lines = [line for line in (DEPLOY / "engine.env.example").read_text().splitlines() if line.lstrip("#").partition("=")[0].isupper()]
    env = dict(line.lstrip("#").split("=", 1) for line in lines)
    return load(env={name: value for name, value in env.items() if name.startswith("ENGINE_")}, toml_path="none")


def test_ray_accepts_it(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(cluster))


def test_ray_finds_how_it_is_started_in_its_commands(cluster: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("ray.autoscaler._private.commands.cli_logger.warning", lambda text, *_: warnings.append(text))
    warn_about_bad_start_command(cluster["head_start_ray_commands"])
    assert not warnings


def test_some_kind_of_machine_offers_each_resource_that_an_actor_asks_for(cluster: dict[str, Any]) -> None:
    offered = {name for kind in cluster["available_node_types"].values() for name in kind["resources"]}
    assert offered == set(LOCAL_RESOURCES)


def test_the_machines_it_begins_with_have_room_for_the_actors_that_the_settings_ask_for(cluster: dict[str, Any], config: Config) -> None:
    kinds = cluster["available_node_types"].items()
    for role, wanted in (("shard", config.shards), ("scheduler", config.schedulers), ("edge", config.edges)):
        room = sum(kind["resources"].get(f"engine_{role}", 0) * (1 if name == "head" else kind["min_workers"]) for name, kind in kinds)
        assert room >= wanted


def test_its_ports_are_those_of_the_settings(cluster: dict[str, Any], config: Config) -> None:
    (rule,) = cluster["provider"]["security_group"]["IpPermissions"]
    assert rule["FromPort"] == rule["ToPort"] == config.port == Config().port
    assert config.link_ports == Config().link_ports
    assert f"({config.link_ports})" in (DEPLOY / "ray-cluster.yaml").read_text()
    ports = port_range(config.link_ports)
    assert all(
        kind["resources"].get("engine_shard", 0) + kind["resources"].get("engine_edge", 0) < len(ports)
        for kind in cluster["available_node_types"].values()
    )


def test_secrets_are_copied_as_files_that_only_their_owner_reads(cluster: dict[str, Any]) -> None:
    mounts = cluster["file_mounts"]
    assert mounts["~/engine.env"] in cluster["rsync_exclude"]  # once, not in the project's copy too
    protected = next(command for command in cluster["setup_commands"] if command.startswith("chmod 600"))
    assert {path for path in mounts if path != "~/engine"} == set(protected.split()[2:])


@pytest.mark.parametrize("unit", ["ray", "engine"])
def test_the_units_it_starts_exist_and_systemd_accepts_them(cluster: dict[str, Any], unit: str) -> None:
    assert re.search(rf"restart .*\b{unit}@\$USER", " ".join(cluster["head_start_ray_commands"]))
    if shutil.which("systemd-analyze") is None:
        missing("no systemd-analyze: the units were not verified (apt install systemd)")
    words = ["systemd-analyze", "--recursive-errors=one", "verify", DEPLOY / "systemd" / f"{unit}@.service"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
