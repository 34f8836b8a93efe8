"""The wheel of the engine, built from a copy of its sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Build it in the folder; setuptools leaves nothing in the repository."""
    source = folder / "source"
    for name in ("engine", "ray_notifications"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-c", "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])", folder]
    subprocess.run(build, cwd=source, capture_output=True, timeout=200, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel
