"""What nodes are told apart by, and what they are sent. That it runs there is tested in tests/cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from ray import cloudpickle

import engine
from engine.cli.node_packages import NodePackages, _by_value, look_here, requirements, runtime_env

PACKAGE = Path(engine.__file__).parent
WANTED = [Requirement("msgspec>=0.22"), Requirement("redis[hiredis]>=8,<9")]
OWN = NodePackages("digest", {"msgspec": "0.23", "redis": "8.1"})


def looked_from(path: Path) -> NodePackages:
    """What a process finds that has this folder first on its path, and of the engine nothing but a function sent to it."""
    sent = cloudpickle.dumps(_by_value(look_here))
    assert b"engine.cli" not in sent
    code = f"import pickle; print(repr(pickle.loads({sent!r})(['msgspec', 'no-such-package'])))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(path)}, cwd=path, capture_output=True, text=True, check=True
    )
    return NodePackages(*eval(done.stdout))


def test_a_copy_of_the_package_is_the_same_and_a_changed_one_is_not(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    here = look_here(["msgspec", "no-such-package"])
    assert looked_from(tmp_path) == NodePackages(*here)
    assert here[1].keys() == {"msgspec"}
    with (tmp_path / "engine" / "store" / "scripts" / "epoch_take.lua").open("a") as script:
        script.write("-- changed")
    assert looked_from(tmp_path).digest not in ("", here[0])


def test_a_package_that_cannot_be_imported_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise SystemExit('this must not run')")
    assert looked_from(tmp_path).digest not in ("", look_here([])[0])


def test_nodes_that_have_the_same_are_sent_nothing() -> None:
    assert runtime_env(OWN, {"a": OWN, "b": NodePackages("digest", {"msgspec": "0.22", "redis": "8.0"})}, WANTED) == {}


@pytest.mark.parametrize("digest", ["", "another"])
def test_when_one_node_has_another_package_or_none_all_actors_get_this_one(digest: str) -> None:
    made = runtime_env(OWN, {"a": OWN, "b": NodePackages(digest, OWN.versions)}, WANTED)
    assert made == {"py_modules": [str(PACKAGE.resolve())], "excludes": ["**/__pycache__"]}


@pytest.mark.parametrize("versions", [{"msgspec": "0.23"}, {"msgspec": "0.23", "redis": "9.0"}])
def test_dependencies_that_a_node_lacks_or_has_too_old_or_too_new_are_installed_as_they_are_here(versions: dict[str, str]) -> None:
    assert runtime_env(OWN, {"a": OWN, "b": NodePackages("digest", versions)}, WANTED) == {"pip": ["redis==8.1"]}


def test_the_dependencies_are_those_of_the_project_without_ray_and_without_those_of_its_tests() -> None:
    names = {one.name for one in requirements()}
    assert {"msgspec", "redis", "uvloop", "starlette"} <= names
    assert {"hiredis", "cryptography"} <= names, "of the extras that the engine asks for"
    assert not {"ray", "pytest", "Django"} & names
