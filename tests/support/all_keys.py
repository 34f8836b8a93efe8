"""Every key there can be."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec

from engine.store import keys
from tests.support.feature_folders import FOLDERS

_OF: dict[tuple[str, ...], list[tuple[int | str, ...]]] = {
    ("int",): [(1,), (11,)],
    ("str",): [("t",), ("t:u",)],
    ("str", "str"): [("t:u", "1")],
}
"""What keys are of, by the types of the parameters."""


def all_keys() -> list[str]:
    """Every key there can be of two users, tenants, slots, shards and partitions."""
    modules = [f"engine.features.{name}.keys" for name in FOLDERS]
    members = [member for module in modules if find_spec(module) for member in vars(import_module(module)).items()]
    members += vars(keys).items()
    found: list[str] = [value for name, value in members if name.endswith(("_KEY", "_PREFIX"))]
    found.remove(keys.ABSENT_KEY)
    found.remove(keys.PAGES_PREFIX)  # the beginning of others
    for name, key_of in members:
        if name.endswith(("_key", "_prefix")):
            parameters = inspect.signature(key_of).parameters.values()
            found += [key_of(*of) for of in _OF[tuple(parameter.annotation for parameter in parameters)]]
            if all(parameter.default is not inspect.Parameter.empty for parameter in parameters):
                found.append(key_of())
    return found
