"""Questions on an edge with a real Redis: asked, answered once, told, ended by the deadline, and what a crash at each point leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import jwt
import msgspec
import pytest
from redis.asyncio import Redis

from engine.core.model.question import QUESTIONS_FULL
from engine.core.model.routing import audience_key
from engine.core.wire import records as wire
from engine.errors import Overloaded, StorageUnavailable
from engine.features.questions.core import GivenAnswer
from engine.features.questions.keys import QUESTIONS_DUE_KEY, answers_key, questions_key, votes_key
from engine.features.questions.questions import Questions
from engine.features.questions.store import QuestionStore
from engine.gateway.waiters import Waiters
from engine.store.keys import SUBSCRIBERS_PREFIX
from tests.support.edge_world import SECRET, EdgeWorld, edge_world, frame_of
from tests.support.waiting import until

KEY = "default:u1"
YES_NO = [{"id": "yes", "label": "Approve", "style": "primary"}, {"id": "no", "label": "Deny", "style": "danger"}]


@pytest.fixture
async def world(redis_client: Redis) -> AsyncIterator[EdgeWorld]:
    async with edge_world(storage=redis_client, question_poll_ms=20) as world:
        yield world


async def ask(world: EdgeWorld, id: str = "q1", status: int = 202, **members: Any) -> httpx.Response:
    ask = {"answers": YES_NO, "deadline": "30m", "default": "no"} | members.pop("ask", {})
    ask = {name: value for name, value in ask.items() if value is not None}
    item = {"user": "u1", "type": "deploy.ask", "id": id, "data": {"build": 17}, "ask": ask, **members}
    others = item.pop("others", None)
    item = {name: value for name, value in item.items() if value is not None}
    async with world.http("app", scopes="publish") as client:
        answer = await client.post("/v1/notifications", json=item if others is None else [others[0], item, *others[1:]])
    assert answer.status_code == status, answer.text
    return answer


async def answer(world: EdgeWorld, body: Any, id: str = "q1", *, by: str = "u1", scopes: str = "connect", **query: str) -> httpx.Response:
    return await world.once(by, scopes=scopes).post(f"/v1/answers/{id}", json=body, params=query)


async def look(world: EdgeWorld, id: str = "q1", *, by: str = "app", scopes: str = "publish", **query: Any) -> httpx.Response:
    return await world.once(by, scopes=scopes).get(f"/v1/questions/{id}", params={"user": "u1"} | query if scopes == "publish" else query)


def outcomes(world: EdgeWorld) -> list[dict[str, Any]]:
    bodies = [json.loads(b"{%b}" % body) for body in world.shard.mailboxes.get(KEY, {}).values()]
    return [body for body in bodies if "answer" in body]


async def told(world: EdgeWorld) -> dict[str, Any]:
    """The one message with the answer."""
    await until(lambda: bool(outcomes(world)))
    (outcome,) = outcomes(world)
    return outcome


# -- Asked and answered. -----------------------------------------------------------------------------------------------
async def test_a_client_gets_the_question_and_the_asker_the_answer(world: EdgeWorld) -> None:
    async with world.connect("u1") as socket:
        await ask(world)
        message = (await frame_of(socket))["messages"][0]
        assert message["ask"]["answers"] == [YES_NO[0], YES_NO[1]]
        assert message["ask"]["default"] == "no"
        assert abs(message["ask"]["deadline"] - world.gateway.wall_ms() - 1_800_000) < 60_000
        assert (await look(world)).json()["state"] == "open"

        given = await answer(world, {"answer": "yes"}, device="phone")
        assert given.status_code == 200, given.text
        assert given.json() == {"answer": "yes", "at": given.json()["at"], "by": "u1", "label": "Approve", "device": "phone"}
        outcome = (await frame_of(socket))["messages"][0]
    assert (outcome["id"], outcome["replaces"], outcome["answer"]) == ("answer:q1", "q1", given.json())
    assert (outcome["type"], outcome["data"], "ask" in outcome) == ("deploy.ask", {"build": 17}, False)
    found = (await look(world)).json()
    assert (found["state"], found["answer"], found["by"], found["at"]) == ("answered", "yes", "u1", given.json()["at"])


async def test_the_first_answer_wins_and_the_others_hear_who_and_what(world: EdgeWorld) -> None:
    await ask(world)
    answers = await asyncio.gather(*(answer(world, {"answer": ("yes", "no")[n % 2]}, device=f"d{n}") for n in range(8)))
    won = {given.json()["answer"] for given in answers if given.status_code == 200}
    assert len(won) == 1
    lost = [given.json() for given in answers if given.status_code == 409]
    assert len(lost) == 4
    assert {(one["type"], one["answer"], one["by"]) for one in lost} == {("urn:engine:problem:answered", *won, "u1")}
    assert (await told(world))["answer"]["answer"] == (await look(world)).json()["answer"] == won.pop()


async def test_a_question_whose_message_is_refused_is_forgotten(world: EdgeWorld) -> None:
    first = {"user": "u1", "type": "deploy.done", "id": "q1"}
    await ask(world, "q2", others=[first])
    await ask(world, "q1", status=409)
    assert (await look(world, "q1")).status_code == 404, "its default would take the place of the other message"
    asks_otherwise = {"user": "u1", "type": "deploy.ask", "id": "q2", "ask": {"text": True}}
    await ask(world, "q3", status=409, others=[{**first, "id": "m1"}, asks_otherwise])
    await ask(world, "q2")
    assert [(await look(world, id)).status_code for id in ("q2", "q3")] == [200, 404]


async def test_a_repeated_answer_of_the_same_user_is_the_same_answer(world: EdgeWorld) -> None:
    await ask(world)
    first, again = [await answer(world, {"answer": "yes"}) for _ in range(2)]
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()


async def test_an_asker_waits_for_the_answer_also_of_another_edge(world: EdgeWorld, redis_client: Redis) -> None:
    async with edge_world(storage=redis_client) as other:
        await ask(world)
        waiting = asyncio.create_task(look(world, wait=30))
        await asyncio.sleep(0)
        assert (await answer(other, {"answer": "yes"})).status_code == 200
        assert (await asyncio.wait_for(waiting, 20)).json()["answer"] == "yes"


async def test_a_text_alone_answers_where_one_is_asked_for(world: EdgeWorld) -> None:
    await ask(world, ask={"answers": None, "text": True, "default": None})
    assert (await answer(world, {"answer": "yes"})).status_code == 422
    assert (await answer(world, {"text": "not on a Friday"})).json()["text"] == "not on a Friday"
    assert (await told(world))["answer"]["text"] == "not on a Friday"


async def test_the_question_leaves_the_inbox_and_the_outcome_is_unread(world: EdgeWorld) -> None:
    await ask(world)
    await answer(world, {"answer": "yes"})
    await told(world)

    async def listed() -> list[tuple[str, bool]]:
        async with world.http("u1") as client:
            return [(message["id"], message["read"]) for message in (await client.get("/v1/inbox")).json()["messages"]]

    async def settled() -> bool:
        return await listed() == [("answer:q1", False)]

    for _ in range(200):
        if await settled():
            break
        await asyncio.sleep(0.02)
    assert await listed() == [("answer:q1", False)]


# -- What happens with the answer. -------------------------------------------------------------------------------------
async def test_the_answer_is_an_action_for_a_target_that_the_settings_name(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, question_targets=("ray://jobs/*",)) as world:
        async with world.connect("u1") as socket:
            await ask(world, ask={"do": "ray://jobs/deployer.answered"})
            assert "do" not in (await frame_of(socket))["messages"][0]["ask"]
        await answer(world, {"answer": "yes"})
        await until(lambda: bool(world.scheduler.timers))
        (timer,) = world.scheduler.timers.values()
        assert timer.action is not None
        assert (timer.key, timer.action.target) == (KEY, "ray://jobs/deployer.answered")
        assert json.loads(b"{%b}" % timer.envelope.body)["answer"]["answer"] == "yes"
        member, lease_over_ms = f"{KEY}\nq1", world.gateway.wall_ms() + 60_000
        await until(lambda: redis_client.zscore(QUESTIONS_DUE_KEY, member), holds=lambda due_ms: due_ms > lease_over_ms)  # told
        await redis_client.zadd(QUESTIONS_DUE_KEY, {member: 1})
        await until(lambda: len([one for one in world.scheduler.received if type(one) is wire.Schedule]) > 1)
        again = [one.timer for one in world.scheduler.received if type(one) is wire.Schedule]
        assert {(one.sid, one.action) for one in again} == {(timer.sid, timer.action)}, "it is the same action"


async def test_the_answer_is_an_event_for_the_rules(redis_client: Redis, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    async with edge_world(storage=redis_client, rules_path=str(rules)) as world:
        await ask(world, ask={"event": "deploy.answered"})
        await answer(world, {"answer": "yes"})

        def decided() -> list[Any]:
            bodies = [json.loads(b"{%b}" % body) for body in world.shard.mailboxes[KEY].values()]
            return [body["data"] for body in bodies if body["type"] == "deploy.decided"]

        assert await until(decided) == [{"said": "yes"}]


RULES = """
[[rule]]
name = "answered"
event = "deploy.answered"
recipients = ["user"]
notify_self = true
type = "deploy.decided"
data = { said = "{data.answer}" }
"""


# -- Members of a topic. -----------------------------------------------------------------------------------------------
async def ask_topic(world: EdgeWorld, to: Any, id: str = "q1", **members: Any) -> None:
    for user in ("u1", "u2", "u3"):
        world.shard.topics[f"default:{user}"] = {"oncall"}
    await ask(world, id, user=None, topic="oncall", ask={"to": to, **members})


async def vote(world: EdgeWorld, by: str, id: str, question: str = "q1") -> httpx.Response:
    return await answer(world, {"answer": id, "topic": "oncall"}, question, by=by)


async def look_topic(world: EdgeWorld, id: str = "q1") -> dict[str, Any]:
    found: dict[str, Any] = (await world.once("app", scopes="publish").get(f"/v1/questions/{id}", params={"topic": "oncall"})).json()
    return found


def told_to_topic(world: EdgeWorld) -> list[dict[str, Any]]:
    bodies = [json.loads(b"{%b}" % entry.envelope.body) for entry in world.log.entries if entry.topic == "oncall"]
    return [body["answer"] for body in bodies if "answer" in body]


async def test_the_first_member_of_a_topic_answers_for_all(world: EdgeWorld) -> None:
    await ask_topic(world, "anyone")
    assert json.loads(b"{%b}" % world.log.entries[0].envelope.body)["ask"]["topic"] == "oncall"
    assert (await vote(world, "u2", "yes")).status_code == 200
    late = await vote(world, "u3", "no")
    assert (late.status_code, late.json()["by"], late.json()["answer"]) == (409, "u2", "yes")
    assert (await look_topic(world))["by"] == "u2"
    assert (await until(lambda: told_to_topic(world)))[0]["by"] == "u2"


async def test_a_quorum_of_members_is_the_answer(world: EdgeWorld) -> None:
    await ask_topic(world, 2)
    assert (await vote(world, "u1", "no")).status_code == 200
    assert (await vote(world, "u1", "no")).status_code == 200, "a repeat counts once"
    assert (await vote(world, "u1", "yes")).status_code == 409, "a member answers once"
    assert (await vote(world, "u2", "yes")).status_code == 200
    assert (await look_topic(world))["state"] == "open"
    assert (await vote(world, "u3", "yes")).status_code == 200
    found = await look_topic(world)
    assert (found["state"], found["answer"], found["by"]) == ("answered", "yes", "u3")


async def test_more_members_answer_than_the_stack_of_a_script_holds(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, question_members_max=6000) as world:
        await ask_topic(world, 5001)
        votes = {f"member-{number}": msgspec.msgpack.encode(GivenAnswer("yes", 1, f"member-{number}")) for number in range(5000)}
        await redis_client.hset(votes_key(audience_key("default", "oncall"), "q1"), mapping=votes)
        assert (await vote(world, "u1", "yes")).status_code == 200
        assert (await look_topic(world))["answer"] == "yes"


async def test_everyone_who_is_subscribed_is_asked(world: EdgeWorld, redis_client: Redis) -> None:
    await redis_client.hset(SUBSCRIBERS_PREFIX + "default", "oncall", "2")
    await ask_topic(world, "everyone")
    await ask_topic(world, "everyone", "q2")
    for question, second in (("q1", "yes"), ("q2", "no")):
        assert (await vote(world, "u1", "yes", question)).status_code == 200
        assert (await look_topic(world, question))["state"] == "open"
        assert (await vote(world, "u2", second, question)).status_code == 200
    assert (await look_topic(world))["answer"] == "yes"
    split = await look_topic(world, "q2")
    assert (split["state"], split["answer"], split["by"]) == ("split", "no", None)


async def test_only_members_answer_and_only_askers_look(world: EdgeWorld) -> None:
    await ask_topic(world, "anyone")
    assert (await vote(world, "u4", "yes")).status_code == 404
    assert (await world.once("u1", scopes="connect").get("/v1/questions/q1", params={"topic": "oncall"})).status_code == 403
    member = jwt.encode({"sub": "u4", "scope": "connect", "topics": ["oncall"], "exp": time.time() + 600}, SECRET, "HS256")
    async with httpx.AsyncClient(base_url=world.url(), trust_env=False, headers={"Authorization": f"Bearer {member}"}) as client:
        assert (await client.post("/v1/answers/q1", json={"answer": "yes", "topic": "oncall"})).status_code == 200


async def test_a_quorum_that_an_edge_has_counted_before_it_died_is_found(
    world: EdgeWorld, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask_topic(world, 2)

    async def dies(*_: Any) -> None:
        raise StorageUnavailable("killed")

    with monkeypatch.context() as patched:
        patched.setattr(world.questions, "decide", dies)
        assert [(await vote(world, user, "yes")).status_code for user in ("u1", "u2")] == [200, 503]
    assert (await look_topic(world))["by"] == "u2"


async def test_an_answer_that_meets_the_end_of_its_question_counts_no_more(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes between the look at the question and the answer of a member."""
    await ask_topic(world, 2)
    assert (await vote(world, "u1", "yes")).status_code == 200
    store = world.questions.vote

    async def ends(key: str, id: str, *given: Any) -> Any:
        assert (await world.once("app", scopes="publish").delete(f"/v1/questions/{id}", params={"topic": "oncall"})).status_code == 200
        return await store(key, id, *given)

    monkeypatch.setattr(world.questions, "vote", ends)
    late = await vote(world, "u2", "yes")
    assert (late.status_code, late.json().get("reason")) == (409, "withdrawn")
    assert (await vote(world, "u2", "yes")).status_code == 409
    assert (await vote(world, "u1", "yes")).status_code == 200, "it was counted in time"


