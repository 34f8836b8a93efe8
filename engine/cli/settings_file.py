"""The `engine.toml` that `engine init` writes, and the lines that keep it out of git."""

from __future__ import annotations

import contextlib
import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.cli.settings import SECTIONS, TOML_PATH, allowed, unit
from engine.config import FIELDS, Config
from engine.errors import ConfigError

_WIDTH: Final = 110
_ANY_TEXT: Final = "a text"
_HEAD: Final = """\
# Settings of the notification engine. Each stands behind a `#` with its default; remove the `#` and change the value.
# An option of `engine up` and a variable ENGINE_<NAME> override this file. `engine config` shows the values in force, and
# `engine doctor` checks them. This file may hold secrets: keep it readable by you only.
"""


def settings_text() -> str:
    """The file: all published settings, with meaning, unit, allowed values and default, none of them in force."""
    return "\n".join([_HEAD, *(line for title in SECTIONS for line in _section(title))])


def _section(title: str) -> Iterator[str]:
    section = SECTIONS[title]
    yield f"\n[{title}]  # {section.about}"
    for name, meaning in section.settings.items():
        yield ""
        yield from _comment(meaning)
        if (takes := allowed(name)) != _ANY_TEXT:
            yield from _comment(f"allowed: {takes}{f', in {unit(name)}' if unit(name) else ''}")
        yield f"# {name} = {_toml(FIELDS[name].default)}"
    yield ""


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _toml(value: Any) -> str:
    """A default as TOML, of which JSON's texts, numbers, booleans and arrays are a part."""
    return msgspec.json.encode(value).decode()


def write_settings(path: Path) -> None:
    """Make the file, with mode 0600.

    Raises:
        ConfigError: it is there already, or cannot be made.
    """
    text = settings_text()
    try:
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already, and is not replaced; `engine config` shows all settings") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def ignore_in_git(folder: Path) -> list[str]:
    """Add what git would take of an engine's files to the folder's `.gitignore`; returns the lines added. None outside of a repository.

    Raises ConfigError: the file takes no lines.
    """
    missing = [f"/{name}" for name in (TOML_PATH, f"{Config().data_dir}/") if _is_taken(folder, name)]
    if missing:
        path = folder / ".gitignore"
        try:
            text = path.read_bytes() if path.exists() else b""
            with path.open("ab") as file:
                file.write(b"\n" * (bool(text) and not text.endswith(b"\n")) + "".join(f"{line}\n" for line in missing).encode())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; add {' and '.join(missing)} to it, or git takes secrets") from error
    return missing


def _is_taken(folder: Path, name: str) -> bool:
    """Whether the folder is in a git repository that does not ignore this name. False where git is not installed."""
    with contextlib.suppress(OSError):
        return subprocess.run(["git", "check-ignore", "-q", name], cwd=folder, stderr=subprocess.DEVNULL, check=False).returncode == 1
    return False
