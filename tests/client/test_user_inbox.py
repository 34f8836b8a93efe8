"""The inbox as the Python clients have it: pages, marks, and the counts as events."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from engine import Client, SyncClient
from engine.client import Counts
from engine.errors import Forbidden, Refused
from tests.support.background_loop import in_background
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.waiting import until


async def test_pages_of_an_inbox_are_read_and_marked_without_a_connection(world: EdgeWorld) -> None:
    await world.publish(type="post.liked", count=3)
    await world.publish(type="build.failed", data={"title": "Nightly"})
    client = Client(world.url(), world.token("u1"))
    page = await client.inbox(limit=2)
    assert ([message.seq for message in page.messages], page.before, page.unread, page.unseen) == ([4, 3], 3, 4, 4)
    assert [message.seq for message in (await client.inbox(before=page.before)).messages] == [2, 1]
    (failed,) = (await client.inbox(text="nightly")).messages
    assert (failed.type, failed.data, failed.read, failed.acknowledged) == ("build.failed", {"title": "Nightly"}, False, False)
    assert failed.accepted_at > 0
    marked = await client.mark("read", ids=[failed.id, "nowhere"])
    assert (marked.unread, marked.unknown) == (3, ["nowhere"])
    assert marked.revision > page.revision
    assert [message.seq for message in (await client.inbox(unread=True, type="post.*")).messages] == [3, 2, 1]
    assert (await client.mark("archive", upto=2)).unread == 1
    assert [message.seq for message in (await client.inbox(archived=True)).messages] == [2, 1]
    assert (await client.mark("seen", all=True)).unseen == 0


async def test_what_is_not_valid_or_not_allowed_says_why(world: EdgeWorld) -> None:
    client = Client(world.url(), world.token("u1"))
    with pytest.raises(Refused, match="`limit`"):
        await client.inbox(limit=1000)
    with pytest.raises(Refused, match="exactly one of ids, upto and all"):
        await client.mark("read", upto=1, all=True)
    with pytest.raises(ValueError, match="the event_id of a message; this is 'last'"):
        await client.mark("read", upto="last")
    with pytest.raises(Forbidden):
        await Client(world.url(), world.token("u1", "events")).inbox()


async def test_messages_up_to_one_of_another_epoch_are_not_marked(world: EdgeWorld) -> None:
    await world.publish(count=3)
    client = Client(world.url(), world.token("u1"))
    newest, middle, _ = (await client.inbox()).messages
    lost = msgspec.structs.replace(newest, event_id=f"6-{newest.seq}")
    with pytest.raises(Refused) as refused:
        await client.mark("read", upto=lost)
    assert refused.value.status == 409
    assert (await client.mark("read", upto=middle)).unread == 1
    early = msgspec.structs.replace(newest, event_id="")
    assert (await client.mark("read", upto=early)).unread == 0


async def test_a_client_that_wants_counts_gets_them_and_each_change(world: EdgeWorld) -> None:
    events: list[object] = []

    def newest() -> int:
        return max((event.revision, event.unread) for event in events if isinstance(event, Counts))[1]

    async with asyncio.timeout(60), Client(world.url(), world.token("u1"), counts=True, on_event=events.append) as client:
        await until(lambda: any(isinstance(event, Counts) for event in events))
        assert newest() == 0
        await world.publish(type="post.liked", count=2)
        await until(lambda: newest() == 2)
        await client.mark("read", all=True)
        await until(lambda: newest() == 0)


def test_the_blocking_client_has_the_same() -> None:
    with in_background(edge_world()) as world:
        asyncio.run(world.publish(type="post.liked"))
        with SyncClient(world.url(), world.token("u1"), auto_ack=False) as client:
            assert [message.type for message in client.inbox(unread=True).messages] == ["post.liked"]
            assert client.mark("read", all=True).unread == 0
