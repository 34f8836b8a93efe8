"""Aggregation windows of a whole shard: from the post to the summary on a connection, through crashes, refusals and data loss."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.core.journal import rebuild
from engine.core.model.envelope import Envelope, Merge
from engine.core.shard.shard import ShardCore
from engine.core.wire import records as wire
from engine.features.windows.core import window_closer
from engine.features.windows.core.aggregation import windows_of
from tests.support.shard_world import World, connected_world, of

WINDOW = Merge(300)
LEADING = Merge(300, True)


def like(world: World, id: str, *, user: str = "u", merge: Merge = WINDOW, collapse: str = "likes", **fields: Any) -> int:
    more = b',"actor":"a-%b","data":1' % id.encode()
    return world.post(user, id, collapse=collapse, merge=merge, more=more, **fields)


def liked(world: World, id: str, **fields: Any) -> list[Any]:
    """As `like`, and settle; what the core said."""
    like(world, id, **fields)
    return world.settle()


def answers(records: list[Any]) -> list[tuple[int, int]]:
    return [(record.status, record.seq) for record in of(records, wire.Posted)]


def shown(records: list[Any], conn: int = 1) -> list[dict[str, Any]]:
    """The messages of the connection."""
    deliveries = [record for record in of(records, wire.Deliver) if record.conn == conn]
    return [json.loads(b'{"seq":%d,%b}' % (seq, body)) for delivery in deliveries for seq, _, body in delivery.messages]


def later(world: World, ms: int = 300) -> list[Any]:
    world.now_ms += ms
    world.core.tick(world.now_ms)
    return world.settle()


def test_what_comes_within_the_window_is_one_summary_at_its_end() -> None:
    world = connected_world()
    for n in range(4):
        like(world, f"m{n}")
    said = world.settle()
    assert answers(said) == [(wire.MERGED, 0)] * 4
    assert of(said, wire.Posted)[0].detail == f"window until {world.now_ms + 300}"
    assert shown(said) == []
    assert shown(later(world, 299)) == []
    (summary,) = shown(later(world, 1))
    assert (summary["seq"], summary["count"], summary["actors"]) == (1, 4, ["a-m0", "a-m1", "a-m2", "a-m3"])
    stats = world.core.stats(world.now_ms)
    assert (stats["windows"], stats["merged"], stats["windows_closed"], stats["published"]) == (0, 4, 1, 1)


def test_a_message_alone_in_its_window_comes_as_it_is_and_is_acknowledged_by_its_id() -> None:
    world = connected_world()
    liked(world, "only")
    (message,) = shown(later(world))
    assert (message["id"], message["seq"]) == ("only", 1)
    assert "count" not in message
    like(world, "only")
    assert answers(world.settle()) == [(wire.DUPLICATE, 1)]
    world.ack_ids(1, "only")
    assert world.core.mailboxes["t:u"].floor == 1


def test_a_leading_message_is_delivered_at_once_and_a_summary_replaces_it() -> None:
    world = connected_world()
    like(world, "m1", merge=LEADING)
    said = liked(world, "m2", merge=LEADING)
    assert answers(said) == [(wire.ACCEPTED, 1), (wire.MERGED, 0)]
    assert [message["id"] for message in shown(said)] == ["m1"]
    (summary,) = shown(later(world))
    assert (summary["count"], summary["replaces"]) == (2, "m1")


def test_a_leading_message_alone_is_all_there_is() -> None:
    world = connected_world()
    liked(world, "m1", merge=LEADING)
    assert shown(later(world)) == []
    assert world.core.mailboxes["t:u"].head == 1


def test_a_message_after_the_end_opens_the_next_window_even_before_the_tick() -> None:
    world = connected_world()
    like(world, "m1")
    liked(world, "m2")
    world.now_ms += 300
    said = liked(world, "m3")
    assert [message["count"] for message in shown(said)] == [2]
    assert answers(said) == [(wire.MERGED, 0)]
    assert [message["id"] for message in shown(later(world))] == ["m3"]


def test_a_repeat_is_told_what_its_first_was_told() -> None:
    world = World()
    like(world, "held")
    liked(world, "leading", merge=LEADING, collapse="other")
    for id, key, merge in (("held", "likes", WINDOW), ("leading", "other", LEADING)):
        like(world, id, merge=merge, collapse=key)
        like(world, id, merge=merge, collapse=key, digest=b"another.")
    assert answers(world.settle()) == [(wire.DUPLICATE, 0), (wire.CONFLICT, 0), (wire.DUPLICATE, 1), (wire.CONFLICT, 1)]
    world.core.mailboxes["t:u"].recent.clear()  # as after a crash and many others
    like(world, "held")
    like(world, "leading", merge=LEADING, collapse="other")
    like(world, "held", digest=b"another.")
    assert sorted(answers(world.settle())) == [(wire.DUPLICATE, 0), (wire.DUPLICATE, 1), (wire.CONFLICT, 0)]
    assert [window.count for window in windows(world.core).values()] == [1, 1]


def windows(core: ShardCore, user: str = "u") -> dict[str, Any]:
    found = windows_of(core.mailboxes[f"t:{user}"])
    assert found is not None
    return found.open


def test_an_id_of_an_earlier_window_does_not_count_again() -> None:
    world = World()
    liked(world, "m1")
    later(world)
    world.core.mailboxes["t:u"].recent.clear()
    like(world, "m1")
    like(world, "m2")
    assert answers(world.settle()) == [(wire.DUPLICATE, 0), (wire.MERGED, 0)]
    assert windows(world.core)["likes"].count == 1


def test_repeats_in_one_group_count_once() -> None:
    world = World()
    for _ in range(3):
        like(world, "m1")
    assert answers(world.settle()) == [(wire.MERGED, 0), (wire.DUPLICATE, 0), (wire.DUPLICATE, 0)]
    assert windows(world.core)["likes"].count == 1


def test_beyond_the_limit_messages_are_delivered_unmerged() -> None:
    world = World(windows_max=1)
    like(world, "m1")
    like(world, "m2", collapse="other")
    assert answers(world.settle()) == [(wire.MERGED, 0), (wire.ACCEPTED, 1)]


def test_a_refused_group_never_was() -> None:
    world = connected_world()
    liked(world, "m1")
    like(world, "m2")
    assert world.core.take_group(world.now_ms) is not None
    world.core.group_refused()
    world.core.storage_back()
    assert answers(world.said()) == [(wire.UNAVAILABLE, 0)]
    assert windows(world.core)["likes"].count == 1


def test_a_window_whose_closing_was_refused_closes_when_storage_is_back() -> None:
    world = connected_world()
    like(world, "m1")
    liked(world, "m2")
    world.now_ms += 300
    world.core.tick(world.now_ms)
    assert world.core.take_group(world.now_ms) is not None
    world.core.group_refused()
    world.core.storage_back()
    assert shown(world.said()) == []
    assert [message["count"] for message in shown(later(world, 100))] == [2]


def test_a_clock_set_back_leaves_a_window_open_until_it_is_over_again() -> None:
    world = connected_world()
    liked(world, "m1")
    world.core.tick(world.now_ms + 300)
    assert not world.commit(), "by the clock it is not over"
    assert not world.core.wants_commit, "and nobody waits for it"
    assert [message["id"] for message in shown(later(world))] == ["m1"]


def test_windows_survive_a_crash_from_the_journal_and_from_the_page() -> None:
    for checkpointed in (False, True):
        world = World()
        for n in range(3):
            like(world, f"m{n}")
        world.settle()
        if checkpointed:
            world.checkpoint()
            assert world.journal == []
        world.crash()
        if not checkpointed:
            assert windows(world.core)["likes"].count == 3, "what the journal has is in memory"
        like(world, "m1")
        like(world, "m3")
        assert answers(world.settle()) == [(wire.DUPLICATE, 0), (wire.MERGED, 0)]
        world.attach(1)
        assert [message["count"] for message in shown(later(world))] == [4]


def test_a_window_that_was_over_while_the_shard_was_down_closes_at_the_first_tick() -> None:
    world = World()
    like(world, "m1")
    world.persist()
    world.now_ms += 1000
    world.crash()
    later(world, 0)
    assert [message["id"] for message in shown(world.connect(1))] == ["m1"]
    world.checkpoint()
    assert world.windows == {}, "nothing is left to be woken for"


def test_a_closed_window_is_not_closed_again_by_replay() -> None:
    world = World()
    like(world, "m1")
    like(world, "m2")
    world.persist()
    later(world)
    for _ in range(2):
        world.crash()
        later(world)
    assert world.core.mailboxes["t:u"].head == 1
    assert windows(world.core) == {}


def evicted(world: World) -> None:
    """Everybody leaves memory."""
    world.checkpoint()
    assert world.core.evict(world.now_ms, 1 << 40)
    assert not world.core.mailboxes


def test_a_window_of_a_mailbox_that_left_memory_ends_in_time() -> None:
    world = World()
    like(world, "m1")
    liked(world, "m2")
    evicted(world)
    later(world, 299)
    assert not world.core.mailboxes
    later(world, 1)
    (summary,) = shown(world.connect(1))
    assert (summary["seq"], summary["count"]) == (1, 2)


def test_a_message_counts_in_the_window_of_a_mailbox_that_left_memory() -> None:
    world = World()
    liked(world, "m1")
    evicted(world)
    like(world, "m2")
    assert answers(world.settle()) == [(wire.MERGED, 0)]
    evicted(world)
    like(world, "m2")
    assert answers(world.settle()) == [(wire.DUPLICATE, 0)]
    world.attach(1)
    assert [summary["count"] for summary in shown(later(world))] == [2]


def test_mailboxes_with_ended_windows_are_loaded_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_closer, "LOADS_MAX", 2)
    world = World()
    for n in range(5):
        like(world, "m", user=f"u{n}")
    world.settle()
    evicted(world)
    world.now_ms += 300
    world.core.tick(world.now_ms)
    world.core.tick(world.now_ms)
    keys = world.core.page_wait.take_pages_wanted()
    assert len(keys) == 2
    world.core.pages_failed(keys)
    world.core.tick(world.now_ms)
    assert world.core.page_wait.take_pages_wanted() == keys, "they are wanted again, and no others"
    world.core.pages_failed(keys)
    world.settle()
    assert [world.core.mailboxes[f"t:u{n}"].head for n in range(5)] == [1] * 5


def test_a_shard_starts_without_loading_mailboxes_for_open_windows() -> None:
    world = World()
    like(world, "m1")
    world.persist()
    world.crash()
    world.settle()
    assert not world.core.mailboxes
    later(world)
    assert world.core.mailboxes["t:u"].head == 1


def test_windows_of_an_erased_user_wait_for_nothing() -> None:
    world = World()
    liked(world, "m1")
    world.tell(wire.Erase(7, "t:u"))
    world.persist()
    assert world.core.mailbox_store.memory.bytes == world.core.mailboxes["t:u"].weight
    evicted(world)
    later(world)
    assert not world.core.mailboxes


def test_windows_are_put_back_after_a_loss_of_data_and_closed_ones_stay_closed() -> None:
    world = World()
    like(world, "m1")
    like(world, "m2", collapse="closed")
    world.persist()
    world.now_ms += 300
    like(world, "m3")  # after the old windows: what storage loses
    world.core.tick(world.now_ms)
    world.settle()
    world.journal = [(number, payload) for number, payload in enumerate(rebuild.payloads(world.core.mailboxes.values(), 1 << 20))]
    world.crash()
    assert {collapse: window.count for collapse, window in windows(world.core).items()} == {"likes": 1}
    world.attach(1)
    assert [message["id"] for message in shown(later(world))] == ["m2", "m1", "m3"]


def test_a_window_since_an_erasure_outlasts_the_loss_of_the_erasure() -> None:
    world = World()
    like(world, "m1")
    liked(world, "m2")
    world.checkpoint()
    pages, deadlines = world.pages.copy(), world.windows.copy()
    world.tell(wire.Erase(7, "t:u"))
    world.persist()
    liked(world, "m3")
    world.pages, world.windows = pages, deadlines
    world.journal = [(number, payload) for number, payload in enumerate(rebuild.payloads(world.core.mailboxes.values(), 1 << 20))]
    for _ in range(2):
        world.crash()
        world.checkpoint(full=False)
    world.attach(1)
    assert [message["id"] for message in shown(later(world))] == ["m3"]


def test_few_windows_close_with_one_group_and_the_others_with_the_next() -> None:
    world = World(windows_close_max=2)
    for n in range(5):
        like(world, "m", user=f"u{n}")
    world.settle()
    world.now_ms += 300
    world.core.tick(world.now_ms)
    closed = []
    while world.commit():
        closed.append(world.core.stats(world.now_ms)["windows_closed"])
    assert closed == [2, 4, 5]


def test_nothing_is_kept_for_nobody() -> None:
    world = connected_world()
    liked(world, "m1", retain=False)
    world.detach(1)
    like(world, "m2", retain=False)
    assert answers(world.settle()) == [(wire.SUPPRESSED, 0)]
    later(world)
    assert world.core.mailboxes["t:u"].head == 0
    assert world.core.stats(world.now_ms)["windows_closed"] == 1


def test_what_has_expired_at_the_end_of_the_window_is_not_delivered() -> None:
    world = connected_world()
    liked(world, "m1", ttl_ms=301)
    assert shown(later(world, 301)) == []
    assert world.core.mailboxes["t:u"].head == 0


def test_a_late_message_opens_no_window_that_outlasts_it() -> None:
    world = connected_world()
    assert answers(liked(world, "m1", ttl_ms=300)) == [(wire.ACCEPTED, 1)]
    assert answers(liked(world, "m2", ttl_ms=300, merge=LEADING)) == [(wire.ACCEPTED, 2)]
    assert windows_of(world.core.mailboxes["t:u"]) is None
    liked(world, "m3", ttl_ms=301)
    assert answers(liked(world, "m4", ttl_ms=1)) == [(wire.MERGED, 0)]
    assert [message["count"] for message in shown(later(world))] == [2]


def test_a_timer_counts_in_the_window_that_is_open_when_it_fires_and_once() -> None:
    world = World()
    liked(world, "m1")
    timer = wire.Timer("3-x", "t:u", world.now_ms, 0, 60_000, Envelope("m2", b"d" * 8, 1, True, b'"id":"m2","data":1', "likes", WINDOW))
    for _ in range(2):
        world.fire([timer])
    assert world.core.output.to_schedulers == [(3, wire.FireDone(["3-x"])), (3, wire.FireDone(["3-x"]))]
    assert windows(world.core)["likes"].count == 2


def test_messages_of_windows_are_not_conflated_as_well() -> None:
    world = World(conflate_offline_min=1)
    for n in range(3):
        liked(world, f"m{n}", merge=LEADING)
        later(world)
    assert world.core.output.counters["conflated"] == 0
    assert world.core.mailboxes["t:u"].head == 3
