"""Slots move between two shards on a real Redis, and nobody loses anything. Every crash point: the simulator's fault `move`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
import redis
from redis.asyncio import Redis

from engine.actors import slot_mover
from engine.actors.slot_mover import SlotMover
from engine.config import Config
from engine.core.model.routing import slot_of, spread
from engine.core.policy.profile import Profile
from engine.core.shard.slot_release import SlotRelease
from engine.core.wire import records as wire
from engine.core.wire.records import ACCEPTED, DUPLICATE, Ack, Deliver, GetProfile, Moved, ProfileIs, SetProfile, Subscribe, Subscribed
from engine.errors import Fenced
from engine.store.keys import SLOTS_KEY
from engine.store.redis_client import claim_data_epoch
from engine.store.slot_map import claim_slot_map, encode_slot_map, hand_over_slots, require_slot_map, swap_slot_map
from tests.support.redis_rewind import Moment
from tests.support.redis_server import RedisServer
from tests.support.shard_process import ShardProcess, shard_process
from tests.support.waiting import until

ANN = next(f"t:ann{n}" for n in range(9) if spread(2).owner(f"t:ann{n}") == 0)
ANNS = slot_of(ANN)
BOB = next(f"t:bob{n}" for n in range(9) if spread(2).owner(f"t:bob{n}") == 0)


@pytest.fixture
async def config(redis_server: RedisServer, redis_client: Redis) -> Config:
    await claim_data_epoch(redis_client, int(time.time()))
    await claim_slot_map(redis_client, 2, 1)
    return Config(redis_url=redis_server.url, shards=2, checkpoint_ms=600_000, ack_journal_ms=10, log_level="CRITICAL")


async def move(slots: list[int], source: ShardProcess, target: ShardProcess, to: int) -> None:
    await target.shard.adopt(await source.shard.hand_over(slots, to))


async def test_the_new_owner_has_all_that_the_old_one_knew(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as source, shard_process(config, 1) as target:
        welcome = await source.attach(1, ANN)
        for id in ("one", "two", "three"):
            assert (await source.post(ANN, id)).status == ACCEPTED
        source.link.send(Ack(1, 1))
        source.link.send(Subscribe(90, ANN, ["news"], []))
        source.link.send(SetProfile(91, ANN, Profile(muted_types=("sport",))))
        await until(lambda: source.of(ProfileIs) and source.of(Subscribed))
        await move([ANNS], source, target, 1)
        assert [record.conn for record in source.of(Moved)] == [1], "its edge is to announce the connection elsewhere"
        assert (await require_slot_map(redis_client)).owner(ANN) == 1
        again = await target.attach(7, ANN, welcome.epoch, 1)
        assert (again.resumed, again.head) == ("ok", 3)
        await until(lambda: target.delivered(7) == [2, 3])
        repeated = await target.post(ANN, "three")
        assert (repeated.status, repeated.seq) == (DUPLICATE, 3)
        assert (await target.post(ANN, "four")).seq == 4
        target.link.send(Subscribe(92, ANN, [], []))
        target.link.send(GetProfile(93, ANN))
        await until(lambda: target.of(ProfileIs) and target.of(Subscribed))
        assert target.of(Subscribed)[0].topics == ["news"]
        assert target.of(ProfileIs)[0].profile == Profile(muted_types=("sport",))


async def test_what_comes_to_the_old_owner_is_told_to_wait_for_the_map_that_names_the_new_one(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as source, shard_process(config, 1) as target:
        ref = source.send_post(BOB, "stays")
        await move([ANNS], source, target, 1)
        late = source.send_post(ANN, "late")
        await until(lambda: [record for record in source.of(wire.Posted) if record.ref == ref])
        moved = (await until(lambda: [record for record in source.of(Moved) if record.ref == late]))[0]
        assert moved.version == (await require_slot_map(redis_client)).version


async def test_a_record_for_an_untold_slot_makes_its_new_owner_adopt_it(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_mover, "_POLL_S", 3600)
    async with shard_process(config) as source, shard_process(config, 1) as target:
        assert (await source.post(ANN, "one")).seq == 1
        await source.shard.hand_over([ANNS], 1)  # the controller that asked for it dies
        early = target.send_post(ANN, "two")
        await until(lambda: [record for record in target.of(Moved) if record.ref == early])
        served = len(spread(2).slots_of(1)) + 1
        await until(target.shard.stats, holds=lambda stats: stats["slots"] == served)
        assert (await target.post(ANN, "two")).seq == 2


async def test_a_slot_that_went_and_came_back_is_not_overwritten_by_what_its_shard_had_journalled_before(
    config: Config, redis_client: Redis
) -> None:
    # No checkpoint of the whole shard trims the journal: its successor reads all of it.
    async with shard_process(config, 1) as other:
        async with shard_process(config) as dying:
            dying.link.send(Subscribe(1, ANN, ["old"], []))
            await until(lambda: dying.of(Subscribed))
            assert (await dying.post(ANN, "one")).seq == 1
            await move([ANNS], dying, other, 1)
            other.link.send(Subscribe(2, ANN, ["new"], ["old"]))
            await until(lambda: other.of(Subscribed))
            assert (await other.post(ANN, "two")).seq == 2
            await move([ANNS], other, dying, 0)
            assert (await dying.post(ANN, "three")).seq == 3
        async with shard_process(config) as successor:
            successor.link.send(Subscribe(3, ANN, [], []))
            assert (await until(lambda: successor.of(Subscribed)))[0].topics == ["new"]
            await successor.attach(1, ANN)
            await until(lambda: successor.delivered(1) == [1, 2, 3])


async def test_a_shard_that_dies_after_it_has_handed_over_leaves_nothing_to_its_successor(config: Config) -> None:
    async with shard_process(config) as dying:
        for id in ("one", "two"):
            await dying.post(ANN, id)
        await dying.shard.hand_over([ANNS], 1)
    async with shard_process(config) as successor, shard_process(config, 1) as target:
        late = successor.send_post(ANN, "three")
        await until(lambda: [record for record in successor.of(Moved) if record.ref == late])
        assert (await target.post(ANN, "three")).seq == 3
        await target.attach(1, ANN)
        await until(lambda: target.delivered(1) == [1, 2, 3])


async def test_a_loss_before_the_map_is_stored_is_announced(config: Config, redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has forgotten the slot, and the target has not read it."""
    store_map = SlotMover._store_map
    async with shard_process(config) as source, shard_process(config, 1) as target:
        welcome = await source.attach(1, ANN)
        await source.post(ANN, "one")
        before = await Moment.taken(redis_client)
        assert (await source.post(ANN, "two")).seq == 2

        async def cut(mover: SlotMover, *args: Any) -> bool:
            await before.come_back()
            return await store_map(mover, *args)

        with monkeypatch.context() as patched:
            patched.setattr(SlotMover, "_store_map", cut)
            await move([ANNS], source, target, 1)
        again = await target.attach(7, ANN, welcome.epoch, 2)
        assert again.resumed == "gap"
        assert again.epoch != welcome.epoch
        assert (await target.post(ANN, "three")).seq == 2


