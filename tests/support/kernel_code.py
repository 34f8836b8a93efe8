"""The engine's code without any feature: a copy whose lists of features are empty and whose folders of features are gone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import engine

_NAMES = "engine.features"


def kernel_code(folder: Path) -> dict[str, str]:
    """Copy the code to `folder`. Returns the environment of processes that run it."""
    copy = folder / "engine"
    shutil.copytree(Path(engine.__file__).resolve().parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for feature in (copy / "features").iterdir():
        if feature.is_dir():
            shutil.rmtree(feature)
    for path in copy.rglob("*.py"):
        text = path.read_text("utf-8")
        if _NAMES in text and "\nFEATURES: " in text:
            path.write_text(_emptied(text), "utf-8")
    return {"PYTHONPATH": str(folder)}


def _emptied(text: str) -> str:
    """A module that names features only in `FEATURES`, with an empty one."""
    text = re.sub(rf"^from {_NAMES}.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^(FEATURES: .*? = )\(.*?\)\n(?=\n|\"\"\")", r"\1()\n", text, flags=re.MULTILINE | re.DOTALL)
