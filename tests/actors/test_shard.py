"""A shard on a Redis that forgets: what the shard holds is put back, and everyone is told. Only Ray is replaced by function calls."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.actors.shard_tasks import shared_streams, storage_sweep, user_erasure
from engine.config import Config
from engine.core.commit.judge import Pending
from engine.core.model.envelope import Envelope
from engine.core.model.routing import slot_of
from engine.core.shard.shard import ShardCore
from engine.core.wire import records
from engine.core.wire import records as wire
from engine.store import restore
from engine.store.keys import EPOCH_FIELD, META_KEY, dead_letter_key, journal_key, journal_quarantine_key, offline_key
from engine.store.redis_client import base36, claim_data_epoch, replace_data_epoch
from engine.store.slot_map import claim_slot_map
from engine.store.tenant_usage import TenantUsage, UsageFigure
from tests.support.redis_rewind import Moment
from tests.support.redis_server import RedisServer
from tests.support.shard_process import FAR_MS, ShardProcess, shard_process
from tests.support.tenant_recount import counted, recount
from tests.support.waiting import until

ANN, BOB = "t:ann", "t:bob"


@pytest.fixture
async def config(redis_server: RedisServer, redis_client: Redis) -> Config:
    await claim_data_epoch(redis_client, int(time.time()))
    await claim_slot_map(redis_client, 1, 1)
    return Config(redis_url=redis_server.url, shards=1, checkpoint_ms=50, ack_journal_ms=10, log_level="CRITICAL")


async def test_what_a_lagging_replica_never_got_is_put_back_by_the_shard_that_holds_it(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as before:
        welcome = await before.attach(1, ANN)
        await before.post(ANN, "one")
        moment = await Moment.taken(redis_client)
        for id in ("two", "three", "four"):
            assert (await before.post(ANN, id)).status == records.ACCEPTED
        before.link.send(records.Ack(1, 2))
        await before.attach(2, BOB)
        await before.post(BOB, "other")
        await moment.come_back()
        await until(before.ended.is_set)
    async with shard_process(config) as after:
        again = await after.attach(1, ANN, welcome.epoch, 2)
        assert again.epoch != welcome.epoch
        assert (again.resumed, again.head) == ("gap", 4)
        await until(lambda: after.delivered(1) == [3, 4])
        await after.attach(2, BOB)
        await until(lambda: after.delivered(2) == [1])
        assert after.of(records.GapRange) == []
        repeated = await after.post(ANN, "three")
        assert (repeated.status, repeated.seq) == (records.DUPLICATE, 3)
        assert (await after.post(ANN, "five")).seq == 5, "no number is given twice"


async def test_users_who_come_back_together_get_what_waited_no_faster_than_their_edge_takes_it(
    config: Config, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 480 MB for 500 users were read in one go and overflowed the link's queue; its session was reset, and all of it read and sent again.
    monkeypatch.setattr("engine.actors.link._QUEUE_BYTES_MAX", 8 << 20)
    monkeypatch.setattr("engine.actors.link._BATCH_BYTES_MAX", 1 << 20)
    monkeypatch.setattr("engine.actors.shard_tasks.storage_reads._SEND_BACKLOG_BYTES", 1 << 20)
    users = [f"t:u{n}" for n in range(60)]
    async with shard_process(config) as running:
        body = b'"x":"%b"' % (b"y" * 400_000)
        for n, key in enumerate(users):
            running.link.send(records.Post(n, key, True, FAR_MS, Envelope(f"m{n}", b"digest..", 1, True, body)))
            if n % 10 == 9:
                await until(lambda n=n: len(running.of(records.Posted)) == n + 1)  # type: ignore[misc]
        await until(lambda: not any(mailbox.hot for mailbox in running.shard._core.mailboxes.values()))
        for n, key in enumerate(users):
            running.link.send(records.Attach(n, key, wire.WEBSOCKET, "", 0, f"c{n}", "phone"))
        await until(lambda: len(running.of(records.Deliver)) == len(users))
        assert running.link.sessions == 1


async def test_a_link_that_overflows_repeats_nothing_on_another(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.actors.link._QUEUE_BYTES_MAX", 1000)
    async with shard_process(config) as running:
        await running.shard.exchange("edge-9/slow.1", 0, wire.encode([records.Attach(1, ANN, wire.WEBSOCKET, "", 0, "c1", "phone")]))
        for n in range(4):
            await running.post(ANN, f"{n:0400}")
        assert len(running.shard._links.sessions()) == 1
        assert len(running.of(records.Posted)) == 4


async def test_what_had_left_memory_for_the_lost_part_is_announced_as_a_gap(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as before:
        welcome = await before.attach(1, ANN)
        moment = await Moment.taken(redis_client)
        await before.post(BOB, "for someone offline")
        await until(lambda: redis_client.xlen(offline_key(BOB)))
        await until(lambda: redis_client.xlen(journal_key(slot_of(BOB))), holds=lambda length: not length)
        await before.post(ANN, "a sign of life")  # so that the checkpoint is confirmed
        await moment.come_back()
        await until(before.ended.is_set)
    async with shard_process(config) as after:
        again = await after.attach(2, BOB, welcome.epoch, 0)
        assert (again.resumed, again.head) == ("gap", 1)
        await until(lambda: after.of(records.GapRange))
        assert (after.of(records.GapRange)[0].first, after.of(records.GapRange)[0].last) == (1, 1)
        assert (await after.post(BOB, "next")).seq == 2


async def test_a_post_on_its_way_while_data_is_lost_is_not_answered_by_the_old_shard(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as before:
        await before.post(ANN, "one")
        moment = await Moment.taken(redis_client)
        await before.post(ANN, "two")
        await moment.come_back()
        ref = before.send_post(ANN, "unanswered")
        await until(before.ended.is_set)
        assert [record for record in before.of(records.Posted) if record.ref == ref] == []
    async with shard_process(config) as after:
        assert (await after.post(ANN, "unanswered")).seq == 3


async def test_a_redis_that_lost_everything_gets_back_what_the_shard_holds(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as before:
        welcome = await before.attach(1, ANN)
        for id in ("one", "two", "three"):
            await before.post(ANN, id)
        before.link.send(records.Ack(1, 1))
        await redis_client.flushall()
        await until(before.ended.is_set)
    async with shard_process(config) as after:
        again = await after.attach(1, ANN)
        assert again.epoch != welcome.epoch
        await until(lambda: after.delivered(1) == [2, 3])


async def test_a_loss_during_a_restore_is_restored_too(config: Config, redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    async def replace_and_lose_once(*words: Any) -> str:
        monkeypatch.setattr(restore, "replace_data_epoch", replace_data_epoch)
        epoch = await replace_data_epoch(*words)
        await redis_client.flushall()
        return epoch

    monkeypatch.setattr(restore, "replace_data_epoch", replace_and_lose_once)
    async with shard_process(config) as before:
        await before.attach(1, ANN)  # so that messages stay in memory
        for id in ("one", "two"):
            await before.post(ANN, id)
        await redis_client.flushall()
        await until(before.ended.is_set)
    async with shard_process(config) as after:
        await after.attach(1, ANN)
        await until(lambda: after.delivered(1) == [1, 2])


async def test_a_loss_that_takes_the_new_epoch_along_makes_a_newer_one(config: Config, redis_client: Redis) -> None:
    epochs = []
    async with shard_process(config) as first:
        epochs.append((await first.attach(1, ANN)).epoch)
        moment = await Moment.taken(redis_client)
        await first.post(ANN, "one")
        await moment.come_back()
        await until(first.ended.is_set)
    async with shard_process(config) as second:
        epochs.append((await second.attach(1, ANN)).epoch)
        await second.post(ANN, "two")
        await moment.come_back()
        await until(second.ended.is_set)
    async with shard_process(config) as third:
        epochs.append((await third.attach(1, ANN)).epoch)
    assert epochs == sorted(set(epochs))


async def test_an_older_epoch_than_a_shard_knows_is_a_loss(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as running:
        welcome = await running.attach(1, ANN)
        await redis_client.hset(META_KEY, EPOCH_FIELD, base36(int(welcome.epoch, 36) - 1))
        await until(running.ended.is_set)
    async with shard_process(config) as successor:
        assert (await successor.attach(1, ANN)).epoch > welcome.epoch


async def test_connections_of_a_shard_that_lost_nothing_end_when_another_lost_data(config: Config, redis_client: Redis) -> None:
    async with shard_process(config) as running:
        welcome = await running.attach(1, ANN)
        replaced = await replace_data_epoch(redis_client, welcome.epoch, int(time.time()) + 10)
        assert await replace_data_epoch(redis_client, welcome.epoch, int(time.time()) + 99) == replaced, "once, however many notice"
        await until(lambda: running.of(records.Hangup))
        assert (running.of(records.Hangup)[0].conn, running.of(records.Hangup)[0].code) == (1, 1012)
        assert (await running.attach(2, ANN, welcome.epoch, 0)).resumed == "gap"
        assert not running.ended.is_set()


async def test_a_record_that_ends_the_shard_twice_is_refused_and_nothing_else_is_lost(
    config: Config, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue = ShardCore._enqueue

    def failing(self: ShardCore, pending: Pending, now_ms: int) -> None:
        if pending.post.envelope.id == "poison":
            raise ZeroDivisionError
        enqueue(self, pending, now_ms)

    monkeypatch.setattr(ShardCore, "_enqueue", failing)
    for entries in (1, 2):
        async with shard_process(config) as dying:
            before, poison, behind = (dying.send_post(ANN, id) for id in ("before", "poison", "behind"))
            async with asyncio.timeout(60):
                await dying.ended.wait()
            assert dying.of(records.Posted) == []
            assert await redis_client.xlen(journal_quarantine_key(0)) == entries
    async with shard_process(config) as last:
        before, poison, behind = (last.send_post(ANN, id) for id in ("before", "poison", "behind"))
        await until(lambda: len(last.of(records.Posted)) == 3)
        answers = {answer.ref: answer for answer in last.of(records.Posted)}
        assert (answers[before].status, answers[behind].status) == (records.ACCEPTED, records.ACCEPTED)
        assert (answers[poison].status, answers[poison].detail) == (records.UNAVAILABLE, records.POISONED)
        assert not last.ended.is_set()
        await last.attach(1, ANN)
        await until(lambda: last.delivered(1) == [1, 2])


async def test_an_exception_of_a_scheduler_link_ends_the_shard(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shard_process(config) as dying:
        monkeypatch.setattr(dying.shard._core.delivery, "due", lambda *_: 1 / 0)
        dying.shard._schedulers.receive([wire.Due([ANN])])
        async with asyncio.timeout(60):
            await dying.ended.wait()


async def test_a_replaced_shard_tells_no_gap_to_a_client_of_its_successor(config: Config) -> None:
    async with shard_process(config) as replaced:
        welcome = await replaced.attach(1, ANN)
        await replaced.post(ANN, "one")
        async with shard_process(config) as successor:
            assert (await successor.post(ANN, "two")).seq == 2
            replaced.link.send(wire.Attach(2, ANN, wire.WEBSOCKET, welcome.epoch, 2, "c2", "phone"))
            async with asyncio.timeout(60):
                await replaced.ended.wait()
        assert [record.conn for record in replaced.of(wire.Welcome)] == [1]


async def test_a_page_is_read_while_the_session_log_cannot_be_written(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = asyncio.Event()

    async def stuck(*_: Any, **__: Any) -> None:
        writing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(shared_streams, "write_session_events", stuck)
    async with shard_process(config) as running:
        await running.attach(1, ANN)
        await writing.wait()
        await running.attach(2, BOB)


async def everything_of(client: Redis, user: str) -> list[bytes]:
    """Every key and value that names the user, except ids, which expire."""
    await client.config_set("rdbcompression", "no")  # or DUMP would hide names
    named = []
    for key, (dump, _) in (await Moment.taken(client)).values.items():
        if user.encode() in key + dump and b":id:" not in key:
            named.append(key)
    return named


@pytest.mark.parametrize("killed", [False, True])
async def test_an_erased_user_is_in_no_key_of_redis_when_it_is_answered(config: Config, redis_client: Redis, *, killed: bool) -> None:
    """Page, offline stream, journal, dead letters, session log; also when the shard dies after the erasure was journalled."""
    key = "t:erased-user"
    async with shard_process(config) as running:
        await running.attach(1, key)
        for id in ("one", "two"):
            await running.post(key, id)
        await until(lambda: running.delivered(1) == [1, 2])
        running.link.send(records.Nack(1, ["one"], "cannot"))
        await until(lambda: redis_client.xlen(dead_letter_key("t")))
        await running.post(BOB, "of somebody else")
        assert {b"dead:t", b"session:stream"} < set(await everything_of(redis_client, "erased-user"))
        running.link.send(records.Erase(900, key))
        await until(lambda: running.of(records.Hangup))  # the erasure is in the journal
        assert (running.of(records.Hangup)[0].conn, running.of(records.Hangup)[0].code) == (1, 4403)
        if not killed:
            await until(lambda: running.of(records.ErasureDone))
            assert await everything_of(redis_client, "erased-user") == []
    if killed:
        async with shard_process(config) as after:
            after.link.send(records.Erase(900, key))  # the edge repeats what was not answered
            await until(lambda: after.of(records.ErasureDone))
            assert await everything_of(redis_client, "erased-user") == []
    async with shard_process(config) as successor:
        assert (await successor.attach(2, key)).head == 2
        assert (await successor.post(key, "three")).seq == 3, "no number is given twice"
        assert (await successor.attach(3, BOB)).head == 1


async def test_an_erasure_during_another_is_answered_when_its_own_data_are_gone(
    config: Config, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, drop, dropping, go_on = "t:erased-user", user_erasure.drop_user_entries, asyncio.Event(), asyncio.Event()

    async def slow(*of_user: Any, own: Redis) -> None:
        await drop(*of_user, own=own)
        dropping.set()
        await go_on.wait()

    monkeypatch.setattr(user_erasure, "drop_user_entries", slow)
    async with shard_process(msgspec.structs.replace(config, checkpoint_ms=600_000)) as running:
        await running.post(key, "one")
        running.link.send(records.Erase(900, key))
        await dropping.wait()
        await running.attach(2, key)
        await running.post(key, "two")
        running.link.send(records.Erase(901, key))
        await until(lambda: running.of(records.Hangup))  # it is in the journal
        go_on.set()
        await until(lambda: {done.ref for done in running.of(records.ErasureDone)} == {900, 901})
        assert await everything_of(redis_client, "erased-user") == []


async def test_the_figures_of_a_tenant_are_exact_after_a_kill_between_a_group_and_its_page(config: Config, redis_client: Redis) -> None:
    lazy = msgspec.structs.replace(config, checkpoint_ms=600_000)
    async with shard_process(lazy) as dying:
        for key in (ANN, BOB, "u:ann"):
            assert (await dying.post(key, "one")).status == records.ACCEPTED
        assert (await counted(redis_client, "t"))["users"] == 0, "there is no page yet"
    async with shard_process(config) as running:
        for tenant, users in (("t", 2), ("u", 1)):
            await until(partial(_counts, redis_client, tenant, "users", users))
            assert await counted(redis_client, tenant) == await recount(redis_client, tenant)
        running.link.send(records.Subscribe(800, BOB, ["x", "y"], []))
        await until(partial(_counts, redis_client, "t", "topics", 2))
        assert await counted(redis_client, "t") == await recount(redis_client, "t")
        for key in (ANN, BOB):
            running.link.send(records.Erase(900, key))
    async with shard_process(config) as after:
        for ref, key in enumerate((ANN, BOB), 900):
            after.link.send(records.Erase(ref, key))
        await until(lambda: len(after.of(records.ErasureDone)) == 2)
        assert not any((await counted(redis_client, "t")).values())
        assert (await counted(redis_client, "u"))["users"] == 1


async def _counts(client: Redis, tenant: str, figure: UsageFigure, wanted: int) -> bool:
    return (await TenantUsage(client).of(tenant))[figure] == wanted


async def test_a_tenant_with_as_many_users_as_it_may_gets_no_new_one_and_keeps_those_it_has(
    config: Config, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_sweep, "_TENANTS_S", 0.02)
    async with shard_process(msgspec.structs.replace(config, tenant_users_max=1)) as running:
        assert (await running.post(ANN, "one")).status == records.ACCEPTED
        await until(lambda: running.shard._core.full_tenants)
        refused = await running.post(BOB, "one")
        assert (refused.status, refused.detail) == (wire.OVERLOADED, wire.USERS_FULL)
        assert refused.retry_ms > 0
        assert (await running.post(BOB, "one")).status == wire.OVERLOADED, "now that its mailbox is in memory"
        for ref, question in enumerate((records.Subscribe(800, BOB, ["x"], []), records.SetProfile(801, BOB, None)), 800):
            running.link.send(question)
            (rejected,) = await until(partial(_rejected, running, ref))
            assert (rejected.status, rejected.detail) == (wire.OVERLOADED, wire.USERS_FULL)
        await running.attach(1, BOB)
        assert (await running.post(ANN, "two")).status == records.ACCEPTED
        assert (await running.post("u:bob", "one")).status == records.ACCEPTED
        running.link.send(records.Erase(900, ANN))
        await until(lambda: running.of(records.ErasureDone) and not running.shard._core.full_tenants & {"t"})
        assert (await running.post(BOB, "one")).status == records.ACCEPTED


def _rejected(running: ShardProcess, ref: int) -> list[records.Rejected]:
    return [record for record in running.of(records.Rejected) if record.ref == ref]
