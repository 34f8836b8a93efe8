"""Frames of one read share a call to their shard, and nobody can tell: each has its own checks, result, refusal and figures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from engine.core.model.routing import spread
from engine.core.wire import records as wire
from engine.transports.publisher_socket import PublisherSocket
from tests.support.edge_world import EdgeWorld, client_frame, edge_world, frame_of

ITEM = {"user": "u1", "type": "order.paid"}


async def results(world: EdgeWorld, socket: ClientConnection, frames: list[Any]) -> list[dict[str, Any]]:
    """Let the edge read the items of these frames at once; their results, in the order of the frames."""
    texts = [json.dumps({"type": "publish", "ref": str(place), "items": items}) for place, items in enumerate(frames)]
    (connection,) = world.gateway.connections.values()
    assert isinstance(connection, PublisherSocket)
    connection.data_received(b"".join(client_frame(text.encode()) for text in texts))
    told = [await frame_of(socket, "publish_result") for _ in frames]
    return sorted(told, key=lambda result: int(result["ref"]))


def begun(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each call had that is made from now on."""
    calls: list[int] = []
    begin = type(world.gateway.pending_calls).begin

    def counted(self: Any, count: int, *arguments: Any) -> Any:
        calls.append(count)
        return begin(self, count, *arguments)

    monkeypatch.setattr(type(world.gateway.pending_calls), "begin", counted)
    return calls


async def test_messages_of_one_priority_for_one_shard_share_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge_world(shards=2) as world, world.connect_publisher() as socket:
        world.gateway.set_slots(spread(2, version=2))
        calls = begun(world, monkeypatch)
        users = {world.gateway.slots.owner(f"default:u{n}"): f"u{n}" for n in range(100)}
        frames = [{**ITEM, "user": users[n % 2]} for n in range(10)] + [{**ITEM, "user": users[0], "priority": "high"}] * 3
        frames += [[ITEM, ITEM], {**ITEM, "delay": 60}, {"type": "t", "users": ["a", "b"]}, {"type": "t", "broadcast": True}]
        told = await results(world, socket, frames)
        assert {result["status"] for result in told} == {202}
        assert [result["results"][0].get("user") for result in told[:13]] == [users[n % 2] for n in range(10)] + [users[0]] * 3
        assert sorted(calls) == [0, 1, 2, 2, 3, 5, 5]


async def test_each_frame_has_its_own_outcome_and_counts_as_a_request() -> None:
    async with edge_world() as world, world.connect_publisher() as socket:
        await world.publish("u1", id="known", type="other")
        frames = [{**ITEM, "id": "a"}, {**ITEM, "id": "known"}, {**ITEM, "id": "a"}, {**ITEM, "type": "no type"}, {**ITEM, "id": "b"}]
        before = sum(count for _, count in world.gateway.metrics.latencies()["publish_latency"])
        told = await results(world, socket, frames)
        assert [result["status"] for result in told] == [202, 409, 202, 422, 202]
        assert [result["results"][0]["status"] for result in told if result["status"] == 202] == ["accepted", "duplicate", "accepted"]
        assert told[1]["problem"]["errors"] == [{"index": 0, "user": "u1", "detail": "the same id was used with a different payload"}]
        assert sum(count for _, count in world.gateway.metrics.latencies()["publish_latency"]) == before + 4
        world.shard.status = wire.OVERLOADED
        refused = await results(world, socket, [ITEM, ITEM])
        assert [(result["status"], result["retry_after"] >= 1) for result in refused] == [(429, True)] * 2


async def test_a_call_that_is_not_taken_refuses_each_of_its_frames() -> None:
    async with edge_world(publish_inflight_max=6) as world, world.connect_publisher() as socket:
        told = await results(world, socket, [ITEM] * 7)
        assert [result["status"] for result in told] == [429] * 7
        assert {result["status"] for result in await results(world, socket, [ITEM] * 6)} == {202}
