"""How deeply Python nests calls in an edge. Hypothesis may have left a higher limit, under which deep JSON can be read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def recursion_limit_of_an_edge() -> Iterator[None]:
    """While the block runs, the limit is Python's own."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
