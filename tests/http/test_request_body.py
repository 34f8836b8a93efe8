"""A body is read whole, within its limit of size."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from engine.config import Config
from engine.http.problems import Problem
from engine.http.request_body import read_body

CONFIG = Config(jwt_secret="s" * 32, body_bytes_max=10)


async def read(*parts: bytes, length: bytes = b"", end: dict[str, Any]) -> bytes:
    """Read the parts, and after them `end`."""
    messages = [*({"type": "http.request", "body": part, "more_body": True} for part in parts), end]

    async def receive() -> Any:
        return messages.pop(0)

    return await read_body({"headers": [(b"content-length", length)] if length else []}, receive, CONFIG)


LAST = {"type": "http.request", "body": b"end"}


async def test_parts_are_joined() -> None:
    assert await read(b"a", b"", b"b", end=LAST) == b"abend"
    assert await read(end={"type": "http.request"}) == b""


async def test_a_body_of_the_largest_size_is_read() -> None:
    assert len(await read(b"1234567", length=b"10", end=LAST)) == 10


@pytest.mark.parametrize(("parts", "length"), [((b"12345678",), b""), ((), b"11"), ((b"x" * 11,), b"1")])
async def test_a_larger_one_is_refused_whatever_its_length_is_said_to_be(parts: tuple[bytes, ...], length: bytes) -> None:
    with pytest.raises(Problem) as refused:
        await read(*parts, length=length, end=LAST)
    assert refused.value.status == 413


async def test_a_client_that_leaves_is_noticed() -> None:
    with pytest.raises(ClientDisconnect):
        await read(b"a", end={"type": "http.disconnect"})
