"""Listening inside Ray, at the session's engine."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from engine.client.http_connection import Response
from engine.errors import Forbidden
from engine.ray import AsyncPublisher, ReceivedNotification, listen, listening
from tests.support.running_engine import RunningEngine
from tests.support.taking import take

pytestmark = pytest.mark.slow

TENANT = "jobs"


async def first(user: str, count: int, **options: Any) -> list[ReceivedNotification]:
    """So many; the last of them is not acknowledged."""
    return await take(listen(user, tenant=TENANT, **options), count)


async def test_what_waits_comes_first_and_then_what_is_published_meanwhile(job: Any, engine: RunningEngine) -> None:
    async with AsyncPublisher(tenant=TENANT) as publisher:
        await publisher.publish_many(
            [{"user": "lis-ann", "type": "step.done", "data": number, "image": "/step.png"} for number in range(2)]
        )
        listener = asyncio.ensure_future(first("lis-ann", 3))
        await asyncio.sleep(0)
        await publisher.publish(user="lis-ann", type="step.done", data=2, image="/step.png")
        found = [(one.type, one.data, one.seq, one.image) for one in await listener]
        assert found == [("step.done", number, number + 1, "/step.png") for number in range(3)]


async def test_what_was_not_handled_comes_again_and_what_was_does_not(
    job: Any, engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_ACK_S", 0.0)
    async with AsyncPublisher(tenant=TENANT) as publisher:
        await publisher.publish_many([{"user": "lis-bob", "type": "step.done", "data": number} for number in range(4)])
    assert [one.data for one in await first("lis-bob", 3)] == [0, 1, 2]
    assert [one.data for one in await first("lis-bob", 2)] == [2, 3]


async def test_in_between_what_was_handled_is_acknowledged_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once storage has lost data a number may be another message's."""
    sent: list[bytes] = []

    class Calls:
        def __init__(self, *_arguments: Any, **_options: Any) -> None: ...

        async def request(self, method: str, _path: str, _headers: Any, body: bytes, **_options: Any) -> Response:
            if method == "POST":
                sent.append(body)
            rows = [{"id": id, "seq": seq, "type": "a", "ts": 1} for seq, id in enumerate(("a", 'b"', "c"), 1)]
            return Response(200, {}, msgspec.json.encode({"messages": rows, "last_event_id": "e-3"}))

    monkeypatch.setattr(listening, "_ACK_S", -1.0)
    monkeypatch.setattr(listening, "EdgeCalls", Calls)
    await take(listen("lis-dan"), 3)
    assert sent == [b'{"ids":["a"]}', b'{"ids":["b\\""]}']


async def test_a_cursor_acknowledges_what_is_up_to_it(job: Any, engine: RunningEngine) -> None:
    async with AsyncPublisher(tenant=TENANT) as publisher:
        await publisher.publish_many([{"user": "lis-cat", "type": "step.done", "data": number} for number in range(3)])
    found = await first("lis-cat", 3)
    assert [one.data for one in await first("lis-cat", 1, last_event_id=found[1].event_id)] == [2]


async def test_a_listener_is_refused_where_its_tenant_is_only_allowed_to_publish(job: Any, engine: RunningEngine) -> None:
    with pytest.raises(Forbidden, match="ray_listen"):
        async with aclosing(listen("u", tenant="quiet")) as notifications:
            await anext(notifications)
