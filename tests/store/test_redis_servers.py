"""Data on several Redis servers: who uses which."""

from __future__ import annotations

from redis.asyncio import Redis

from engine.config import Config
from engine.store.redis_servers import connect_each, each_server, of_server, own_and_first

CONFIG = Config(redis_url="redis://a redis://b", schedulers=2)


def test_shards_and_schedulers_use_the_server_of_their_index() -> None:
    assert [of_server(CONFIG, index).redis_url for index in range(4)] == ["redis://a", "redis://b"] * 2
    assert [config.redis_url for config in each_server(CONFIG)] == ["redis://a", "redis://b"]
    assert each_server(Config()) == [Config()]


def test_a_client_is_made_for_each_server_and_no_second_one_for_the_same() -> None:
    def connect(config: Config) -> Redis:
        made.append(config.redis_url)
        return Redis()

    made: list[str] = []
    own, first = own_and_first(connect, CONFIG, 2)
    assert own is first
    own, first = own_and_first(connect, CONFIG, 1)
    assert own is not first
    assert made == ["redis://a", "redis://a", "redis://b"]
    assert len(connect_each(connect, CONFIG)) == 2
    assert made[3:] == ["redis://a", "redis://b"]
