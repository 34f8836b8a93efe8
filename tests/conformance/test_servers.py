"""The engine keeps the promises of a server. The same as `python -m tests.conformance URL`, with one test for each promise."""

from __future__ import annotations

import asyncio

import pytest

from tests.conformance.server_promises import PROMISES, ServerPromise, broken_promises
from tests.support.running_engine import RunningEngine


@pytest.fixture(scope="module")
def broken(engine: RunningEngine) -> dict[str, BaseException]:
    return asyncio.run(broken_promises(engine.url, (engine.data_dir / "jwt-secret").read_text().strip()))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_the_engine_keeps_its_promise(broken: dict[str, BaseException], promise: ServerPromise) -> None:
    if error := broken.get(promise.__name__):
        raise error
