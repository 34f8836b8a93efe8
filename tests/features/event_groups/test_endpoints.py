"""`/v1/event-groups` of an edge: what is answered to whom, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from engine.core.model.constants import NORMAL
from engine.features.dead_letters.store import StoredLetter
from engine.features.event_groups.store import Gap, GroupEvent, OutcomeEvent, Position, PresenceEvent
from engine.store.keys import EPOCH_FIELD, META_KEY
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.waiting import until

PATH = "/v1/event-groups/g"


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(event_poll_ms=10, event_polls_max=3) as made:
        yield made


@pytest.fixture
async def client(world: EdgeWorld) -> AsyncIterator[httpx.AsyncClient]:
    async with world.http(scopes="events") as client:
        yield client


def came(number: int, user: str = "ann") -> GroupEvent:
    what = PresenceEvent("connect", 17, user, "c1", "phone", "edge-0", "websocket", 0)
    return GroupEvent(what, Position((f"{number}-0", "0-0")))


async def poll(client: httpx.AsyncClient, consumer: str = "a", **query: Any) -> dict[str, Any]:
    answer = await client.get(f"{PATH}/events", params={"consumer": consumer, "wait": 0, **query})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_every_kind_of_event_has_its_members(world: EdgeWorld) -> None:
    letter = StoredLetter("5-0", "ann", 3, "m1", NORMAL, "no", 2, b'{"type":"post.liked","data":1}')
    after = Position(("3-0", "5-0"))
    world.event_groups.events = [GroupEvent(Gap("sessions", "1-0", "2-0"), Position(("2-0", "0-0"))), came(3), GroupEvent(letter, after)]
    async with world.http(scopes="events") as client:
        page = await poll(client)
    assert page["position"] == "3-0.5-0"
    assert page["events"] == [
        {"position": "2-0.0-0", "event": "gap", "source": "sessions", "since": "1-0", "until": "2-0"},
        {
            "position": "3-0.0-0", "event": "connect", "at": 17, "user": "ann", "session": "c1", "device": "phone", "node": "edge-0",
            "transport": "websocket", "code": 0,
        },
        {
            "position": "3-0.5-0", "event": "dead_letter", "letter": "5-0", "at": 5, "user": "ann", "id": "m1", "seq": 3,
            "type": "post.liked", "priority": "normal", "reason": "no", "attempts": 2,
        },
    ]  # fmt: skip


async def test_a_position_acknowledges_and_without_one_the_same_events_come_again(world: EdgeWorld) -> None:
    world.event_groups.events = [came(1), came(2), came(3)]
    async with world.http(scopes="admin") as client:
        for limit in (2, 2):
            assert [event["position"] for event in (await poll(client, limit=limit))["events"]] == ["1-0.0-0", "2-0.0-0"]
        assert [event["position"] for event in (await poll(client, position="2-0.0-0"))["events"]] == ["3-0.0-0"]
        answer = await client.post(f"{PATH}/ack", json={"consumer": "a", "position": "3-0.0-0", "leave": True})
        assert answer.json() == {"position": "3-0.0-0", "held_by": ""}
        assert (await poll(client, "b"))["events"] == []


async def test_a_poll_waits_for_events_and_for_the_group(client: httpx.AsyncClient, world: EdgeWorld) -> None:
    first = asyncio.ensure_future(poll(client, "a", wait=20))
    await until(lambda: ("default", "g") in world.event_groups.known)
    second = asyncio.ensure_future(poll(client, "b", wait=20))
    world.event_groups.events = [came(1)]
    assert [event["user"] for event in (await first)["events"]] == ["ann"]
    assert not second.done()
    await client.post(f"{PATH}/ack", json={"consumer": "a", "leave": True})
    assert [event["user"] for event in (await second)["events"]] == ["ann"], "it was not acknowledged"
    assert (await poll(client, "a"))["held_by"] == "b"


async def test_a_consumer_that_leaves_takes_its_group_by_no_abandoned_poll(client: httpx.AsyncClient, world: EdgeWorld) -> None:
    """Ray tells an edge of no caller that has stopped waiting, and HTTP does not look."""
    abandoned = asyncio.ensure_future(poll(client, "a", wait=20))
    await until(lambda: ("default", "g") in world.event_groups.known)
    await client.post(f"{PATH}/ack", json={"consumer": "a", "leave": True})
    assert (await abandoned)["events"] == []
    assert "held_by" not in await poll(client, "b")


async def test_a_consumer_whose_connection_ends_waits_for_no_group(client: httpx.AsyncClient, world: EdgeWorld) -> None:
    await poll(client, "a")

    async def status() -> int:
        return (await client.get(f"{PATH}/events", params={"consumer": "c", "wait": 0})).status_code

    killed = [asyncio.ensure_future(poll(client, "b", wait=20)) for _ in range(2)]
    await until(status, holds=lambda found: found == 429)
    for one in killed:
        one.cancel()
    await until(status, 10, holds=lambda found: found == 200)
    await client.post(f"{PATH}/ack", json={"consumer": "a", "leave": True})
    assert "held_by" not in await poll(client, "c")


async def test_a_poll_is_answered_when_the_edge_drains(client: httpx.AsyncClient, world: EdgeWorld) -> None:
    waiting = asyncio.ensure_future(poll(client, wait=50))
    await until(lambda: bool(world.event_groups.known))
    world.gateway.draining = True
    assert (await waiting)["events"] == []
    world.gateway.draining = False


async def test_consumers_that_wait_at_one_edge_are_bounded(client: httpx.AsyncClient, world: EdgeWorld) -> None:
    first = asyncio.ensure_future(poll(client, "a", wait=20))
    await until(lambda: ("default", "g") in world.event_groups.known)
    second = asyncio.ensure_future(poll(client, "b", wait=20))

    async def refused() -> httpx.Response | None:
        answer = await client.get("/v1/event-groups/another/events", params={"consumer": "c", "wait": 0})
        return answer if answer.status_code == 429 else None

    assert int((await until(refused)).headers["retry-after"]) >= 1
    async with world.http(tenant="other", scopes="events") as other:
        assert (await poll(other))["events"] == [], "the others have room"
    world.event_groups.events = [came(1)]
    await first
    second.cancel()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"\xff", 400),
        (b"{}", 422),
        (b'{"consumer": ""}', 422),
        (b'{"consumer": "a", "position": "x"}', 422),
        (b'{"consumer": "a", "more": 1}', 422),
    ],
)
async def test_an_acknowledgement_that_is_not_valid_is_refused(world: EdgeWorld, body: bytes, status: int) -> None:
    answer = await world.once(scopes="events").post(f"{PATH}/ack", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status


async def test_groups_are_listed_dropped_and_bounded(client: httpx.AsyncClient, world: EdgeWorld) -> None:
    for number in range(16):
        await client.get(f"/v1/event-groups/g{number}/events?consumer=a&wait=0")
    full = await client.get("/v1/event-groups/g16/events?consumer=a&wait=0")
    assert full.status_code == 409
    assert "16" in full.json()["detail"]
    assert [(await client.delete("/v1/event-groups/g3")).status_code for _ in range(2)] == [204, 404]
    listed = (await client.get("/v1/event-groups")).json()
    assert len(listed["groups"]) == 15
    assert listed["groups"][0] == {"group": "g0", "position": "0-0.0-0", "held_by": "a", "behind_ms": {}}
    assert (await client.get("/v1/event-groups/a:b/events?consumer=a&wait=0")).status_code == 404


async def test_while_storage_is_away_it_is_503(world: EdgeWorld) -> None:
    world.event_groups.away = True
    async with world.http(scopes="events") as client:
        answers = [
            await client.get("/v1/event-groups"),
            await client.get(f"{PATH}/events?consumer=a&wait=0"),
            await client.post(f"{PATH}/ack", json={"consumer": "a"}),
            await client.delete(PATH),
        ]
    assert [(answer.status_code, "retry-after" in answer.headers) for answer in answers] == [(503, True)] * 4


async def test_one_tenants_group_is_not_anothers(world: EdgeWorld) -> None:
    async with world.http(scopes="events") as client, world.http(scopes="events", tenant="other") as other:
        await poll(client)
        assert (await other.get("/v1/event-groups")).json() == {"tenant": "other", "groups": []}
        assert (await other.delete(PATH)).status_code == 404
        assert (await other.delete(PATH, params={"tenant": "default"})).status_code == 403
        assert len((await client.get("/v1/event-groups")).json()["groups"]) == 1


async def test_outcomes_are_given_to_who_asks_where_the_engine_records_them(world: EdgeWorld) -> None:
    refused = await world.once(scopes="events").get(f"{PATH}/events", params={"consumer": "a", "outcomes": "true"})
    assert refused.status_code == 409
    assert "history_url" in refused.json()["detail"]
    members = {"event": "acknowledged", "message": "m1", "seq": 7, "sent_ms": 9}
    async with edge_world(history_url="sqlite:///history.db") as recording:
        after = Position(("0-0", "0-0", "4-0-2"))
        recording.event_groups.events = [GroupEvent(OutcomeEvent(b"\1\2", 17, "ann", members), after)]
        async with recording.http(scopes="events") as client:
            page = await poll(client, outcomes="true")
            wrong = await client.get(f"{PATH}/events", params={"consumer": "a", "outcomes": "yes"})
    assert wrong.status_code == 400
    assert page["events"] == [
        {
            "position": "0-0.0-0.4-0-2", "outcome": "0102", "event": "acknowledged", "at": 17, "user": "ann", "id": "m1", "seq": 7,
            "sent": 9,
        }
    ]  # fmt: skip


async def test_gaps_of_a_loss_of_data_are_acknowledged_by_a_poll_only(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, event_poll_ms=10) as world, world.http(scopes="events") as client:
        await redis_client.hset(META_KEY, EPOCH_FIELD, "e1")
        before = (await poll(client, wait="0"))["position"]
        await redis_client.hset(META_KEY, EPOCH_FIELD, "e2")
        acknowledged = (await client.post(f"{PATH}/ack", json={"consumer": "a", "position": before})).json()["position"]
        for presented in (before, acknowledged):
            page = await poll(client, position=presented, limit="1")
            assert [(event["event"], event["source"]) for event in page["events"]] == [("gap", "sessions"), ("gap", "dead_letters")]
        assert (await poll(client, position=page["position"], wait="0"))["events"] == []
