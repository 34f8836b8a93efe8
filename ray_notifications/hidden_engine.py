"""Imports the package `engine` of ray-notification-engine where an application's package of the same name hides it.

Its modules are then `ray_notifications.engine...`, made from the same files: what they import from `engine` is renamed as they are
compiled. No compiled file is kept of them, since those beside the sources belong to the other name. Objects of both names are not
the same; a process has those of one name only, and Ray unpickles either, since `ray_notifications` imports this module.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

_NAME: Final = "ray_notifications.engine"
_FOLDER: Final = Path(__file__).parents[1] / "engine"
_MODULE: Final = re.compile(r"engine(\.[a-z_]+)*")


def _renamed(name: str) -> str:
    return f"ray_notifications.{name}" if _MODULE.fullmatch(name) else name


class _Renaming(ast.NodeTransformer):
    """Renames what is imported from `engine`, by statements and by `import_module`."""

    def visit_Import(self, node: ast.Import) -> ast.Import:
        for alias in node.names:
            if alias.name == "engine" and alias.asname is None:
                alias.asname = "engine"
            alias.name = _renamed(alias.name)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        node.module = _renamed(node.module or "")
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and node.value.startswith("engine."):
            node.value = _renamed(node.value)
        return node


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = _Renaming().visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds the modules under their other name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        place: Any = _FOLDER.joinpath(*fullname.removeprefix(_NAME).split(".")[1:])
        package = place / "__init__.py"
        file = package if package.exists() else place.with_suffix(".py")
        if not file.exists():
            return None
        folders = [os.fspath(place)] if file is package else None
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, os.fspath(file)), submodule_search_locations=folders)


sys.meta_path.insert(0, _Finder())  # the usual one would find the files too, and rename nothing


def package() -> ModuleType:
    """The package `engine` of ray-notification-engine, under whichever name it can be had."""
    import engine

    return engine if "SyncPublisher" in getattr(engine, "__all__", ()) else import_module(_NAME)
