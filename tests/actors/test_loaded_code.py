"""Whether the code of this process is still what is installed."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from engine.actors import loaded_code, ray_actors

NAME = "code_that_is_upgraded"


class Ended(Exception):
    """The process ended."""


class Part:
    """An actor."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a module that was loaded, found through a link."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / f"{NAME}.py").write_text("")
    (tmp_path / "current").symlink_to("1")
    monkeypatch.syspath_prepend(tmp_path / "current")
    monkeypatch.setattr(loaded_code, "_seen", loaded_code._Seen())
    import_module(NAME)
    yield tmp_path
    del sys.modules[NAME]


def test_nothing_has_changed_where_nothing_was_remembered(installed: Path) -> None:
    (installed / "current" / f"{NAME}.py").unlink()
    assert not loaded_code.changed()


def test_code_that_stays_is_the_same(installed: Path) -> None:
    loaded_code.remember()
    assert not loaded_code.changed()


def test_another_environment_that_links_the_same_file_changes_nothing(installed: Path) -> None:
    loaded_code.remember()
    (installed / "elsewhere.py").hardlink_to(installed / "1" / f"{NAME}.py")
    assert not loaded_code.changed()


def test_a_file_that_is_written_anew_is_noticed(installed: Path) -> None:
    loaded_code.remember()
    other = installed / "other"
    other.write_text("")
    other.replace(installed / "1" / f"{NAME}.py")
    assert loaded_code.changed()


def test_a_version_that_was_installed_while_the_rest_was_being_loaded_is_noticed(installed: Path) -> None:
    loaded_code.remember()
    (installed / "next").symlink_to("2")
    (installed / "next").replace(installed / "current")
    loaded_code.remember()
    assert loaded_code.changed()


def test_a_link_that_leads_to_another_version_is_noticed(installed: Path) -> None:
    loaded_code.remember()
    (installed / "next").symlink_to("2")
    (installed / "next").replace(installed / "current")
    assert loaded_code.changed()


def test_an_actor_may_start_while_other_modules_are_being_remembered(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_code.remember()
    look = loaded_code._look

    def look_while_another_is_loaded(file: str) -> int:
        lines, states = loaded_code._seen.files
        loaded_code._seen.files = f"{lines}{file}.loaded-now\n", states + array("q", [0])
        return look(file)

    monkeypatch.setattr(loaded_code, "_look", look_while_another_is_loaded)
    assert not loaded_code.changed()


def test_a_fork_trusts_a_look_of_the_second_before(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_code.remember()
    (installed / "1" / f"{NAME}.py").unlink()
    loaded_code.forked()
    assert not loaded_code.changed()
    monkeypatch.setattr(loaded_code._seen, "looked_s", loaded_code._seen.looked_s - 1)
    assert loaded_code.changed()


def test_code_that_was_removed_is_noticed(installed: Path) -> None:
    loaded_code.remember()
    (installed / "1" / f"{NAME}.py").unlink()
    assert loaded_code.changed()


def test_an_actor_does_not_start_with_code_that_was_replaced(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_code: int) -> None:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    in_ray = ray_actors.ray_side("Part", (), lambda: Part)
    loaded_code.remember()
    in_ray()
    (installed / "1" / f"{NAME}.py").unlink()
    with pytest.raises(Ended):
        in_ray()
