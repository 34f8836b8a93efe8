"""The versions of the rules, and the sample of events, in a real Redis."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from engine.config import Config
from engine.errors import CorruptRecord, StorageUnavailable
from engine.features.rules.core.versions import VersionInfo, VersionState
from engine.features.rules.keys import rules_state_key, rules_texts_key
from engine.features.rules.rules_store import RulesStore, StoredState


def with_version(state: VersionState, versions_max: int = 9) -> VersionState:
    number = state.last + 1
    return state.stored(VersionInfo(number, 5, "ann", 1, 9, f"d{number}"), versions_max)


async def test_what_was_stored_is_read_and_dropped_versions_are_gone(redis_client: Redis) -> None:
    store = RulesStore(redis_client, Config())
    assert (await store.stamp(), await store.read()) == ("", StoredState())
    stored = StoredState()
    for number in (1, 2, 3):
        changed = await store.change(stored, with_version(stored.state, 2), f"text {number}")
        assert changed is not None
        assert changed.stamp != stored.stamp
        stored = changed
    assert await store.read() == stored
    assert await store.stamp() == stored.stamp
    assert await store.texts([1, 2, 3]) == {2: "text 2", 3: "text 3"}
    assert await store.texts([]) == {}
    activated = await store.change(stored, stored.state.activated(3, "bob", 6))
    assert activated is not None
    assert (await store.read()).state.active == 3


async def test_of_changes_made_from_the_same_state_one_is_stored(redis_client: Redis) -> None:
    store = RulesStore(redis_client, Config())
    read = await store.read()
    results = await asyncio.gather(*(store.change(read, with_version(read.state), f"text {number}") for number in range(8)))
    (winner,) = [result for result in results if result is not None]
    assert await store.read() == winner
    assert await store.texts([1]) == {1: f"text {results.index(winner)}"}


async def test_a_state_that_cannot_be_decoded_is_an_error_of_its_own(redis_client: Redis) -> None:
    await redis_client.hset(rules_state_key(), mapping={"stamp": "1-x", "state": "{"})
    await redis_client.hset(rules_texts_key(), "1", b"\xff")
    store = RulesStore(redis_client, Config())
    for reading in (store.read(), store.texts([1])):
        with pytest.raises(CorruptRecord, match="cannot be read"):
            await reading
    assert await store.stamp() == "1-x"


async def test_a_state_that_cannot_be_decoded_is_recovered_from_the_texts(redis_client: Redis) -> None:
    store = RulesStore(redis_client, Config())
    await store.change(await store.read(), with_version(VersionState()), "text 1")
    await redis_client.hset(rules_state_key(), "state", "{")
    found = await store.recovered()
    assert (found.state.last, found.state.active, [info.bytes for info in found.state.versions]) == (1, 0, [6])
    changed = await store.change(found, with_version(found.state), "text 2")
    assert changed == await store.read()
    assert await store.texts([1, 2]) == {1: "text 1", 2: "text 2"}


async def test_storage_that_is_away_is_told() -> None:
    client = Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0))
    store = RulesStore(client, Config())
    try:
        for asking in (store.stamp(), store.read(), store.recovered(), store.texts([1]), store.change(StoredState(), VersionState())):
            with pytest.raises(StorageUnavailable):
                await asking
    finally:
        await client.aclose()
