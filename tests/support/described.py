"""The OpenAPI description with every feature, without an edge."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from engine import features
from engine.config import Config
from engine.http import description
from engine.http.description.document import document

_MODULES = [
    *(f"{description.__name__}.{found.name}" for found in pkgutil.iter_modules(description.__path__) if found.name.endswith("_paths")),
    *(f"{features.__name__}.{found.name}.description" for found in pkgutil.iter_modules(features.__path__)),
]


def described(config: Config, categories: Sequence[str]) -> dict[str, Any]:
    return document(config, categories, [importlib.import_module(module) for module in _MODULES if find_spec(module)])