async def test_an_answer_that_is_stored_before_the_default_counts(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between the look of another edge at the answers, after the deadline, and the default that this edge stores."""
    await ask_topic(world, 2, deadline=60)
    assert (await vote(world, "u1", "yes")).status_code == 200
    deadline_ms = (await look_topic(world))["deadline"]
    store = world.questions

    async def meets_another(key: str, id: str) -> Any:
        found = await QuestionStore.votes(store, key, id)
        assert "u2" in (await store.vote(key, id, GivenAnswer("yes", deadline_ms - 1, "u2"), 9) or {})
        return found

    monkeypatch.setattr(store, "votes", meets_another)
    monkeypatch.setattr(world.gateway, "wall_ms", lambda: deadline_ms)
    found = await look_topic(world)
    assert (found["state"], found["answer"], found["by"]) == ("answered", "yes", "u2")


# -- Ids and the deadline. ---------------------------------------------------------------------------------------------
async def test_asking_again_under_the_id_is_the_same_question_with_the_same_answer(world: EdgeWorld) -> None:
    await ask(world)
    await answer(world, {"answer": "yes"})
    assert (await ask(world)).json()["results"][0]["status"] == "duplicate"
    assert (await look(world)).json()["answer"] == "yes"


@pytest.mark.parametrize("topic", [None, "oncall"])
async def test_a_question_that_is_over_is_not_shown_again(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch, topic: str | None) -> None:
    members: dict[str, Any] = {"topic": topic, "user": None if topic else "u1", "ask": {"deadline": 0.05}}
    monkeypatch.setattr(world.gateway.shard_client, "_begin_post", _killed)  # an edge dies before the message of the question is stored
    monkeypatch.setattr(world.gateway.shard_client, "_broadcast", _killed)
    await ask(world, status=500, **members)
    monkeypatch.undo()
    await until(lambda: told_to_topic(world) if topic else outcomes(world))
    items = [{"user": "u2", "type": "t"}, {"topic": "oncall", "type": "t"}]
    results = (await ask(world, **members, others=items)).json()["results"]
    assert [result["status"] for result in results] == ["accepted", "duplicate", "accepted"]
    bodies = [*world.shard.mailboxes.get(KEY, {}).values(), *(entry.envelope.body for entry in world.log.entries)]
    assert not [body for body in bodies if b'"ask"' in body]


def _killed(*_: Any) -> Any:
    raise RuntimeError("killed")


@pytest.mark.parametrize("topic", [None, "oncall"])
async def test_a_repeated_question_shows_the_deadline_that_counts(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch, topic: str | None
) -> None:
    """The edge died between the question and its message; its publisher repeats it some minutes later."""
    members: dict[str, Any] = {"topic": topic, "user": None if topic else "u1"}
    monkeypatch.setattr(world.gateway.shard_client, "_begin_post", _killed)
    monkeypatch.setattr(world.gateway.shard_client, "_broadcast", _killed)
    await ask(world, status=500, **members)
    monkeypatch.undo()
    later_ms = world.gateway.wall_ms() + 600_000
    monkeypatch.setattr(world.gateway, "wall_ms", lambda: later_ms)
    await ask(world, **members)
    bodies = [*world.shard.mailboxes.get(KEY, {}).values(), *(entry.envelope.body for entry in world.log.entries)]
    (shown,) = [json.loads(b"{%b}" % body)["ask"]["deadline"] for body in bodies]
    found = await look_topic(world) if topic else (await look(world)).json()
    assert shown == found["deadline"]


async def test_another_question_under_the_id_is_a_conflict_and_changes_nothing(world: EdgeWorld) -> None:
    await ask(world)
    refused = await ask(world, status=409, ask={"deadline": "31m"})
    assert refused.json()["type"] == "urn:engine:problem:id-conflict"
    assert (await look(world)).json()["state"] == "open"


@pytest.mark.parametrize("by_edge", [True, False])
async def test_a_question_whose_message_is_refused_under_load_is_forgotten(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch, by_edge: bool
) -> None:
    """Nothing was accepted: at its deadline it would tell an answer to what nobody was asked, and call the target with it."""
    if by_edge:
        monkeypatch.setattr(world.gateway.pending_calls, "begin", Mock(side_effect=Overloaded("too many requests")))
    else:
        world.shard.status = wire.OVERLOADED
    await ask(world, status=429)
    assert (await look(world)).status_code == 404


async def test_a_question_stays_that_another_request_asks_before_one_is_refused(
    world: EdgeWorld, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = QuestionStore.open
    world.shard.status = wire.OVERLOADED
    async with edge_world(storage=redis_client) as other:

        async def open_beside(self: QuestionStore, *question: Any) -> Any:
            monkeypatch.setattr(QuestionStore, "open", opened)
            first = await opened(self, *question)
            await ask(other)
            return first

        monkeypatch.setattr(QuestionStore, "open", open_beside)
        await ask(world, status=429)
    assert (await look(world)).json()["state"] == "open"


async def test_a_question_twice_in_a_refused_request_is_forgotten(world: EdgeWorld) -> None:
    twice = {
        "user": "u1",
        "type": "deploy.ask",
        "id": "q1",
        "data": {"build": 17},
        "ask": {"answers": YES_NO, "deadline": "30m", "default": "no"},
    }
    world.shard.status = wire.OVERLOADED
    await ask(world, status=429, others=[twice])
    assert (await look(world)).status_code == 404


async def test_the_default_is_the_answer_at_the_deadline(world: EdgeWorld) -> None:
    await ask(world, ask={"deadline": 0.05})
    found = (await look(world, wait=20)).json()
    assert (found["state"], found["answer"], found["by"], found["at"]) == ("deadline", "no", None, found["deadline"])
    late = await answer(world, {"answer": "yes"})
    assert (late.status_code, late.json()["answer"], late.json()["reason"]) == (409, "no", "deadline")
    assert (await told(world))["answer"] == {"answer": "no", "at": found["at"], "by": None, "label": "Deny", "reason": "deadline"}


async def test_the_deadline_is_told_when_nobody_looks(world: EdgeWorld) -> None:
    await ask(world, ask={"deadline": 0.05, "default": None})
    assert (await told(world))["answer"]["answer"] is None


async def test_a_delayed_question_has_its_time_from_when_it_is_due(world: EdgeWorld) -> None:
    await ask(world, delay=3600, ask={"deadline": 60})
    found = (await look(world)).json()
    assert abs(found["deadline"] - found["asked"] - 3_660_000) < 1000


# -- Withdrawn by its asker. -------------------------------------------------------------------------------------------
async def withdraw(world: EdgeWorld, id: str = "q1", *, scopes: str = "publish", **query: str) -> httpx.Response:
    return await world.once("app", scopes=scopes).delete(f"/v1/questions/{id}", params=query or {"user": "u1"})


async def test_a_withdrawn_question_ends_for_devices_and_for_the_asker(world: EdgeWorld) -> None:
    await ask(world)
    waiting = asyncio.create_task(look(world, wait=30))
    withdrawn = await withdraw(world)
    assert withdrawn.status_code == 200, withdrawn.text
    assert (withdrawn.json()["state"], withdrawn.json()["answer"], withdrawn.json()["by"]) == ("withdrawn", None, None)
    assert (await asyncio.wait_for(waiting, 20)).json() == withdrawn.json()
    outcome = await told(world)
    assert (outcome["replaces"], outcome["answer"]["reason"]) == ("q1", "withdrawn")
    late = await answer(world, {"answer": "yes"})
    assert (late.status_code, late.json()["reason"], late.json()["detail"]) == (409, "withdrawn", "it was withdrawn")
    assert (await withdraw(world)).json() == withdrawn.json(), "a repeat changes nothing"


async def test_a_question_that_has_an_answer_is_not_withdrawn(world: EdgeWorld) -> None:
    await ask(world)
    await ask(world, "q2", ask={"deadline": 0.01, "default": None})
    await answer(world, {"answer": "yes"})
    late = await withdraw(world)
    assert (late.status_code, late.json()["answer"], late.json()["by"]) == (409, "yes", "u1")
    await look(world, "q2", wait=20)
    assert (await withdraw(world, "q2")).json()["reason"] == "deadline"


async def test_a_question_that_is_still_to_come_is_withdrawn_unseen(world: EdgeWorld) -> None:
    await ask(world, delay=3600)
    assert len(world.scheduler.timers) == 1
    await withdraw(world)
    await until(lambda: not world.scheduler.timers)
    await ask(world, "q2", delay=3600)
    await answer(world, {"answer": "yes"}, "q2")
    assert (await told(world))["id"] == "answer:q2", "the other one is told nobody"


async def test_a_question_answered_before_it_is_due_does_not_come(world: EdgeWorld) -> None:
    await ask(world, delay=3600)
    assert (await answer(world, {"answer": "yes"}, by="app", scopes="publish", user="u1")).status_code == 200
    await until(lambda: not world.scheduler.timers)
    assert (await told(world))["answer"]["answer"] == "yes"


async def test_a_question_does_not_come_after_its_deadline(world: EdgeWorld) -> None:
    await ask(world, delay=0.1, ask={"deadline": 0.1})
    assert len(world.scheduler.timers) == 1, "it was put off, say by quiet hours"
    assert (await told(world))["answer"]["reason"] == "deadline"
    assert not world.scheduler.timers


@pytest.mark.parametrize("status", [wire.UNAVAILABLE, wire.ALREADY_FIRED])
async def test_a_withdrawal_is_not_told_before_its_question(
    world: EdgeWorld, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    cancel, statuses = world.gateway.shard_client.cancel, [status]

    async def refused_once(tenant: str, sid: str) -> wire.TimerAnswer:
        return wire.TimerAnswer(0, statuses.pop()) if statuses else await cancel(tenant, sid)

    monkeypatch.setattr(world.gateway.shard_client, "cancel", refused_once)
    await ask(world, delay=3600)
    await withdraw(world)
    await until(lambda: not statuses)
    await redis_client.zadd(QUESTIONS_DUE_KEY, {f"{KEY}\nq1": 1})  # the lease is over
    await until(lambda: not world.scheduler.timers)
    assert not outcomes(world)


async def test_a_withdrawal_that_is_repeated_stays_untold(world: EdgeWorld, redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    settle, tries = world.gateway.shard_client.settle, list[str]()

    async def away_once(key: str, *given: Any) -> str:
        tries.append(key)
        if len(tries) == 1:
            raise StorageUnavailable("the shard restarts")
        return await settle(key, *given)

    monkeypatch.setattr(world.gateway.shard_client, "settle", away_once)
    await ask(world, delay=3600)
    await withdraw(world)
    await until(lambda: len(tries) == 1)
    member = f"{KEY}\nq1"
    await redis_client.zadd(QUESTIONS_DUE_KEY, {member: 1})  # the lease is over
    week_ms = world.config.question_keep_s * 1000
    await until(lambda: redis_client.zscore(QUESTIONS_DUE_KEY, member), holds=lambda due_ms: due_ms > world.gateway.wall_ms() + week_ms / 2)
    assert not world.scheduler.timers
    assert not outcomes(world)


async def test_a_question_to_a_topic_is_withdrawn_for_all_members(world: EdgeWorld) -> None:
    await ask_topic(world, 2)
    await vote(world, "u1", "yes")
    assert (await withdraw(world, topic="oncall")).json()["state"] == "withdrawn"
    assert (await until(lambda: told_to_topic(world)))[0]["reason"] == "withdrawn"
    assert (await vote(world, "u2", "yes")).status_code == 409


async def test_only_askers_withdraw(world: EdgeWorld) -> None:
    await ask(world)
    assert (await withdraw(world, user="u2")).status_code == 404
    assert (await look(world)).json()["state"] == "open"


# -- What is refused. --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"ask": {"answers": []}}, "$.ask.answers"),
        ({"ask": {"answers": [*YES_NO, YES_NO[0]]}}, "$.ask.answers"),
        ({"ask": {"answers": [{"id": str(n), "label": "x"} for n in range(9)], "default": None}}, "$.ask.answers"),
        ({"ask": {"answers": [{"id": "", "label": "x"}]}}, "$.ask.answers[0].id"),
        ({"ask": {"answers": [{"id": "x", "label": "a\nb"}]}}, "$.ask.answers[0].label"),
        ({"ask": {"default": "maybe"}}, "$.ask.default"),
        ({"ask": {"deadline": 0}}, "$.ask.deadline"),
        ({"ask": {"deadline": "31d"}}, "$.ask.deadline"),
        ({"ask": {"deadline": "soon"}}, "$.ask.deadline"),
        ({"ask": {"who": "anyone"}}, "$.ask.who"),
        ({"ask": {"do": "ray://jobs/deployer.answered"}}, "$.ask.do"),
        ({"ask": {"do": "ftp://x"}}, "$.ask.do"),
        ({"ask": {"event": "two words"}}, "$.ask.event"),
        ({"ask": {"to": "everyone"}}, "$.ask.to"),
        ({"user": None, "topic": "t", "ask": {"to": 0}}, "$.ask.to"),
        ({"user": None, "topic": "t", "ask": {"to": 2, "answers": [], "text": True}}, "$.ask.to"),
        ({"user": None, "topic": "t", "ask": {"event": "a.b"}}, "$.ask.event"),
        ({"user": None, "users": ["u1", "u2"]}, "$.ask"),
        ({"user": None, "broadcast": True}, "$.ask"),
        ({"collapse": {"key": "k"}}, "$.collapse"),
        ({"id": "i" * 250}, "$.id"),
    ],
)
async def test_a_question_that_is_not_valid_is_refused_and_not_stored(
    world: EdgeWorld, redis_client: Redis, members: dict[str, Any], path: str
) -> None:
    item = {"user": "u1", "type": "t", "id": "q1", "ask": {"answers": YES_NO, "default": "no"}} | members
    item["ask"] = {name: value for name, value in ({"answers": YES_NO} | item["ask"]).items() if value is not None}  # type: ignore[dict-item]
    async with world.http("app", scopes="publish") as client:
        refused = await client.post("/v1/notifications", json={name: value for name, value in item.items() if value is not None})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["path"] == path
    assert not await redis_client.exists(QUESTIONS_DUE_KEY)


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"answer": "maybe"}, 422, "$.answer"),
        ({}, 422, "$.answer"),
        ({"answer": "yes", "text": "so"}, 422, "$.text"),
        ({"answer": 1}, 422, "$.answer"),
        ({"answer": "yes", "more": 1}, 422, "$"),
        ([], 422, "$"),
    ],
)
async def test_an_answer_that_is_not_valid_is_refused_and_the_question_stays_open(
    world: EdgeWorld, body: Any, status: int, path: str
) -> None:
    await ask(world)
    refused = await answer(world, body)
    assert refused.status_code == status, refused.text
    assert refused.json()["errors"][0]["path"].startswith(path)
    assert (await look(world)).json()["state"] == "open"


async def test_a_user_answers_and_sees_only_own_questions(world: EdgeWorld) -> None:
    await ask(world)
    assert (await answer(world, {"answer": "yes"}, by="u2")).status_code == 404
    assert (await answer(world, {"answer": "yes"}, by="u2", user="u1")).status_code == 403
    assert (await answer(world, {"answer": "yes"}, scopes="metrics")).status_code == 403
    assert (await look(world, by="u2", scopes="connect")).status_code == 404
    assert (await look(world, by="u1", scopes="connect")).status_code == 200
    assert (await look(world, "q2")).status_code == 404
    async with httpx.AsyncClient(base_url=world.url(), trust_env=False) as client:
        assert (await client.get("/v1/questions/q1")).status_code == 401
        assert (await client.post("/v1/answers/q1", json={"answer": "yes"})).status_code == 401


async def test_questions_and_waits_have_limits(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, questions_per_user_max=1, question_waits_max=1) as world:
        await ask(world)
        refused = (await ask(world, "q2", status=429)).json()
        assert "questions_per_user_max" in refused["detail"]
        assert [(error["index"], error["detail"]) for error in refused["errors"]] == [(0, QUESTIONS_FULL)]
        waiting = asyncio.create_task(look(world, wait=20))
        for _ in range(400):
            if (await look(world, wait=0.001)).status_code == 429:
                break
            await asyncio.sleep(0.01)
        assert (await look(world, wait=1)).status_code == 429
        await answer(world, {"answer": "yes"})
        assert (await waiting).json()["answer"] == "yes"


# -- Storage and crashes. ----------------------------------------------------------------------------------------------
async def test_nothing_is_published_when_the_question_cannot_be_stored(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> None:
        raise StorageUnavailable("away")

    monkeypatch.setattr(world.questions, "open", away)
    await ask(world, status=503)
    assert not world.shard.mailboxes.get(KEY)


async def test_an_unreadable_answer_leaves_other_waits_alone(
    world: EdgeWorld, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, waiting = Waiters.wait, set[str]()

    async def seen(self: Waiters, name: tuple[str, str], *others: Any) -> None:
        waiting.add(name[1])
        await wait(self, name, *others)

    monkeypatch.setattr(Waiters, "wait", seen)
    for id in ("q1", "q2"):
        await ask(world, id)
    waits = [asyncio.create_task(look(world, id, wait=30)) for id in ("q1", "q2")]
    await until(lambda: waiting == {"q1", "q2"})
    await redis_client.hset(answers_key(KEY), "q1", b"\xc1")
    assert (await asyncio.wait_for(waits[0], 20)).status_code == 500
    await redis_client.hset(answers_key(KEY), "q2", msgspec.msgpack.encode(GivenAnswer("yes", 1, "u1")))
    assert (await asyncio.wait_for(waits[1], 20)).json()["answer"] == "yes"


async def test_an_answer_is_told_by_another_edge_when_its_own_dies(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    tell, dead = Questions._tell, []

    async def told_by_the_living(self: Questions, *given: Any) -> None:
        if self._gateway in dead:
            raise StorageUnavailable("killed")
        await tell(self, *given)

    monkeypatch.setattr("engine.features.questions.questions._LEASE_MS", 300)
    monkeypatch.setattr(Questions, "_tell", told_by_the_living)
    async with edge_world(storage=redis_client) as world:
        dead.append(world.gateway)
        await ask(world)
        assert (await answer(world, {"answer": "yes"})).status_code == 200
    async with edge_world(storage=redis_client) as other:
        assert (await told(other))["answer"]["answer"] == "yes"
        assert (await look(other)).json()["answer"] == "yes"


async def test_a_shard_that_is_away_delays_no_outcome_of_others(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Questions._tell

    async def waits_for_its_shard(self: Questions, key: str, id: str, *given: Any) -> None:
        if id == "q1":
            await asyncio.Event().wait()
        await tell(self, key, id, *given)

    monkeypatch.setattr(Questions, "_tell", waits_for_its_shard)
    for id in ("q1", "q2"):
        await ask(world, id, ask={"deadline": 0.05})
    assert (await told(world))["id"] == "answer:q2"
    await ask(world, "q3", ask={"deadline": 0.05})
    await until(lambda: len(outcomes(world)) == 2)


async def test_an_answer_that_is_told_twice_is_one_message(world: EdgeWorld, redis_client: Redis) -> None:
    await ask(world)
    await answer(world, {"answer": "yes"})
    await told(world)
    member, lease_over_ms = f"{KEY}\nq1", world.gateway.wall_ms() + 60_000
    await until(lambda: redis_client.zscore(QUESTIONS_DUE_KEY, member), holds=lambda due_ms: due_ms > lease_over_ms)
    posts = len(world.shard.received)
    await redis_client.zadd(QUESTIONS_DUE_KEY, {member: 1})
    await until(lambda: len(world.shard.received) > posts)
    assert len(outcomes(world)) == 1


async def test_an_answered_question_is_forgotten_in_the_end(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, question_keep_s=1) as world:
        await ask(world)
        await answer(world, {"answer": "yes"})
        for _ in range(400):
            if not await redis_client.exists(questions_key(KEY), answers_key(KEY), QUESTIONS_DUE_KEY):
                break
            await asyncio.sleep(0.02)
        assert (await look(world)).status_code == 404


async def test_erasing_a_user_erases_the_questions_and_an_export_shows_them(world: EdgeWorld, redis_client: Redis) -> None:
    await ask(world)
    await ask(world, "q2")
    await answer(world, {"answer": "yes"}, "q2")
    async with world.http("root", scopes="admin") as client:
        kept = (await client.get("/v1/users/u1/export")).json()["questions"]
        assert [(one["id"], one["state"], one["message"]["data"]) for one in kept] == [
            ("q1", "open", {"build": 17}),
            ("q2", "answered", {"build": 17}),
        ]
        assert (await client.delete("/v1/users/u1")).status_code == 204
    assert not await redis_client.exists(questions_key(KEY), answers_key(KEY), QUESTIONS_DUE_KEY)


async def test_unreadable_answers_hold_up_no_erasure_and_no_export(world: EdgeWorld, redis_client: Redis) -> None:
    await ask_topic(world, 2)
    await ask_topic(world, 2, "q2")
    await vote(world, "u1", "yes", "q2")
    await ask(world, "own")
    await redis_client.hset(answers_key(audience_key("default", "oncall")), "q1", b"\xc1")  # whoever gave it
    await redis_client.hset(questions_key(KEY), "own", b"\xc1")
    kept = (await world.once("app", scopes="admin").get("/v1/users/u1/export")).json()["questions"]
    assert [one for one in kept if one["id"] == "own"] == [{"id": "own", "damaged": True}]
    assert (await world.once("app", scopes="admin").delete("/v1/users/u1")).status_code == 204
    assert not await redis_client.exists(questions_key(KEY), votes_key(audience_key("default", "oncall"), "q2"))


async def test_erasing_a_user_takes_the_name_from_answers_to_topics(world: EdgeWorld, redis_client: Redis) -> None:
    await ask_topic(world, "anyone")
    await ask_topic(world, 2, "q2")
    await vote(world, "u1", "yes")
    await vote(world, "u1", "no", "q2")
    async with world.http("root", scopes="admin") as client:
        kept = (await client.get("/v1/users/u1/export")).json()["questions"]
        assert sorted((one["id"], one["topic"], one["answer"], one["by"]) for one in kept) == [
            ("q1", "oncall", "yes", "u1"),
            ("q2", "oncall", "no", "u1"),
        ]
        assert (await client.delete("/v1/users/u1")).status_code == 204
    found = await look_topic(world)
    assert (found["state"], found["answer"], found["by"]) == ("answered", "yes", None)
    topic = audience_key("default", "oncall")
    assert b"u1" not in b"".join((await redis_client.hgetall(answers_key(topic))).values())
    assert await redis_client.hgetall(votes_key(topic, "q2")) == {}
    assert [(await vote(world, user, "no", "q2")).status_code for user in ("u2", "u3")] == [200, 200]
    assert (await look_topic(world, "q2"))["by"] == "u3", "the erased answer does not count"
