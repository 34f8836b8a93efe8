"""Groups of consumers on a real Redis: positions, who has a group, and what was trimmed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.model.constants import HIGH
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.shard.mailbox_store import DeadLetter
from engine.core.shard.output import SessionEvent
from engine.core.wire.outcomes import AnyOutcome, OutcomeLog, SentOutcome
from engine.core.wire.records import WEBSOCKET
from engine.errors import Invalid, StorageUnavailable
from engine.features.dead_letters.store import StoredLetter, write_dead_letters
from engine.features.event_groups.keys import event_groups_key
from engine.features.event_groups.store import EventStreams, Gap, Look, OutcomeEvent, Position, PresenceEvent, gaps_of, parse_position
from engine.features.history.outcome_reader import OutcomeReader
from engine.store.external_streams import trim_session_events, write_session_events
from engine.store.keys import EPOCH_FIELD, META_KEY, OUTCOME_STREAM_KEY, SESSION_STREAM_KEY, dead_letter_key
from engine.store.outcome_stream import OutcomeWriter
from engine.store.user_entries import drop_user_entries
from tests.support.waiting import until


def streams(client: Redis, **settings: Any) -> EventStreams:
    return EventStreams(client, Config(**settings), lambda: 1_700_000_000_000)


async def happen(client: Redis, *keys: str, name: str = "connect", length_max: int = 1_000_000) -> None:
    events = [SessionEvent(name, key, "c1", "phone", "edge-0", WEBSOCKET, 17, 1006) for key in keys]
    await write_session_events(client, events)
    await trim_session_events(client, length_max, len(events))


async def refuse(client: Redis, *keys: str, length_max: int = 1000) -> None:
    letters = [DeadLetter(key, Message(3, Envelope("m", b"", HIGH, True, b'"id":"m"'), 0, 0, 2), "no") for key in keys]
    await write_dead_letters(client, letters, length_max)


def users(look: Look) -> list[str]:
    return [event.what.user for event in look.events if not isinstance(event.what, Gap)]


async def position_of(groups: EventStreams, consumer: str = "a", group: str = "g", **how: Any) -> Position:
    taken = await groups.take("t", group, consumer, **how)
    assert taken is not None
    return taken[1]


async def test_a_new_group_begins_with_what_comes_or_with_what_there_is(redis_client: Redis) -> None:
    groups = streams(redis_client)
    await happen(redis_client, "t:before")
    newest = await position_of(groups)
    oldest = await position_of(groups, group="h", oldest=True)
    await happen(redis_client, "t:after")
    assert users(await groups.look("t", newest, 10)) == ["after"]
    assert users(await groups.look("t", oldest, 10)) == ["before", "after"]


async def test_the_events_of_a_tenant_come_from_all_sources_and_other_tenants_are_passed_over(redis_client: Redis) -> None:
    groups = streams(redis_client)
    begin = await position_of(groups)
    await happen(redis_client, "t:ann", "other:x", "t:bob:b")
    await refuse(redis_client, "t:ann")
    await refuse(redis_client, "other:x")
    await happen(redis_client, "other:y")
    look = await groups.look("t", begin, 10)
    presence = [event.what for event in look.events if isinstance(event.what, PresenceEvent)]
    assert [event.user for event in presence] == ["ann", "bob:b"]
    assert presence[1] == PresenceEvent("connect", 17, "bob:b", "c1", "phone", "edge-0", "websocket", 1006)
    assert [event.what.id for event in look.events if isinstance(event.what, StoredLetter)] == ["m"]
    assert len(look.events) == 3
    assert not look.more
    assert (await groups.look("t", look.position, 10)).events == []
    again = await groups.look("t", look.events[0].position, 10)
    assert [event.what for event in again.events] == [event.what for event in look.events[1:]], "a position of an event is one of a group"


async def test_events_behind_a_damaged_session_event_come(redis_client: Redis) -> None:
    groups = streams(redis_client)
    begin = await position_of(groups)
    for name in (b"at", b"code", b"device"):
        await redis_client.xadd(SESSION_STREAM_KEY, {b"event": b"connect", b"tenant": b"t", b"user": b"ann", name: b"\xff"})
    await happen(redis_client, "t:bob")
    assert users(await groups.look("t", begin, 10)) == ["ann", "ann", "ann", "bob"]


async def test_more_than_one_look_holds_is_found_by_the_next_ones(redis_client: Redis) -> None:
    groups = streams(redis_client)
    position = await position_of(groups)
    await happen(redis_client, *[f"t:u{number}" for number in range(7)], "other:x", "other:y", "t:u7")
    found, looks = [], 0
    while True:
        look = await groups.look("t", position, 3)
        position, looks = look.position, looks + 1
        found += users(look)
        if not look.more:
            break
    assert found == [f"u{number}" for number in range(8)]
    assert looks == 4


async def test_a_position_moves_forward_only_whoever_presents_it(redis_client: Redis) -> None:
    groups = streams(redis_client)
    await position_of(groups)
    await happen(redis_client, "t:a", "t:b", "t:c")
    (first, second, _) = (await groups.look("t", await position_of(groups), 10)).events
    assert await position_of(groups, "a", reached=second.position) == second.position
    assert await position_of(groups, "b", reached=first.position) == second.position
    assert users(await groups.look("t", await position_of(groups, "a"), 10)) == ["c"]


async def test_one_consumer_has_a_group_until_it_leaves_or_is_silent_for_long(redis_client: Redis) -> None:
    groups = streams(redis_client, event_lease_ms=300)

    async def holder(consumer: str, **how: Any) -> str:
        taken = await groups.take("t", "g", consumer, **how)
        assert taken is not None
        return taken[0]

    assert [await holder("a"), await holder("b"), await holder("a")] == ["a", "a", "a"]
    assert [one.held_by for one in await groups.groups("t")] == ["a"]
    assert [await holder("a", leave=True), await holder("b")] == ["", "b"]

    async def taken_over() -> bool:
        return await holder("c") == "c"

    await until(taken_over, 10)


async def test_another_consumer_that_leaves_takes_the_group_from_nobody(redis_client: Redis) -> None:
    groups = streams(redis_client)
    await groups.take("t", "g", "a")
    assert (await groups.take("t", "g", "b", leave=True) or [""])[0] == "a"


async def test_what_was_trimmed_unread_is_a_gap_told_once(redis_client: Redis) -> None:
    groups = streams(redis_client)
    begin = await position_of(groups)
    for round_ in range(6):
        await happen(redis_client, *[f"t:u{round_}"] * 100, length_max=150)
        await refuse(redis_client, *[f"t:u{round_}"] * 100, length_max=150)
    look = await groups.look("t", begin, 1000)
    gaps = [event for event in look.events if isinstance(event.what, Gap)]
    assert [gap.what.source for gap in gaps if isinstance(gap.what, Gap)] == ["sessions", "dead_letters"]
    assert gaps == look.events[:2]
    first: Any = await redis_client.xrange(SESSION_STREAM_KEY, count=1)
    assert isinstance(gaps[0].what, Gap)
    assert (gaps[0].what.since, gaps[0].what.until) == (begin.parts[0], first[0][0].decode())
    behind = await groups.look("t", gaps[-1].position, 1000)
    assert not any(isinstance(event.what, Gap) for event in behind.events)
    kept = await redis_client.xlen(SESSION_STREAM_KEY)
    assert len([event for event in behind.events if isinstance(event.what, PresenceEvent)]) == kept, "nothing that was kept is passed over"


async def test_what_was_deleted_otherwise_is_no_gap(redis_client: Redis) -> None:
    groups = streams(redis_client)
    await happen(redis_client, "t:ann")
    await refuse(redis_client, "t:ann")
    position = await position_of(groups)
    await drop_user_entries(redis_client, "t:ann")
    await happen(redis_client, "t:bob")
    await refuse(redis_client, "t:bob")
    assert users(await groups.look("t", position, 10)) == ["bob", "bob"]


async def test_a_group_that_has_read_everything_has_no_gap_when_that_is_trimmed_but_for_its_last_entry(redis_client: Redis) -> None:
    groups = streams(redis_client)
    position = await position_of(groups)
    for _ in range(6):
        await happen(redis_client, *["t:u"] * 100, length_max=150)
        while (look := await groups.look("t", position, 100)).events:
            assert not any(isinstance(event.what, Gap) for event in look.events)
            position = look.position


async def test_groups_are_listed_dropped_and_bounded(redis_client: Redis) -> None:
    groups = streams(redis_client, event_groups_max=2)
    await happen(redis_client, "t:a")
    for name in ("one", "two"):
        assert await groups.take("t", name, "a") is not None
    assert await groups.take("t", "three", "a") is None
    assert await groups.take("t", "two", "b") is not None, "a known one is no further one"
    assert await groups.take("other", "three", "a") is not None
    assert [one.group for one in await groups.groups("t")] == ["one", "two"]
    assert (await groups.groups("t"))[0].behind_ms == {"sessions": 0, "dead_letters": 0}
    assert [await groups.drop("t", "one"), await groups.drop("t", "one")] == [True, False]
    assert await groups.take("t", "three", "a") is not None


async def test_a_group_that_never_read_is_behind_from_the_first_event(redis_client: Redis) -> None:
    groups = streams(redis_client)
    await groups.take("t", "g", "a")  # nothing has ever happened
    assert (await groups.groups("t"))[0].behind_ms == {"sessions": 0, "dead_letters": 0}
    await redis_client.xadd(SESSION_STREAM_KEY, {"tenant": "t"}, id="1000-0")
    await redis_client.xadd(SESSION_STREAM_KEY, {"tenant": "t"}, id="4500-0")
    await groups.take("t", "oldest", "a", oldest=True)
    assert [one.behind_ms["sessions"] for one in await groups.groups("t")] == [3500, 3500]


async def test_a_group_that_reads_no_more_is_behind(redis_client: Redis) -> None:
    groups = streams(redis_client)
    await redis_client.xadd(SESSION_STREAM_KEY, {"tenant": "t"}, id="1000-0")
    await groups.take("t", "g", "a")
    await redis_client.xadd(SESSION_STREAM_KEY, {"tenant": "t"}, id="4500-0")
    assert (await groups.groups("t"))[0].behind_ms == {"sessions": 3500, "dead_letters": 0}
    assert await redis_client.exists(dead_letter_key("t")) == 0


@pytest.mark.parametrize(
    "text", ["", "1-0", "1-0.2", "1-0.x-0", "1-0.1-0.1", "1-0.1-0.1-0-x", "1-0.1-0.1-0.1-0", "-1-0.1-0", "1-0.1-0 ", f"1-0.1-{1 << 64}"]
)
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_position(text)


def test_a_position_is_one_text() -> None:
    assert str(parse_position("17-1.18-0")) == "17-1.18-0"
    assert parse_position("17-1.18-0").parts == ("17-1", "18-0")


@pytest.mark.parametrize("part", ["0-0", "00-0", f"0-{(1 << 64) - 1}", f"999999999999999-{(1 << 64) - 1}"])
async def test_storage_can_look_behind_every_position(redis_client: Redis, part: str) -> None:
    letter = DeadLetter("t:u", Message(1, Envelope("m", b"", HIGH, True, b'"id":"m"'), 0, 0), "no")
    await write_dead_letters(redis_client, [letter], 9)
    await streams(redis_client).look("t", parse_position(f"{part}.{part}.{part}"), 10)
    await streams(redis_client).look("t", parse_position(f"{part}.{part}.{part}-1"), 10)


async def test_a_silent_redis_is_unavailable() -> None:
    groups = streams(Redis.from_url("unix:///nonexistent/redis.sock"))
    nowhere = Position(("0-0", "0-0"))
    for call in (groups.take("t", "g", "a"), groups.look("t", nowhere, 1), groups.groups("t"), groups.drop("t", "g")):
        with pytest.raises(StorageUnavailable):
            await call


def record(client: Redis, *outcomes: AnyOutcome, source: str = "shard-0/1", **settings: Any) -> OutcomeWriter:
    log = OutcomeLog()
    log.extend(outcomes)
    return OutcomeWriter(client, Config(**settings), source, log)


def sent(user: str, id: str) -> SentOutcome:
    return SentOutcome(user, 1_700_000_000_000, id, 7, 1, "s1", "phone", WEBSOCKET, "edge-0")


def ids(look: Look) -> list[str]:
    return [event.what.members["message"] for event in look.events if isinstance(event.what, OutcomeEvent)]


async def settle_all(client: Redis, **settings: Any) -> None:
    reader = OutcomeReader(client, Config(**settings))
    await reader.settle([(batch, 0) for batch in await reader.read(100)])


async def test_outcomes_come_to_groups_that_ask_for_them_within_a_batch_from_where_the_group_was(redis_client: Redis) -> None:
    groups = streams(redis_client)
    without = await position_of(groups)
    begin = (await groups.take("t", "asks", "a", outcomes=True) or ("", without))[1]
    await record(redis_client, sent("t:ann", "m1"), sent("other:x", "m2"), sent("t:bob", "m3"), sent("t:bob", "m4")).flush()
    await happen(redis_client, "t:ann")
    assert users(await groups.look("t", without, 10)) == ["ann"]
    look = await groups.look("t", begin, 10)
    assert (ids(look), sorted(users(look))) == (["m1", "m3", "m4"], ["ann", "ann", "bob", "bob"])
    found: list[str] = []
    position = begin
    while True:
        look = await groups.look("t", position, 1)
        found += ids(look)
        position = parse_position(str(look.position))
        if not look.events:
            break
    assert found == ["m1", "m3", "m4"]
    (first, second, _) = [event for event in (await groups.look("t", begin, 10)).events if isinstance(event.what, OutcomeEvent)]
    assert (await groups.take("t", "asks", "a", second.position) or ("", begin))[1] == second.position
    assert (await groups.take("t", "asks", "a", first.position) or ("", begin))[1] == second.position, "a position only moves forward"
    assert ids(await groups.look("t", second.position, 10)) == ["m4"]


async def test_a_slow_group_and_the_archivist_neither_lose_nor_hold_what_the_other_needs(redis_client: Redis) -> None:
    groups = EventStreams(redis_client, Config(), lambda: int(time.time() * 1000))
    begin = await position_of(groups, group="slow", outcomes=True)
    for number in range(3):
        await record(redis_client, sent("t:ann", f"m{number}")).flush()
    await settle_all(redis_client)
    lag = await OutcomeReader(redis_client, Config()).lag()
    assert (lag.waiting, lag.bytes, lag.oldest_ms) == (0, 0, 0), "what is kept for groups does not wait for the archivist"
    assert ids(await groups.look("t", begin, 10)) == ["m0", "m1", "m2"]
    await record(redis_client, sent("t:ann", "m3")).flush()
    assert ids(await groups.look("t", begin, 10)) == ["m0", "m1", "m2", "m3"], "also what the archivist has not read"
    await settle_all(redis_client, outcomes_kept_bytes_max=1)
    (gap,) = (await groups.look("t", begin, 10)).events
    assert isinstance(gap.what, Gap)
    assert gap.what.source == "outcomes"
    assert (await groups.look("t", gap.position, 10)).events == []


async def test_while_no_group_asks_for_outcomes_settled_ones_are_deleted_at_once(redis_client: Redis) -> None:
    groups = streams(redis_client)  # whose clock stands in the past
    await position_of(groups, outcomes=True)
    await record(redis_client, sent("t:ann", "m0")).flush()
    await record(redis_client, sent("t:ann", "m1")).flush()
    reader = OutcomeReader(redis_client, Config())
    (first, _) = await reader.read(2)
    await reader.settle([(first, 0)])
    assert await redis_client.xlen(OUTCOME_STREAM_KEY) == 1, "what is not settled stays"
    (second,) = await reader.read(10, again=True)
    await reader.settle([(second, 0)])
    assert await redis_client.xlen(OUTCOME_STREAM_KEY) == 0


async def test_outcomes_that_found_no_room_are_announced_once_as_a_gap(redis_client: Redis) -> None:
    groups = streams(redis_client)
    begin = await position_of(groups, outcomes=True)
    await record(redis_client, sent("t:ann", "m0")).flush()
    await record(redis_client, sent("t:ann", "lost"), history_stream_bytes_max=1).flush()
    await record(redis_client, sent("t:ann", "m2")).flush()
    look = await groups.look("t", begin, 10)
    assert [type(event.what) for event in look.events] == [OutcomeEvent, Gap, OutcomeEvent]
    assert [type(event.what) for event in (await groups.look("t", look.events[1].position, 10)).events] == [OutcomeEvent]


async def test_outcomes_that_found_no_room_in_memory_are_a_gap_too(redis_client: Redis) -> None:
    groups = streams(redis_client)
    begin = await position_of(groups, outcomes=True)
    log = OutcomeLog(1)
    log.extend([sent("t:ann", "m0"), sent("t:ann", "lost"), sent("t:ann", "lost")])
    log.trim()
    writer = OutcomeWriter(redis_client, Config(), "shard-0/1", log)
    await writer.flush()
    look = await groups.look("t", begin, 10)
    assert ([type(event.what) for event in look.events], ids(look)) == ([Gap, OutcomeEvent], ["m0"])
    assert (await OutcomeReader(redis_client, Config()).lag()).dropped == 2
    log.add(sent("t:ann", "m1"))
    await writer.flush()
    assert [type(event.what) for event in (await groups.look("t", look.position, 10)).events] == [OutcomeEvent]


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_gaps_count_among_the_events_of_an_answer(redis_client: Redis, limit: int) -> None:
    groups = streams(redis_client)
    position = await position_of(groups)
    await happen(redis_client, *["t:ann"] * 300, length_max=100)
    await refuse(redis_client, *["t:ann"] * 300, length_max=100)
    found: list[str] = []
    while len(found) < 5:
        look = await groups.look("t", position, limit)
        assert 0 < len(look.events) <= limit
        found += [type(event.what).__name__ for event in look.events]
        position = look.position
    assert found[:3] == ["Gap", "Gap", "PresenceEvent"]


async def test_a_group_that_begins_to_ask_for_outcomes_keeps_its_place_among_the_others(redis_client: Redis) -> None:
    groups = streams(redis_client)
    await position_of(groups)
    await happen(redis_client, "t:a")
    await record(redis_client, sent("t:ann", "before")).flush()
    position = await position_of(groups, outcomes=True)
    await record(redis_client, sent("t:ann", "after")).flush()
    look = await groups.look("t", position, 10)
    assert (ids(look), users(look)) == (["after"], ["a", "ann"])
    assert [len(one.position.parts) for one in await groups.groups("t")] == [3]
    assert set((await groups.groups("t"))[0].behind_ms) == {"sessions", "dead_letters", "outcomes"}
    assert await groups.drop("t", "g")
    assert await redis_client.hgetall("events:t") == {}


async def lose_data(client: Redis, epoch: str, *, keep: bool = False) -> None:
    """Storage begins anew, or with an older copy of the group."""
    if not keep:
        await client.delete(SESSION_STREAM_KEY, event_groups_key("t"))
    await client.hset(META_KEY, EPOCH_FIELD, epoch)


@pytest.mark.parametrize("keep", [False, True], ids=["empty", "older copy"])
async def test_lost_events_are_gaps_until_a_position_of_new_data_is_reached(redis_client: Redis, keep: bool) -> None:
    groups = streams(redis_client)
    await redis_client.hset(META_KEY, EPOCH_FIELD, "e1")
    begin = await position_of(groups)
    await happen(redis_client, "t:ann", "t:bob")
    reached = (await groups.look("t", begin, 10)).position
    await lose_data(redis_client, "e2", keep=keep)
    await happen(redis_client, "t:new")
    for presented in (reached, None, parse_position(str(reached))):
        taken = await groups.take("t", "g", "a", presented)
        assert taken is not None
        if presented is None and not keep:
            continue  # a group that nobody knows, with a consumer that knows nothing
        assert taken.lost
        look = gaps_of(taken, presented)
        assert [(event.what.source, event.what.until) for event in look.events if isinstance(event.what, Gap)] == [
            ("sessions", taken.position.parts[0]), ("dead_letters", taken.position.parts[1]),
        ]  # fmt: skip
        told = await groups.take("t", "g", "a", parse_position(str(look.events[0].position)))
        assert told is not None
        assert told.lost, "the second gap is not handled yet"
    assert users(await groups.look("t", look.position, 10)) == (["ann", "bob", "new"] if keep else ["new"])
    after = await groups.take("t", "g", "a", parse_position(str(look.position)))
    assert after is not None
    assert not after.lost
    assert users(await groups.look("t", after.position, 10))[-1] == "new"


async def test_a_dropped_group_goes_on_where_its_consumer_is(redis_client: Redis) -> None:
    groups = streams(redis_client)
    begin = await position_of(groups)
    await happen(redis_client, "t:ann")
    assert await groups.drop("t", "g")
    taken = await groups.take("t", "g", "a", begin)
    assert taken is not None
    assert not taken.lost
    assert users(await groups.look("t", taken.position, 10)) == ["ann"]
