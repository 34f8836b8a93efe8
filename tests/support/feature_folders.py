"""The features by name, and which of them need which."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from engine import features

FOLDERS = {path.parent.name: path.parent for path in Path(features.__file__).parent.glob("*/__init__.py")}


@functools.cache
def used_by(name: str) -> set[str]:
    texts = (path.read_text("utf-8") for path in FOLDERS[name].rglob("*.py"))
    return {found for text in texts for found in re.findall(r"^\s*from engine\.features\.(\w+)", text, re.MULTILINE)} - {name}


def with_dependants(name: str) -> set[str]:
    """It, and all that would miss it."""
    gone = {name}
    while more := {other for other in FOLDERS if used_by(other) & gone} - gone:
        gone |= more
    return gone
