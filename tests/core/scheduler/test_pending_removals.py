"""What storage is still to be told of timers that were handed out."""

from __future__ import annotations

from engine.config import Config
from engine.core.scheduler.pending_removals import SETTLED_MAX, PendingRemovals
from engine.core.scheduler.scheduler_events import StoreDone, Turn
from engine.core.scheduler.timer_wheel import NEVER

KEY = "t:u"


def given(removals: PendingRemovals) -> Turn:
    turn = Turn(0)
    removals.give(turn)
    return turn


def moved(**found: bool) -> StoreDone:
    return StoreDone(3, [], None, 0, [], {f"3-{name}": there for name, there in found.items()})


def test_a_turn_of_their_own_is_due_when_the_oldest_has_waited_long_enough() -> None:
    removals = PendingRemovals(Config(timer_removal_ms=100))
    assert removals.next_at() == NEVER
    removals.fired("3-a", 3, KEY, 1000)
    removals.again("3-b", 3, 9000, KEY, 1050)
    assert removals.next_at() == 1100


def test_a_full_turn_is_due_at_once_and_gives_the_oldest() -> None:
    removals = PendingRemovals(Config(timer_removal_ms=100))
    for n in range(SETTLED_MAX):
        removals.fired(f"3-{n}", 3, KEY, 1000)
        assert removals.next_at() == (1100 if n < SETTLED_MAX - 1 else 1000)
    removals.fired("3-last", 3, KEY, 1000)
    assert list(given(removals)[3].fired) == [f"3-{n}" for n in range(SETTLED_MAX)]
    removals.stored_fired(1000)
    assert list(given(removals)[3].fired) == ["3-last"]


def test_each_partition_gets_its_own_timers() -> None:
    removals = PendingRemovals(Config())
    removals.fired("3-a", 3, KEY, 0)
    removals.fired("4-b", 4, "", 0)
    removals.again("4-c", 4, 9000, KEY, 0)
    work = given(removals)
    assert {partition: (part.fired, part.moved) for partition, part in work.items()} == {
        3: ({"3-a": KEY}, {}),
        4: ({"4-b": ""}, {"4-c": (9000, KEY)}),
    }


def test_what_was_given_stays_until_storage_confirms_it() -> None:
    removals = PendingRemovals(Config())
    removals.fired("3-a", 3, KEY, 0)
    assert given(removals)[3].fired == given(removals)[3].fired == {"3-a": KEY}
    removals.fired("3-b", 3, KEY, 5)
    assert not removals.stored_fired(7)
    assert removals.key_of_fired("3-a") is None
    assert removals.key_of_fired("3-b") == KEY, "it came after the turn was given"
    assert removals.next_at() == 7 + Config().timer_removal_ms


def test_a_timer_that_took_effect_is_not_moved_any_more() -> None:
    removals = PendingRemovals(Config())
    removals.again("3-a", 3, 9000, KEY, 0)
    assert removals.is_moving("3-a")
    given(removals)
    removals.fired("3-a", 3, KEY, 0)
    assert not removals.is_moving("3-a")
    assert removals.stored_moves(moved(a=True)) == [], "the answer to the move is late"
    assert given(removals)[3].moved == {}
    assert len(removals) == 1


def test_a_request_that_decided_about_a_timer_ends_its_move() -> None:
    removals = PendingRemovals(Config())
    removals.again("3-a", 3, 9000, KEY, 0)
    removals.stay("3-a")
    removals.stay("3-unknown")
    assert not removals.is_moving("3-a")
    assert len(removals) == 0


def test_moves_are_stored_missing_or_refused_and_those_refused_wait_on() -> None:
    removals = PendingRemovals(Config())
    for name in "abc":
        removals.again(f"3-{name}", 3, 9000, KEY, 0)
    given(removals)
    assert removals.stored_moves(moved(a=True, b=False)) == [("3-a", 9000), ("3-b", None)]
    assert removals.is_moving("3-c")
    assert removals.stored_fired(50), "one of those given was refused"
    removals.stored_moves(moved(c=True))
    assert not removals.stored_fired(60)


def test_the_timers_of_a_mailbox_are_those_that_are_or_may_be_its_own() -> None:
    removals = PendingRemovals(Config())
    removals.fired("3-a", 3, KEY, 0)
    removals.fired("3-b", 3, "", 0)
    removals.fired("3-c", 3, "t:other", 0)
    assert removals.fired_of(KEY) == ["3-a", "3-b"]
    assert [removals.key_of_fired(sid) for sid in ("3-a", "3-b", "3-z")] == [KEY, "", None]
