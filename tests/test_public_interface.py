"""What applications import: a completer lists it, a type checker knows it, and `help()` describes it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import rlcompleter
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import engine.ray
import ray_notifications
from engine import Client, Publisher, SyncClient, SyncPublisher
from engine.ray import AsyncPublisher
from engine.ray import Publisher as TaskPublisher
from tests.support.built_wheel import build_wheel
from tests.support.type_check import ROOT, findings

MODULES = ("engine", "engine.client", "engine.ray", "ray_notifications", "ray_notifications.ray")
CLIENTS = (Client, Publisher, SyncClient, SyncPublisher, AsyncPublisher, TaskPublisher)


def public_methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties of a class, those that it inherits from the engine's classes included."""
    for name, member in inspect.getmembers(kind):
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function) and function.__module__.startswith("engine."):
            yield name, member


def described() -> Iterator[tuple[str, Any]]:
    """The classes and functions that modules export, and the methods of the classes."""
    for module in MODULES:
        found = importlib.import_module(module)
        for name in found.__all__:
            if ("Progress" in name or name in ("NotificationSink", "RowOutcome")) and importlib.util.find_spec("pyarrow") is None:
                continue
            value = getattr(found, name)
            if inspect.isfunction(value) or inspect.isclass(value):
                yield f"{module}.{name}", value
            if inspect.isclass(value):
                yield from ((f"{module}.{name}.{method}", member) for method, member in public_methods(value))


@pytest.mark.parametrize("name", MODULES)
def test_completers_list_all_names_of_a_module(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module))
    publisher = "AsyncPublisher" if name.endswith(".ray") else "SyncPublisher"
    completer = rlcompleter.Completer({"module": module})
    assert [text.rstrip("()") for text in completer.attr_matches(f"module.{publisher[:-3]}")] == [f"module.{publisher}"]


def test_everything_public_has_a_docstring_of_its_own_words() -> None:
    texts = {name: inspect.getdoc(value) or "" for name, value in described()}
    assert "engine.SyncPublisher.unsubscribe_links" in texts
    assert not [name for name, text in texts.items() if not text or text.startswith("As ")]


@pytest.mark.parametrize("client", CLIENTS)
def test_methods_of_clients_describe_their_arguments_results_and_errors(client: type) -> None:
    for name, method in public_methods(client):
        if isinstance(method, property):
            continue
        text, signature = inspect.getdoc(method) or "", inspect.signature(method)
        arguments = [one for one in signature.parameters if one != "self"]
        assert not [one for one in arguments if f"{one}: " not in text], name
        assert ("Returns:" in text) == (signature.return_annotation != "None"), name
        assert "Raises:" in text or name in ("settle", "close"), name


@pytest.mark.parametrize(("blocking", "awaited"), [(SyncClient, Client), (SyncPublisher, Publisher), (TaskPublisher, AsyncPublisher)])
def test_blocking_methods_take_and_tell_the_same_as_those_that_are_awaited(blocking: type, awaited: type) -> None:
    def told(method: Callable[..., Any]) -> tuple[Any, Any]:
        if isinstance(method, property):
            return inspect.getdoc(method), None
        signature = inspect.signature(method)
        returned = signature.return_annotation
        return inspect.getdoc(method), signature.replace(return_annotation=returned.removeprefix("Sync"))

    assert inspect.signature(blocking) == inspect.signature(awaited)
    ours, theirs = dict(public_methods(blocking)), dict(public_methods(awaited))
    assert theirs.keys() - ours.keys() <= {"close"}
    assert ours.keys() - theirs.keys() <= {"receive"}
    assert {name: told(ours[name]) for name in ours.keys() & theirs.keys()} == {
        name: told(theirs[name]) for name in ours.keys() & theirs.keys()
    }


def test_a_type_checker_finds_names_that_a_module_does_not_have(tmp_path: Path) -> None:
    lines = []
    for number, module in enumerate(MODULES):
        names = sorted(importlib.import_module(module).__all__)
        lines += [f"from {module} import {', '.join(f'{name} as {name}{number}' for name in names)}", f"from {module} import Publihser"]
    assert findings(tmp_path, "\n".join(lines)) == [(2 * number + 2, "attr-defined") for number in range(len(MODULES))]


def test_the_alias_has_the_same_objects_as_the_engine() -> None:
    for alias, module in ((ray_notifications, engine), (ray_notifications.ray, engine.ray)):
        assert alias.__all__ == module.__all__
        names = [name for name in alias.__all__ if not any(word in name for word in ("Row", "Sink", "Progress"))]  # those need more of Ray
        assert not [name for name in names if getattr(alias, name) is not getattr(module, name)]


USES_BOTH = """
import engine, pickle, sys
import ray_notifications, ray_notifications.ray
from ray_notifications import EngineError, SyncPublisher

for module in (ray_notifications, ray_notifications.ray):
    for name in module.__all__:
        if not any(word in name for word in ("Row", "Sink", "Progress")):
            getattr(module, name)
assert ray_notifications.ray.ItemError is ray_notifications.ItemError
assert pickle.loads(pickle.dumps(SyncPublisher)) is SyncPublisher
try:
    SyncPublisher("http://127.0.0.1:9", "a token", retry_for_s=0).publish(user="ann", type="greeting")
except EngineError as error:
    print(type(error).__name__)
from engine.models import MINE
print(MINE, sorted(name for name in sys.modules if name.startswith("engine")))
"""


def test_the_alias_works_where_an_application_has_a_package_engine(tmp_path: Path) -> None:
    models = tmp_path / "engine" / "models.py"
    models.parent.mkdir()
    models.with_name("__init__.py").write_text("")
    models.write_text("from ray_notifications import Client\n\nMINE = 17\n")
    path = os.pathsep.join([os.fspath(tmp_path), os.fspath(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", USES_BOTH], cwd=tmp_path, env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["Unreachable", "17 ['engine', 'engine.models']"], done.stderr


def test_the_wheel_holds_both_packages_and_their_types(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    installed = {path.relative_to(tmp_path / "installed").as_posix() for path in (tmp_path / "installed").rglob("*")}
    assert {"engine/py.typed", "engine/http/static/client.js", "ray_notifications/py.typed", "ray_notifications/ray.py"} <= installed
    program = (
        "import ray_notifications.ray as tasks; from ray_notifications import *; print(tasks.__file__, tasks.Publisher, SyncPublisher)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.fspath(tmp_path / "installed")},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(os.fspath(tmp_path / "installed" / "ray_notifications"))
