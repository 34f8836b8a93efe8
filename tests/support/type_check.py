"""Mypy's findings about a program of a user, strict, with the cache of the project's own run."""

from __future__ import annotations

from pathlib import Path

from mypy import api

ROOT = Path(__file__).parents[2]


def findings(folder: Path, program: str) -> list[tuple[int, str]]:
    """The line and the error code of each error in a program, which is stored in `folder`."""
    path = folder / "program.py"
    path.write_text(program)
    told, broken, _ = api.run([
        "--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", "--show-error-codes", "--no-pretty", str(path),
    ])  # fmt: skip
    assert not broken, broken
    errors = [line for line in told.splitlines() if ": error: " in line]
    return [(int(error.split(":")[1]), error.rpartition("[")[2].rstrip("]")) for error in errors]