async def given_to_another(redis_client: Redis) -> int:
    """As the controller gives the slots of a dead shard away: all of shard 0 to shard 1. Returns the version of the map."""
    found = await require_slot_map(redis_client)
    after = found.with_owner(found.slots_of(0), 1)
    assert await swap_slot_map(redis_client, after)
    return after.version


async def test_the_heir_of_a_dead_shard_has_all_that_was_answered(config: Config, redis_client: Redis) -> None:
    async with shard_process(config, 1) as heir:
        async with shard_process(config) as dying:
            dying.link.send(Subscribe(1, ANN, ["news"], []))
            await until(lambda: dying.of(Subscribed))
            for id in ("one", "two"):
                assert (await dying.post(ANN, id)).status == ACCEPTED
            welcome = await dying.attach(1, BOB)
        await heir.shard.adopt(await given_to_another(redis_client))
        assert (await heir.post(ANN, "two")).status == DUPLICATE
        assert (await heir.post(ANN, "three")).seq == 3
        again = await heir.attach(7, ANN, welcome.epoch, 0)
        assert again.resumed == "ok"
        await until(lambda: heir.delivered(7) == [1, 2, 3])
        heir.link.send(Subscribe(2, ANN, [], []))
        assert (await until(lambda: heir.of(Subscribed)))[0].topics == ["news"]


