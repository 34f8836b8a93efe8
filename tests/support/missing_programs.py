"""Tests that cannot run for want of a program: failures in CI; elsewhere skipped, and listed at the end of the run."""

from __future__ import annotations

import os

import pytest

CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
MISSING: list[str] = []


def missing(what: str) -> None:
    """End the test for want of a program: a failure in CI, elsewhere a skip that the end of the run repeats."""
    if CI:
        pytest.fail(what)
    MISSING.append(what)
    pytest.skip(what)
