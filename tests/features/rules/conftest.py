"""A rules file of the test's module."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def rules(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(request.module.RULES)
    return path
