"""Broadcasts and what their receivers want: mutes, quiet hours, and the way both meet connections, acknowledgements and crashes."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.inbox.inbox import InboxLimits
from engine.core.model.constants import HIGH, LOW
from engine.core.policy.profile import Profile
from engine.core.wire.records import POLL, Deliver, Detach, GapRange, Welcome
from tests.support.policy_world import HOUR_MS, NIGHT, SEVEN_AM, TEN_PM, at, later_core, profile_of, put, told, wants
from tests.support.shard_world import World, connected_world, of

LONG = 100 * HOUR_MS


def heard(records: list[Any], conn: int = 1) -> list[int]:
    return [seq for record in of(records, Deliver) if record.conn == conn for seq, _, _ in record.messages]


def woken(world: World, at_ms: int) -> list[int]:
    world.now_ms = at_ms
    world.core.tick(at_ms)
    return heard(world.settle())


def sleeping(user: str = "u") -> World:
    """A user with quiet hours until seven is connected, and it is night."""
    world = at(TEN_PM)
    wants(world, NIGHT)
    world.connect(1, user)
    return world


def test_what_is_muted_takes_no_number_and_leaves_no_gap() -> None:
    world = World()
    wants(world, Profile(muted_types=("promo.*",), muted_targets=("thread:9",), on_types=("promo.mine",)))
    world.attach(1)
    world.attach(2, "v")
    world.broadcast("b1", more=b',"type":"promo.x"')
    world.broadcast("b2", more=b',"type":"a","target":{"kind":"thread","id":9}')
    world.broadcast("b3", more=b',"type":"a"')
    said = world.deliver_broadcast("b4", more=b',"type":"promo.mine"')
    assert heard(said) == [1, 2]
    assert heard(said, 2) == [1, 2, 3, 4], "others wanted them"
    assert world.core.mailboxes["t:u"].gone == []
    put(world, Profile())
    world.settle()
    assert heard(world.settle()) == [], "what passed is past"


@pytest.mark.parametrize("how", ["nothing", "crash", "checkpoint and crash"])
def test_what_is_wanted_in_the_inbox_only_is_adopted_and_not_sent(how: str) -> None:
    world = World(inbox=InboxLimits(messages_max=20, keep_ms=HOUR_MS, pinned_max=2, numbers_max=100))
    wants(world, Profile(inbox_types=("feed.*",)))
    world.attach(1)
    world.connect(2, "v")
    world.broadcast("b1", more=b',"type":"feed.new"')
    world.broadcast("b2", more=b',"type":"feed.new"', retain=False)
    world.broadcast("b3", more=b',"type":"a"')
    assert heard(world.settle()) == [2], "one that is not kept does not concern who wants it in the inbox"
    assert world.core.mailboxes["t:v"].head == 3, "others get all of them"
    if how != "nothing":
        later_core(world, how)
    profile_of(world)
    mailbox = world.core.mailboxes["t:u"]
    assert (mailbox.head, mailbox.is_pending(1), mailbox.is_pending(2), mailbox.gone) == (2, False, True, [])
    assert mailbox.inbox is not None
    assert mailbox.inbox.counts() == (2, 2)


def test_in_quiet_hours_broadcasts_wait_in_the_log_and_come_when_they_end() -> None:
    world = sleeping()
    world.broadcast("b1", ttl_ms=LONG)
    assert heard(world.deliver_broadcast("b2", ttl_ms=LONG)) == []
    mailbox = world.core.mailboxes["t:u"]
    assert (mailbox.head, mailbox.log_pos) == (0, 0)
    assert woken(world, SEVEN_AM - 1) == []
    assert woken(world, SEVEN_AM) == [1, 2]


def test_messages_of_high_priority_go_on_meanwhile_and_numbers_stay_without_holes() -> None:
    world = sleeping()
    world.deliver_broadcast("b1", ttl_ms=LONG)
    assert told(world, priority=HIGH).seq == 1
    assert woken(world, SEVEN_AM) == [2]


def test_an_urgent_broadcast_passes_quiet_hours_with_those_before_it_and_leaves_those_behind() -> None:
    world = sleeping()
    for id, priority in (("b1", LOW), ("b2", HIGH), ("b3", LOW)):
        world.broadcast(id, ttl_ms=LONG, priority=priority)
    assert heard(world.settle()) == [1, 2]
    assert woken(world, SEVEN_AM) == [3]


def test_an_urgent_broadcast_passes_quiet_hours_behind_more_than_one_group_takes() -> None:
    world = sleeping()
    for number in range(5):
        world.broadcast(f"b{number}", ttl_ms=LONG)
    world.settle()
    world.broadcast("high", ttl_ms=LONG, priority=HIGH)
    world.broadcast("low", ttl_ms=LONG)
    assert world.config.adopt_max < 5
    assert heard(world.settle()) == [1, 2, 3, 4, 5, 6]
    assert woken(world, SEVEN_AM) == [7]


def test_what_expires_in_quiet_hours_is_announced_as_one_gap_when_they_end() -> None:
    world = sleeping()
    for id, ttl_ms in (("b1", HOUR_MS), ("b2", HOUR_MS), ("b3", LONG), ("b4", HOUR_MS)):
        world.broadcast(id, ttl_ms=ttl_ms)
    world.settle()
    world.now_ms = SEVEN_AM
    world.core.tick(SEVEN_AM)
    said = world.settle()
    assert heard(said) == [2]
    assert [(gap.first, gap.last) for gap in of(said, GapRange)] == [(1, 1), (3, 3)]


def gaps(records: list[Any]) -> list[tuple[int, int]]:
    return [(gap.first, gap.last) for gap in of(records, GapRange)]


@pytest.mark.parametrize("how", ["evicted", "expired", "before a crash"])
def test_who_was_away_is_sent_a_gap_for_broadcasts_that_left_the_log_and_is_not_sent_it_again(how: str) -> None:
    world = connected_world()
    assert heard(world.deliver_broadcast("b1")) == [1]
    world.ack(1, 1)
    world.detach(1)
    positions = [world.broadcast("b2"), world.broadcast("b3")]
    world.deliver_broadcast("b4", ttl_ms=LONG)
    if how == "expired":
        world.now_ms += 60_000
        world.core.tick(world.now_ms)
    else:
        world.drop(*positions)
    if how == "before a crash":
        later_core(world, "checkpoint and crash")
    said = world.connect(2)
    assert (gaps(said), heard(said, 2)) == ([(2, 2)], [3])
    world.ack(2, 3)
    world.detach(2)
    world.settle()
    later_core(world, "checkpoint and crash")
    said = world.connect(3)
    assert (gaps(said), heard(said, 3)) == ([], [])


def test_only_what_concerned_a_user_who_was_there_before_is_lost() -> None:
    world = World()
    world.attach(1, "old")
    world.deliver_broadcast("b1")
    world.detach(1)
    world.drop(world.broadcast("other", "news"), world.broadcast("passing", retain=False))
    assert gaps(world.connect(2, "old")) == []
    world.detach(2)
    world.drop(world.broadcast("b2"))
    world.attach(3, "old")
    said = world.connect(4, "new")
    assert [record.conn for record in of(said, GapRange)] == [3]


def test_what_left_the_log_before_a_slow_shard_read_it_is_a_gap_for_those_connected() -> None:
    world = connected_world()
    world.deliver_broadcast("b1")
    world.drop(world.broadcast("b2"))
    assert gaps(world.settle()) == [(2, 2)]
    assert heard(world.deliver_broadcast("b3")) == [3]


def test_a_loss_is_a_gap_though_the_next_entry_is_for_others() -> None:
    world = connected_world()
    world.deliver_broadcast("b1")
    unread, _ = world.broadcast("b2"), world.broadcast("b3", "news")
    world.drop(unread)
    assert gaps(world.settle()) == [(2, 2)]


@pytest.mark.parametrize("unread", [True, False])
def test_a_loss_that_storage_has_forgotten_is_a_gap_for_those_connected(unread: bool) -> None:
    world = connected_world()
    world.deliver_broadcast("b1")
    audience, forgotten, last = world.core.broadcast_audience, world.broadcast("b2", "news"), world.broadcast("b3", "news")
    if unread:
        del world.log[1]
    world.follow()
    if not unread:
        audience.read([], last, forgotten)
    audience.lose([], forgotten)
    assert gaps(world.settle()) == ([(2, 2)] if unread else [])


def test_who_ends_the_quiet_hours_by_another_profile_is_told_at_once() -> None:
    world = sleeping()
    world.deliver_broadcast("b1", ttl_ms=LONG)
    put(world, Profile())
    assert heard(world.settle()) == [1]


def test_who_leaves_and_returns_in_quiet_hours_misses_nothing() -> None:
    world = sleeping()
    world.deliver_broadcast("b1", ttl_ms=LONG)
    world.connect(3)
    world.tell(Detach(3, 1000), Detach(1, 1000))
    world.connect(2)
    world.now_ms = SEVEN_AM
    world.core.tick(SEVEN_AM)
    assert heard(world.settle(), 2) == [1]


def test_a_second_connection_does_not_move_the_cursor_of_who_sleeps() -> None:
    world = sleeping()
    world.deliver_broadcast("b1", ttl_ms=LONG)
    world.connect(2)
    world.now_ms = SEVEN_AM
    world.core.tick(SEVEN_AM)
    assert heard(world.settle(), 2) == [1]


@pytest.mark.parametrize("how", ["crash", "checkpoint and crash"])
def test_who_slept_when_the_shard_died_is_told_in_the_morning_by_the_next(how: str) -> None:
    world = sleeping()
    world.deliver_broadcast("b1", ttl_ms=LONG)
    later_core(world, how)
    profile_of(world)
    assert heard(world.connect(1, resume=True, cursor=0)) == []
    assert woken(world, SEVEN_AM) == [1]
    later_core(world, how)
    profile_of(world)
    world.connect(1, resume=True, cursor=0, sent=1)
    assert world.core.mailboxes["t:u"].head == 1


def test_a_poll_in_quiet_hours_is_not_told_to_expect_what_does_not_come() -> None:
    world = at(TEN_PM)
    wants(world, NIGHT)
    world.deliver_broadcast("b1", ttl_ms=LONG)
    (welcome,) = of(world.connect(1, kind=POLL), Welcome)
    assert welcome.head == 0
    world.detach(1)
    world.now_ms = SEVEN_AM
    (welcome,) = of(world.connect(2, kind=POLL), Welcome)
    assert welcome.head == 1


def test_a_poll_in_quiet_hours_expects_an_urgent_broadcast_behind_others() -> None:
    world = at(TEN_PM)
    wants(world, NIGHT)
    world.broadcast("b1", ttl_ms=LONG)
    world.deliver_broadcast("b2", ttl_ms=LONG, priority=HIGH)
    said = world.connect(1, kind=POLL)
    assert [welcome.head for welcome in of(said, Welcome)] == [1]
    assert heard(said) == [1, 2]


def test_who_sleeps_costs_no_group_until_the_morning() -> None:
    world = sleeping()
    world.deliver_broadcast("b1", ttl_ms=LONG)
    assert not world.core.wants_commit
    world.core.tick(world.now_ms + 1000)
    assert not world.core.wants_commit


def test_waking_and_sleeping_again_all_night_leaves_no_entries_behind() -> None:
    world = sleeping()
    world.broadcast("b1", ttl_ms=LONG)
    for _ in range(500):
        put(world, NIGHT)
        assert heard(world.settle()) == []
    assert len(world.core.broadcast_step._wakes) < 100
    assert woken(world, SEVEN_AM) == [1]
