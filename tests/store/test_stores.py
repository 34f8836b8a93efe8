"""Data in several stores: who uses which."""

from __future__ import annotations

from redis.asyncio import Redis

from engine.config import Config
from engine.store.stores import connect_each, each_store, of_store, own_and_first

CONFIG = Config(redis_url="redis+cluster://a/2", schedulers=2)
FIRST, SECOND = "redis+cluster://a/2#0", "redis+cluster://a/2#1"


def test_shards_and_schedulers_use_the_store_of_their_index() -> None:
    assert [of_store(CONFIG, index).redis_url for index in range(4)] == [FIRST, SECOND] * 2
    assert [config.redis_url for config in each_store(CONFIG)] == [FIRST, SECOND]
    assert each_store(Config()) == [Config()]


def test_a_client_is_made_for_each_store_and_no_second_one_for_the_same() -> None:
    def connect(config: Config) -> Redis:
        made.append(config.redis_url)
        return Redis()

    made: list[str] = []
    own, first = own_and_first(connect, CONFIG, 2)
    assert own is first
    own, first = own_and_first(connect, CONFIG, 1)
    assert own is not first
    assert made == [FIRST, FIRST, SECOND]
    assert len(connect_each(connect, CONFIG)) == 2
    assert made[3:] == [FIRST, SECOND]
