"""Vitals of actors that run in the test's process, where Ray knows no node."""

from __future__ import annotations

from typing import Any


def vitals_without_ray(role: str, index: int, started_ms: int) -> dict[str, Any]:
    """For `ProcessContext`: what does not come from Ray."""
    return {"role": role, "index": index, "started_ms": started_ms}
