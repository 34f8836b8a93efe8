"""Timer storage on a real Redis: requests, idempotency, fencing, pages, quarantine, repeats."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from engine.config import Config
from engine.core.commit.first_result import NEVER, packed_result, unpacked_result
from engine.core.commit.group import Group
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.model.routing import TIMER_PARTITIONS, audience_key, partition_of, slot_of, timer_id
from engine.core.scheduler.scheduler_events import BEGINNING, ReadTimers, StoreDone, StoreRequest, StoreWork, TimersRead
from engine.core.wire import records as wire
from engine.errors import Fenced, StorageUnavailable
from engine.publish.message_ids import MessageIds
from engine.store.accepted_ids import AcceptedIds
from engine.store.journal import Journal
from engine.store.keys import (
    IDS_STATE_KEY,
    idempotency_key,
    tenants_key,
    timer_cancelled_key,
    timer_due_key,
    timer_key,
    timer_quarantine_key,
    timer_user_prefix,
)
from engine.store.timer_store import TimerStore
from tests.support.recorded_runs import recorded_runs
from tests.support.redis_server import RedisServer, start_redis
from tests.support.simulated_client import SimulatedClient
from tests.support.waiting import until

NOW = 1_790_000_000_000
KEY = "default:ann"
PARTITION = partition_of(KEY)
DIGEST = bytes.fromhex("00112233445566ff")


def timer(
    unique: str,
    due_ms: int = NOW + 60_000,
    *,
    key: str = KEY,
    id: str = "",
    digest: bytes = DIGEST,
    body: bytes = b"x",
    collapse: str = "",
) -> wire.Timer:
    return wire.Timer(timer_id(key, unique), key, due_ms, NOW, 60_000, Envelope(id or unique, digest, 1, True, body, collapse))


class Hold:
    """A store that has taken over, and short ways to use it."""

    def __init__(self, client: Redis, config: Config) -> None:
        self.store = TimerStore(client, config, range(TIMER_PARTITIONS), "scheduler-0")
        self.claimed_ms = NOW - 1

    async def ask(self, *requests: Any, now_ms: int = NOW) -> list[wire.TimerAnswer]:
        work = StoreWork(PARTITION, self.claimed_ms, {}, [StoreRequest(request) for request in requests])
        return (await self.store.apply([work], now_ms))[0].answers

    async def schedule(self, *timers: wire.Timer, idempotent: bool = False) -> list[wire.TimerAnswer]:
        return await self.ask(*(wire.Schedule(n, idempotent, item) for n, item in enumerate(timers)))

    async def fired(self, *sids: str, key: str = KEY, now_ms: int = NOW) -> StoreDone:
        work = StoreWork(PARTITION, self.claimed_ms, dict.fromkeys(sids, key), [])
        return (await self.store.apply([work], now_ms))[0]

    async def page(self, page: ReadTimers) -> TimersRead:
        done = (await self.store.apply([StoreWork(PARTITION, self.claimed_ms, {}, [], page)], NOW))[0]
        assert done.page is not None
        return done.page

    async def one(self, request: Any) -> tuple[int, list[str]]:
        (answer,) = await self.ask(request)
        return answer.status, [found.sid for found in answer.timers]


async def _hold(client: Redis, **settings: Any) -> Hold:
    hold = Hold(client, Config(**settings))
    await hold.store.take_over()
    return hold


@pytest.fixture
async def hold(redis_client: Redis) -> Hold:
    return await _hold(redis_client)


class FailingClient:
    """Fails at the n-th round trip, before or after its command was applied, and at all later ones."""

    def __init__(self, client: Redis, at: int, *, applied: bool) -> None:
        self._client = client
        self._left = at
        self._applied = applied

    async def execute_command(self, *command: Any) -> Any:
        self._left -= 1
        if self._left < 0 and not (self._applied and self._left == -1):
            raise RedisConnectionError("gone")
        reply = await self._client.execute_command(*command)
        if self._left < 0:
            raise RedisConnectionError("gone before the reply")
        return reply


async def _buckets(client: Redis) -> dict[bytes, bytes]:
    """Field and value of all that is in buckets of ids."""
    keys = [key for key in await client.keys("ids:*") if key != IDS_STATE_KEY.encode()]
    return {field: value for key in keys for field, value in (await client.hgetall(key)).items()}


async def _keys(client: Redis) -> set[str]:
    of_owners = {f"t{partition}:{name}" for partition in range(TIMER_PARTITIONS) for name in ("epoch", "owner")}
    return {key.decode() for key in await client.keys("t*")} - of_owners


# -- Owners. -----------------------------------------------------------------------------------------------------------
async def test_a_partition_is_held_until_its_owner_releases_it_or_another_takes_it_over(redis_client: Redis) -> None:
    first, second, third = (TimerStore(redis_client, Config(), [PARTITION], f"scheduler-{index}") for index in range(3))
    assert not await first.is_held_by_others(), "nobody has had it"
    await first.take_over()
    assert not await TimerStore(redis_client, Config(), [PARTITION], "scheduler-0").is_held_by_others(), "an incarnation does not wait"
    assert await second.is_held_by_others()
    await first.release()
    assert not await second.is_held_by_others()
    await second.take_over()
    with pytest.raises(Fenced):
        await first.release()
    assert await third.is_held_by_others(), "a late release has no effect"


async def test_nothing_is_fenced_when_the_take_over_is_not_confirmed(redis_client: Redis) -> None:
    async def refuse() -> None:
        raise StorageUnavailable("the slot map")

    first, second = (TimerStore(redis_client, Config(), [PARTITION], f"scheduler-{index}") for index in range(2))
    await first.take_over()
    with pytest.raises(StorageUnavailable):
        await second.take_over(refuse)
    await first.apply([StoreWork(PARTITION, 0, {}, [])], NOW)
    assert await second.is_held_by_others()


# -- Claims. -----------------------------------------------------------------------------------------------------------
async def _claim(store: TimerStore, until_ms: int) -> int:
    assert await store.apply([], NOW, until_ms) == []
    return store.reach_ms


async def test_a_successor_finds_how_far_the_timers_are_claimed_and_nobody_claims_behind_it(hold: Hold, redis_client: Redis) -> None:
    assert (hold.store.inherited_ms, hold.store.reach_ms) == (0, 0)
    assert await _claim(hold.store, NOW + 2000) == NOW + 2000
    assert await _claim(hold.store, NOW + 1000) == NOW + 2000, "claims never shrink"
    successor = await _hold(redis_client)
    assert (successor.store.inherited_ms, successor.store.reach_ms) == (NOW + 2000, NOW + 2000)
    with pytest.raises(Fenced):
        await _claim(hold.store, NOW + 9000)
    assert (await _hold(redis_client)).store.reach_ms == NOW + 2000


async def test_a_claim_reaches_as_far_as_that_of_the_partition_that_has_the_lowest(redis_client: Redis) -> None:
    one, both = (TimerStore(redis_client, Config(), partitions, "scheduler-0") for partitions in ([PARTITION], [PARTITION, PARTITION + 1]))
    await one.take_over()
    await _claim(one, NOW + 2000)
    await both.take_over()
    assert (both.inherited_ms, both.reach_ms) == (NOW + 2000, 0)
    assert await _claim(both, NOW + 1000) == NOW + 1000
    with pytest.raises(Fenced):
        await _claim(one, NOW + 9000)


async def test_a_claim_is_fenced_by_the_newer_owner_of_any_partition(redis_client: Redis) -> None:
    both = TimerStore(redis_client, Config(), [PARTITION, PARTITION + 1], "scheduler-0")
    await both.take_over()
    other = TimerStore(redis_client, Config(), [PARTITION + 1], "scheduler-1")
    await other.take_over()
    with pytest.raises(Fenced):
        await both.apply([StoreWork(PARTITION, NOW, {}, [StoreRequest(wire.Schedule(1, False, timer("a")))])], NOW, NOW + 1000)
    again = TimerStore(redis_client, Config(), [PARTITION], "scheduler-0")
    await again.take_over()
    assert again.reach_ms == 0, "nothing was written"


async def test_what_is_stored_or_moved_after_a_take_over_is_no_predecessors(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(timer("old", NOW + 500), timer("far", NOW + 9000))
    successor = await _hold(redis_client)
    successor.claimed_ms = NOW + 2000
    await successor.schedule(timer("new", NOW + 500), timer("other", NOW + 600))
    await successor.ask(wire.Reschedule(1, "default", timer("far").sid, NOW + 700))
    done = (await successor.store.apply([StoreWork(PARTITION, NOW + 2000, {}, [], ReadTimers(BEGINNING, NOW + 9000, 10, 1 << 20))], NOW))[0]
    assert sorted(done.young) == sorted(timer(unique).sid for unique in ("new", "other", "far"))
    assert await successor.one(wire.Cancel(1, "default", timer("old").sid)) == (wire.ALREADY_FIRED, [])
    assert await successor.one(wire.Cancel(1, "default", timer("new").sid)) == (wire.OK, [timer("new").sid])
    assert (await successor.ask(wire.CancelAll(1, KEY)))[0].count == 2


async def test_the_marks_of_one_holder_mean_nothing_to_the_next(redis_client: Redis) -> None:
    first = await _hold(redis_client)
    first.claimed_ms = NOW + 2000
    await first.schedule(timer("a", NOW + 500))
    second = await _hold(redis_client)
    second.claimed_ms = NOW + 2000
    assert await second.one(wire.Cancel(1, "default", timer("a").sid)) == (wire.ALREADY_FIRED, [])


# -- Requests. ---------------------------------------------------------------------------------------------------------
async def test_a_scheduled_timer_is_found_as_it_was_given(hold: Hold) -> None:
    given = timer("a", body=b'"id":"a","data":{"\xc3\xa9":1}')
    assert await hold.schedule(given) == [wire.TimerAnswer(0, wire.SCHEDULED, [given])]
    assert await hold.ask(wire.Inspect(7, "default", given.sid)) == [wire.TimerAnswer(7, wire.OK, [given])]


async def test_scheduling_the_same_id_again_changes_nothing(hold: Hold) -> None:
    await hold.schedule(timer("a", NOW + 5))
    await hold.ask(wire.Reschedule(1, "default", timer("a").sid, NOW + 900))
    (answer,) = await hold.schedule(timer("a", NOW + 5))
    assert (answer.status, answer.timers[0].due_ms) == (wire.SCHEDULED, NOW + 900)


async def test_a_cancelled_timer_leaves_nothing_but_a_tombstone(hold: Hold, redis_client: Redis) -> None:
    sid = timer("a").sid
    await hold.schedule(timer("a"))
    assert await hold.one(wire.Cancel(1, "default", sid)) == (wire.OK, [sid])
    assert await _keys(redis_client) == {f"t{PARTITION}:cancelled"}
    assert await hold.one(wire.Inspect(1, "default", sid)) == (wire.NOT_FOUND, [])
    assert await hold.one(wire.Reschedule(1, "default", sid, NOW + 900)) == (wire.NOT_FOUND, [])


async def test_cancelling_again_is_answered_as_the_first_time_and_a_stranger_finds_nothing(hold: Hold) -> None:
    sid = timer("a").sid
    await hold.schedule(timer("a"))
    await hold.ask(wire.Cancel(1, "default", sid))
    assert await hold.one(wire.Cancel(1, "default", sid)) == (wire.OK, [])
    assert await hold.one(wire.Cancel(1, "other", sid)) == (wire.NOT_FOUND, [])
    assert await hold.one(wire.Cancel(1, "default", timer("never").sid)) == (wire.NOT_FOUND, [])


async def test_a_repeated_schedule_does_not_bring_a_cancelled_or_fired_timer_back(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(timer("a"), timer("b"))
    await hold.ask(wire.Cancel(1, "default", timer("a").sid))
    await hold.fired(timer("b").sid)
    assert [(answer.status, answer.timers) for answer in await hold.schedule(timer("a"), timer("b"))] == [(wire.SCHEDULED, [])] * 2
    assert await redis_client.zcard(timer_due_key(PARTITION)) == 0


async def test_a_move_changes_the_due_time_everywhere(hold: Hold) -> None:
    await hold.schedule(timer("a", NOW + 100), timer("b", NOW + 200))
    (moved,) = await hold.ask(wire.Reschedule(1, "default", timer("a").sid, NOW + 300))
    assert (moved.status, moved.timers[0].due_ms) == (wire.OK, NOW + 300)
    listed = await hold.one(wire.ListTimers(1, KEY, 10))
    assert listed == (wire.OK, [timer("b").sid, timer("a").sid])
    assert [found.due_ms for found in (await hold.page(ReadTimers(BEGINNING, NOW + 999, 10, 1 << 20))).timers] == [NOW + 200, NOW + 300]


async def test_a_fired_timer_is_told_from_one_that_never_was(hold: Hold) -> None:
    sid = timer("a").sid
    await hold.schedule(timer("a"))
    await hold.fired(sid)
    await hold.fired(sid)  # again, as after a lost answer
    for request in (wire.Inspect(1, "default", sid), wire.Cancel(1, "default", sid), wire.Reschedule(1, "default", sid, NOW)):
        assert await hold.one(request) == (wire.ALREADY_FIRED, [])
    assert await hold.one(wire.Inspect(1, "default", timer("never").sid)) == (wire.NOT_FOUND, [])
    assert await hold.one(wire.Inspect(1, "other", sid)) == (wire.NOT_FOUND, [])


async def test_a_fired_timer_of_an_unknown_owner_leaves_every_index(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(timer("a"))
    await hold.fired(timer("a").sid, key="")
    assert await _keys(redis_client) == set()
    assert await hold.one(wire.Inspect(1, "default", timer("a").sid)) == (wire.ALREADY_FIRED, [])


async def test_what_never_was_gets_no_tombstone(hold: Hold, redis_client: Redis) -> None:
    await hold.fired(timer("never").sid)
    assert await _keys(redis_client) == set()
    assert await _buckets(redis_client) == {}


async def test_the_effect_in_the_journal_tells_that_a_timer_has_fired(hold: Hold, redis_client: Redis) -> None:
    sid, effect = timer("a").sid, packed_result(DIGEST, 7, "")
    await hold.schedule(timer("a"))
    journal = Journal(redis_client, 0, 86_400_000)
    await journal.take_over([slot_of(KEY)])
    assert await journal.append(Group(1, {slot_of(KEY): b"p"}, [(KEY, timer_effect_id(sid))], [effect], [], [], [], [])) == {}
    await hold.fired(sid)
    assert [value[4:] for value in (await _buckets(redis_client)).values()] == [effect]
    assert await hold.one(wire.Cancel(1, "default", sid)) == (wire.ALREADY_FIRED, [])
    assert await hold.one(wire.Cancel(1, "other", sid)) == (wire.NOT_FOUND, [])


async def test_a_shard_finds_the_effect_of_a_timer_that_was_removed(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(timer("a"))
    await hold.fired(timer("a").sid)
    journal = Journal(redis_client, 0, 86_400_000)
    await journal.take_over([slot_of(KEY)])
    group = Group(1, {slot_of(KEY): b"p"}, [(KEY, timer_effect_id(timer("a").sid))], [packed_result(DIGEST, 7, "")], [], [], [], [])
    (known,) = (await journal.append(group)).values()
    assert unpacked_result(known) == (bytes(8), 0, "")


async def test_a_fired_timer_takes_35_bytes_among_many(hold: Hold, redis_client: Redis) -> None:
    sids = [timer(MessageIds().short()).sid for _ in range(3000)]
    for at in range(0, len(sids), 500):
        await hold.schedule(*(timer(sid.partition("-")[2]) for sid in sids[at : at + 500]))
        await hold.fired(*sids[at : at + 500])
    assert len(await _buckets(redis_client)) == len(sids)
    sizes = [await redis_client.memory_usage(key) for key in await redis_client.keys("ids:*")]
    assert sum(filter(None, sizes)) < 40 * len(sids)
    answers = await hold.ask(*(wire.Inspect(n, "default", sid) for n, sid in enumerate(sids[::7])))
    assert {answer.status for answer in answers} == {wire.ALREADY_FIRED}


async def test_a_fired_timer_is_forgotten_with_the_ids_of_its_time(redis_client: Redis) -> None:
    hold = await _hold(redis_client, idempotency_caller_s=1)
    await hold.schedule(timer("a"))
    await hold.fired(timer("a").sid)
    assert await hold.one(wire.Inspect(1, "default", timer("a").sid)) == (wire.ALREADY_FIRED, [])
    await until(lambda: hold.one(wire.Inspect(1, "default", timer("a").sid)), holds=lambda outcome: outcome == (wire.NOT_FOUND, []))


async def test_tombstones_are_forgotten_with_the_ids_of_their_timers(hold: Hold, redis_client: Redis) -> None:
    later = NOW + 49 * 3_600_000
    due_ms = NOW + 24 * 3_600_000
    await hold.schedule(timer("a", due_ms), timer("b", due_ms), timer("c", due_ms))
    assert [(await hold.one(wire.Cancel(1, "default", timer(name).sid)))[0] for name in "ab"] == [wire.OK, wire.OK]
    key = timer_cancelled_key(PARTITION)
    assert await redis_client.zscore(key, b"default:" + timer("a").sid.encode()) == due_ms + 86_400_000
    assert 47 * 3_600_000 < await redis_client.pttl(key) <= 48 * 3_600_000
    assert (await hold.ask(wire.Cancel(1, "default", timer("c").sid), now_ms=later))[0].status == wire.OK
    assert await redis_client.zrange(key, 0, -1) == [b"default:" + timer("c").sid.encode()]


async def test_what_an_earlier_incarnation_may_have_fired_cannot_be_touched(hold: Hold) -> None:
    hold.claimed_ms = NOW
    await hold.schedule(timer("due", NOW), timer("later", NOW + 1))
    for request in (wire.Inspect(1, "default", timer("due").sid), wire.Cancel(1, "default", timer("due").sid)):
        assert await hold.one(request) == (wire.ALREADY_FIRED, [])
    assert await hold.one(wire.Cancel(1, "default", timer("later").sid)) == (wire.OK, [timer("later").sid])


async def test_another_tenants_timer_is_unknown(hold: Hold) -> None:
    await hold.schedule(timer("a"))
    sid = timer("a").sid
    for request in (
        wire.Inspect(1, "other", sid),
        wire.Cancel(1, "other", sid),
        wire.Reschedule(1, "other", sid, NOW),
        wire.Inspect(1, "defaul", sid),
    ):
        assert await hold.one(request) == (wire.NOT_FOUND, [])
    assert await hold.one(wire.Inspect(1, "default", sid)) == (wire.OK, [sid])


async def test_a_user_has_a_limited_number_of_timers(redis_client: Redis) -> None:
    hold = await _hold(redis_client, timers_per_user_max=2)
    answers = await hold.schedule(timer("a"), timer("b"), timer("c"), timer("b"))
    assert [answer.status for answer in answers] == [wire.SCHEDULED, wire.SCHEDULED, wire.OVERLOADED, wire.SCHEDULED]
    assert "timers_per_user_max" in answers[2].detail
    assert [answer.retry_ms for answer in answers] == [0, 0, 60_000, 0]
    await hold.ask(wire.Cancel(1, "default", timer("a").sid))
    assert (await hold.schedule(timer("c")))[0].status == wire.SCHEDULED


async def test_a_listing_is_soonest_first_and_says_when_it_is_cut(redis_client: Redis) -> None:
    hold = await _hold(redis_client, list_timers_max=3, list_timers_bytes=100_000)
    sids = [timer(f"{n}").sid for n in range(4)]
    await hold.schedule(*(timer(f"{n}", NOW + 10 + n) for n in reversed(range(4))))
    (answer,) = await hold.ask(wire.ListTimers(1, KEY, 2))
    assert ([found.sid for found in answer.timers], answer.detail) == (sids[:2], "truncated")
    (answer,) = await hold.ask(wire.ListTimers(1, KEY, 99))
    assert ([found.sid for found in answer.timers], answer.detail) == (sids[:3], "truncated")
    await hold.ask(wire.Cancel(1, "default", sids[0]))
    (answer,) = await hold.ask(wire.ListTimers(1, KEY, 3))
    assert ([found.sid for found in answer.timers], answer.detail) == (sids[1:], "")
    await hold.schedule(timer("large", NOW + 1, body=b"x" * 100_000))
    (answer,) = await hold.ask(wire.ListTimers(1, KEY, 3))
    assert ([found.sid for found in answer.timers], answer.detail) == ([timer("large").sid], "truncated")
    assert await hold.one(wire.ListTimers(1, "default:nobody", 3)) == (wire.OK, [])


async def test_a_listing_goes_on_behind_the_last_timer_of_the_page_before(redis_client: Redis) -> None:
    hold = await _hold(redis_client)
    await hold.schedule(*(timer(f"{n}", NOW + 10 + n // 3) for n in range(9)))
    (whole,) = await hold.ask(wire.ListTimers(1, KEY, 99))
    found, last = [], (0, "")
    for _ in range(5):
        (page,) = await hold.ask(wire.ListTimers(1, KEY, 2, "", *last))
        found += [one.sid for one in page.timers]
        last = page.timers[-1].due_ms, page.timers[-1].sid
    assert (found, page.detail) == ([one.sid for one in whole.timers], "")


async def keys_left(redis_client: Redis) -> set[bytes]:
    """Keys of the partition beside those of the owner and the tombstones."""
    names = await redis_client.keys(f"t{PARTITION}:*")
    return {name.partition(b":")[2] for name in names} - {b"epoch", b"owner", b"cancelled", b"fired"}


async def test_all_timers_of_a_user_are_cancelled_at_once(hold: Hold, redis_client: Redis) -> None:
    other_key = next(key for key in (f"default:u{n}" for n in range(100)) if partition_of(key) == PARTITION)
    await hold.schedule(timer("a"), timer("b", collapse="cart"), timer("c", key=other_key))
    (answer,) = await hold.ask(wire.CancelAll(1, KEY))
    assert (answer.status, answer.count) == (wire.OK, 2)
    assert [found.sid for found in (await hold.ask(wire.ListTimers(2, other_key, 10)))[0].timers] == [timer_id(other_key, "c")]
    assert (await hold.ask(wire.Inspect(3, "default", timer("a").sid)))[0].status == wire.NOT_FOUND
    (again,) = await hold.ask(wire.CancelAll(4, KEY))
    assert (again.status, again.count) == (wire.OK, 0)
    await hold.ask(wire.CancelAll(5, other_key))
    assert await keys_left(redis_client) == set()


async def test_the_timers_of_a_collapse_key_are_listed_and_cancelled_alone(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(*(timer(f"c{n}", NOW + 60_000 + n, collapse="cart") for n in range(3)), timer("o", collapse="order"), timer("p"))
    (listed,) = await hold.ask(wire.ListTimers(1, KEY, 2, "cart"))
    assert [found.envelope.id for found in listed.timers] == ["c0", "c1"]
    assert listed.timers[0].envelope.collapse == "cart"
    assert listed.detail == "truncated"
    assert (await hold.ask(wire.CancelAll(2, KEY, "cart")))[0].count == 3
    assert [found.envelope.id for found in (await hold.ask(wire.ListTimers(3, KEY, 10)))[0].timers] == ["o", "p"]
    assert await redis_client.hvals(f"t{PARTITION}:collapse") == [b"order"]


async def test_cancelling_all_spares_what_may_have_taken_effect(hold: Hold) -> None:
    await hold.schedule(timer("past", NOW - 5), timer("handed"), timer("free"))
    work = StoreWork(PARTITION, NOW - 1, {}, [StoreRequest(wire.CancelAll(1, KEY), spared=[timer("handed").sid, timer("gone").sid])])
    assert (await hold.store.apply([work], NOW))[0].answers == [wire.TimerAnswer(1, wire.OK, [], wire.FIRING, 1)]
    assert [found.envelope.id for found in (await hold.ask(wire.ListTimers(2, KEY, 10)))[0].timers] == ["past", "handed"]
    removal = StoreWork(PARTITION, NOW - 1, {timer(name).sid: KEY for name in ("past", "handed")}, [StoreRequest(wire.CancelAll(3, KEY))])
    assert (await hold.store.apply([removal], NOW))[0].answers == [wire.TimerAnswer(3, wire.OK)]


# -- Ids given by callers. ---------------------------------------------------------------------------------------------
async def test_the_id_of_a_broadcast_is_kept_for_a_day_after_it_is_due(hold: Hold, redis_client: Redis) -> None:
    day_ms = 86_400_000
    everyone = timer("a", NOW + 7 * day_ms, key=audience_key("default", ""), id="mine")

    async def asked(request: Any) -> None:
        work = StoreWork(partition_of(everyone.key), NOW - 1, {}, [StoreRequest(request)])
        await hold.store.apply([work], NOW)

    await asked(wire.Schedule(1, True, everyone))
    assert 7.9 * day_ms < await redis_client.pttl(idempotency_key(everyone.key, "mine")) <= 8 * day_ms
    await asked(wire.Reschedule(2, "default", everyone.sid, NOW + 9 * day_ms))
    assert 9.9 * day_ms < await redis_client.pttl(idempotency_key(everyone.key, "mine")) <= 10 * day_ms


async def test_the_same_id_gets_the_first_timer_back(hold: Hold) -> None:
    first, second = timer("a", NOW + 100, id="mine"), timer("b", NOW + 900, id="mine")
    answers = await hold.schedule(first, second, idempotent=True)
    assert answers == [wire.TimerAnswer(0, wire.SCHEDULED, [first]), wire.TimerAnswer(1, wire.DUPLICATE, [first], first.sid)]
    assert await hold.one(wire.Inspect(1, "default", second.sid)) == (wire.NOT_FOUND, [])


async def test_the_same_id_with_another_payload_is_a_conflict(hold: Hold) -> None:
    await hold.schedule(timer("a", id="mine"), idempotent=True)
    (answer,) = await hold.schedule(timer("b", id="mine", digest=b"\0" * 8), idempotent=True)
    assert answer.status == wire.CONFLICT
    assert await hold.one(wire.ListTimers(1, KEY, 9)) == (wire.OK, [timer("a").sid])


async def test_the_same_id_of_another_user_is_another_id(hold: Hold) -> None:
    await hold.schedule(timer("a", id="mine"), idempotent=True)
    other = "default:bob"
    work = StoreWork(partition_of(other), NOW - 1, {}, [StoreRequest(wire.Schedule(1, True, timer("b", key=other, id="mine")))])
    assert (await hold.store.apply([work], NOW))[0].answers[0].status == wire.SCHEDULED


async def _publish(client: Redis, id: str, digest: bytes, seq: int, detail: str = "") -> Mapping[int, bytes]:
    """A shard's group with one message under this id; what is known of the id, and then nothing is stored."""
    journal = Journal(client, 0, 86_400_000)
    await journal.take_over([slot_of(KEY)])
    return await journal.append(Group(1, {slot_of(KEY): b"payload"}, [(KEY, id)], [packed_result(digest, seq, detail)], [], [], [], []))


