"""What the nodes of a Ray cluster lack to run this engine, and how they get it.

Actors run the package of their node. `engine up --address` looks on every node of the cluster, with a task that needs nothing of the
engine: at the digest of the package's files, and the versions of its dependencies. Where all have the same nothing happens: machine images
and containers with the engine in them start actors soonest, need no package index, and are what a large cluster should have.

Otherwise the actors get a runtime environment of Ray: this process's package (`py_modules`; Ray takes it to every node that runs one of
them, also to nodes that join later), and the dependencies that some node lacks or has in versions that are not allowed (`pip`, in the
versions that this process has, from the index that pip on the node is set to; then every node needs `virtualenv`, a part of `ray[default]`,
and the first start takes a minute). A job that was submitted with a runtime environment of its own has its package on the nodes already,
because what looks on a node has the environment of the job too.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from packaging.requirements import Requirement

import engine

log = logging.getLogger(__name__)

DISTRIBUTION: Final = "ray-notification-engine"
_LOOK_TIMEOUT_S: Final = 30  # a node that does not answer is left out: Ray gives it up, or places nothing on it


class NodePackages(Struct, frozen=True):
    """What one node has: the digest of the package, "" for none, and the versions of the dependencies that are installed."""

    digest: str
    versions: Mapping[str, str]


def requirements() -> list[Requirement]:
    """The engine's dependencies, without Ray, which is the node's own; none when this package is not installed as a distribution.

    What an extra of a dependency brings (`redis[hiredis]`) is among them, since a node may have the one without the other.
    """
    direct = [one for one in _requirements_of(DISTRIBUTION, "") if one.name != "ray"]
    return direct + [more for one in direct for extra in sorted(one.extras) for more in _requirements_of(one.name, extra)]


def _requirements_of(distribution: str, extra: str) -> list[Requirement]:
    """What a distribution needs, for "", or what one of its extras adds to that."""
    try:
        found = [Requirement(text) for text in importlib.metadata.requires(distribution) or []]
    except importlib.metadata.PackageNotFoundError:
        return []
    wanted = [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]
    return [one for one in wanted if not extra or (one.marker is not None and not one.marker.evaluate({"extra": ""}))]


def look_here(names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """What this process's node has. Imports nothing of the engine: it is sent to nodes by value."""
    import hashlib
    import importlib.metadata
    import importlib.util
    from pathlib import Path

    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        spec = importlib.util.find_spec("engine")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return "", versions
    folder = Path(spec.origin).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest(), versions


def look_everywhere(names: Sequence[str]) -> dict[str, NodePackages]:
    """What each node of the cluster has, by its id. Blocks for some seconds: a process starts on every node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # The process ends with it. One that stays would look like a spare one (`engine.actors.spares`), and Ray gives it to no actor.
    look = ray.remote(max_calls=1)(_by_value(look_here))
    asked = {}
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"]:
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[look.options(num_cpus=0, max_retries=0, scheduling_strategy=place).remote(names)] = node["NodeID"]
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_TIMEOUT_S)
    found = {}
    for answer in ready:
        try:
            found[asked[answer]] = NodePackages(*ray.get(answer))
        except ray.exceptions.RayError as error:
            log.warning("the packages of node %s are not known: %s", asked[answer], error)
    for answer in late:
        log.warning("node %s does not tell its packages", asked[answer])
    return found


def runtime_env(own: NodePackages, nodes: Mapping[str, NodePackages], wanted: Sequence[Requirement]) -> dict[str, Any]:
    """The runtime environment with which every one of the nodes runs this process's package; empty when they do without."""
    lacking = [
        one.name
        for one in wanted
        if one.name in own.versions
        and any(not one.specifier.contains(node.versions.get(one.name, "0"), prereleases=True) for node in nodes.values())
    ]
    made: dict[str, Any] = {}
    if any(node.digest != own.digest for node in nodes.values()):
        made |= {"py_modules": [str(Path(engine.__file__).resolve().parent)], "excludes": ["**/__pycache__"]}
    if lacking:
        made["pip"] = [f"{name}=={own.versions[name]}" for name in lacking]
    return made


def _by_value(function: Any) -> Any:
    """A copy that Ray pickles whole: of an importable function it would pickle the name."""
    from types import FunctionType

    made = FunctionType(function.__code__, {"__builtins__": __builtins__}, function.__name__)
    made.__module__ = "__main__"
    return made
