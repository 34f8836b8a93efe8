"""Clients of the Redis servers that have the data (`redis_url`).

`engine.core.model.routing` says what is where. Beside users and timers there is what all share: the broadcast log with its ids, revoked
tokens, counter signals, dead letters, session events, actions of rules, the wanted numbers, the link key. That is on the first server.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import redis.asyncio as redis

from engine.config import Config, redis_urls
from engine.core.model.routing import server_of


def of_server(config: Config, index: int) -> Config:
    """The configuration with one URL: that of the server which a shard or scheduler of this index uses."""
    urls = redis_urls(config.redis_url)
    return config if len(urls) == 1 else msgspec.structs.replace(config, redis_url=urls[server_of(index, len(urls))])


def each_server(config: Config) -> list[Config]:
    """A configuration with one URL for each server, the first one first."""
    return [of_server(config, index) for index in range(len(redis_urls(config.redis_url)))]


def connect_each(connect: Callable[[Config], redis.Redis], config: Config) -> list[redis.Redis]:
    """A client of each server, the first one first."""
    return list(map(connect, each_server(config)))


def own_and_first(connect: Callable[[Config], redis.Redis], config: Config, index: int) -> tuple[redis.Redis, redis.Redis]:
    """Clients of the server that a shard or scheduler of this index uses, and of the first one; the same where these are the same."""
    first = connect(of_server(config, 0))
    if server_of(index, len(redis_urls(config.redis_url))) == 0:
        return first, first
    return connect(of_server(config, index)), first
