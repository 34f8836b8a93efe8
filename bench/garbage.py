"""Garbage of the generator's own process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect none while the block runs: a look through the books took 0.1 s, after some runs 0.4, in which no client read anything."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
