"""An engine is upgraded under load: every process is another one afterwards, and nobody but clients whose connections move notices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.chaos.breakable_engine import LATE_S, ask, status_when
from tests.support.chaos.traffic import Traffic
from tests.support.running_engine import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.engine]


def processes(status: dict[str, Any]) -> dict[str, int]:
    """When the process of each actor started."""
    rows = {f"{row['role']}-{row['index']}": row for kind in ("shards", "schedulers", "edges") for row in status[kind]}
    return {name: row["started_ms"] for name, row in {**rows, "controller": status["controller"]}.items()}


async def test_an_upgrade_replaces_every_process_refuses_no_publish_and_loses_nothing(victim: RunningEngine) -> None:
    before = await status_when(victim, lambda status: status["ready"] and status["scaling"]["settled"])
    async with Traffic(victim.url, victim.token, "upgrade", online=12, away=2, rate=300) as traffic:
        begun = await ask(victim, "POST", "/v1/upgrade", scope="operator")
        assert set(begun["upgrading"]) == processes(before).keys()

        def upgraded(status: dict[str, Any]) -> bool:
            scaling = status["scaling"]
            return bool(status["ready"] and scaling["settled"] and processes(status)["controller"] != processes(before)["controller"])

        after = await asyncio.to_thread(victim.status_when, upgraded, 2 * LATE_S)
        books = await traffic.finish()
    print(books)
    assert processes(after).keys() == processes(before).keys()
    assert not set(processes(after).values()) & set(processes(before).values())
    assert (books["lost"], books["out_of_order"], books["wrong"], books["refused"]) == (0, 0, [], 0)
    assert books["accepted"] > 0
