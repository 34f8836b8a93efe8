"""The features by name, and which of them need which."""

from __future__ import annotations

import ast
from pathlib import Path

from engine import features

FOLDERS = {path.parent.name: path.parent for path in Path(features.__file__).parent.glob("*/__init__.py")}


def used_by(name: str) -> set[str]:
    found = set()
    for path in FOLDERS[name].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("engine.features."):
                found.add(node.module.split(".")[2])
    return found - {name}


def with_dependants(name: str) -> set[str]:
    """It, and all that would miss it."""
    gone = {name}
    while more := {other for other in FOLDERS if used_by(other) & gone} - gone:
        gone |= more
    return gone
