"""Requests of the Python clients that publish nothing: questions, events, timers, topics, signals and users, at a real edge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from engine import Client, Publisher, SyncClient, SyncPublisher
from engine.client.answers import CountedSignals
from engine.client.protocol import TRANSPORTS, Transport
from engine.core.wire import records as wire
from engine.errors import Forbidden, Refused, Unauthorized, Unreachable
from tests.support.background_loop import in_background
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.raw_http_server import RawRequest, answer, raw_server
from tests.support.waiting import until

ASK: Any = {"answers": [{"id": "yes", "label": "Approve"}, {"id": "no", "label": "Deny"}], "deadline": timedelta(minutes=30)}


@pytest.fixture
async def world(redis_client: Redis) -> AsyncIterator[EdgeWorld]:
    async with edge_world(storage=redis_client, question_poll_ms=20, publish_timeout_ms=3000) as world:
        yield world


async def test_a_program_asks_and_a_client_answers(world: EdgeWorld) -> None:
    async with (
        Publisher(world.url(), world.token("app", "publish")) as publisher,
        Client(world.url(), world.token("u1", "connect"), device="phone") as client,
    ):
        asking = asyncio.create_task(publisher.ask(user="u1", type="deploy.ask", id="q/1", ask=ASK))
        message = await anext(client)
        assert message.ask is not None
        assert [choice["id"] for choice in message.ask["answers"]] == ["yes", "no"]
        given = await client.answer(message.id, "yes")
        assert await asking == given
        assert (given.answer, given.by, given.device) == ("yes", "u1", "phone")
        outcome = await anext(client)
        assert (outcome.replaces, (outcome.answer or {}).get("answer")) == ("q/1", "yes")
        with pytest.raises(Refused, match="answered by u1: Approve") as refused:
            await client.answer(message.id, "no")
        assert refused.value.status == 409


async def test_a_program_that_asks_again_after_a_restart_gets_the_same_answer(world: EdgeWorld) -> None:
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        asking = asyncio.create_task(publisher.ask(user="u1", type="deploy.ask", id="q1", ask=ASK))
        async with Client(world.url(), world.token("u1", "connect")) as client:
            await anext(client)
            asked = await publisher.question("q1", user="u1")
            assert (asked.state, asked.answer, round((asked.deadline - asked.asked) / 1000)) == ("open", None, 1800)
            asking.cancel()
            await client.answer("q1", "no")
    async with Publisher(world.url(), world.token("app", "publish")) as restarted:
        assert (await restarted.ask(user="u1", type="deploy.ask", id="q1", ask=ASK)).answer == "no"
        with pytest.raises(ValueError, match="`ask` is needed"):
            await restarted.ask(user="u1", type="deploy.ask")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_answers_whatever_its_transport_and_when_it_has_left(world: EdgeWorld, transport: Transport) -> None:
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        await publisher.publish(user="u1", type="deploy.ask", id="q1", ask=ASK)
        client = Client(world.url(), world.token("u1", "connect"), transports=[transport])
        async with client:
            assert (await client.answer("q1", "yes")).by == "u1"
        assert (await client.answer("q1", "yes")).by == "u1", "it has left"


async def test_a_program_withdraws_its_question_and_whoever_waits_is_told(world: EdgeWorld) -> None:
    def withdraw() -> None:
        with SyncPublisher(world.url(), world.token("app", "publish")) as other:
            other.withdraw("q/1", user="u1")
            with pytest.raises(ValueError, match="exactly one of"):
                other.withdraw("q/1")

    async with (
        Publisher(world.url(), world.token("app", "publish")) as publisher,
        Client(world.url(), world.token("u1", "connect")) as client,
    ):
        asking = asyncio.create_task(publisher.ask(user="u1", type="deploy.ask", id="q/1", ask=ASK))
        await anext(client)
        await asyncio.to_thread(withdraw)
        answer = await asking
        assert (answer.answer, answer.by, answer.reason) == (None, None, "withdrawn")
        with pytest.raises(Refused, match="it was withdrawn"):
            await client.answer("q/1", "yes")


async def test_a_thread_asks_until_the_deadline(world: EdgeWorld) -> None:
    def ask() -> str | None:
        with SyncPublisher(world.url(), world.token("app", "publish")) as publisher:
            answer = publisher.ask(user="u1", type="deploy.ask", ask={**ASK, "deadline": "50ms", "default": "no"})
            assert answer.reason == "deadline"
            return answer.answer

    assert await asyncio.to_thread(ask) == "no"


RULES = """
[[rule]]
name = "liked"
event = "post.liked"
recipients = ["target.author"]
type = "social.like"
"""


async def test_an_event_is_handed_to_the_rules_and_a_repeat_is_none(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    async with edge_world(rules_path=str(rules)) as world, Publisher(world.url(), world.token("app", "publish")) as publisher:
        liked = {"type": "post.liked", "user": "bob", "target": {"author": "ann"}}
        outcome = await publisher.event(**liked, id="e1")
        assert (outcome.matched, outcome.scheduled, outcome.cancelled) == (["liked"], [], 0)
        assert [(result.user, result.status) for result in outcome.results] == [("ann", "accepted")]
        assert [result.status for result in (await publisher.event(**liked, id="e1")).results] == ["duplicate"]
        assert [result.status for result in (await publisher.event(**liked)).results] == ["accepted"], "it has an id of its own"
        with pytest.raises(Refused, match="type"):
            await publisher.event(type="no type", user="bob")


async def test_a_delayed_message_is_looked_at_moved_and_cancelled() -> None:
    async with edge_world() as world, Publisher(world.url(), world.token("app", "publish")) as publisher:
        scheduled_id = (await publisher.publish(type="a.b", user="ann", delay=3600)).scheduled_id or ""
        found = await publisher.scheduled(scheduled_id)
        assert found is not None
        assert (found.user, found.notification["type"]) == ("ann", "a.b")
        assert await publisher.reschedule(scheduled_id, delay=7200)
        moved = await publisher.scheduled(scheduled_id)
        assert moved is not None
        assert moved.scheduled_at > found.scheduled_at
        assert await publisher.cancel(scheduled_id)
        assert await publisher.scheduled(scheduled_id) is None
        assert not await publisher.reschedule(scheduled_id, at=moved.scheduled_at)


async def test_what_is_scheduled_for_a_user_is_listed_and_cancelled_at_once() -> None:
    async with edge_world() as world, Publisher(world.url(), world.token("app", "publish")) as publisher:
        for kind, collapse in (("a.b", None), ("c.d", {"key": "x&y"}), ("e.f", {"key": "x&y"})):
            await publisher.publish(type=kind, user="ann b", delay=3600, collapse=collapse)
        assert [one.notification["type"] for one in await publisher.scheduled_for("ann b")] == ["a.b", "c.d", "e.f"]
        assert len(await publisher.scheduled_for("ann b", collapse="x&y")) == 2
        assert await publisher.cancel_for("ann b", collapse="x&y") == 2
        assert await publisher.cancel_for("ann b") == 1
        assert await publisher.scheduled_for("ann b") == []


async def test_topics_are_subscribed_to_and_left_again() -> None:
    async with edge_world() as world:
        client = Client(world.url(), world.token("u1"))
        assert await client.subscribe() == []
        assert await client.subscribe("news", "team/7") == ["news", "team/7"]
        assert await client.unsubscribe("news") == ["team/7"]
        with pytest.raises(Forbidden):
            await Client(world.url(), world.token("u1", "events")).subscribe("news")


def test_the_blocking_clients_have_the_same() -> None:
    with in_background(edge_world()) as world:
        with SyncPublisher(world.url(), world.token("app", "publish")) as publisher:
            assert publisher.event(type="post.liked", user="bob").matched == []
            scheduled_id = publisher.publish(type="a.b", user="ann", delay=3600).scheduled_id or ""
            assert publisher.reschedule(scheduled_id, delay=7200)
            assert publisher.scheduled(scheduled_id) is not None
            assert publisher.cancel(scheduled_id)
            assert publisher.scheduled_for("ann") == []
            assert publisher.cancel_for("ann") == 0
        with SyncClient(world.url(), world.token("u1")) as client:
            assert client.subscribe("news") == ["news"]
            assert client.unsubscribe("news") == []


COUNTED = answer(202, {"counted": 1, "dropped": 0})


async def test_signals_are_counted_and_their_sums_read() -> None:
    async with edge_world(signals_flush_ms=10) as world, Publisher(world.url(), world.token("app", "publish")) as publisher:
        assert await publisher.count_signals({"post/9:views": 3, "heat ä&=": 1}) == CountedSignals(2, 0)
        assert await publisher.count_signals({"post/9:views": 2}) == CountedSignals(1, 0)
        await until_counted(publisher, {"post/9:views": 5, "heat ä&=": 1, "never": 0})
        with pytest.raises(Refused, match="amount"):
            await publisher.count_signals({"post/9:views": 0})


async def until_counted(publisher: Publisher, sums: dict[str, int]) -> None:
    async with asyncio.timeout(60):
        while await publisher.signal_sums(*sums) != sums:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("broken", [b"", answer(502), answer(500)])
async def test_signals_that_may_have_been_counted_are_not_sent_again(broken: bytes) -> None:
    async def respond(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(broken)
        if not broken:
            writer.close()

    async with raw_server(respond) as server, Publisher(server.url, "tok") as publisher:
        with pytest.raises(Unreachable, match="did not count the signals, or did without an answer"):
            await publisher.count_signals({"views": 1})
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_signals_that_were_not_counted_are(status: int) -> None:
    answers = [answer(status, {"detail": "later"}, Retry_After="0"), COUNTED]

    async def respond(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.pop(0))

    async with raw_server(respond) as server, Publisher(server.url, "tok") as publisher:
        assert await publisher.count_signals({"views": 2}) == CountedSignals(1, 0)
        assert [json.loads(one.body) for one in server.requests] == [[{"name": "views", "amount": 2}]] * 2


def test_the_blocking_publisher_has_the_same() -> None:
    with in_background(edge_world()) as world, SyncPublisher(world.url(), world.token("app", "publish")) as publisher:
        assert publisher.count_signals({"views": 1, "likes": 2}) == CountedSignals(2, 0)
        assert publisher.signal_sums("views", "never").keys() == {"views", "never"}


async def test_profiles_are_kept_told_and_forgotten(world: EdgeWorld) -> None:
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        kept = await publisher.set_profile("team/ann", {"level": "vip", "mute": {"types": ["promo.*"]}})
        assert (kept["level"], kept["zone"]) == ("vip", "UTC")
        assert await publisher.profile("team/ann") == kept
        assert "default:team/ann" in world.shard.profiles
        assert (await publisher.set_profile("team/ann", None))["level"] == ""
        with pytest.raises(Refused, match=r"\$.zone: an IANA time zone"):
            await publisher.set_profile("ann", {"zone": "Berlin"})


async def test_a_user_is_erased_by_an_admin_only_and_the_request_is_repeated_until_it_is_done(world: EdgeWorld) -> None:
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        with pytest.raises(Forbidden):
            await publisher.erase_user("team/ann")
    world.shard.erase_status = wire.UNAVAILABLE
    async with Publisher(world.url(), world.token("app", "admin"), retry_for_s=20) as publisher:
        erasing = asyncio.create_task(publisher.erase_user("team/ann"))
        await until(lambda: world.shard.of(wire.Erase))
        world.shard.erase_status = wire.OK
        await erasing
    assert {record.key for record in world.shard.of(wire.Erase)} == {"default:team/ann"}


async def test_what_would_become_of_an_item_and_what_became_of_one(world: EdgeWorld) -> None:
    world.shard.explained = ("suppress", [("cap", "enough")])
    world.shard.traced["default:ann", "a b"] = wire.Traced(0, "sent", 3, [wire.Step(5, "accepted")])
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        explained = await publisher.explain(type="a", users=["ann", "bob"], category="touch")
        assert [(one["user"], one["decision"], one["reasons"][0]["code"]) for one in explained] == [
            ("ann", "suppress", "cap"), ("bob", "suppress", "cap"),
        ]  # fmt: skip
        told = await publisher.timeline("ann", "a b")
        assert told == {"id": "a b", "seq": 3, "state": "sent", "timeline": [{"at": 5, "event": "accepted"}]}
        assert await publisher.timeline("ann", "other") is None
        with pytest.raises(Refused, match="no category has this name"):
            await publisher.explain(type="a", user="ann", category="x")


async def test_a_question_is_asked_again_until_it_is_answered_or_the_time_is_up(world: EdgeWorld) -> None:
    world.shard.profile_status = wire.UNAVAILABLE
    async with Publisher(world.url(), world.token("app", "publish"), retry_for_s=20) as publisher:
        asking_ = asyncio.create_task(publisher.set_profile("ann", {"level": "vip"}))
        await until(lambda: len(world.shard.of(wire.SetProfile)) == 1)
        world.shard.profile_status = wire.OK
        assert (await asking_)["level"] == "vip"
    world.shard.profile_status = wire.UNAVAILABLE
    async with Publisher(world.url(), world.token("app", "publish"), retry_for_s=0.1) as publisher:
        with pytest.raises(Unreachable, match="503"):
            await publisher.profile("ann")


async def test_a_token_that_does_not_do_is_said_and_one_that_is_renewed_is_tried_again(world: EdgeWorld) -> None:
    async with Publisher(world.url(), world.token("app", "connect")) as publisher:
        with pytest.raises(Forbidden):
            await publisher.profile("ann")
    async with Publisher(world.url(), "nonsense") as publisher:
        with pytest.raises(Unauthorized):
            await publisher.profile("ann")
    tokens = iter(["nonsense", world.token("app", "publish")])
    async with Publisher(world.url(), lambda: next(tokens)) as publisher:
        assert (await publisher.profile("ann"))["zone"] == "UTC"


async def test_the_blocking_publisher_asks_the_same(world: EdgeWorld) -> None:
    def ask() -> None:
        with SyncPublisher(world.url(), world.token("app", "publish")) as publisher:
            assert publisher.set_profile("ann", {"level": "vip"})["level"] == publisher.profile("ann")["level"] == "vip"
            assert publisher.explain(type="a", user="ann")[0]["decision"] == "deliver"
            assert publisher.timeline("ann", "x") is None

    await asyncio.to_thread(ask)
