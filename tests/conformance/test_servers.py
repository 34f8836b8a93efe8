"""The engine keeps the promises of a server. The same as `python -m tests.conformance URL`, with one test for each promise."""

from __future__ import annotations

import random

import pytest

from tests.conformance.connections import Server
from tests.conformance.server_promises import PROMISES, ServerPromise
from tests.support.running_engine import RunningEngine


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_engine_keeps_its_promise(engine: RunningEngine, promise: ServerPromise) -> None:
    server = Server(engine.url, (engine.data_dir / "jwt-secret").read_text().strip())
    try:
        await promise(server, random.Random(promise.__name__))
    finally:
        await server.http.aclose()
