"""`/v1/dead-letters` over real sockets: who may, what is shown, what a redrive publishes, and what a crash at each point leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from engine.core.model.constants import HIGH, NORMAL
from engine.core.model.trace_context import trace_in
from engine.core.wire import records as wire
from engine.features.dead_letters.endpoints import redriven_id
from engine.features.dead_letters.store import StoredLetter
from tests.support.edge_world import EdgeWorld, FakeLetters, edge_world

PATH = "/v1/dead-letters"
BODY = b'{"id":"m1","ts":1700000000000,"actor":{"name":"bob"},"type":"post.liked","priority":"high","data":{"n":1e2}}'


@pytest.fixture
async def client(world: EdgeWorld) -> AsyncIterator[httpx.AsyncClient]:
    async with world.http(scopes="admin") as client:
        yield client


def letter(number: int = 1, user: str = "ann", **fields: Any) -> StoredLetter:
    made = StoredLetter(f"{1700000000000 + number}-0", user, number, f"m{number}", HIGH, "no renderer", 2, BODY)
    return msgspec.structs.replace(made, **fields)


def letters_of(world: EdgeWorld, *letters: StoredLetter) -> FakeLetters:
    store = world.dead_letters
    assert isinstance(store, FakeLetters)
    store.letters += letters
    return store


async def redrive(client: httpx.AsyncClient, *letters: StoredLetter, status: int = 200) -> Any:
    answer = await client.post(f"{PATH}/redrive", json={"letters": [one.letter for one in letters]})
    assert answer.status_code == status, answer.text
    return answer.json()


def published(world: EdgeWorld) -> list[dict[str, Any]]:
    return [json.loads(b"{%b}" % post.envelope.body) for post in world.shard.of(wire.Post)]


# -- who may -----------------------------------------------------------------------------------------------------------
async def test_an_admin_sees_the_own_tenant_and_an_operator_any(world: EdgeWorld) -> None:
    asked = {
        ("publish connect", ""): 403, ("admin", ""): 200, ("admin", "?tenant=default"): 200, ("admin", "?tenant=other"): 403,
        ("operator", "?tenant=other"): 200, ("operator", "?tenant=a:b"): 400, ("admin", "?tenant="): 400,
    }  # fmt: skip
    for (scopes, query), status in asked.items():
        async with world.http(scopes=scopes) as client:
            answers = [
                await client.get(f"{PATH}{query}"),
                await client.post(f"{PATH}/drop{query}", json={"letters": ["1-0"]}),
                await client.post(f"{PATH}/redrive{query}", json={"letters": ["1-0"]}),
            ]
        assert [answer.status_code for answer in answers] == [status] * 3, (scopes, query)
        assert status != 200 or answers[0].json()["tenant"] == (query.removeprefix("?tenant=") or "default")


# -- what is shown -----------------------------------------------------------------------------------------------------
async def test_letters_are_listed_and_one_is_shown_with_its_message(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    letters_of(world, letter(1), letter(2, "bob"), letter(3, reason="x" * 2000))
    listed = (await client.get(PATH, params={"limit": 2})).json()
    assert [one["seq"] for one in listed["dead_letters"]] == [3, 2]
    assert (listed["total"], listed["after"]) == (3, letter(2).letter)
    rest = (await client.get(PATH, params={"limit": 2, "after": listed["after"]})).json()
    summary = {
        "letter": "1700000000001-0", "at": 1700000000001, "user": "ann", "id": "m1", "seq": 1, "type": "post.liked",
        "priority": "high", "reason": "no renderer", "attempts": 2,
    }  # fmt: skip
    assert rest == {"tenant": "default", "total": 3, "dead_letters": [summary]}
    assert [one["user"] for one in (await client.get(PATH, params={"user": "bob"})).json()["dead_letters"]] == ["bob"]
    assert [one["seq"] for one in (await client.get(PATH, params={"order": "oldest"})).json()["dead_letters"]] == [1, 2, 3]
    shown = (await client.get(f"{PATH}/{letter(1).letter}")).json()
    assert shown == {**summary, "notification": json.loads(BODY)}


@pytest.mark.parametrize("id", ["1-0", "x", "1-0-0", "9" * 16 + "-0", "redrive"])
async def test_what_is_no_letter_is_404_or_405(world: EdgeWorld, client: httpx.AsyncClient, id: str) -> None:
    assert (await client.get(f"{PATH}/{id}")).status_code == (405 if id == "redrive" else 404)


@pytest.mark.parametrize("action", ["redrive", "drop"])
async def test_a_bad_choice_of_letters_changes_nothing(action: str) -> None:
    async with edge_world(body_bytes_max=4000) as world, world.http(scopes="admin") as client:
        store = letters_of(world, letter())
        bad = [b"", b"{", b"\xff", b'{"letters":["\xff"]}', b"{}", b'{"letters":[]}', b'{"letters":["x"]}',
               b'{"letters":["1700000000001-0","\xc3\xa9"]}',
               b'{"letters":["1700000000001-0"],"tenant":"x"}', json.dumps({"letters": ["1-0"] * 101}).encode(), b" " * 4001]  # fmt: skip
        for body in bad:
            answer = await client.post(f"{PATH}/{action}", content=body)
            assert answer.status_code in (400, 413, 422), (body, answer.text)
        assert store.letters == [letter()]
        assert not world.shard.received


# -- redrive -----------------------------------------------------------------------------------------------------------
async def test_a_redriven_message_has_its_members_under_an_id_of_its_own_and_its_letter_is_removed(
    world: EdgeWorld, client: httpx.AsyncClient
) -> None:
    store = letters_of(world, letter(1), letter(2, "bob", priority=NORMAL))
    (result,) = (await redrive(client, letter(1)))["results"]
    (post,) = world.shard.of(wire.Post)
    assert (post.key, post.idempotent, post.envelope.priority, post.envelope.retain) == ("default:ann", True, HIGH, True)
    assert result == {"letter": letter(1).letter, "id": post.envelope.id, "user": "ann", "status": "accepted", "seq": 1}
    assert published(world) == [json.loads(BODY) | {"id": post.envelope.id}]
    assert post.envelope.id.startswith("redrive:")
    assert b'"n":1e2' in post.envelope.body, "numbers keep their spelling"
    assert store.letters == [letter(2, "bob", priority=NORMAL)]


async def test_a_redriven_message_stays_in_its_trace() -> None:
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    traced = letter(1, body=b'{"traceparent":"%b",%b' % (traceparent.encode(), BODY[1:]))
    async with edge_world() as world, world.http(scopes="admin") as client:
        letters_of(world, traced)
        await redrive(client, traced)
        (post,) = world.shard.of(wire.Post)
        assert str(trace_in(post.envelope.body)) == traceparent
        assert published(world) == [json.loads(BODY) | {"id": post.envelope.id, "traceparent": traceparent}]


async def test_letters_are_redriven_oldest_first_whatever_their_order_in_the_request(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    store = letters_of(world, *(letter(number) for number in range(1, 4)))
    store.letters[1] = letter(2, letter="1700000000001-7")  # the same millisecond
    results = (await redrive(client, letter(3), store.letters[1], letter(1)))["results"]
    assert [result["seq"] for result in results] == [1, 2, 3]
    assert [result["letter"] for result in results] == [letter(1).letter, "1700000000001-7", letter(3).letter]


async def test_a_redrive_whose_removal_failed_delivers_once(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    store = letters_of(world, letter())
    store.removals_failing = 1
    assert (await redrive(client, letter(), status=503))["detail"] == "no answer"
    assert store.letters
    (result,) = (await redrive(client, letter()))["results"]
    assert (result["status"], result["seq"]) == ("duplicate", 1)
    assert not store.letters
    assert world.shard.heads == {"default:ann": 1}
    assert (await redrive(client, letter()))["results"] == [{"letter": letter().letter, "status": "gone"}]


async def test_two_entries_of_one_message_deliver_it_once_and_both_go(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    twin = letter(letter="1700000000009-0")
    store = letters_of(world, letter(), twin)
    results = (await redrive(client, twin, letter()))["results"]
    assert [(result["letter"], result["seq"]) for result in results] == [(letter().letter, 1), (twin.letter, 1)]
    assert not store.letters
    assert world.shard.heads == {"default:ann": 1}


async def test_a_message_that_is_refused_again_can_be_redriven_again(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    letters_of(world, letter())
    (first,) = (await redrive(client, letter()))["results"]
    again = letter(2, id=first["id"], body=b"{%b}" % world.shard.of(wire.Post)[0].envelope.body)
    letters_of(world, again)
    (second,) = (await redrive(client, again))["results"]
    assert (second["status"], second["seq"]) == ("accepted", 2)


async def test_what_is_not_accepted_keeps_its_letter_and_what_is_loses_it(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    store = letters_of(world, letter(1), letter(2, "bob"))
    await redrive(client, letter(1))
    letters_of(world, letter(1))  # its removal was lost with a fail-over
    world.shard.status, world.shard.detail = wire.OVERLOADED, "the backlog"
    problem = await redrive(client, letter(1), letter(2), status=429)
    assert [result["status"] for result in problem["results"]] == ["duplicate", "overloaded"]
    assert [one.user for one in store.letters] == ["bob"]
    world.shard.status, world.shard.detail = wire.SUPPRESSED, "muted_type: the user muted it"
    (result,) = (await redrive(client, letter(2)))["results"]
    assert (result["status"], result["reason"]) == ("suppressed", "muted_type: the user muted it")
    assert [one.user for one in store.letters] == ["bob"]
    world.shard.status, world.shard.quiet_until_ms = wire.ACCEPTED, 1_900_000_000_000
    (result,) = (await redrive(client, letter(2)))["results"]
    assert (result["status"], result["scheduled_at"]) == ("scheduled", 1_900_000_000_000)
    assert not store.letters


async def test_a_refused_redrive_names_each_letter_and_its_place(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    letters_of(world, letter(1), letter(3, "bob"), letter(4, "bob", body=b"{"))
    world.shard.ids["default:ann", redriven_id(letter(1))] = (1, b"another payload")
    problem = await redrive(client, letter(4), letter(3), letter(1), status=409)
    assert [(one["letter"], one["status"]) for one in problem["results"]] == [
        (letter(1).letter, "conflict"),
        (letter(3).letter, "accepted"),
    ]
    assert [(one["index"], one["user"]) for one in problem["errors"]] == [(2, "ann")]
    assert f"1 of 3 dead letters stay, the first is {letter(1).letter}: the same id was used" in problem["detail"]


async def test_what_cannot_be_read_is_reported_and_stays(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    store = letters_of(world, letter(1, body=b"{"), letter(2, body=b"\xff"), letter(3, body=b'{"id":"m3"}'), letter(4))
    results = (await redrive(client, *store.letters))["results"]
    assert [result["status"] for result in results] == ["unreadable", "unreadable", "unreadable", "accepted"]
    assert [one.seq for one in store.letters] == [1, 2, 3]
    assert (await client.get(f"{PATH}/{letter(1).letter}")).json()["notification"] == {}
    assert [one["type"] for one in (await client.get(PATH)).json()["dead_letters"]] == ["", "", ""]


async def test_a_question_stays_and_the_step_of_one_is_redriven() -> None:
    asking = b'{"id":"q1","type":"deploy.ask","ask":{"text":true,"deadline":1}}'
    async with edge_world() as world, world.http(scopes="admin") as client:
        store = letters_of(world, letter(1, body=asking), letter(2, body=asking, action="channel://email", key="k"))
        results = (await redrive(client, *store.letters))["results"]
        assert [result["status"] for result in results] == ["suppressed", "scheduled"]
        assert [one.seq for one in store.letters] == [1]


# -- drop, and storage that is away --------------------------------------------------------------------------------------
async def test_two_actions_of_one_message_and_target_are_both_redriven(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    """Two addresses of a user at one service, or two steps by one channel: they differ in their keys alone."""
    first, second = (letter(n, seq=0, id="m1", action="channel://push/example.com", key=f"k.{n}") for n in (1, 2))
    store = letters_of(world, first, second)
    await redrive(client, first, second)
    armed = [request.timer for request in world.scheduler.received if isinstance(request, wire.Schedule)]
    assert sorted(timer.action.key for timer in armed if timer.action is not None) == ["k.1", "k.2"]
    assert len({timer.envelope.id for timer in armed}) == 2, "under one id the scheduler takes the second for a repeat"
    assert store.letters == []


async def test_dropped_letters_are_gone_and_a_repeat_says_so(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    store = letters_of(world, letter(1), letter(2))
    for dropped in (1, 0):
        answer = await client.post(f"{PATH}/drop", json={"letters": [letter(1).letter, "1-0", letter(1).letter]})
        assert answer.json() == {"dropped": dropped}
    assert store.letters == [letter(2)]
    assert not world.shard.received


async def test_a_silent_storage_is_503_and_publishes_nothing(world: EdgeWorld, client: httpx.AsyncClient) -> None:
    letters_of(world, letter()).away = True
    chosen = {"letters": [letter().letter]}
    for answer in (
        await client.get(PATH),
        await client.get(f"{PATH}/{letter().letter}"),
        await client.post(f"{PATH}/redrive", json=chosen),
        await client.post(f"{PATH}/drop", json=chosen),
    ):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert not world.shard.received
