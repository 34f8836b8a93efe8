"""The file that `engine init` writes, read by what reads it, and git's view of it, by git."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.cli.settings import SECTIONS, load_with_sources
from engine.cli.settings_file import ignore_in_git, settings_text, write_settings
from engine.config import Config
from engine.errors import ConfigError


def test_the_file_changes_no_setting_until_somebody_does(tmp_path: Path) -> None:
    write_settings(tmp_path / "engine.toml")
    loaded = load_with_sources(env={}, toml_path=tmp_path / "engine.toml")
    assert (loaded.config, loaded.sources) == (Config(ray_publish=("default",), ray_listen=("default",)), {})


def test_each_published_setting_stands_in_the_file_with_its_default(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(re.sub(r"(?m)^# (?=\w+ = )", "", settings_text()))
    loaded = load_with_sources(env={}, toml_path=path)
    assert loaded.config == Config()
    assert set(loaded.sources) == {name for section in SECTIONS.values() for name in section.settings}
    assert all(meaning.split()[0] in settings_text() for section in SECTIONS.values() for meaning in section.settings.values())


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    write_settings(tmp_path / "engine.toml")
    assert (tmp_path / "engine.toml").stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text("[edge]\nport = 9000\n")
    with pytest.raises(ConfigError, match="is there already, and is not replaced"):
        write_settings(path)
    assert path.read_text() == "[edge]\nport = 9000\n"


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        write_settings(tmp_path / "absent" / "engine.toml")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_takes_neither_the_file_nor_the_data_directory(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").mkdir()
    with pytest.raises(ConfigError, match=r"gitignore: Is a directory; add /engine.toml and /.engine/ to it, or git takes secrets"):
        ignore_in_git(tmp_path)
    (tmp_path / ".gitignore").rmdir()
    (tmp_path / ".gitignore").write_bytes(b"\xff*.pyc")
    assert ignore_in_git(tmp_path) == ["/engine.toml", "/.engine/"]
    assert (tmp_path / ".gitignore").read_bytes() == b"\xff*.pyc\n/engine.toml\n/.engine/\n"
    assert ignore_in_git(tmp_path) == [], "they are ignored now"
    (tmp_path / "engine.toml").touch()
    (tmp_path / ".engine").mkdir()
    (tmp_path / ".engine" / "jwt-secret").touch()
    status = subprocess.run(["git", "status", "--porcelain", "-uall"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert status.stdout == "?? .gitignore\n"


def test_no_line_is_added_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert ignore_in_git(tmp_path) == []
    assert not (tmp_path / ".gitignore").exists()
