"""The journal's promises on a real Redis: fencing, repetition, ids, rollback, trim, order."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from engine.core.commit.first_result import packed_result
from engine.core.model.category import Category, PolicyTerms
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.model.routing import slot_of
from engine.core.model.step import ChannelStep, StepTerms
from engine.core.policy.conditions import Conditions
from engine.core.shard.fired_timers import FiredTimers
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import Timer
from engine.errors import Fenced
from engine.store.accepted_ids import id_hash
from engine.store.keys import IDS_PREFIX, journal_key
from tests.support.journal_writer import USER, Writer

SLOT = slot_of(USER)


@pytest.fixture
async def writer(redis_client: Redis) -> Writer:
    writer = Writer(redis_client)
    await writer.journal.take_over([SLOT])
    return writer


async def test_a_group_is_one_entry_and_entries_come_back_in_order(writer: Writer, redis_client: Redis) -> None:
    await writer.write("a", "b")
    await writer.write("c")
    assert await redis_client.xlen(journal_key(SLOT)) == 2
    assert await writer.stored() == ["a", "b", "c"]


async def test_a_repeated_append_is_applied_once(writer: Writer) -> None:
    group = writer.group("a")
    assert await writer.journal.append(group) == {}
    assert await writer.journal.append(group) == {}
    assert await writer.stored() == ["a"]


async def test_a_known_id_keeps_the_whole_group_out(writer: Writer) -> None:
    await writer.write("a")
    writer.mailboxes[USER].recent.clear()  # only storage remembers it
    known = await writer.write("b", "a")
    assert known == {1: packed_result(b"digest..", 1, "")}
    assert await writer.stored() == ["a"]
    assert await writer.write("b") == {}


async def test_the_effect_of_a_timer_with_late_steps_is_remembered_longer(writer: Writer, redis_client: Redis) -> None:
    fired = FiredTimers(1, ShardOutput(), remembered_ms=60_000)
    terms, now_s = PolicyTerms("alert", Category(steps_ms=600_000)), int((await redis_client.time())[0])
    envelope = Envelope("m", b"digest..", 1, True, b'"x":1', policy_terms=terms)
    assert fired.take(Timer("3-m", USER, now_s * 1000, 0, 60_000, envelope))
    effect = timer_effect_id("3-m")
    await writer.write(effect)
    assert fired.numbered("3-m", 1)
    await writer.journal.remember(fired)
    assert not fired.keys(), "it is answered"
    stored = await redis_client.hget(f"{IDS_PREFIX}0", id_hash(USER, effect))
    assert int.from_bytes(stored[:4]) == now_s + 600


@pytest.mark.parametrize(("again_s", "longer"), [(10, False), (900, True)])
async def test_a_step_that_waits_long_finds_its_message_again(writer: Writer, redis_client: Redis, again_s: int, longer: bool) -> None:
    fired = FiredTimers(1, ShardOutput(), remembered_ms=60_000)
    now_s, effect = int((await redis_client.time())[0]), timer_effect_id("3-m")
    conditions = Conditions(0, step=StepTerms(ChannelStep("email"), "m", sid="3-m"))
    step = Timer("3-s", USER, now_s * 1000, 0, 60_000, Envelope("m", b"digest..", 1, True, b'"x":1'), conditions)
    await writer.write(effect)
    assert fired.take(step)
    fired.again([("3-s", (now_s + again_s) * 1000)])
    await writer.journal.look_up(fired)
    stored = await redis_client.hget(f"{IDS_PREFIX}0", id_hash(USER, effect))
    assert (int.from_bytes(stored[:4]) == now_s + again_s) is longer


async def test_a_newer_incarnation_fences_the_older(writer: Writer, redis_client: Redis) -> None:
    successor = Writer(redis_client)
    await writer.write("a")
    await successor.journal.take_over([SLOT])
    with pytest.raises(Fenced):
        await writer.write("zombie")
    with pytest.raises(Fenced):
        await writer.journal.covered(1, [SLOT])
    successor.mailboxes[USER].head = 1
    await successor.write("b")
    assert await successor.stored() == ["a", "b"]


async def test_a_rolled_back_group_never_was(writer: Writer) -> None:
    group = writer.group("a")
    await writer.journal.append(group)
    await writer.journal.rollback(group)
    writer.intake.refused()
    assert await writer.stored() == []
    assert await writer.write("a") == {}, "its id is free again"


async def test_a_late_copy_of_a_rolled_back_group_does_nothing(writer: Writer) -> None:
    group = writer.group("a")
    await writer.journal.rollback(group)
    assert await writer.journal.append(group) == {}
    assert await writer.stored() == []


async def test_a_late_copy_does_nothing_after_later_groups(writer: Writer) -> None:
    group = writer.group("late")
    await writer.journal.rollback(group)
    writer.intake.refused()
    await writer.write("b")
    assert await writer.journal.append(group) == {}
    assert await writer.stored() == ["b"]


async def test_a_trim_forgets_this_epoch_through_a_group_and_older_epochs_whole(writer: Writer, redis_client: Redis) -> None:
    await writer.write("old")
    successor = Writer(redis_client)
    await successor.journal.take_over([SLOT])
    successor.mailboxes[USER].head = 1
    await successor.write("a")
    await successor.write("b")
    await successor.journal.covered(1, [SLOT])
    assert await successor.stored() == ["b"]
    await successor.journal.covered(2, [SLOT])
    assert await successor.stored() == []


async def test_a_slot_may_be_left_while_a_checkpoint_trims_its_journal(writer: Writer) -> None:
    await writer.write("a")
    trimming = asyncio.create_task(writer.journal.covered(1, [writer.slot]))
    await asyncio.sleep(0)  # it has begun, and waits for storage
    writer.journal.leave([writer.slot])
    await trimming
    assert await writer.stored() == []


async def test_a_long_journal_is_read_whole(writer: Writer) -> None:
    for number in range(120):
        await writer.write(f"m{number}")
    assert await writer.stored() == [f"m{number}" for number in range(120)]
