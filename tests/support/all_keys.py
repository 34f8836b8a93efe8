"""Every key there can be."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from engine.store import keys
from engine.store.tenant_usage import FIGURES
from tests.support.feature_folders import FOLDERS

_NUMBERS = (1, 11)


def keys_by_kind(texts: Sequence[str]) -> dict[str, list[str]]:
    """Name of a constant or a function -> its keys, of these texts of users and of two slots, shards and partitions."""
    modules = [f"engine.features.{name}.keys" for name in FOLDERS]
    members = [member for module in modules if find_spec(module) for member in vars(import_module(module)).items()]
    members += vars(keys).items()
    found = {name: [value] for name, value in members if name.endswith(("_KEY", "_PREFIX"))}
    del found["ABSENT_KEY"], found["PAGES_PREFIX"]  # the latter is the beginning of others
    for name, key_of in members:
        if name.endswith(("_key", "_prefix")):
            parameters = inspect.signature(key_of).parameters.values()
            found[name] = [key_of(*of) for of in zip(*(_arguments(parameter, texts) for parameter in parameters), strict=False)]
            if all(parameter.default is not inspect.Parameter.empty for parameter in parameters):
                found[name].append(key_of())
    return found


def _arguments(parameter: inspect.Parameter, texts: Sequence[str]) -> Sequence[str | int]:
    if parameter.annotation == "int":
        return _NUMBERS
    return FIGURES if parameter.name == "figure" else texts


def all_keys() -> list[str]:
    """Every key there can be of two users, tenants, slots, shards and partitions."""
    return [key for found in keys_by_kind(["t", "t:u"]).values() for key in found]
