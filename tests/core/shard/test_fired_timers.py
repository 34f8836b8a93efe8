"""Timers that a scheduler handed out: one answer each, and copies have no effect."""

from __future__ import annotations

from msgspec.structs import replace

from engine.config import Config
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.action import Action
from engine.core.model.constants import AT_MAX_MS
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.policy.conditions import Again, Conditions, Drop, Go
from engine.core.shard.fired_timers import FiredTimers
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import FireAgain, FireDone, FireFailed, Timer
from engine.features.policy.core.policy_step import PolicyJudge
from engine.features.policy.time_zones import zone
from tests.support.shard_world import World


def timer(sid: str = "3-a", due_ms: int = 1000, conditions: Conditions | None = None) -> Timer:
    return Timer(sid, "t:u", due_ms, 0, 60_000, Envelope("a", b"d" * 8, 1, True, b""), conditions)


def fired_timers(*taken: Timer) -> tuple[FiredTimers, ShardOutput]:
    output = ShardOutput()
    fired = FiredTimers(3, output, PolicyJudge(Config(), zone))
    assert all(fired.take(one) for one in taken)
    return fired, output


def test_a_copy_is_ignored_until_the_timer_is_answered() -> None:
    fired, output = fired_timers(timer())
    assert fired.taken("3-a") == timer()
    assert not fired.take(timer())
    assert output.to_schedulers == []
    fired.failed(["3-a"])
    assert fired.take(timer()), "the scheduler hands out again what failed"


def test_each_scheduler_gets_one_answer_for_all_timers_of_its_partition() -> None:
    fired, output = fired_timers(timer("3-a"), timer("12-b"), timer("3-c"), timer("4-d"))
    fired.done(["3-a", "12-b", "3-c"])
    fired.failed(["4-d"])
    assert output.to_schedulers == [(3, FireDone(["3-a", "3-c"])), (12, FireDone(["12-b"])), (4, FireFailed(["4-d"]))]


def test_a_timer_comes_again_only_when_storage_knows_no_effect_of_it() -> None:
    fired, output = fired_timers(timer("3-a"), timer("3-b"))
    fired.again([("3-a", 5000), ("3-b", 6000)])
    assert output.to_schedulers == [], "not before storage was asked"
    doubts = fired.take_doubted()
    assert [(doubt.timer.sid, doubt.wanted_ms) for doubt in doubts] == [("3-a", 5000), ("3-b", 6000)]
    assert fired.take_doubted() == []
    assert not fired.take(timer("3-a")), "a copy that comes during the lookup"
    fired.looked_up(doubts, {("t:u", timer_effect_id("3-a")): 7})
    assert output.to_schedulers == [(3, FireDone(["3-a"])), (3, FireAgain([("3-b", 6000)]))]


def test_a_postponed_timer_gets_a_later_time_than_it_came_with_and_one_that_can_be_stored() -> None:
    fired, output = fired_timers(timer("3-a", 1000), timer("3-b", AT_MAX_MS - 1))
    fired.again([("3-a", 1000), ("3-b", AT_MAX_MS)])
    fired.looked_up(fired.take_doubted(), {})
    assert output.to_schedulers == [(3, FireAgain([("3-a", 1100), ("3-b", AT_MAX_MS)]))]


def test_a_late_copy_of_a_postponed_timer_gets_the_same_answer_and_the_timer_itself_is_taken() -> None:
    fired, output = fired_timers(timer())
    fired.again([("3-a", 5000)])
    fired.looked_up(fired.take_doubted(), {})
    assert not fired.take(timer())
    assert output.to_schedulers == [(3, FireAgain([("3-a", 5000)]))] * 2
    assert fired.take(timer(due_ms=5000))
    assert fired.taken("3-a").due_ms == 5000


def test_the_conditions_of_a_timer_decide_with_what_its_mailbox_knows() -> None:
    mailbox = Mailbox("t:u", 0)
    mailbox.seen_ms = 900
    fired, _ = fired_timers(
        timer("3-a"), timer("3-b", conditions=Conditions(800, unless_active=True)), timer("3-c", conditions=Conditions(0, inactive_ms=500))
    )
    assert fired.verdict("3-a", mailbox, 1000) == Go()
    assert isinstance(fired.verdict("3-b", mailbox, 1000), Drop)
    assert fired.verdict("3-c", mailbox, 1000) == Again(1400)
    assert fired.verdict("3-c", mailbox, 1400) == Go()


def test_a_timer_that_took_effect_before_goes_on_whatever_its_conditions_are() -> None:
    mailbox = Mailbox("t:u", 0)
    mailbox.remember(timer_effect_id("3-a"), 1, b"", 8)
    fired, _ = fired_timers(timer(conditions=Conditions(0, member_of="nobody")))
    assert fired.verdict("3-a", mailbox, 1000) == Go()


