"""Addresses in Redis: kept, replaced, erased; a damaged one, or that of somebody else, is none."""

from __future__ import annotations

import asyncio

import msgspec
from redis.asyncio import Redis

from engine.config import Config
from engine.core.model.action import ChannelCap
from engine.features.reach.core.addresses import BROWSERS_MAX, NO_ADDRESSES, Addresses, PushKeys, PushSubscription
from engine.features.reach.keys import channels_key
from engine.features.reach.store import AddressStore, CapCount

ANN = Addresses("ann@example.org")


async def set_to(store: AddressStore, addresses: Addresses) -> None:
    await store.change("acme:ann", lambda _: addresses)


async def test_addresses_are_kept_replaced_and_erased(redis_client: Redis) -> None:
    store = AddressStore(redis_client, Config())
    assert await store.read("acme:ann") == NO_ADDRESSES
    await set_to(store, ANN)
    assert await store.read("acme:ann") == ANN
    assert await store.read("other:ann") == NO_ADDRESSES
    await set_to(store, Addresses("ann@example.net"))
    assert (await store.read("acme:ann")).email == "ann@example.net"
    for _ in range(2):
        await store.erase("acme:ann")
    assert not await redis_client.exists(channels_key("acme"))


async def test_nothing_is_sent_to_an_address_that_is_damaged_or_of_another_user(redis_client: Redis) -> None:
    store = AddressStore(redis_client, Config())
    await set_to(store, ANN)
    stored = await redis_client.hget(channels_key("acme"), "ann")  # type: ignore[misc]
    await redis_client.hset(channels_key("acme"), mapping={"bob": stored, "ann": stored[:-2] + b"!}"})  # type: ignore[misc]
    assert [await store.read(f"acme:{user}") for user in ("ann", "bob")] == [NO_ADDRESSES] * 2


async def test_two_changes_at_once_are_both_kept(redis_client: Redis) -> None:
    store = AddressStore(redis_client, Config())
    urls = [f"json://h/{n}" for n in range(5)]
    await asyncio.gather(
        *(store.change("acme:ann", lambda found, url=url: msgspec.structs.replace(found, apprise=(*found.apprise, url))) for url in urls)
    )
    assert sorted((await store.read("acme:ann")).apprise) == urls


async def test_confirmations_are_counted_up_to_the_limit_of_each_name_and_then_anew(redis_client: Redis) -> None:
    store = AddressStore(redis_client, Config())
    assert [(await store.count_asked({"user": 9, "address": 2}, 60_000)).wait_ms for _ in range(2)] == [0, 0]
    assert 0 < (await store.count_asked({"user": 9, "address": 2}, 60_000)).wait_ms <= 60_000
    assert await redis_client.get("channels:asked:user") == b"2", "a refused one does not count"
    await store.uncount_asked(["address", "unknown"])
    assert [(await store.count_asked({"address": 2}, 60_000)).wait_ms > 0 for _ in range(2)] == [False, True]
    assert (await store.count_asked({"other": 1}, 1)).wait_ms == 0
    while await redis_client.exists("channels:asked:other"):
        await asyncio.sleep(0.001)
    assert (await store.count_asked({"other": 1}, 1)).wait_ms == 0


async def test_an_erasure_refuses_links_asked_for_before_it(redis_client: Redis) -> None:
    store = AddressStore(redis_client, Config())
    before = await store.count_asked({"user": 9}, 60_000)
    await set_to(store, ANN)
    await store.erase("acme:ann")
    assert not await store.confirm("acme:ann", "ann@example.org", before.at_ms)
    assert await store.read("acme:ann") == NO_ADDRESSES
    assert await store.confirm("acme:bob", "bob@example.org", before.at_ms)
    while not await store.confirm("acme:ann", "ann@example.org", (await store.count_asked({"user": 9}, 60_000)).at_ms):
        await asyncio.sleep(0.001)  # the clock of Redis has not moved yet
    assert await store.read("acme:ann") == ANN


async def test_a_channel_is_used_up_to_its_cap_in_the_rolling_window_and_a_repeat_is_no_second(redis_client: Redis) -> None:
    store = AddressStore(redis_client, Config())
    cap = ChannelCap("news", 2, 60_000)
    counted = [await store.count_told("acme:ann", "email", cap, step) for step in ("a", "b", "c", "a")]
    assert counted == [CapCount.NOW, CapCount.NOW, CapCount.NO, CapCount.BEFORE]
    assert await store.count_told("acme:ann", "push", cap, "c"), "each channel counts its own"
    assert await store.count_told("acme:ann", "email", ChannelCap("alert", 2, 60_000), "c")
    assert await store.count_told("acme:bob", "email", cap, "c")
    (key, *_) = sorted(await redis_client.keys("channels:told:*"))
    assert 0 < await redis_client.pttl(key) <= 60_000
    brief = ChannelCap("brief", 1, 1)
    assert await store.count_told("acme:ann", "email", brief, "a")
    await asyncio.sleep(0.005)
    assert await store.count_told("acme:ann", "email", brief, "b")


async def test_browsers_that_subscribe_at_once_are_all_kept_and_the_oldest_of_too_many_goes(redis_client: Redis) -> None:
    store = AddressStore(redis_client, Config())
    browsers = [PushSubscription(f"https://fcm.googleapis.com/{n}", PushKeys("p", "a")) for n in range(BROWSERS_MAX + 1)]
    for at_once in (browsers[:-1], browsers[-1:]):
        await asyncio.gather(*(store.change("acme:ann", lambda kept, one=one: kept.with_browser(one)) for one in at_once))  # type: ignore[misc]
    kept = (await store.read("acme:ann")).push
    assert kept[-1] == browsers[-1]
    assert len(set(kept)) == BROWSERS_MAX
    for one in kept:
        await store.change("acme:ann", lambda found, one=one: found.without_browser(one.id))  # type: ignore[misc]
    assert not await redis_client.exists(channels_key("acme"))
