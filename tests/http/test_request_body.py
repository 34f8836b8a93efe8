"""A body is read whole, within its limit of size."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from engine.config import Config
from engine.errors import Overloaded
from engine.http import request_body
from engine.http.problems import Problem
from engine.http.request_body import BodyReader
from tests.support.waiting import until

CONFIG = Config(jwt_secret="s" * 32, body_bytes_max=10)


async def read(*parts: bytes, length: bytes = b"", end: dict[str, Any]) -> bytes:
    """Read the parts, and after them `end`."""
    messages = [*({"type": "http.request", "body": part, "more_body": True} for part in parts), end]

    async def receive() -> Any:
        return messages.pop(0)

    return await BodyReader(CONFIG).read({"headers": [(b"content-length", length)] if length else []}, receive)


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


async def test_the_oldest_incomplete_body_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "HELD_BYTES_MAX", 10)
    reader, coming = BodyReader(CONFIG), [asyncio.Queue[Any]() for _ in range(3)]
    first, second, third = [asyncio.ensure_future(reader.read({"headers": []}, queue.get)) for queue in coming]
    for queue, size in zip(coming, (4, 6, 1), strict=True):
        await queue.put({"type": "http.request", "body": b"x" * size, "more_body": True})
        await until(queue.empty)
    with pytest.raises(Overloaded):
        await first
    for queue in coming[1:]:
        await queue.put(LAST)
    assert (await second, await third) == (b"xxxxxxend", b"xend")
    assert reader._held == 0


async def test_a_client_that_leaves_is_noticed() -> None:
    with pytest.raises(ClientDisconnect):
        await read(b"a", end={"type": "http.disconnect"})
