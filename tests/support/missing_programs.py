"""Tests that cannot run for want of a program: failures in CI; elsewhere skipped, and listed at the end of the run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NoReturn

import pytest

CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
PREFIX = "not tested: "


def missing(what: str) -> NoReturn:
    """End the test, or the import of its module, for want of a program: a failure in CI, elsewhere a skip that the run ends with."""
    if CI:
        pytest.fail(what)
    pytest.skip(PREFIX + what, allow_module_level=True)


def untried(what: str) -> NoReturn:
    """End the test for want of a permission, or of programs that few machines have: a skip that the end of the run repeats, in CI too."""
    pytest.skip(PREFIX + what)


def missing_of(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """What was missing, each once, from the reports of skipped tests. Reports come from every worker; a list of this process would not."""
    reasons = [str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)]
    return list(dict.fromkeys(reason.partition(PREFIX)[2] for reason in reasons if PREFIX in reason))
