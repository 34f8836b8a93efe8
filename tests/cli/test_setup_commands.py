"""`engine init` and `engine doctor`, as an operator runs them."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.cli.app import app
from engine.cli.doctor import examine
from engine.errors import ConfigError
from tests.support.another_user import as_nobody


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("ENGINE_PORT", "0")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def test_a_new_directory_gets_its_settings_and_passes(folder: Path) -> None:
    assert "wrote engine.toml" in CliRunner().invoke(app, ["init"]).stdout
    found = CliRunner().invoke(app, ["doctor"])
    assert (found.exit_code, "ready for `engine up`" in found.stdout) == (0, True)
    assert all(len(line) <= 80 for line in found.stdout.splitlines())
    assert {path.name for path in folder.iterdir()} == {"engine.toml"}, "nothing else is made"
    assert isinstance(CliRunner().invoke(app, ["init"]).exception, ConfigError)


def test_a_port_in_use_ends_the_examination_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("ENGINE_PORT", str(server.getsockname()[1]))
        found = CliRunner().invoke(app, ["doctor"])
    assert (found.exit_code, "1 to repair before `engine up`" in found.stdout) == (1, True)


def test_settings_that_cannot_be_read_leave_the_checks_that_need_none(folder: Path) -> None:
    (folder / "engine.toml").write_text("[edge]\nprot = 1\n")
    answer = CliRunner().invoke(app, ["doctor", "--json"])
    findings = json.loads(answer.stdout)["findings"]
    assert answer.exit_code == 1
    assert (findings[0]["check"], findings[0]["level"], "did you mean port" in findings[0]["found"]) == ("settings", "failed", True)
    assert {finding["check"] for finding in findings} == {"settings", "Python", "packages", "clock"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_closed_data_directory_ends_no_other_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as data_dir:  # mode 0700
        monkeypatch.setenv("ENGINE_DATA_DIR", data_dir)
        (settings,) = [finding for finding in as_nobody(examine) if finding.level == "failed"]  # the working directory is closed too
        monkeypatch.chdir("/")
        found = {finding.check: finding.level for finding in as_nobody(examine)}
    assert (settings.check, settings.found[:13]) == ("settings", "engine.toml: ")
    assert (found["files"], found["ports"], found["open files"] == "failed") == ("failed", "failed", False)


def test_a_variable_that_is_no_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_OF_OTHERS", "1")
    findings = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)["findings"]
    assert (findings[0]["level"], "ENGINE_OF_OTHERS" in findings[0]["found"]) == ("warning", True)
