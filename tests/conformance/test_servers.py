"""The engine keeps the promises of a server. The same as `python -m tests.conformance URL`, with one test for each promise."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.conformance.connections import Server
from tests.conformance.server_promises import PROMISES, ServerPromise
from tests.support.running_engine import RunningEngine


async def broken_promises(engine: RunningEngine) -> dict[str, BaseException]:
    """What each promise fails with, by its name; without those that are kept. All at once: each has users of its own."""
    secret = (engine.data_dir / "jwt-secret").read_text().strip()
    servers = [Server(engine.url, secret) for _ in PROMISES]
    calls = (promise(server, random.Random(promise.__name__)) for promise, server in zip(PROMISES, servers, strict=True))
    found = await asyncio.gather(*calls, return_exceptions=True)
    for server in servers:
        await server.http.aclose()
    return {promise.__name__: error for promise, error in zip(PROMISES, found, strict=True) if error is not None}


@pytest.fixture(scope="module")
def broken(engine: RunningEngine) -> dict[str, BaseException]:
    return asyncio.run(broken_promises(engine))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_the_engine_keeps_its_promise(broken: dict[str, BaseException], promise: ServerPromise) -> None:
    if error := broken.get(promise.__name__):
        raise error
