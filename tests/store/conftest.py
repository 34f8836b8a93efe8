"""What the tests of storage share."""

from __future__ import annotations

from tests.support.storage_fixtures import now, server

__all__ = ("now", "server")
