"""The digest as clients get it: by a request, as an event when they come back, and from the command line."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from engine import Client, SyncClient
from engine.__main__ import app
from engine.client import Digest
from engine.errors import Forbidden, Refused
from tests.support.background_loop import in_background
from tests.support.edge_world import EdgeWorld, edge_world

LIKED = {"type": "post.liked", "priority": "high", "target": {"kind": "post", "id": 7, "title": "Roses"}}


async def test_a_client_asks_for_what_its_user_missed_before_it_connects(world: EdgeWorld) -> None:
    await world.publish(**LIKED, actor="ana", count=2)
    found = await Client(world.url(), world.token("u1")).digest(limit=3)
    (line,) = found.lines
    assert (found.messages, found.model, found.skipped) == (2, False, {})
    assert (line.text, line.intent, line.priority, line.count) == ("ana liked “Roses”", "liked", "high", 2)
    assert [one.seq for one in line.messages] == [1, 2]
    assert line.from_ <= line.to
    with pytest.raises(Refused, match="`limit`"):
        await Client(world.url(), world.token("u1")).digest(limit=1000)
    with pytest.raises(Forbidden):
        await Client(world.url(), world.token("u1", "publish")).digest()


async def test_a_client_that_comes_back_gets_the_digest_as_an_event_and_every_message() -> None:
    async with edge_world(digest_after_ms=0, digest_messages_min=1) as world:
        await world.publish(**LIKED, actor="ana", count=2)
        events: list[object] = []
        async with asyncio.timeout(60), Client(world.url(), world.token("u1"), digest=True, on_event=events.append) as client:
            assert [(await anext(client)).seq for _ in range(2)] == [1, 2]
            while not any(isinstance(event, Digest) for event in events):
                await asyncio.sleep(0.01)
        (found,) = [event for event in events if isinstance(event, Digest)]
        assert [line.text for line in found.lines] == ["ana liked “Roses”"]


def test_a_blocking_client_and_the_command_tell_it_too() -> None:
    with in_background(edge_world()) as world:
        asyncio.run(world.publish(**LIKED, actor="ana"))
        token = world.token("u1")
        with SyncClient(world.url(), token) as client:
            assert [line.text for line in client.digest().lines] == ["ana liked “Roses”"]
        runner = CliRunner()
        told = runner.invoke(app, ["digest", "u1", "--url", world.url(), "--token", token], catch_exceptions=False)
        assert "! ana liked “Roses”  (#1)" in told.output
        assert "1 missed" in told.output
        as_json = runner.invoke(app, ["digest", "u1", "--json", "--url", world.url(), "--token", token], catch_exceptions=False)
        assert json.loads(as_json.output)["lines"][0]["text"] == "ana liked “Roses”"
