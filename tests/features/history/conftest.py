"""A database of each kind, empty when the test begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.features.history.history_database import HistoryDatabase
from tests.support.history_databases import emptied


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return "sqlite:///history.db" if request.param == "sqlite" else emptied(request.getfixturevalue("postgresql_server"))


@pytest.fixture
def database(url: str, tmp_path: Path) -> Iterator[HistoryDatabase]:
    database = HistoryDatabase(url, str(tmp_path))
    database.migrate()
    yield database
    database.close()
