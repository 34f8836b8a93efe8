"""`ast.parse` of Python 3.11 before 3.11.8, so that a garbage collection in it cannot fail it.

There the depth of a tree is counted in a place that all calls share (https://github.com/python/cpython/issues/106905). A collection in the
middle of one call runs finalizers; one that logs a traceback, or lets another thread do so, parses too: the call that was interrupted then
fails with `SystemError: AST constructor recursion depth mismatch`. Hypothesis parses while tests run, pytest while it imports.
"""

from __future__ import annotations

import ast
import gc
import sys
from typing import Any

_parse = ast.parse


def _parse_without_collection(*args: Any, **kwargs: Any) -> ast.AST:
    collects = gc.isenabled()
    gc.disable()
    try:
        return _parse(*args, **kwargs)
    finally:
        if collects:
            gc.enable()


def steady_ast() -> None:
    if sys.version_info < (3, 11, 8):
        ast.parse = _parse_without_collection