async def test_an_id_used_by_an_immediate_publish_is_a_duplicate_of_it(hold: Hold, redis_client: Redis) -> None:
    assert await _publish(redis_client, "mine", DIGEST, 42) == {}
    assert await hold.schedule(timer("a", id="mine"), idempotent=True) == [wire.TimerAnswer(0, wire.DUPLICATE, [], "seq=42")]
    assert await hold.one(wire.ListTimers(1, KEY, 9)) == (wire.OK, [])


async def test_an_id_whose_immediate_publish_was_suppressed_is_suppressed_for_its_reason(hold: Hold, redis_client: Redis) -> None:
    await _publish(redis_client, "mine", DIGEST, NEVER, "cap: 2 | are allowed")
    assert await hold.schedule(timer("a", id="mine"), idempotent=True) == [wire.TimerAnswer(0, wire.SUPPRESSED, [], "cap: 2 | are allowed")]


async def test_immediate_publishing_reads_the_id_of_a_timer(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(timer("a", id="mine"), idempotent=True)
    assert await _publish(redis_client, "mine", DIGEST, 1) == {0: packed_result(DIGEST, 0, timer("a").sid)}


async def test_a_duplicate_of_a_fired_or_cancelled_timer_names_it(hold: Hold) -> None:
    await hold.schedule(timer("a", id="one"), timer("b", id="two"), idempotent=True)
    await hold.fired(timer("a").sid)
    await hold.ask(wire.Cancel(1, "default", timer("b").sid))
    answers = await hold.schedule(timer("c", id="one"), timer("d", id="two"), idempotent=True)
    assert answers == [wire.TimerAnswer(0, wire.DUPLICATE, [], timer("a").sid), wire.TimerAnswer(1, wire.DUPLICATE, [], timer("b").sid)]


async def test_storage_that_fails_at_any_command_leaves_an_id_and_its_timer_or_neither(redis_client: Redis) -> None:
    """A scheduler gives up after a failure. The publisher then repeats under the id, and at once: what was accepted must exist."""
    for failing in range(4):
        for applied in (False, True):
            unique, hold = f"{failing}-{applied}", await _hold(redis_client)
            hold.store._client = FailingClient(redis_client, failing, applied=applied)  # type: ignore[assignment]
            hold.store._ids._client = hold.store._client
            with suppress(StorageUnavailable):
                await hold.schedule(timer(unique, id=unique), idempotent=True)
            known = await _publish(redis_client, unique, DIGEST, 1)
            armed = await redis_client.hexists(timer_key(PARTITION), timer(unique).sid)
            assert known == ({0: packed_result(DIGEST, 0, timer(unique).sid)} if armed else {})


async def test_a_repeat_under_the_id_of_a_lost_timer_stores_it_once(hold: Hold, redis_client: Redis) -> None:
    """As after an entry that storage has lost: the id names a timer that is neither armed nor fired nor cancelled."""
    lost = timer("lost", id="mine")
    await hold.schedule(lost, idempotent=True)
    await redis_client.hdel(timer_key(PARTITION), lost.sid)
    (answer,) = await hold.schedule(timer("again", NOW + 500, id="mine"), idempotent=True)
    assert (answer.status, answer.detail) == (wire.DUPLICATE, lost.sid)
    assert await hold.one(wire.ListTimers(1, KEY, 9)) == (wire.OK, [lost.sid])
    assert (await hold.schedule(lost, idempotent=True))[0].status == wire.SCHEDULED
    assert await hold.one(wire.ListTimers(1, KEY, 9)) == (wire.OK, [lost.sid])


async def test_two_requests_of_one_turn_under_one_id_make_one_timer(hold: Hold) -> None:
    answers = await hold.schedule(timer("a", id="mine"), timer("b", id="mine"), timer("c", id="other"), idempotent=True)
    assert [answer.status for answer in answers] == [wire.SCHEDULED, wire.DUPLICATE, wire.SCHEDULED]
    assert answers[1].detail == timer("a").sid
    assert await hold.one(wire.ListTimers(1, KEY, 9)) == (wire.OK, [timer("a").sid, timer("c").sid])


async def test_a_new_timer_under_a_known_id_is_as_old_as_the_first_one(hold: Hold) -> None:
    """The first one has fired, and must not be stored again in place of the new one."""
    await hold.schedule(timer("a", id="mine"), idempotent=True)
    await hold.fired(timer("a").sid)
    request = StoreRequest(wire.Schedule(1, True, timer("b", id="mine")))
    (done,) = await hold.store.apply([StoreWork(PARTITION, NOW - 1, {}, [request])], NOW)
    assert done.answers == [wire.TimerAnswer(1, wire.DUPLICATE, [], timer("a").sid)]
    assert done.stored == 0


async def test_a_refused_timer_leaves_no_id(redis_client: Redis) -> None:
    hold = await _hold(redis_client, timers_per_user_max=1)
    await hold.schedule(timer("a"))
    for _ in range(2):
        (answer,) = await hold.ask(wire.Schedule(1, True, timer("b", id="mine")))
        assert answer.status == wire.OVERLOADED
        assert await _buckets(redis_client) == {}


# -- The time of an id. ------------------------------------------------------------------------------------------------
DAY_S = 86_400


@pytest.fixture
def simulated() -> SimulatedClient:
    pytest.importorskip("lupa")
    return SimulatedClient(NOW)


async def _is_known(client: Any, id: str) -> bool:
    return bool(await AcceptedIds(client, DAY_S * 1000).look_up([(KEY, id)]))


async def test_an_id_lives_until_its_timer_is_due_and_a_day_more(simulated: SimulatedClient) -> None:
    due_ms = NOW + 7 * DAY_S * 1000
    hold = await _hold(simulated)  # type: ignore[arg-type]
    await hold.schedule(timer("a", due_ms, id="mine"), idempotent=True)
    for day in (2, 7):
        simulated.now_ms = NOW + day * DAY_S * 1000
        (again, other) = await hold.schedule(
            timer(f"b{day}", due_ms, id="mine"), timer(f"c{day}", due_ms, id="mine", digest=b"\0" * 8), idempotent=True
        )
        assert (again.status, again.detail, other.status) == (wire.DUPLICATE, timer("a").sid, wire.CONFLICT)
        while await AcceptedIds(simulated, DAY_S * 1000).sweep():  # type: ignore[arg-type]
            pass
    assert await hold.one(wire.ListTimers(1, KEY, 9)) == (wire.OK, [timer("a").sid])
    simulated.now_ms = due_ms + DAY_S * 1000 - 1
    assert await _is_known(simulated, "mine")
    simulated.now_ms = due_ms + (DAY_S + 2) * 1000
    assert not await _is_known(simulated, "mine")


async def test_a_moved_timer_takes_its_id_along(simulated: SimulatedClient) -> None:
    hold = await _hold(simulated)  # type: ignore[arg-type]
    await hold.schedule(timer("a", NOW + 1000, id="mine"), idempotent=True)
    later_ms = NOW + 30 * DAY_S * 1000
    assert (await hold.one(wire.Reschedule(1, "default", timer("a").sid, later_ms)))[0] == wire.OK
    simulated.now_ms = later_ms
    assert await _is_known(simulated, "mine")
    (again,) = await hold.schedule(timer("b", later_ms + 1000, id="mine"), idempotent=True)
    assert (again.status, again.detail) == (wire.DUPLICATE, timer("a").sid)


async def test_a_timer_that_its_shard_has_deferred_takes_its_id_along(simulated: SimulatedClient) -> None:
    hold = await _hold(simulated)  # type: ignore[arg-type]
    await hold.schedule(timer("a", NOW + 1000, id="mine"), timer("b", NOW + 1000, id="other"), idempotent=True)
    later_ms = NOW + 3 * DAY_S * 1000
    gone = timer_id(KEY, "gone")
    work = StoreWork(PARTITION, NOW + 1000, {}, [], moved={timer("a").sid: (later_ms, KEY), gone: (later_ms, KEY)})
    await hold.store.apply([work], NOW + 1000)
    simulated.now_ms = later_ms
    assert [await _is_known(simulated, id) for id in ("mine", "other")] == [True, False]


async def test_a_cancelled_timer_stays_cancelled_as_long_as_its_id_lives(simulated: SimulatedClient) -> None:
    due_ms = NOW + 7 * DAY_S * 1000
    hold = await _hold(simulated)  # type: ignore[arg-type]
    await hold.schedule(timer("a", due_ms, id="mine"), idempotent=True)
    await hold.ask(wire.Cancel(1, "default", timer("a").sid))
    simulated.now_ms = due_ms - 1000
    (again,) = await hold.ask(wire.Schedule(1, True, timer("b", due_ms, id="mine")), now_ms=simulated.now_ms)
    assert (again.status, again.detail) == (wire.DUPLICATE, timer("a").sid)
    assert await hold.one(wire.ListTimers(1, KEY, 9)) == (wire.OK, [])


# -- Pages. ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_read_every_timer_once_in_order_also_within_one_millisecond(hold: Hold, limit: int) -> None:
    timers = [timer(f"{n:03}", NOW + 100 * (n // 20)) for n in range(60)] + [timer("beyond", NOW + 5000)]
    await hold.schedule(*timers[::-1])
    seen: list[wire.Timer] = []
    page = await hold.page(ReadTimers(BEGINNING, NOW + 4999, limit, 1 << 20))
    while True:
        seen += page.timers
        if page.reached is None:
            break
        assert page.reached == (page.timers[-1].due_ms, page.timers[-1].sid)
        await hold.ask(wire.Cancel(1, "default", page.timers[-1].sid))  # the cursor survives the loss of the timer it names
        page = await hold.page(ReadTimers(page.reached, NOW + 4999, limit, 1 << 20))
    assert seen == timers[:60]


async def test_a_page_is_bounded_in_bytes_and_makes_progress(hold: Hold) -> None:
    await hold.schedule(*(timer(f"{n}", NOW + n, body=b"x" * 1000) for n in range(5)))
    page = await hold.page(ReadTimers(BEGINNING, NOW + 999, 100, 1500))
    assert [found.sid for found in page.timers] == [timer("0").sid, timer("1").sid]
    page = await hold.page(ReadTimers((NOW + 1, timer("1").sid), NOW + 999, 100, 1))
    assert [found.sid for found in page.timers] == [timer("2").sid]
    assert page.reached == (NOW + 2, timer("2").sid)


async def test_fired_requests_and_page_of_one_turn_apply_in_this_order(hold: Hold) -> None:
    await hold.schedule(timer("fired"), timer("cancelled"))
    requests = [
        StoreRequest(wire.Inspect(1, "default", timer("fired").sid)),
        StoreRequest(wire.Cancel(2, "default", timer("cancelled").sid)),
        StoreRequest(wire.Schedule(3, False, timer("new"))),
    ]
    work = StoreWork(PARTITION, NOW - 1, {timer("fired").sid: KEY}, requests, ReadTimers(BEGINNING, NOW + 90_000, 10, 1 << 20))
    (done,) = await hold.store.apply([work], NOW)
    assert [answer.status for answer in done.answers] == [wire.ALREADY_FIRED, wire.OK, wire.SCHEDULED]
    assert done.page == TimersRead([timer("new")], None)
    assert done.stored == 1


async def test_what_is_to_come_again_has_its_new_time_everywhere_before_requests_are_looked_at(hold: Hold) -> None:
    await hold.schedule(timer("a", NOW - 5), timer("b"), timer("c", NOW + 500))
    moved = {timer("a").sid: (NOW + 700, KEY), timer("gone").sid: (NOW + 700, KEY)}
    requests = [StoreRequest(wire.ListTimers(1, KEY, 10)), StoreRequest(wire.Cancel(2, "default", timer("a").sid))]
    work = StoreWork(PARTITION, NOW - 1, {}, requests, ReadTimers(BEGINNING, NOW + 90_000, 10, 1 << 20), moved)
    for n in range(2):
        (done,) = await hold.store.apply([work], NOW)
        assert done.moved == {timer("a").sid: n == 0, timer("gone").sid: False}
        assert done.answers[1].status == wire.OK, "a timer that was claimed can be cancelled once it has another time"
        if n == 0:
            assert [(found.sid, found.due_ms) for found in done.answers[0].timers] == [
                (timer("c").sid, NOW + 500),
                (timer("a").sid, NOW + 700),
                (timer("b").sid, NOW + 60_000),
            ]
    assert done.page == TimersRead([timer("c", NOW + 500), timer("b")], None)


async def test_moving_again_changes_nothing_and_fires_at_the_time_it_was_given(hold: Hold) -> None:
    await hold.schedule(timer("a", NOW - 5, body=b"kept"))
    work = StoreWork(PARTITION, NOW - 1, {}, [], None, {timer("a").sid: (NOW + 700, KEY)})
    for _ in range(2):
        assert (await hold.store.apply([work], NOW))[0].moved == {timer("a").sid: True}
    page = await hold.page(ReadTimers(BEGINNING, NOW + 90_000, 10, 1 << 20))
    assert page.timers == [timer("a", NOW + 700, body=b"kept")]


@pytest.mark.parametrize("unanswered", [False, True])
async def test_a_storage_without_memory_refuses_to_move_and_does_everything_else(hold: Hold, redis_client: Redis, unanswered: bool) -> None:
    await hold.schedule(timer("a", NOW - 5), timer("b", NOW - 5), timer("c"))
    hold.store._unanswered = unanswered
    work = StoreWork(PARTITION, NOW - 9, {}, [StoreRequest(wire.Inspect(1, "default", timer("c").sid))], None)
    work.moved = {timer("a").sid: (NOW + 700, KEY), timer("b").sid: (NOW + 700, KEY)}
    await redis_client.config_set("maxmemory", 1)
    try:
        (done,) = await hold.store.apply([work], NOW)
    finally:
        await redis_client.config_set("maxmemory", 0)
    assert (done.moved, done.answers[0].status) == ({}, wire.OK)
    assert len((await hold.store.apply([work], NOW))[0].moved) == 2


@pytest.mark.parametrize("ended", ["cancelled", "fired"])
async def test_a_late_copy_of_the_turn_that_stored_a_timer_stores_nothing_once_it_has_ended(hold: Hold, ended: str) -> None:
    """Its reply never came, and its bytes arrive when the repeated turn is long over."""
    late = [StoreWork(PARTITION, NOW - 1, {}, [StoreRequest(wire.Schedule(1, False, timer("a")))])]
    await hold.store.apply(late, NOW)
    if ended == "fired":
        await hold.fired(timer("a").sid)
    else:
        assert (await hold.ask(wire.Cancel(2, "default", timer("a").sid)))[0].status == wire.OK
    (done,) = await hold.store.apply(late, NOW)
    assert done.stored == 0


async def test_a_turn_without_an_answer_writes_nothing_once_the_next_has_begun(
    hold: Hold, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hold.schedule(timer("moved"))
    late: list[Any] = []

    async def lost(*command: Any) -> Any:
        late.append(command)
        raise RedisConnectionError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(redis_client, "execute_command", lost)
        with pytest.raises(StorageUnavailable):
            await hold.one(wire.Reschedule(1, "default", timer("moved").sid, NOW + 5))
    assert (await hold.page(ReadTimers(BEGINNING, NOW + 1_000, 10, 1 << 20))).timers == []
    assert (await redis_client.execute_command(*late[0]))[0] == b"FENCED"
    assert (await hold.one(wire.Inspect(1, "default", timer("moved").sid)))[0] == wire.OK
    assert [found.due_ms for found in (await hold.page(ReadTimers(BEGINNING, NOW + 90_000, 10, 1 << 20))).timers] == [NOW + 60_000]


@pytest.mark.parametrize("answered", [False, True])
async def test_a_turn_without_an_answer_passes_over_no_newer_owner(redis_client: Redis, answered: bool) -> None:
    hold = await _hold(redis_client)
    hold.store._unanswered = not answered
    other = TimerStore(redis_client, Config(), [PARTITION], "scheduler-1")
    await other.take_over()
    with pytest.raises(Fenced):
        await hold.schedule(timer("late"))
    assert await other.apply([StoreWork(PARTITION, NOW, {}, [])], NOW)


async def test_a_turn_covers_many_partitions(hold: Hold) -> None:
    keys = [f"default:u{n}" for n in range(40)]
    work = {partition: StoreWork(partition, NOW - 1, {}, []) for partition in range(TIMER_PARTITIONS)}
    for n, key in enumerate(keys):
        work[partition_of(key)].requests.append(StoreRequest(wire.Schedule(n, True, timer(f"a{n}", key=key))))
    done = await hold.store.apply(list(work.values()), NOW)
    assert sorted(answer.ref for part in done for answer in part.answers if answer.status == wire.SCHEDULED) == list(range(40))
    assert sum(part.stored for part in done) == 40


async def test_a_turn_of_more_timers_than_a_run_takes_stores_removes_and_moves_all_of_them(hold: Hold) -> None:
    def work_of(items: list[wire.Timer], kind: str) -> list[StoreWork]:
        work = {partition: StoreWork(partition, NOW - 1, {}, [], moved={}) for partition in range(TIMER_PARTITIONS)}
        for n, item in enumerate(items):
            part = work[partition_of(item.key)]
            if kind == "store":
                part.requests.append(StoreRequest(wire.Schedule(n, False, item)))
            elif kind == "remove":
                part.fired[item.sid] = item.key
            else:
                part.moved[item.sid] = (NOW + 90_000, item.key)
        return list(work.values())

    timers = [timer(f"a{n}", key=f"default:u{n}") for n in range(1000)]
    assert all(part.requests for part in work_of(timers, "store"))
    done = await hold.store.apply(work_of(timers, "store"), NOW)
    assert {answer.ref: answer.status for part in done for answer in part.answers} == dict.fromkeys(range(1000), wire.SCHEDULED)
    moved = await hold.store.apply(work_of(timers, "move"), NOW)
    assert {sid for part in moved for sid, there in part.moved.items() if there} == {item.sid for item in timers}
    assert sum(part.stored for part in await hold.store.apply(work_of(timers[:700], "remove"), NOW)) == 300


async def test_partitions_that_exceed_a_run_between_them_are_in_several(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    work = [StoreWork(partition, NOW - 1, {}, []) for partition in range(4)]
    for part, count in zip(work, (100, 150, 249, 300), strict=True):
        timers = [timer(f"a{part.partition}-{n}", key=f"default:u{part.partition}-{n}") for n in range(count)]
        part.requests += [StoreRequest(wire.Schedule(n, False, item)) for n, item in enumerate(timers)]
    round_trips = recorded_runs(monkeypatch)
    done = await hold.store.apply(work, NOW)
    assert [part.stored for part in done] == [100, 150, 249, 300]
    assert [[part for part in range(4) if timer_key(part) in keys] for keys, _ in round_trips[0]] == [[0, 1], [2], [3]]


async def test_a_timer_that_is_scheduled_twice_in_a_turn_is_stored_once(hold: Hold) -> None:
    answers = await hold.schedule(timer("a"), timer("b"), timer("a", NOW + 1), timer("a"))
    assert [answer.status for answer in answers] == [wire.SCHEDULED] * 4
    assert [found.due_ms for answer in answers for found in answer.timers] == [NOW + 60_000] * 4
    assert await hold.one(wire.ListTimers(1, KEY, 9)) == (wire.OK, [timer("a").sid, timer("b").sid])


async def test_the_new_users_of_a_turn_are_limited_across_its_partitions(redis_client: Redis) -> None:
    hold = await _hold(redis_client, tenant_users_max=5)
    keys = [f"default:u{n}" for n in range(40)]
    work = {partition: StoreWork(partition, NOW - 1, {}, []) for partition in range(TIMER_PARTITIONS)}
    for n, key in enumerate(keys):
        work[partition_of(key)].requests.append(StoreRequest(wire.Schedule(n, False, timer(f"a{n}", key=key))))
    done = await hold.store.apply(list(work.values()), NOW)
    assert sum(answer.status == wire.SCHEDULED for part in done for answer in part.answers) == 5
    assert await redis_client.zscore(tenants_key("users"), "default") == 5


# -- What cannot be read. ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stored", [b"", b"\xff\xfe garbage", msgspec.msgpack.encode([1, 2, 3]), msgspec.msgpack.encode({"sid": 1})])
async def test_a_timer_that_cannot_be_read_is_moved_aside_and_reported(hold: Hold, redis_client: Redis, stored: bytes) -> None:
    await hold.schedule(timer("bad"), timer("good"))
    bad = timer("bad").sid
    await redis_client.hset(timer_key(PARTITION), bad, stored)
    work = StoreWork(PARTITION, NOW - 1, {}, [], ReadTimers(BEGINNING, NOW + 90_000, 10, 1 << 20))
    (done,) = await hold.store.apply([work], NOW)
    assert done.page == TimersRead([timer("good")], None)
    assert done.quarantined == [bad]
    ((_, kept),) = await redis_client.xrange(timer_quarantine_key(PARTITION))
    assert kept == {b"where": bad.encode(), b"blob": stored}
    assert await redis_client.zscore(timer_due_key(PARTITION), bad) is None
    assert await hold.one(wire.ListTimers(1, KEY, 10)) == (wire.OK, [timer("good").sid])
    assert await redis_client.zcard(timer_user_prefix(PARTITION) + KEY) == 1


async def test_a_due_time_without_a_timer_is_moved_aside_and_reported(hold: Hold, redis_client: Redis) -> None:
    await redis_client.zadd(timer_due_key(PARTITION), {timer("ghost").sid: NOW})
    work = StoreWork(PARTITION, NOW - 1, {}, [], ReadTimers(BEGINNING, NOW + 90_000, 10, 1 << 20))
    assert (await hold.store.apply([work], NOW))[0].quarantined == [timer("ghost").sid]
    assert await redis_client.zcard(timer_due_key(PARTITION)) == 0
    assert (await hold.store.apply([work], NOW))[0].quarantined == []


async def test_the_quarantine_keeps_the_newest_timers(redis_client: Redis) -> None:
    hold = await _hold(redis_client, quarantine_max=2)
    bad = [timer(name) for name in "abcde"]
    await hold.schedule(*bad)
    for one in bad:
        await redis_client.hset(timer_key(PARTITION), one.sid, b"garbage")
        assert await hold.one(wire.Inspect(1, "default", one.sid)) == (wire.NOT_FOUND, [])
    kept = await redis_client.xrange(timer_quarantine_key(PARTITION))
    assert [fields[b"where"].decode() for _, fields in kept] == [one.sid for one in bad[-2:]]


async def test_a_record_under_another_timers_id_is_moved_aside(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(timer("a"))
    await redis_client.hset(timer_key(PARTITION), timer("a").sid, msgspec.msgpack.encode(timer("b")))
    assert await hold.one(wire.Inspect(1, "default", timer("a").sid)) == (wire.NOT_FOUND, [])
    assert await redis_client.xlen(timer_quarantine_key(PARTITION)) == 1


# -- Fencing and faults. -----------------------------------------------------------------------------------------------
async def test_an_older_incarnation_can_write_nothing(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(timer("a"))
    newer = await _hold(redis_client)
    before = {key: await redis_client.dump(key) for key in await redis_client.keys("t*")}
    with pytest.raises(Fenced):
        await hold.schedule(timer("b"))
    with pytest.raises(Fenced):
        await hold.ask(wire.Cancel(1, "default", timer("a").sid))
    with pytest.raises(Fenced):
        await hold.fired(timer("a").sid)
    assert {key: await redis_client.dump(key) for key in await redis_client.keys("t*")} == before
    assert await newer.one(wire.Inspect(1, "default", timer("a").sid)) == (wire.OK, [timer("a").sid])


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_run_writes_to_none_of_its_partitions_when_another_scheduler_has_one_of_them(redis_client: Redis, lost: int) -> None:
    hold = await _hold(redis_client)
    owned = [0, 1]
    other = TimerStore(redis_client, Config(), [lost], "scheduler-1")
    await other.take_over()
    keys = [next(key for n in range(1000) if partition_of(key := f"default:u{n}") == partition) for partition in owned]
    with pytest.raises(Fenced):
        await hold.store.apply(
            [
                StoreWork(at, NOW - 1, {}, [StoreRequest(wire.Schedule(1, False, timer("a", key=key)))])
                for at, key in zip(owned, keys, strict=True)
            ],
            NOW,
        )
    assert [await redis_client.exists(timer_key(partition)) for partition in owned] == [0, 0]


async def test_a_redis_without_memory_refuses_new_timers_and_still_lets_old_ones_go(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(timer("a"), timer("b"))
    await redis_client.config_set("maxmemory", 1)
    try:
        answers = await hold.ask(wire.Schedule(1, False, timer("c")), wire.Reschedule(2, "default", timer("a").sid, NOW + 1))
        assert [answer.status for answer in answers] == [wire.UNAVAILABLE, wire.UNAVAILABLE]
        (answer,) = await hold.schedule(timer("d"), idempotent=True)
        assert answer.status == wire.UNAVAILABLE
        assert len((await hold.page(ReadTimers(BEGINNING, NOW + 90_000, 10, 1 << 20))).timers) == 2
        assert (await hold.fired(timer("b").sid)).stored == 1
        assert await hold.one(wire.Cancel(1, "default", timer("a").sid)) == (wire.OK, [timer("a").sid])
    finally:
        await redis_client.config_set("maxmemory", 0)
    assert await hold.one(wire.Inspect(1, "default", timer("b").sid)) == (wire.ALREADY_FIRED, [])


async def test_a_redis_that_is_away_is_unavailable_and_takes_the_repeat_when_it_is_back(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    client = Redis.from_url(server.url, socket_timeout=1, socket_connect_timeout=1)
    try:
        hold = await _hold(client)
        await client.config_set("appendfsync", "always")
        await hold.schedule(timer("a"), timer("b"))
        server.kill()
        with pytest.raises(StorageUnavailable):
            await hold.schedule(timer("c"))
        server.start()
        answers = await hold.schedule(timer("b"), timer("c"))
        assert [answer.status for answer in answers] == [wire.SCHEDULED, wire.SCHEDULED]
        assert await hold.one(wire.ListTimers(1, KEY, 9)) == (wire.OK, [timer(unique).sid for unique in "abc"])
    finally:
        await client.aclose()
        server.stop()


async def test_scripts_unknown_to_the_server_are_sent_again(hold: Hold, redis_client: Redis) -> None:
    await hold.schedule(timer("a"))
    await redis_client.script_flush()
    assert await hold.one(wire.Cancel(1, "default", timer("a").sid)) == (wire.OK, [timer("a").sid])


async def test_ids_of_broadcasts_are_where_the_broadcast_log_is(redis_client: Redis, redis_server: RedisServer) -> None:
    """An id means the same message whether it is published at once, through the log on the first server, or with a delay."""
    own = Redis.from_url(f"{redis_server.url}?db=1", socket_timeout=5)
    audience = audience_key("default", "")
    store = TimerStore(own, Config(), range(TIMER_PARTITIONS), "scheduler-0", redis_client)
    await store.take_over()
    timers = [timer("one", id="of-user"), timer("two", key=audience, id="of-everyone")]
    work = [StoreWork(partition_of(item.key), NOW - 1, {}, [StoreRequest(wire.Schedule(0, True, item), False)]) for item in timers]
    assert [done.answers[0].status for done in await store.apply(work, NOW)] == [wire.SCHEDULED, wire.SCHEDULED]
    assert await redis_client.exists(idempotency_key(audience, "of-everyone"))
    assert await AcceptedIds(own, 86_400_000).look_up([(KEY, "of-user")])
    assert [await client.exists(timer_due_key(PARTITION)) for client in (own, redis_client)] == [1, 0]
    await own.aclose()


async def test_while_the_first_server_is_away_only_delayed_broadcasts_are_refused(redis_client: Redis, tmp_path: Path) -> None:
    """A repeat of what was refused is scheduled, once, also when its id was stored before."""
    away = Redis(unix_socket_path=str(tmp_path / "nobody"))
    audience = audience_key("default", "")
    store = TimerStore(redis_client, Config(), range(TIMER_PARTITIONS), "scheduler-0", away)
    await store.take_over()
    timers = [timer("one", id="of-user"), timer("two", key=audience, id="of-everyone")]
    work = [StoreWork(partition_of(item.key), NOW - 1, {}, [StoreRequest(wire.Schedule(0, True, item), False)]) for item in timers]
    assert [done.answers[0].status for done in await store.apply(work, NOW)] == [wire.SCHEDULED, wire.UNAVAILABLE]
    assert not await redis_client.exists(timer_key(partition_of(audience)))
    await away.aclose()
