"""`/v1/inbox/snooze`: what goes away and comes back, who may, what is refused, and what a crash at each point leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from engine.core.wire import records as wire
from tests.support.edge_world import EPOCH, EdgeWorld, edge_world
from tests.support.running_engine import RunningEngine

KEY = "default:u1"
HOUR_MS = 3_600_000


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(inbox_page_max=4) as world:
        yield world


async def call(world: EdgeWorld, path: str, body: Any = None, *, by: str = "u1", scopes: str = "connect", **query: str) -> httpx.Response:
    async with world.http(by, scopes=scopes) as client:
        if body is None:
            return await client.get(f"/v1/inbox{path}", params=query)
        return await client.post(f"/v1/inbox{path}", json=body, params=query)


async def publish(world: EdgeWorld, *ids: str, **members: Any) -> None:
    async with world.http("app", scopes="publish") as client:
        items = [{"user": "u1", "type": "post.liked", "id": id, **members} for id in ids]
        assert (await client.post("/v1/notifications", json=items)).status_code == 202


def until(world: EdgeWorld, hours: int = 1) -> int:
    return world.gateway.wall_ms() + hours * HOUR_MS


async def listed(world: EdgeWorld, **query: str) -> list[str]:
    return [message["id"] for message in (await call(world, "", **query)).json()["messages"]]


def timers(world: EdgeWorld) -> list[wire.Timer]:
    return sorted(world.scheduler.timers.values(), key=lambda timer: timer.due_ms)


# -- away and back -----------------------------------------------------------------------------------------------------
async def test_a_snoozed_message_leaves_list_and_counts_and_a_copy_is_scheduled(world: EdgeWorld) -> None:
    await publish(world, "a", "b", data={"n": 1.50}, url="/x", priority="high")
    at = until(world)
    answer = await call(world, "/snooze", {"ids": ["a"], "until": at})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"until": at, "unread": 1, "unseen": 1, "revision": 3}
    assert (await listed(world), await listed(world, archived="true")) == (["b"], ["a"])
    (timer,) = timers(world)
    copy = json.loads(b"{%b}" % timer.envelope.body)
    assert (timer.key, timer.due_ms, copy["id"], copy["replaces"]) == (KEY, at, f"snooze:{EPOCH}-1", "a")
    assert (copy["type"], copy["data"], copy["url"], copy["priority"]) == ("post.liked", {"n": 1.5}, "/x", "high")
    assert timer.envelope.policy_terms is None, "no cap counts what the user asked for"


async def test_a_copy_of_the_same_number_after_lost_data_has_another_id(world: EdgeWorld) -> None:
    """A client that got the first copy drops another one with its id."""
    await publish(world, "a")
    world.shards[0].page_epoch = "later"
    at = until(world)
    await call(world, "/snooze", {"ids": ["a"], "until": at})
    assert [timer.envelope.id for timer in timers(world)] == ["snooze:later-1"]
    assert [one["id"] for one in (await call(world, "/snooze")).json()["snoozed"]] == ["a"]


async def test_what_is_away_is_listed_the_next_to_come_first(world: EdgeWorld) -> None:
    await publish(world, "a", "b")
    later, soon = until(world, 2), until(world, 1)
    await call(world, "/snooze", {"ids": ["a"], "until": later})
    await call(world, "/snooze", {"ids": ["b"], "until": soon})
    away = (await call(world, "/snooze")).json()["snoozed"]
    assert [(one["id"], one["until"], one["message"]["replaces"]) for one in away] == [("b", soon, "b"), ("a", later, "a")]


async def test_the_later_request_moves_the_time_and_schedules_nothing_twice(world: EdgeWorld) -> None:
    await publish(world, "a")
    first, second = until(world, 1), until(world, 2)
    for at in (first, first, second):
        assert (await call(world, "/snooze", {"ids": ["a"], "until": at})).status_code == 200
    assert [timer.due_ms for timer in timers(world)] == [second]


async def test_two_devices_that_snooze_at_once_get_one_copy(world: EdgeWorld) -> None:
    await publish(world, "a")
    times = [until(world, 1), until(world, 2)]
    answers = await asyncio.gather(*(call(world, "/snooze", {"ids": ["a"], "until": at}) for at in times))
    assert [answer.status_code for answer in answers] == [200, 200]
    (timer,) = timers(world)
    assert timer.due_ms in times
    assert [one["until"] for one in (await call(world, "/snooze")).json()["snoozed"]] == [timer.due_ms]
    assert await listed(world) == []


async def test_a_cancelled_copy_is_made_anew_for_the_same_time(world: EdgeWorld) -> None:
    await publish(world, "a")
    body = {"ids": ["a"], "until": until(world)}
    await call(world, "/snooze", body)
    for turn in ("", ":1"):
        (timer,) = timers(world)
        world.scheduler.known[KEY, timer.envelope.id] = timer
        assert timer.envelope.id == f"snooze:{EPOCH}-1{turn}"
        assert (await world.once("app", scopes="publish").delete("/v1/scheduled", params={"user": "u1"})).json() == {"cancelled": 1}
        await call(world, "/unarchive", {"ids": ["a"]})
        assert (await call(world, "/snooze", body)).status_code == 200
    assert (await listed(world), len(timers(world))) == ([], 1)
    assert [one["id"] for one in (await call(world, "/snooze")).json()["snoozed"]] == ["a"]


async def test_numbers_of_another_epoch_put_nothing_away_until_repeated(world: EdgeWorld) -> None:
    await publish(world, "a")
    body, epoch, world.shard.page_epoch = {"ids": ["a"], "until": until(world)}, world.shard.page_epoch, "of another time"
    assert (await call(world, "/snooze", body)).status_code == 503
    assert await listed(world) == ["a"]
    world.shard.page_epoch = epoch
    assert (await call(world, "/snooze", body)).status_code == 200
    assert (await listed(world), len(timers(world))) == ([], 1)


async def test_a_snooze_moved_after_lost_data_archives_no_other_message(world: EdgeWorld) -> None:
    await publish(world, "a")
    await call(world, "/snooze", {"ids": ["a"], "until": until(world)})
    for lost in (world.shard.heads, world.shard.mailboxes, world.shard.inboxes, world.shard.ids):
        lost.clear()
    await publish(world, "b")
    later = until(world, 2)
    assert (await call(world, "/snooze", {"ids": ["a"], "until": later})).status_code == 200
    assert (await listed(world), [timer.due_ms for timer in timers(world)]) == (["b"], [later])


async def test_unsnoozing_makes_a_message_due_now(world: EdgeWorld) -> None:
    await publish(world, "a", "b")
    await call(world, "/snooze", {"ids": ["a"], "until": until(world)})
    answer = await call(world, "/unsnooze", {"ids": ["a", "b"]})
    assert answer.json() == {"coming": ["a"], "unknown": ["b"]}
    assert [timer.due_ms <= world.gateway.wall_ms() for timer in timers(world)] == [True]


async def test_a_time_in_words_is_taken_as_elsewhere(world: EdgeWorld) -> None:
    await publish(world, "a")
    answer = await call(world, "/snooze", {"ids": ["a"], "until": "2030-01-01T09:00:00+08:00"})
    assert answer.json()["until"] == timers(world)[0].due_ms == 1_893_459_600_000


async def test_ids_that_are_not_listed_are_told(world: EdgeWorld) -> None:
    await publish(world, "a", "b")
    await call(world, "/archive", {"ids": ["b"]})
    answer = await call(world, "/snooze", {"ids": ["x", "a", "b"], "until": until(world)})
    assert answer.json()["unknown"] == ["x", "b"]
    assert len(timers(world)) == 1


async def test_messages_behind_the_first_page_are_found(world: EdgeWorld) -> None:
    await publish(world, *(f"m{number}" for number in range(9)))
    answer = await call(world, "/snooze", {"ids": ["m0", "m8"], "until": until(world)})
    assert "unknown" not in answer.json()
    assert len(timers(world)) == 2


# -- who may, and what is refused --------------------------------------------------------------------------------------
async def test_an_application_may_snooze_for_its_users_and_a_user_for_nobody_else(world: EdgeWorld) -> None:
    await publish(world, "a")
    body = {"ids": ["a"], "until": until(world)}
    assert (await call(world, "/snooze", body, by="u2", user="u1")).status_code == 403
    assert (await call(world, "/snooze", by="u2", user="u1")).status_code == 403
    assert (await call(world, "/snooze", body, by="app", scopes="publish", user="u1")).status_code == 200
    assert len((await call(world, "/snooze", by="app", scopes="publish", user="u1")).json()["snoozed"]) == 1


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({"ids": ["a"]}, 422, "until"),
        ({"ids": [], "until": "2030-01-01T00:00:00Z"}, 422, "$.ids"),
        ({"ids": ["a"], "until": -1}, 422, "$.until: before the epoch"),
        ({"ids": ["a"], "until": 1.5}, 422, "$.until: whole milliseconds"),
        ({"ids": ["a"], "until": "tomorrow"}, 422, "$.until"),
        ({"ids": ["a"], "until": 10**15}, 422, "$.until: more than"),
        ({"ids": ["a"], "until": "2030-01-01T00:00:00Z", "all": True}, 422, "all"),
        ({"ids": ["\n"], "until": "2030-01-01T00:00:00Z"}, 422, "$.ids[0]"),
    ],
)
async def test_what_is_not_valid_is_refused_by_name(world: EdgeWorld, body: Any, status: int, names: str) -> None:
    await publish(world, "a")
    answer = await call(world, "/snooze", body)
    assert (answer.status_code, names in answer.text) == (status, True), answer.text
    assert await listed(world) == ["a"]
    assert not timers(world)


async def test_a_question_is_not_put_away(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client) as world:
        await publish(world, "a")
        await publish(world, "q", ask={"text": True})
        answer = await call(world, "/snooze", {"ids": ["a", "q"], "until": until(world)})
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "$.ids[1]")
        assert (await listed(world), timers(world)) == (["q", "a"], [])


async def test_a_refused_request_moves_no_message_that_is_away(world: EdgeWorld) -> None:
    await publish(world, "a")
    await publish(world, "q", ask={"text": True})
    at = until(world)
    await call(world, "/snooze", {"ids": ["a"], "until": at})
    assert (await call(world, "/snooze", {"ids": ["a", "q"], "until": until(world, 2)})).status_code == 422
    assert [timer.due_ms for timer in timers(world)] == [at]


async def test_an_engine_without_inboxes_says_so(world: EdgeWorld) -> None:
    world.shard.inbox_status = wire.NOT_FOUND
    assert (await call(world, "/snooze", {"ids": ["a"], "until": until(world)})).status_code == 404


# -- crash points ------------------------------------------------------------------------------------------------------
async def test_a_message_stays_where_it_is_when_its_copy_is_not_scheduled(world: EdgeWorld) -> None:
    await publish(world, "a")
    body = {"ids": ["a"], "until": until(world)}
    world.scheduler.schedule_status = wire.UNAVAILABLE
    answer = await call(world, "/snooze", body)
    assert (answer.status_code, await listed(world)) == (503, ["a"])
    world.scheduler.schedule_status = 0
    assert (await call(world, "/snooze", body)).status_code == 200
    assert (await listed(world), len(timers(world))) == ([], 1)


async def test_a_repeat_archives_what_the_first_request_only_scheduled(world: EdgeWorld) -> None:
    await publish(world, "a")
    body = {"ids": ["a"], "until": until(world)}
    await call(world, "/snooze", body)
    await call(world, "/unarchive", {"ids": ["a"]})  # as if the edge had died before the mark
    assert (await call(world, "/snooze", body)).json()["unread"] == 0
    assert (await listed(world), len(timers(world))) == ([], 1)


# -- a whole engine ----------------------------------------------------------------------------------------------------
async def test_a_snoozed_message_comes_back_unread_on_every_device(engine: RunningEngine) -> None:
    user = "snoozer"
    await engine.publish({"user": user, "type": "task.due", "id": "task", "data": {"title": "Report"}})
    async with engine.connect(user) as phone, engine.connect(user) as desk:
        for socket in (phone, desk):
            assert (await engine.receive(socket, "messages"))["messages"][0]["id"] == "task"
        headers = {"Authorization": f"Bearer {engine.token(user)}"}
        async with httpx.AsyncClient(base_url=engine.url, headers=headers) as client:
            now_ms = (await client.get("/v1/inbox")).json()["messages"][0]["accepted_at"]
            away = await client.post("/v1/inbox/snooze", json={"ids": ["task"], "until": now_ms + HOUR_MS})
            assert (away.status_code, away.json()["unread"]) == (200, 0), away.text
            assert (await client.get("/v1/inbox")).json()["messages"] == []
            assert (await client.post("/v1/inbox/unsnooze", json={"ids": ["task"]})).json() == {"coming": ["task"]}
            for socket in (phone, desk):
                back = {"id": "task"}
                while back["id"] == "task":  # a slow machine sends it again before it is away
                    (back,) = (await engine.receive(socket, "messages"))["messages"]
                assert (back["replaces"], back["data"], back["seq"]) == ("task", {"title": "Report"}, 2)
                assert back["due"] >= now_ms
            page = (await client.get("/v1/inbox")).json()
            assert (page["unread"], [message["read"] for message in page["messages"]]) == (1, [False])
