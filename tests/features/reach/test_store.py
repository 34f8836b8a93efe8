"""Addresses in Redis: kept, replaced, erased; a damaged one, or that of somebody else, is none."""

from __future__ import annotations

from redis.asyncio import Redis

from engine.config import Config
from engine.features.reach.core.addresses import NO_ADDRESSES, Addresses
from engine.features.reach.store import AddressStore
from engine.store.keys import channels_key

ANN = Addresses("ann@example.org")


async def test_addresses_are_kept_replaced_and_erased(redis_client: Redis) -> None:
    store = AddressStore(redis_client, Config())
    assert await store.read("acme:ann") == NO_ADDRESSES
    await store.write("acme:ann", ANN)
    assert await store.read("acme:ann") == ANN
    assert await store.read("other:ann") == NO_ADDRESSES
    await store.write("acme:ann", Addresses("ann@example.net"))
    assert (await store.read("acme:ann")).email == "ann@example.net"
    for _ in range(2):
        await store.erase("acme:ann")
    assert not await redis_client.exists(channels_key("acme"))


async def test_nothing_is_sent_to_an_address_that_is_damaged_or_of_another_user(redis_client: Redis) -> None:
    store = AddressStore(redis_client, Config())
    await store.write("acme:ann", ANN)
    stored = await redis_client.hget(channels_key("acme"), "ann")  # type: ignore[misc]
    await redis_client.hset(channels_key("acme"), mapping={"bob": stored, "ann": stored[:-2] + b"!}"})  # type: ignore[misc]
    assert [await store.read(f"acme:{user}") for user in ("ann", "bob")] == [NO_ADDRESSES] * 2
