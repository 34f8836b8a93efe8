"""A garbage collection in the middle of `ast.parse` fails no test."""

from __future__ import annotations

import ast
import gc
import inspect
from pathlib import Path


class ParsesWhenCollected:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("1")


def parsed_at_depth(depth: int, text: str) -> ast.AST:
    return ast.parse(text) if depth == 0 else parsed_at_depth(depth - 1, text)


def test_a_collection_that_parses_does_not_fail_the_parse_it_interrupts() -> None:
    text = Path(inspect.__file__).read_text(encoding="utf-8")
    thresholds = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        for depth in range(10):
            for _ in range(20):
                ParsesWhenCollected()
            assert isinstance(parsed_at_depth(depth, text), ast.Module)
    finally:
        gc.set_threshold(*thresholds)
