"""What the controller asks of Ray, where Ray's own interface is not public."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from typing import Any

import pytest
import ray
from ray import cloudpickle
from ray._private import worker
from ray._raylet import InnerGcsClient

from engine.actors import ray_actors
from engine.actors.ray_actors import RayActors, resources_of
from engine.config import Config


class Worker:
    """Of Ray, with a client of its control service."""

    def __init__(self, gcs_client: Any) -> None:
        self.gcs_client = gcs_client


async def test_nodes_that_are_to_go_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def get_draining_nodes(self, timeout: float) -> dict[str, int]:
            assert timeout > 0
            return {"a": 17}

    monkeypatch.setattr(worker, "global_worker", Worker(Client()))
    assert await RayActors().draining_nodes() == {"a": 17}


async def test_a_ray_that_does_not_tell_is_said_to_have_none_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    actors = RayActors()
    monkeypatch.setattr(worker, "global_worker", Worker(object()))
    with caplog.at_level(logging.WARNING):
        assert [await actors.draining_nodes() for _ in range(3)] == [{}, {}, {}]
    assert len([record for record in caplog.records if "to go" in record.message]) == 1


@pytest.mark.parametrize("role", ["shard", "scheduler", "edge"])
def test_an_actor_asks_for_one_place_of_its_role_unless_any_node_will_do(role: str) -> None:
    assert resources_of(Config(), role) == {f"engine_{role}": 1}
    assert resources_of(Config(), role, guest=True) == {}
    assert resources_of(Config(place="anywhere"), role) == {}


async def test_capacity_is_counted_in_cores_where_actors_need_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = {"CPU": 6.0, "engine_shard": 3.0, "engine_edge": 1.0}
    monkeypatch.setattr(ray, "cluster_resources", lambda: offered)
    monkeypatch.setattr(ray, "available_resources", lambda: offered)
    assert await RayActors().capacity(by_cores=False) == {"shard": 3, "scheduler": 0, "edge": 1}
    assert await RayActors().capacity(by_cores=True) == {"shard": 24, "scheduler": 24, "edge": 24}


def test_this_ray_has_the_private_parts() -> None:
    assert hasattr(worker, "global_worker")
    assert callable(InnerGcsClient.get_draining_nodes)


def test_a_shard_that_starts_loads_nothing_that_only_an_edge_needs() -> None:
    """Its users wait for it."""
    code = "import sys, engine.actors.shard; print('engine.actors.edge' in sys.modules, 'starlette' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False"]


def test_creating_actors_loads_none_of_their_modules() -> None:
    code = "import sys; from engine.actors.ray_actors import Controller, Edge, Shard; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "engine.actors.ray_actors" in loaded
    assert not {"engine.actors.controller", "engine.actors.shard", "engine.actors.edge"} & set(loaded)


@pytest.mark.parametrize("name", ray_actors._CLASSES)
def test_actors_in_ray_have_exactly_the_public_coroutines_of_their_class(name: str) -> None:
    actor = ray_actors._load(name)
    wanted = {method for method, _ in inspect.getmembers(actor, inspect.iscoroutinefunction) if not method.startswith("_")}
    assert {method for method in vars(getattr(ray_actors, name)) if not method.startswith("_")} == wanted


@pytest.mark.parametrize("name", ray_actors._CLASSES)
def test_classes_are_pickled_by_the_name_that_every_version_has(name: str) -> None:
    made = getattr(ray_actors, name)
    assert (made.__module__, made.__qualname__) == ("engine.actors.ray_actors", name)
    assert cloudpickle.loads(cloudpickle.dumps(made)) is made


@pytest.mark.parametrize("name", ray_actors._CLASSES)
def test_ray_names_a_process_after_its_actor_while_a_method_runs(name: str) -> None:
    """Of this attribute, Ray takes the name."""
    assert getattr(ray_actors, name).__ray_actor_class__.__name__ == name


def test_an_actor_begins_to_serve_before_anybody_calls_it() -> None:
    begun = []

    class Part:
        async def stats(self) -> dict[str, Any]:
            return {}

        def begin(self) -> None:
            begun.append(self)

    made = ray_actors.ray_side("Part", ["stats"], lambda: Part)()
    assert begun == [made.actor]
