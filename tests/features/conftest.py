"""What the tests of features share."""

from __future__ import annotations

import pytest

from tests.support.storage_fixtures import begin_now, server

__all__ = ("server",)


@pytest.fixture(autouse=True)
def now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of storage begin now; the clock of others is their own."""
    if request.path.name == "test_store.py":
        begin_now(request, monkeypatch)
