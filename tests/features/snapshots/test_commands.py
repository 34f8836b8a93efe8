"""`engine snapshot` and `engine restore` where they cannot do anything; tests/chaos/test_restored_snapshot.py has a whole engine."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from engine import __version__
from engine.__main__ import app
from engine.cli.state_file import EngineState, write_state
from engine.errors import EngineError


def refusal(*arguments: str, data_dir: Path) -> str:
    error = CliRunner().invoke(app, [*arguments, "--data-dir", str(data_dir)]).exception
    assert isinstance(error, EngineError)
    return str(error)


def test_without_an_engine_a_snapshot_is_a_copy_of_the_files(tmp_path: Path) -> None:
    assert f"its data are the files in {tmp_path}/redis: copy those" in refusal("snapshot", data_dir=tmp_path)


def test_there_has_to_be_a_snapshot_to_restore(tmp_path: Path) -> None:
    assert f"there is no snapshot in {tmp_path}/snapshots" in refusal("restore", "latest", data_dir=tmp_path)
    assert "/none is no snapshot: manifest.json: No such file" in refusal("restore", str(tmp_path / "none"), data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["snapshot"], ["restore", "latest"]])
def test_a_redis_that_is_not_the_engines_own_is_left_to_its_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("ENGINE_REDIS_URL", "redis://h")
    assert "redis_url: snapshots are of the engine's own Redis" in refusal(*words, data_dir=tmp_path)


def test_an_engine_that_was_started_with_another_redis_takes_no_snapshot(tmp_path: Path) -> None:
    own = psutil.Process()
    state = EngineState(
        url="http://127.0.0.1:1", pid=os.getpid(), pid_started_s=own.create_time(), version=__version__, ray_address="", ray_logs="",
        namespace="engine", redis_url="redis://h:6379/0",
    )  # fmt: skip
    write_state(tmp_path, state)
    assert "redis_url: snapshots are of the engine's own Redis" in refusal("snapshot", data_dir=tmp_path)
