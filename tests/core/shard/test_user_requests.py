"""Questions about a user and changes of their state, made without a connection: answered once they are true, admitted as posts are."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.model.constants import HIGH, NORMAL
from engine.core.policy.profile import Profile
from engine.core.shard.user_requests import admission_of
from engine.core.wire.records import (
    OK,
    OVERLOADED,
    UNAVAILABLE,
    Explain,
    Followed,
    GetProfile,
    Happened,
    Probe,
    Probed,
    ProfileIs,
    Rejected,
    SetProfile,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Trace,
    Traced,
)
from tests.support.shard_world import World, of

KEY = "t:u"
QUIET = Profile(level="high")
READS = (Probe(1, KEY, "", 0), GetProfile(1, KEY), Trace(1, KEY, "m"))
CHANGES = (SetProfile(1, KEY, QUIET), Subscribe(1, KEY, ["a"], []), Happened(1, KEY, 1, "paid", {}))


def pressed(world: World, share: float) -> None:
    """So much of what may wait for its commit does wait."""
    while len(world.core.post_queue) < world.limits.posts_pending_max * share:
        world.post("filler", priority=HIGH)
        world.fetch()
    world.core.tick(world.now_ms)
    world.said()


@pytest.mark.parametrize(("record", "answer"), [(SetProfile(1, KEY, QUIET), ProfileIs), (Happened(1, KEY, 1, "paid", {}), Followed)])
def test_a_change_is_answered_once_it_is_durable_and_survives_a_crash_then(record: Any, answer: type) -> None:
    world = World()
    world.tell(record)
    world.fetch()
    assert len(world.core.user_requests) == 1
    group = world.core.take_group(world.now_ms)
    assert group is not None
    assert world.said() == []
    world.append(group)
    world.core.group_committed(world.now_ms)
    assert [(record.ref, record.status) for record in of(world.said(), answer)] == [(1, OK)]
    world.crash()
    state = world.core.mailboxes[KEY].user_state
    assert state is not None
    assert state.profile == QUIET or "paid" in state.events


def test_of_two_changes_the_later_one_holds() -> None:
    world = World()
    world.tell(SetProfile(1, KEY, QUIET), SetProfile(2, KEY, None))
    assert [record.ref for record in of(world.settle(), ProfileIs)] == [1, 2]
    world.tell(GetProfile(3, KEY))
    assert [record.profile for record in of(world.settle(), ProfileIs)] == [None]


def test_while_storage_is_away_a_change_in_a_group_is_answered_after_the_rollback_and_any_other_at_once() -> None:
    world = World()
    world.tell(SetProfile(1, KEY, QUIET))
    world.fetch()
    assert world.core.take_group(world.now_ms) is not None
    world.tell(SetProfile(2, KEY, QUIET))
    world.core.group_refused()
    world.tell(SetProfile(3, KEY, QUIET))
    assert [(record.ref, record.status) for record in world.said()] == [(2, UNAVAILABLE), (3, UNAVAILABLE)]
    world.core.storage_back()
    assert [(record.ref, record.status) for record in world.said()] == [(1, UNAVAILABLE)]
    world.tell(GetProfile(4, KEY))
    assert [record.profile for record in of(world.settle(), ProfileIs)] == [None]


def test_what_takes_no_memory_is_always_answered_what_frees_it_or_tells_of_life_nearly_always() -> None:
    explained = Explain(1, KEY, 0, None)  # type: ignore[arg-type]
    assert {admission_of(record, in_memory=True) for record in (*READS, explained)} == {None}
    assert {admission_of(record, in_memory=False) for record in (*READS[1:], explained)} == {NORMAL}
    assert {admission_of(record, in_memory=there) for record in CHANGES for there in (True, False)} == {NORMAL}
    assert admission_of(READS[0], in_memory=False) == HIGH
    assert {admission_of(Settle(1, KEY, 1, []), in_memory=there) for there in (True, False)} == {HIGH}


def test_under_pressure_changes_and_reads_of_pages_are_rejected_with_the_time_to_come_back() -> None:
    world = World(posts_pending_max=100)
    world.post()
    world.settle()
    pressed(world, 0.85)
    strangers = (GetProfile(1, "t:x"), Trace(2, "t:y", "m"), Subscribe(3, "t:z", [], []))
    world.tell(*strangers, *CHANGES)
    said = world.said()
    assert [(type(record), record.ref, record.status) for record in said] == [
        (Rejected, record.ref, OVERLOADED) for record in (*strangers, *CHANGES)
    ]
    assert min(record.retry_ms for record in said) > 0
    assert world.core.output.counters["refused_questions"] == 6
    world.tell(*READS, Settle(1, KEY, 1, []))
    assert [type(record) for record in world.said()] == [Probed, ProfileIs, Traced, Settled]
    pressed(world, 1)
    world.tell(*READS, Settle(1, KEY, 1, []), Probe(2, "t:x", "", 0))
    assert [type(record) for record in world.said()] == [Probed, ProfileIs, Traced, Rejected, Rejected]
    world.calm_down()
    world.tell(*strangers)
    assert {type(record) for record in world.settle()} == {ProfileIs, Traced, Subscribed}


def test_changes_that_wait_for_a_group_count_as_posts_that_wait() -> None:
    world = World(posts_pending_max=10)
    world.post()
    world.settle()
    for n in range(10):
        world.tell(SetProfile(n, KEY, QUIET))
    assert world.core.admission.waiting == 10
    world.tell(SetProfile(10, KEY, QUIET))
    assert [type(record) for record in world.said()] == [Rejected]
    assert len(of(world.settle(), ProfileIs)) == 10
