"""Topics with their subscribers in real stores: each in some page, with the sum of all stores."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.errors import Invalid, StorageUnavailable
from engine.features.subscriptions.topic_subscribers import TopicSubscribers
from engine.store.keys import SUBSCRIBERS_PREFIX
from tests.support.redis_server import RedisServer

TOPICS = {f"topic-{number}": number for number in range(1, 1001)}  # more than fit one step of HSCAN


async def walk(topics: TopicSubscribers, tenant: str) -> tuple[dict[str, int], int]:
    found: dict[str, int] = {}
    after, pages = "", 0
    while True:
        page, after, _ = await topics.page(tenant, after, 100)
        found |= page
        pages += 1
        if not after:
            return found, pages


async def test_every_topic_is_listed_in_pages_with_its_subscribers(redis_client: Redis) -> None:
    await redis_client.hset(SUBSCRIBERS_PREFIX + "t", mapping=TOPICS)
    topics = TopicSubscribers(redis_client)
    found, pages = await walk(topics, "t")
    assert found == TOPICS
    assert pages > 3
    assert (await topics.page("t", "", 100))[2] == 1000
    assert await topics.page("other", "", 100) == ({}, "", 0)


async def test_a_topic_in_two_stores_is_listed_once_with_the_sum(redis_client: Redis, redis_server: RedisServer) -> None:
    second = Redis.from_url(redis_server.url, db=1)  # as another store
    try:
        await redis_client.hset(SUBSCRIBERS_PREFIX + "t", mapping={"both": 2, "first": 1})
        await second.hset(SUBSCRIBERS_PREFIX + "t", mapping={"both": 5, "second": 3})
        topics = TopicSubscribers(redis_client, second)
        first, after, total = await topics.page("t", "", 100)
        assert (first, total) == ({"both": 7, "first": 1}, 2)
        assert (await topics.page("t", after, 100))[:2] == ({"second": 3}, "")
    finally:
        await second.aclose()


@pytest.mark.parametrize("after", ["x", "1-0", "0-", "0--1", "0-99999999999999999999", "٣-0"])
async def test_a_position_that_was_never_answered_is_invalid(redis_client: Redis, after: str) -> None:
    with pytest.raises(Invalid):
        await TopicSubscribers(redis_client).page("t", after, 10)


async def test_storage_that_does_not_answer_is_said_so() -> None:
    with pytest.raises(StorageUnavailable):
        await TopicSubscribers(Redis(host="127.0.0.1", port=1)).page("t", "", 10)
