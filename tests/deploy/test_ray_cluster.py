"""The cluster file, read by the code that `ray up` reads it with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from engine.cli.ray_cluster import HEAD_SETTINGS, LOCAL_RESOURCES, LOCAL_SETTINGS

PATH = Path(__file__).parents[2] / "deploy" / "ray-cluster.yaml"


@pytest.fixture
def cluster() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(PATH.read_text())
    return loaded


def test_ray_accepts_it(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(cluster))


def test_some_kind_of_machine_offers_each_resource_that_an_actor_asks_for(cluster: dict[str, Any]) -> None:
    offered = {name for kind in cluster["available_node_types"].values() for name in kind["resources"]}
    assert offered == set(LOCAL_RESOURCES)


def test_the_machines_it_may_start_are_enough_for_the_actors_it_starts(cluster: dict[str, Any]) -> None:
    start = cluster["head_start_ray_commands"][-1]
    for role in ("shard", "scheduler", "edge"):
        wanted = int(re.search(rf"--{role}s (\d+)", start)[1])  # type: ignore[index]
        kinds = cluster["available_node_types"].items()
        room = sum(kind["resources"].get(f"engine_{role}", 0) * (1 if name == "head" else kind["max_workers"]) for name, kind in kinds)
        assert room >= wanted


def test_every_option_of_its_start_command_exists() -> None:
    from typer.main import get_command

    from engine.cli.app import app

    start = yaml.safe_load(PATH.read_text())["head_start_ray_commands"][-1]
    known = {option for parameter in get_command(app).commands["up"].params for option in parameter.opts}  # type: ignore[attr-defined]
    assert set(re.findall(r"--[a-z-]+", start)) <= known


def test_its_nodes_have_the_settings_that_make_a_lost_actor_come_back_soon(cluster: dict[str, Any]) -> None:
    head, worker = " ".join(cluster["head_start_ray_commands"]), " ".join(cluster["worker_start_ray_commands"])
    for name, value in HEAD_SETTINGS.items():
        assert f"{name}={value}" in head.split()
    for name in ("RAY_worker_niceness", "RAY_enable_worker_prestart", "RAY_kill_worker_timeout_milliseconds"):
        assert f"{name}={LOCAL_SETTINGS[name]}" in head.split()
        assert f"{name}={LOCAL_SETTINGS[name]}" in worker.split()