async def test_a_living_shard_taken_for_dead_ends_and_loses_nothing(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as cut_off, shard_process(config, 1) as heir:
        assert (await cut_off.post(ANN, "one")).seq == 1
        version = await given_to_another(redis_client)
        cut_off.send_post(ANN, "two")  # before it has read the map
        await heir.shard.adopt(version)
        cut_off.send_post(ANN, "three")
        async with asyncio.timeout(30):
            await cut_off.ended.wait()
        await heir.attach(1, ANN)
        accepted = [record.seq for record in cut_off.of(wire.Posted) if record.status == ACCEPTED]
        await until(lambda: len(heir.delivered(1)) >= len(accepted))
        assert heir.delivered(1)[: len(accepted)] == accepted


async def test_an_incarnation_that_was_replaced_hands_nothing_over(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as replaced, shard_process(config):
        epochs = {ANNS: replaced.shard._journal.epoch}
        wanted = (await require_slot_map(redis_client)).with_owner([ANNS], 1)
        with pytest.raises(Fenced):
            await hand_over_slots(redis_client, epochs, wanted, 1)
        assert (await require_slot_map(redis_client)).owner(ANN) == 0


async def test_a_target_that_nobody_told_adopts_by_itself(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_mover, "_POLL_S", 0.02)
    async with shard_process(config) as source, shard_process(config, 1) as target:
        await source.post(ANN, "one")
        await source.shard.hand_over([ANNS], 1)
        await until(lambda: target.shard._core.slot_map.owner(ANN) == 1)
        await target.attach(1, ANN)
        await until(lambda: target.delivered(1) == [1])


async def test_a_map_that_another_changed_meanwhile_is_changed_all_the_same(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as source, shard_process(config, 1) as target:
        await source.post(ANN, "one")
        found = await require_slot_map(redis_client)
        assert await swap_slot_map(redis_client, msgspec.structs.replace(found, version=found.version + 1, schedulers=2))
        await move([ANNS], source, target, 1)
        stored = await require_slot_map(redis_client)
        assert (stored.owner(ANN), stored.schedulers, stored.version) == (1, 2, found.version + 2)


async def test_what_is_not_the_shards_to_give_stays_where_it_is(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as source:
        before = await require_slot_map(redis_client)
        assert await source.shard.hand_over(spread(2).slots_of(1), 1) == before.version
        assert await source.shard.hand_over([ANNS], 2) == before.version
        assert await require_slot_map(redis_client) == before
        assert (await source.post(ANN, "one")).status == ACCEPTED


async def test_slots_come_back_when_the_shard_that_was_to_have_them_has_left_meanwhile(
    config: Config, redis_server: RedisServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = SlotRelease.written
    alone = spread(1, (await require_slot_map(redis_client)).version + 1)

    def written_too_late(release: SlotRelease) -> None:
        with redis.Redis.from_url(redis_server.url) as client:
            client.set(SLOTS_KEY, encode_slot_map(alone))
        written(release)

    monkeypatch.setattr(SlotRelease, "written", written_too_late)
    monkeypatch.setattr(slot_mover, "_POLL_S", 600.0)
    async with shard_process(config) as source:
        await source.post(ANN, "one")
        assert await source.shard.hand_over([ANNS], 1) == alone.version
        assert await require_slot_map(redis_client) == alone
        await until(lambda: source.shard._core.slot_map.owner(ANN) == 0)
        assert (await source.post(ANN, "two")).status == ACCEPTED
        await source.attach(1, ANN)
        await until(lambda: source.delivered(1) == [1, 2])


async def test_no_checkpoint_of_everything_holds_up_slots(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, written, looks, order = SlotRelease.waits, SlotRelease.written, [0], []

    def waits_for_long(release: SlotRelease) -> bool:
        looks[0] += 1
        return waits(release) or looks[0] < 100

    def noted(release: SlotRelease) -> None:
        order.append("slots")
        written(release)

    monkeypatch.setattr(SlotRelease, "waits", waits_for_long)
    monkeypatch.setattr(SlotRelease, "written", noted)
    async with shard_process(config) as source:
        for key in (ANN, BOB):
            await source.post(key, "one")
        moving = asyncio.create_task(source.shard.hand_over([ANNS], 1))
        await until(lambda: looks[0])
        await source.shard._checkpoints.write(full=True)
        order.append("everything")
        await moving
    assert order == ["slots", "everything"]


async def test_everything_in_flight_to_the_old_owner_is_answered_once(config: Config) -> None:
    async with shard_process(config) as source, shard_process(config, 1) as target:
        refs = [source.send_post(ANN, f"m{n}") for n in range(200)]
        moving = source.shard.hand_over([ANNS], 1)
        await target.shard.adopt(await moving)
        answers = await until(
            lambda: [record for record in source.records if isinstance(record, wire.Posted | Moved)], holds=lambda found: len(found) == 200
        )
        assert sorted(record.ref for record in answers) == refs
        accepted = [record.seq for record in answers if isinstance(record, wire.Posted)]
        await target.attach(1, ANN)
        await until(lambda: target.delivered(1) == sorted(accepted))
        assert not source.of(Deliver)
