"""The script runs of a test, to be applied again: a command that waited in a dead connection may come after its successors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.store.lua import Script

Calls = list[tuple[Sequence[str], Sequence[Any]]]
"""(keys, arguments) of each run."""


def recorded_runs(monkeypatch: pytest.MonkeyPatch) -> list[Calls]:
    """What `Script.run_many` is given from now on, one entry a call."""
    copies: list[Calls] = []
    run_many = Script.run_many

    async def recording(script: Script, client: Redis, calls: Any, *arguments: Any) -> Any:
        copies.append(list(calls))
        return await run_many(script, client, calls, *arguments)

    monkeypatch.setattr(Script, "run_many", recording)
    return copies
