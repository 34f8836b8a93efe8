"""Asking with the Python clients, against a real edge and a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from engine import Client, Publisher, SyncPublisher
from engine.client.protocol import Transport
from engine.errors import Refused
from engine.gateway.connection import Connection
from engine.gateway.feature_frames import Result
from tests.support.edge_world import EdgeWorld, edge_world

ASK: Any = {"answers": [{"id": "yes", "label": "Approve"}, {"id": "no", "label": "Deny"}], "deadline": timedelta(minutes=30)}


@pytest.fixture
async def world(redis_client: Redis) -> AsyncIterator[EdgeWorld]:
    async with edge_world(storage=redis_client, question_poll_ms=20) as world:
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


async def no_request(*_: Any) -> None:
    raise AssertionError("a frame would do")


async def test_an_answer_goes_by_the_websocket_that_is_open(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.client.client.give_answer", no_request)
    async with Publisher(world.url(), world.token("app", "publish")) as publisher:
        await publisher.publish(user="u1", type="deploy.ask", id="q1", ask=ASK)
        async with Client(world.url(), world.token("u1", "connect"), device="phone") as client:
            given = await client.answer("q1", "yes")
            assert (given.answer, given.by, given.device) == ("yes", "u1", "phone")
            with pytest.raises(Refused, match="answered by u1: Approve") as refused:
                await client.answer("q1", "no")
        assert refused.value.status == 409
        assert (await publisher.question("q1", user="u1")).answer == given


@pytest.mark.parametrize("ends", ["the connection", "the wait"])
async def test_an_answer_by_frame_that_stays_open_goes_by_a_request(world: EdgeWorld, ends: str) -> None:
    frames: list[bytes] = []

    def lose(connection: Connection, frame: bytes) -> Coroutine[Any, Any, Result]:
        frames.append(frame)
        if ends == "the connection":
            connection.drain(0)
        return asyncio.sleep(3600, (500, {}))

    world.gateway.feature_frames.register("answer", lose)
    async with (
        Publisher(world.url(), world.token("app", "publish")) as publisher,
        Client(world.url(), world.token("u1", "connect"), open_timeout_s=10 if ends == "the connection" else 1) as client,
    ):
        await publisher.publish(user="u1", type="deploy.ask", id="q1", ask=ASK)
        assert (await client.answer("q1", "yes")).by == "u1"
        assert len(frames) == 1


@pytest.mark.parametrize("transport", ["sse", "poll"])
async def test_an_answer_goes_by_a_request_without_a_websocket(world: EdgeWorld, transport: Transport) -> None:
    world.gateway.feature_frames.register("answer", lambda *_: 1 / 0)  # type: ignore[arg-type]
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
