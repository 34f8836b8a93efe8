"""`/v1/digest`, and the digest of a client that comes back, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.config import Config
from engine.core.journal.journal_records import StoredMessage
from engine.core.model.category import OFF, Category, PolicyTerms
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope, Merge
from engine.core.policy.profile import Profile
from tests.support.background_task import background
from tests.support.edge_world import EPOCH, EdgeWorld, edge_world

LIKED = {"type": "post.liked", "target": {"kind": "post", "id": 7, "title": "Roses"}, "retain": True}
NOTICES = ("storm tomorrow", "soup recipe", "storm warning")


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(digest_after_ms=0, digest_messages_min=3) as world:
        yield world


async def missed(world: EdgeWorld) -> None:
    for actor in ("ana", "bob"):
        await world.publish(**LIKED, actor=actor)
    for text in NOTICES:
        await world.publish(type="notice", data={"text": text})


async def digest(world: EdgeWorld, query: str = "", status: int = 200) -> Any:
    answer = await world.once().get(f"/v1/digest{query}")
    assert answer.status_code == status, answer.text
    return answer.json()


def lines(found: dict[str, Any]) -> dict[str, list[int]]:
    return {line["text"]: [one["seq"] for one in line["messages"]] for line in found["lines"]}


async def test_what_was_missed_comes_in_lines_that_name_their_messages(world: EdgeWorld) -> None:
    await missed(world)
    found = await digest(world)
    assert lines(found) == {"storm tomorrow (+1)": [3, 5], "soup recipe": [4], "2 people liked “Roses”": [1, 2]}
    assert (found["messages"], found["skipped"], found["older"], found["model"]) == (5, {}, False, True)
    assert found["lines"][0]["messages"][0]["event_id"] == f"{EPOCH}-3"
    assert world.model.asked == [[list(NOTICES)]], "the model sees only what no rule settles"
    assert world.shard.acked == {}, "a digest acknowledges nothing"


async def test_without_an_answer_of_the_model_the_digest_is_made_by_rules(world: EdgeWorld) -> None:
    await missed(world)
    world.model.silent = True
    found = await digest(world)
    assert len(found["lines"]) == 4
    assert not found["model"]


@pytest.mark.parametrize("answer", [[], [[1]], [[1, 2, 3], [4]]])
async def test_an_answer_that_does_not_fit_is_none(world: EdgeWorld, answer: list[list[int]]) -> None:
    await missed(world)
    world.model.answer = answer
    found = await digest(world)
    assert (len(found["lines"]), found["model"]) == (4, False)


async def test_lines_are_in_the_language_of_the_profile_and_mutes_are_left_out(world: EdgeWorld) -> None:
    await missed(world)
    world.shard.profiles["default:u1"] = Profile(locale="zh-CN", muted_types=("notice",))
    found = await digest(world)
    assert lines(found) == {"2 人赞了“Roses”": [1, 2]}
    assert found["skipped"] == {"muted": 3}


async def test_bodies_that_are_in_storage_only_are_read_there(world: EdgeWorld) -> None:
    await missed(world)
    mailbox = world.shard.mailboxes["default:u1"]
    body = mailbox.pop(1)
    world.bodies.stored[1] = StoredMessage("default:u1", 1, Envelope("x", b"", NORMAL, True, body), 0, 0)
    world.shard.cold = [(1, 1)]
    found = await digest(world)
    assert (lines(found)["2 people liked “Roses”"], found["older"]) == ([1, 2], False)
    world.bodies.away = True
    assert "no answer" in (await digest(world, status=503))["detail"]


async def test_messages_beyond_the_bytes_of_a_digest_are_told_as_older() -> None:
    async with edge_world(digest_bytes_max=1) as world:
        for seq in (1, 2):
            envelope = Envelope(f"x{seq}", b"", NORMAL, True, b'"id":"x%d","type":"a","ts":1' % seq)
            world.bodies.stored[seq] = StoredMessage("default:u1", seq, envelope, 0, 0)
        world.shard.cold = [(1, 2)]
        found = await digest(world)
        assert (found["messages"], found["older"]) == (1, True)


async def test_summaries_of_windows_of_one_key_all_count(world: EdgeWorld) -> None:
    await missed(world)
    mailbox = world.shard.mailboxes["default:u1"]
    for seq in (1, 2):
        envelope = Envelope(f"x{seq}", b"", NORMAL, True, mailbox.pop(seq), "likes", Merge(300))
        world.bodies.stored[seq] = StoredMessage("default:u1", seq, envelope, 0, 0)
    world.shard.cold = [(1, 2)]
    assert lines(await digest(world))["2 people liked “Roses”"] == [1, 2]


async def test_since_and_limit_bound_a_digest(world: EdgeWorld) -> None:
    await missed(world)
    assert lines(await digest(world, "?limit=2")) == {"storm tomorrow (+2)": [3, 4, 5], "2 people liked “Roses”": [1, 2]}
    assert len((await digest(world, "?limit=1"))["lines"][0]["messages"]) == 5
    assert (await digest(world, f"?since={world.gateway.wall_ms() + 60_000}"))["lines"] == []


async def test_since_then_unread_messages_of_the_inbox_are_in_it_whenever_they_expired(world: EdgeWorld) -> None:
    await missed(world)
    mailbox = world.shard.mailboxes["default:u1"]
    body = mailbox.pop(1)
    off = PolicyTerms("news", Category())
    world.shard.profiles["default:u1"] = Profile(categories={"news": OFF})
    stored = {1: StoredMessage("default:u1", 1, Envelope("x", b"", NORMAL, True, body), 1, 0)}
    stored[9] = StoredMessage("default:u1", 9, Envelope("y", b"", NORMAL, True, body.replace(b"ana", b"eve"), policy_terms=off), 0, 0)
    world.bodies.stored.update(stored)
    world.shard.archived = [9, 1]
    assert "2 people liked “Roses”" not in lines(await digest(world))
    found = await digest(world, "?since=1")
    assert lines(found)["2 people liked “Roses”"] == [1, 2]
    assert found["skipped"] == {"muted": 1}, "of a category that is off by now"


async def test_a_message_that_happened_before_and_came_since_then_is_in_it(world: EdgeWorld) -> None:
    """A delayed one, or one of a source that was behind."""
    await missed(world)
    now_ms = world.gateway.wall_ms()
    mailbox = world.shard.mailboxes["default:u1"]
    for seq, accepted_ms in ((1, now_ms + 60_000), (2, now_ms)):
        body = mailbox.pop(seq)
        world.bodies.stored[seq] = StoredMessage("default:u1", seq, Envelope("x", b"", NORMAL, True, body), 0, accepted_ms)
    world.shard.cold = [(1, 2)]
    found = await digest(world, f"?since={now_ms + 60_000}")
    assert [message["seq"] for line in found["lines"] for message in line["messages"]] == [1]


async def test_too_many_digests_at_once_are_refused() -> None:
    async with edge_world(digests_waiting_max=1) as world, world.http() as client:
        await missed(world)
        world.shard.connected = False  # the backlog is not answered, so the first one waits
        async with background(client.get("/v1/digest")):
            while not world.gateway.pending_calls:
                await asyncio.sleep(0)
            answer = await client.get("/v1/digest")
            assert answer.status_code == 429
            assert int(answer.headers["Retry-After"]) >= 1


async def frames_until(socket: Any, kind: str) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while not frames or frames[-1]["type"] != kind:
            frames.append(json.loads(await socket.recv()))
    return frames


async def test_a_client_that_comes_back_gets_the_digest_beside_the_backlog(world: EdgeWorld) -> None:
    await missed(world)
    async with world.connect(query="?digest=1") as socket:
        frames = await frames_until(socket, "digest")
    assert [frame["type"] for frame in frames] == ["welcome", "messages", "digest"]
    assert "2 people liked “Roses”" in lines(frames[-1])
    assert [one["seq"] for one in frames[1]["messages"]] == [1, 2, 3, 4, 5]


async def test_the_age_of_the_oldest_message_counts_from_when_it_came(world: EdgeWorld) -> None:
    for _ in range(3):  # of a publisher whose clock is ahead
        await world.publish(**LIKED, ts=world.gateway.wall_ms() + 3_600_000)
    async with world.connect(query="?digest=1") as socket:
        await frames_until(socket, "digest")


async def test_a_stream_gets_the_digest_as_an_event(world: EdgeWorld) -> None:
    await missed(world)
    async with world.http() as client, client.stream("GET", "/v1/sse?digest=1") as answer:
        async with asyncio.timeout(60):
            async for line in answer.aiter_lines():
                if line.startswith('data: {"type":"digest"'):
                    assert "2 people liked “Roses”" in lines(json.loads(line[6:]))
                    return
    raise AssertionError("the stream ended")


@pytest.mark.parametrize(
    "config", [{"digest_after_ms": 60_000, "digest_messages_min": 1}, {"digest_after_ms": 0, "digest_messages_min": 6}]
)
async def test_who_missed_little_gets_no_digest(config: dict[str, int]) -> None:
    async with edge_world(**config) as world:
        await missed(world)
        async with world.connect(query="?digest=1") as socket:
            await frames_until(socket, "messages")
            await world.publish()
            await socket.send('{"type":"ping","ts":1}')
            assert "digest" not in [frame["type"] for frame in await frames_until(socket, "pong")]


async def test_who_does_not_ask_gets_none(world: EdgeWorld) -> None:
    await missed(world)
    async with world.connect(query="?digest=0") as socket:
        await socket.send('{"type":"ping","ts":1}')
        await frames_until(socket, "pong")
    assert world.model.asked == []


def test_limits_of_a_digest_fit_each_other() -> None:
    config = Config()
    assert config.digests_waiting_max * config.digest_bytes_max <= 128 << 20
