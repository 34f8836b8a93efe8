"""Requests to an engine parts of which may be dying."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from tests.support.chaos.victim import Victim
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until_done

LATE_S = 110
SMALL = {"online": 12, "away": 2, "rate": 150}
"""Traffic of tests; the benchmark has more of everything."""


def victim_of(engine: RunningEngine) -> Victim:
    assert engine.process is not None
    return Victim(engine.process.pid, engine.url, engine.token, engine.data_dir)


async def status_when(engine: RunningEngine, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    return await asyncio.to_thread(engine.status_when, holds, LATE_S)


async def ask(engine: RunningEngine, method: str, path: str, body: Any = None, *, scope: str = "publish") -> Any:
    """Until the engine answers well: parts of it may be dying."""

    async def once() -> Any:
        async with httpx.AsyncClient(base_url=engine.url, timeout=10, trust_env=False, verify=False) as client:
            headers = {"Authorization": f"Bearer {engine.token('app', scope)}"}
            answer = await client.request(method, path, json=body, headers=headers)
            answer.raise_for_status()
            return answer.json()

    return await until_done(once, httpx.HTTPError, within_s=LATE_S, look_s=0.1)


def assert_whole(books: dict[str, Any]) -> None:
    """Nothing is lost or disordered, and service came back."""
    print(books)
    assert books["accepted"] > 0
    assert (books["lost"], books["out_of_order"], books["wrong"]) == (0, 0, [])
    assert books["back_s"] < LATE_S
