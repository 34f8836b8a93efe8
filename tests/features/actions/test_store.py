"""The streams of actions on a real Redis: appended once, read by one edge, held, taken over, settled."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from engine.config import Config
from engine.core.model.action import Action
from engine.core.model.constants import HIGH
from engine.core.model.envelope import Envelope
from engine.core.wire.records import Timer
from engine.errors import StorageUnavailable
from engine.features.actions.store import GROUP, ActionStreams, QueuedAction, append_actions
from engine.features.dead_letters.store import DeadLetterStream
from engine.store.keys import ACTION_TARGETS_KEY, action_stream_key
from engine.store.user_entries import drop_user_entries

TARGET = "ray://shop/carts.touch"
CONFIG = Config(actions_waiting_max=5, action_claim_ms=50)


def timer(number: int, user: str = "ann", target: str = TARGET) -> Timer:
    envelope = Envelope(f"m{number}", b"d" * 8, HIGH, True, b'"id":"m%d","type":"t"' % number)
    return Timer(f"3-{number}", f"acme:{user}", 1000 + number, 0, 60_000, envelope, None, Action(target, f"k{number}"))


def edge(client: Redis, name: str = "edge-0") -> ActionStreams:
    return ActionStreams(client, CONFIG, name)


async def ids(reading: Any) -> list[str]:
    return [action.id for action in await reading]


async def test_an_action_is_appended_once_for_its_timer_and_read_with_all_its_fields(redis_client: Redis) -> None:
    for _ in range(2):  # the shard died before the scheduler had its answer
        assert await append_actions(redis_client, CONFIG, [timer(1), timer(2, target="https://h/")]) == (["3-1", "3-2"], [])
    assert await edge(redis_client).targets() == {TARGET, "https://h/"}
    (action,) = await edge(redis_client).read(TARGET, 9)
    assert replace(action, entry="") == QueuedAction("", TARGET, "acme", "ann", "m1", "k1", 1001, HIGH, b'{"id":"m1","type":"t"}', 60_000)
    assert action.since_ms > 0
    await edge(redis_client).done(action)
    await append_actions(redis_client, CONFIG, [timer(1)])
    assert await ids(edge(redis_client).read(TARGET, 9)) == [], "also when it is done"


async def test_hold_reports_entries_as_gone_that_redis_has_lost(redis_client: Redis) -> None:
    await append_actions(redis_client, CONFIG, [timer(1)])
    (action,) = await edge(redis_client).read(TARGET, 1)
    await redis_client.xgroup_destroy(action_stream_key(TARGET), GROUP)  # lost with the last second of a log of Redis
    assert await edge(redis_client).hold(TARGET, [action.entry]) == set()
    assert await ids(edge(redis_client).read(TARGET, 1)) == ["m1"], "read anew"
    await redis_client.delete(action_stream_key(TARGET))
    assert await edge(redis_client).hold(TARGET, [action.entry]) == set()


async def test_beyond_its_room_a_stream_takes_nothing_and_the_timers_are_told(redis_client: Redis) -> None:
    stored, full = await append_actions(redis_client, CONFIG, [timer(number) for number in range(8)])
    assert (len(stored), full) == (5, ["3-5", "3-6", "3-7"])
    (action, *_) = await edge(redis_client).read(TARGET, 1)
    await edge(redis_client).done(action)
    assert await append_actions(redis_client, CONFIG, [timer(5), timer(6)]) == (["3-5"], ["3-6"])


async def test_edges_share_a_stream_and_each_action_goes_to_one(redis_client: Redis) -> None:
    await append_actions(redis_client, CONFIG, [timer(number) for number in range(4)])
    first, second = edge(redis_client), edge(redis_client, "edge-1")
    assert await ids(first.read(TARGET, 3)) == ["m0", "m1", "m2"]
    assert await ids(second.read(TARGET, 3)) == ["m3"]
    assert await ids(second.read(TARGET, 3)) == []
    assert await ids(edge(redis_client).read(TARGET, 9, again=True)) == ["m0", "m1", "m2"], "its next process"


async def test_what_an_edge_holds_is_not_claimed_and_what_a_dead_one_held_is(redis_client: Redis) -> None:
    limits = replace(CONFIG, action_claim_ms=60_000)
    await append_actions(redis_client, limits, [timer(1), timer(2)])
    first, second = (ActionStreams(redis_client, limits, name) for name in ("edge-0", "edge-1"))
    held, lost = await first.read(TARGET, 2)
    for entry in (held.entry, lost.entry):  # nobody has touched them for longer than that
        await redis_client.xclaim(action_stream_key(TARGET), GROUP, "edge-0", 0, [entry], idle=limits.action_claim_ms + 1)
    assert await first.hold(TARGET, [held.entry]) == {held.entry}
    assert await ids(second.claim(TARGET, 9)) == ["m2"]
    assert await first.hold(TARGET, [held.entry, lost.entry]) == {held.entry}, "it is another edge's now"
    assert await second.hold(TARGET, [lost.entry]) == {lost.entry}


async def test_an_edge_with_little_room_finds_lost_actions_behind_held_ones(redis_client: Redis) -> None:
    limits = replace(CONFIG, action_claim_ms=60_000, actions_waiting_max=20)
    await append_actions(redis_client, limits, [timer(number) for number in range(13)])
    first, second = (ActionStreams(redis_client, limits, name) for name in ("edge-0", "edge-1"))
    *_, lost = await first.read(TARGET, 13)
    await redis_client.xclaim(action_stream_key(TARGET), GROUP, "edge-0", 0, [lost.entry], idle=limits.action_claim_ms + 1)
    assert [await ids(second.claim(TARGET, 1)) for _ in range(2)] == [[], ["m12"]]
    await redis_client.xclaim(action_stream_key(TARGET), GROUP, "edge-0", 0, [lost.entry], idle=limits.action_claim_ms + 1)
    assert [await ids(second.claim(TARGET, 2)) for _ in range(2)] == [["m12"], []]


async def test_what_is_given_up_is_a_dead_letter_once(redis_client: Redis) -> None:
    await append_actions(redis_client, CONFIG, [timer(1)])
    (action,) = await edge(redis_client).read(TARGET, 1)
    for _ in range(2):  # the first answer was lost
        await edge(redis_client).give_up(action, "refused: 410", 3)
    (letter,) = (await DeadLetterStream(redis_client, CONFIG).page("acme")).letters
    assert (letter.user, letter.id, letter.seq, letter.reason, letter.attempts) == ("ann", "m1", 0, "refused: 410", 3)
    assert (letter.action, letter.key, letter.body) == (TARGET, "k1", action.body)
    assert await redis_client.xlen(action_stream_key(TARGET)) == 0
    assert await ids(edge(redis_client).read(TARGET, 9, again=True)) == []


async def test_an_erased_user_has_no_action_left_and_whoever_holds_one_is_told(redis_client: Redis) -> None:
    await append_actions(redis_client, CONFIG, [timer(1), timer(2, "bob"), timer(3)])
    first, *rest = await edge(redis_client).read(TARGET, 2)
    await drop_user_entries(redis_client, "acme:ann")
    entries = [action.entry for action in (first, *rest)]
    assert await edge(redis_client).hold(TARGET, entries) == {rest[0].entry}
    (pending,) = await redis_client.xpending_range(action_stream_key(TARGET), GROUP, "-", "+", 9)
    assert pending["message_id"].decode() == rest[0].entry
    assert await ids(edge(redis_client).read(TARGET, 9, again=True)) == ["m2"]
    await edge(redis_client).give_up(first, "no", 1)
    assert (await DeadLetterStream(redis_client, CONFIG).page("acme")).total == 0


async def test_an_action_erased_in_its_call_leaves_nothing_pending(redis_client: Redis) -> None:
    await append_actions(redis_client, CONFIG, [timer(1)])
    (action,) = await edge(redis_client).read(TARGET, 1)
    await drop_user_entries(redis_client, "acme:ann")
    await edge(redis_client).done(action)
    assert await redis_client.xpending_range(action_stream_key(TARGET), GROUP, "-", "+", 9) == []


async def test_nothing_is_there_before_the_first_action(redis_client: Redis) -> None:
    assert await edge(redis_client).targets() == set()
    assert await edge(redis_client).claim(TARGET, 9) == []
    assert await edge(redis_client).read(TARGET, 9) == []
    assert await redis_client.exists(ACTION_TARGETS_KEY) == 0


async def test_a_silent_redis_is_unavailable() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    streams = edge(client)
    action = QueuedAction("1-0", TARGET, "t", "u", "m", "k", 0, HIGH, b"{}")
    for call in (
        append_actions(client, CONFIG, [timer(1)]),
        streams.targets(),
        streams.read(TARGET, 1),
        streams.claim(TARGET, 1),
        streams.hold(TARGET, ["1-0"]),
        streams.done(action),
        streams.give_up(action, "no", 1),
    ):
        with pytest.raises(StorageUnavailable):
            await call
    await client.aclose()
