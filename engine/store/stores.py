"""Clients of the stores that have the data (`redis_url`): one Redis server, or the stores of a Redis Cluster.

`engine.core.model.routing` says what is where. Beside users and timers there is what all share: the broadcast log with its ids, revoked
tokens, counter signals, dead letters, session events, actions of rules, the wanted numbers, the link key. That is in the first store.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import redis.asyncio as redis

from engine.config import Config, store_urls
from engine.core.model.routing import store_of


def of_store(config: Config, index: int) -> Config:
    """The configuration with one URL: that of the store which a shard or scheduler of this index uses."""
    urls = store_urls(config.redis_url)
    return config if len(urls) == 1 else msgspec.structs.replace(config, redis_url=urls[store_of(index, len(urls))])


def each_store(config: Config) -> list[Config]:
    """A configuration with one URL for each store, the first one first."""
    return [of_store(config, index) for index in range(len(store_urls(config.redis_url)))]


def connect_each(connect: Callable[[Config], redis.Redis], config: Config) -> list[redis.Redis]:
    """A client of each store, the first one first."""
    return list(map(connect, each_store(config)))


def own_and_first(connect: Callable[[Config], redis.Redis], config: Config, index: int) -> tuple[redis.Redis, redis.Redis]:
    """Clients of the store that a shard or scheduler of this index uses, and of the first one; the same where these are the same."""
    first = connect(of_store(config, 0))
    if store_of(index, len(store_urls(config.redis_url))) == 0:
        return first, first
    return connect(of_store(config, index)), first
