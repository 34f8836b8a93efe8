"""The OpenAPI description with every feature, without an edge."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from engine.config import Config
from engine.http.description.document import document
from engine.http.endpoint_table import EndpointTable
from engine.routes import FEATURES


def described(config: Config, categories: Sequence[str]) -> dict[str, Any]:
    folders = (on_edge.__module__.rpartition(".")[0] for on_edge in FEATURES)
    parts = [importlib.import_module(f"{folder}.description") for folder in folders if find_spec(f"{folder}.description")]
    return document(config, categories, [EndpointTable((), part.paths(config), part.schemas(config)) for part in parts])