def test_an_activity_of_the_future_counts_as_one_of_now() -> None:
    mailbox = Mailbox("t:u", 0)
    mailbox.seen_ms = 1_000_000
    fired, _ = fired_timers(timer(conditions=Conditions(0, inactive_ms=500)))
    assert fired.verdict("3-a", mailbox, 1000) == Again(1500)
    assert mailbox.seen_ms == 1000


def test_a_timer_that_is_to_come_again_does_nothing_until_it_is_there_for_its_new_time() -> None:
    world = World()
    timer = Timer("3-abc", "t:u", world.now_ms, world.now_ms, 60_000, Envelope("a", b"d" * 8, 1, True, b'"id":"a"'))
    world.connect(1)
    world.core.fire([timer], world.now_ms)
    world.core.post_queue.drop_waiting()
    world.core.fired_timers.again([("3-abc", world.now_ms + 500)])
    world.settle()
    world.core.fire([timer, timer], world.now_ms + 100)  # copies that were under way
    assert [record for _, record in world.core.output.to_schedulers] == [FireAgain([("3-abc", world.now_ms + 500)])] * 3
    world.settle()
    assert world.core.mailboxes["t:u"].head == 0
    world.core.fire([replace(timer, due_ms=world.now_ms + 500)], world.now_ms + 500)
    world.settle()
    assert world.core.mailboxes["t:u"].head == 1
    assert isinstance(world.core.output.to_schedulers[-1][1], FireDone)


def test_a_delayed_message_carries_when_it_was_due_beside_its_own_time() -> None:
    world = World()
    timer = Timer("3-abc", "t:u", world.now_ms, world.now_ms - 500, 60_000, Envelope("a", b"d" * 8, 1, True, b'"id":"a","ts":7'))
    world.connect(1)
    world.fire([timer])
    (message,) = world.core.mailboxes["t:u"].hot.values()
    assert message.envelope.body == b'"id":"a","ts":7,"due":%d' % world.now_ms


def test_of_the_timers_that_are_to_come_again_a_bounded_number_is_remembered() -> None:
    fired = FiredTimers(3, ShardOutput())
    timers = [Timer(f"3-{n}", "t:u", 100, 0, 60_000, Envelope("a", b"d" * 8, 1, True, b"")) for n in range(5)]
    for timer in timers:
        assert fired.take(timer)
        fired.again([(timer.sid, 200)])
        fired.looked_up(fired.take_doubted(), {})
    assert [fired.take(timer) for timer in timers] == [True, True, False, False, False]
    assert fired.take(replace(timers[4], due_ms=150)), "its publisher gave it another time"


# -- actions -----------------------------------------------------------------------------------------------------------
def acting(sid: str, world: World, conditions: Conditions | None = None) -> Timer:
    envelope = Envelope("a", b"d" * 8, 1, True, b'"id":"a","type":"t"')
    return Timer(sid, "t:u", world.now_ms, world.now_ms, 60_000, envelope, conditions, Action("ray://n/a.m", "k"))


def test_an_action_is_stored_in_place_of_its_message_and_once_for_a_timer() -> None:
    world = World()
    timer = acting("3-abc", world)
    for _ in range(2):  # its answer was lost, or the shard died: the timer comes again
        world.fire([timer, timer])
        assert world.core.output.to_schedulers.pop() == (3, FireDone(["3-abc"]))
    assert world.actions == ["ray://n/a.m"]
    assert world.core.mailboxes["t:u"].head == 0, "nothing is delivered"
    assert world.core.output.to_schedulers == []


def test_an_action_whose_conditions_do_not_hold_is_not_done_but_decided_about() -> None:
    world = World()
    world.fire([acting("3-abc", world, Conditions(0, member_of="nobody"))])
    assert world.actions == []
    assert world.core.output.to_schedulers == [(3, FireDone(["3-abc"]))]
    user_state = world.core.mailboxes["t:u"].user_state
    assert user_state is not None
    assert [entry.reason.partition(":")[0] for entry in user_state.timeline] == ["not_member"]
    world.fire([acting("3-abc", world)])
    assert world.actions == [], "it was decided"


def test_an_action_that_cannot_be_stored_fails_its_timer() -> None:
    world = World()
    world.core.fire([acting("3-abc", world)], world.now_ms)
    world.core.pages_loaded(dict.fromkeys(world.core.page_wait.take_pages_wanted()), world.now_ms)
    assert world.core.fired_timers.acting
    (timer,) = world.core.fired_timers.take_acting()
    assert not world.core.fired_timers.acting
    world.core.fired_timers.failed([timer.sid])
    assert world.core.output.to_schedulers == [(3, FireFailed(["3-abc"]))]
