"""What a shard makes of a fired timer whose conditions it evaluates: what it knows of its users, and that crashes do not change it."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgspec.structs import replace

from engine.core.commit.first_result import NEVER, packed_result
from engine.core.commit.user_step import apply_note
from engine.core.inbox import inbox
from engine.core.inbox.inbox import InboxLimits
from engine.core.journal import rebuild
from engine.core.journal.journal_records import Noticed
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.action import Action
from engine.core.model.category import Category, PolicyTerms
from engine.core.model.constants import AT_MAX_MS
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.model.step import ACTED, DELIVERED, READ, SEEN, ChannelStep, StepTerms
from engine.core.policy.conditions import Conditions
from engine.core.policy.profile import Profile, QuietHours
from engine.core.wire.records import OK, UNAVAILABLE, Ack, Detach, FireAgain, FireDone, Followed, Happened, MarkInbox, SetProfile, Timer
from tests.support.shard_world import World, of

HOUR_MS = 3_600_000


def happened(world: World, at_ms: int, event: str = "", follow: dict[str, str] | None = None, **fields: Any) -> Followed:
    world.refs += 1
    world.now_ms = max(world.now_ms, at_ms)
    (answer,) = of(world.ask(Happened(world.refs, "t:u", at_ms, event, follow or {}, **fields)), Followed)
    assert answer.ref == world.refs
    return answer


def fire(world: World, conditions: Conditions, sid: str = "3-a", due_ms: int = 0) -> Any:
    """Fire a timer; returns what its scheduler is told."""
    due_ms = due_ms or world.now_ms
    world.core.output.to_schedulers.clear()
    timer = Timer(sid, "t:u", due_ms, 0, 600_000, Envelope(f"m-{sid}", b"d" * 8, 1, True, b'"id":"a","type":"touch"'), conditions)
    world.fire([timer])
    ((_, told),) = world.core.output.to_schedulers
    return told


def head(world: World) -> int:
    return world.core.mailboxes["t:u"].head


def restart(world: World, how: str) -> None:
    """The shard is another process now, or has lost its storage."""
    if how == "rescue":
        world.journal = [(-1, payload) for payload in rebuild.payloads(world.core.mailboxes.values(), 1000)]
        world.pages.clear()
    elif how == "page":
        world.checkpoint()
    world.crash()


def test_a_timer_whose_conditions_hold_is_sent() -> None:
    world = World()
    conditions = Conditions(world.now_ms, unless_active=True, unless_events=("paid",))
    assert fire(world, conditions) == FireDone(["3-a"])
    assert head(world) == 1


@pytest.mark.parametrize("how", ["journal", "page", "rescue"])
def test_an_event_that_was_answered_drops_the_timer_whatever_happens_to_the_shard(how: str) -> None:
    world = World()
    armed_ms = world.now_ms
    assert happened(world, armed_ms, "paid").status == OK
    assert fire(world, Conditions(armed_ms, unless_events=("paid",)), "3-own") == FireDone(["3-own"])
    assert head(world) == 1, "the event that armed it does not end it"
    assert happened(world, armed_ms + 1, "paid").status == OK
    restart(world, how)
    assert fire(world, Conditions(armed_ms, unless_events=("paid",))) == FireDone(["3-a"])
    assert fire(world, Conditions(armed_ms, unless_active=True), "3-b") == FireDone(["3-b"])
    assert head(world) == 1
    user_state = world.core.mailboxes["t:u"].user_state
    assert user_state is not None
    assert [(entry.id, entry.event, entry.reason.partition(":")[0]) for entry in user_state.timeline] == [
        ("m-3-a", "suppressed", "opposite_event"),
        ("m-3-b", "suppressed", "interacted"),
    ]
    assert fire(world, Conditions(armed_ms + 1, unless_active=True, unless_events=("paid",)), "3-c") == FireDone(["3-c"])
    assert head(world) == 2


def test_an_event_is_answered_when_it_is_durable_and_not_before() -> None:
    world = World()
    world.tell(Happened(7, "t:u", world.now_ms, "paid"))
    world.fetch()
    world.take_group()
    assert world.said() == []
    world.core.group_refused()
    world.core.storage_back()
    assert world.said() == [Followed(7, UNAVAILABLE)]
    assert fire(world, Conditions(world.now_ms - 1, unless_events=("paid",))) == FireDone(["3-a"])
    assert head(world) == 1, "what was not taken is not known"


def test_connecting_and_acknowledging_is_activity() -> None:
    world = World()
    armed_ms = world.now_ms
    world.now_ms += 5
    world.connect(1)
    world.tell(Detach(1, 1000))
    assert fire(world, Conditions(armed_ms, unless_active=True)) == FireDone(["3-a"])
    assert head(world) == 0


def test_a_user_who_left_the_group_is_not_told() -> None:
    world = World()
    world.subscribe("team")
    world.settle()
    assert fire(world, Conditions(0, member_of="team")) == FireDone(["3-a"])
    world.subscribe(remove=["team"])
    world.settle()
    assert fire(world, Conditions(0, member_of="team"), "3-b") == FireDone(["3-b"])
    assert head(world) == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_a_timer_that_took_effect_is_not_said_to_have_none_when_the_mailbox_has_forgotten_its_effect(restarted: bool) -> None:
    world = World(recent_ids=2)
    conditions = Conditions(world.now_ms, inactive_ms=HOUR_MS, delay_ms=1000)
    happened(world, world.now_ms)
    world.now_ms += HOUR_MS + 1000
    assert fire(world, conditions) == FireDone(["3-a"])
    for _ in range(3):
        world.post()
    world.settle()
    if restarted:
        restart(world, "page")
    happened(world, world.now_ms)  # by this it would be too early
    assert fire(world, conditions) == FireDone(["3-a"]), "its scheduler died before it heard that"


def test_a_timer_that_follows_a_user_is_moved_behind_their_activity_and_then_sent() -> None:
    world = World()
    conditions = Conditions(world.now_ms, inactive_ms=HOUR_MS, delay_ms=1000)
    happened(world, world.now_ms)
    active_ms = world.now_ms = world.now_ms + HOUR_MS // 2
    happened(world, active_ms)
    world.now_ms += HOUR_MS // 2 + 1000
    assert fire(world, conditions) == FireAgain([("3-a", active_ms + HOUR_MS + 1000)])
    assert head(world) == 0
    world.now_ms = active_ms + HOUR_MS + 1000
    assert fire(world, conditions) == FireDone(["3-a"])
    assert head(world) == 1


@pytest.mark.parametrize("how", ["journal", "page", "rescue"])
def test_a_timer_that_was_sent_is_done_although_the_user_has_been_active_since(how: str) -> None:
    """Its scheduler died before it heard of it, and its successor would confirm that a timer told to come again is cancelled."""
    world = World()
    conditions = Conditions(world.now_ms, inactive_ms=HOUR_MS)
    due_ms = world.now_ms = world.now_ms + HOUR_MS
    assert fire(world, conditions, due_ms=due_ms) == FireDone(["3-a"])
    happened(world, world.now_ms + 1)
    restart(world, how)
    assert fire(world, conditions, due_ms=due_ms) == FireDone(["3-a"])
    assert head(world) == 1


def test_an_activity_of_the_future_is_waited_for_once_and_not_until_it_comes() -> None:
    world = World()
    conditions = Conditions(0, inactive_ms=1000)
    happened(world, world.now_ms + HOUR_MS)
    world.now_ms -= HOUR_MS  # the clock is set back
    assert fire(world, conditions) == FireAgain([("3-a", world.now_ms + 1000)])
    world.now_ms += 1000
    assert fire(world, conditions) == FireDone(["3-a"])
    assert head(world) == 1


def test_a_time_beyond_all_time_is_the_last_one() -> None:
    world = World()
    happened(world, world.now_ms)
    assert fire(world, Conditions(0, inactive_ms=AT_MAX_MS, delay_ms=AT_MAX_MS)) == FireAgain([("3-a", AT_MAX_MS)])


def test_the_first_timer_proposed_follows_the_user_until_it_was_sent_or_has_ended() -> None:
    world = World()
    assert happened(world, 0, follow={"away": "3-a"}).timers == {"away": "3-a"}
    assert happened(world, 0, follow={"away": "3-b", "gone": "3-g"}).timers == {"away": "3-a", "gone": "3-g"}
    assert happened(world, 0, follow={"away": "3-c"}, ended=["3-b"]).timers == {"away": "3-a"}
    assert happened(world, 0, follow={"away": "3-d"}, ended=["3-a"]).timers == {"away": "3-d"}
    restart(world, "journal")
    assert happened(world, 0, follow={"away": "3-e"}).timers == {"away": "3-d"}
    assert fire(world, Conditions(0, inactive_ms=1), "3-d") == FireDone(["3-d"])
    restart(world, "journal")
    assert happened(world, 0, follow={"away": "3-e"}).timers == {"away": "3-e"}
    assert world.core.mailboxes["t:u"].seen_ms == 0, "somebody else's event is no activity of theirs"


def test_two_events_of_one_group_get_the_same_timer() -> None:
    world = World()
    world.tell(Happened(1, "t:u", 5, follow={"away": "3-a"}), Happened(2, "t:u", 6, follow={"away": "3-b"}))
    assert [answer.timers for answer in of(world.settle(), Followed)] == [{"away": "3-a"}, {"away": "3-a"}]


def test_a_repeated_event_that_does_not_say_its_time_is_no_activity() -> None:
    world = World()
    armed_ms = world.now_ms
    happened(world, armed_ms, "left", delivery="e1")
    happened(world, armed_ms + 9, "left", delivery="e1")
    assert fire(world, Conditions(armed_ms, unless_active=True, unless_events=("left",))) == FireDone(["3-a"])
    assert head(world) == 1
    happened(world, armed_ms + 9, "left", delivery="e2")
    assert fire(world, Conditions(armed_ms, unless_active=True), "3-b") == FireDone(["3-b"])
    assert head(world) == 1


class Conditional(RuleBasedStateMachine):
    """A user with events and timers, against what was answered to their publishers; the shard dies at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.events: dict[str, int] = {}
        self.active_ms = 0
        self.timers: dict[str, Timer] = {}
        self.sent: list[str] = []
        self.made = 0

    @rule(event=st.sampled_from(["paid", "left", ""]), ago_ms=st.integers(0, 500))
    def an_event_comes(self, event: str, ago_ms: int) -> None:
        at_ms = self.world.now_ms - ago_ms
        assert happened(self.world, at_ms, event).status == OK
        self.active_ms = max(self.active_ms, at_ms)
        if event:
            self.events[event] = max(self.events.get(event, 0), at_ms)

    @rule(
        unless_active=st.booleans(),
        events=st.lists(st.sampled_from(["paid", "left"]), max_size=2),
        inactive_ms=st.sampled_from([0, 0, 300]),
        delay_ms=st.integers(1, 400),
    )
    def a_timer_is_armed(self, unless_active: bool, events: list[str], inactive_ms: int, delay_ms: int) -> None:
        self.made += 1
        sid = f"3-{self.made}"
        conditions = Conditions(self.world.now_ms, unless_active and not inactive_ms, tuple(events), "", inactive_ms, delay_ms)
        due_ms = self.world.now_ms + inactive_ms + delay_ms
        body = b'"id":"m","type":"t"'
        self.timers[sid] = Timer(sid, "t:u", due_ms, 0, 10**9, Envelope(f"m{self.made}", b"d" * 8, 1, True, body), conditions)

    @rule(ms=st.integers(1, 600))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms

    @rule(how=st.sampled_from(["journal", "page", "rescue"]))
    def the_shard_dies(self, how: str) -> None:
        happened(self.world, 0)  # a rescue brings back what is in memory
        restart(self.world, how)

    @precondition(lambda self: any(timer.due_ms <= self.world.now_ms for timer in self.timers.values()))
    @rule(data=st.data(), told=st.booleans())
    def one_fires(self, data: st.DataObject, told: bool) -> None:
        """And its scheduler hears the answer, or does not, and hands it out again some time."""
        world = self.world
        sid = data.draw(st.sampled_from(sorted(sid for sid, timer in self.timers.items() if timer.due_ms <= world.now_ms)))
        timer = self.timers[sid]
        happened(world, 0)  # the mailbox comes into memory
        before = head(world)
        world.core.output.to_schedulers.clear()
        world.fire([timer])
        ((_, answer),) = world.core.output.to_schedulers
        sent = head(world) > before
        conditions = timer.conditions
        assert conditions is not None
        opposite = any(self.events.get(name, 0) > conditions.since_ms for name in conditions.unless_events)
        interacted = conditions.unless_active and self.active_ms > conditions.since_ms
        if sent:
            assert sid not in self.sent, "sent twice"
            assert not opposite, "sent, although the opposite event has come"
            assert not interacted, "sent, although the user has been active"
            assert self.active_ms + conditions.inactive_ms + conditions.delay_ms <= world.now_ms or not conditions.inactive_ms
            self.sent.append(sid)
        elif isinstance(answer, FireDone) and sid not in self.sent:
            assert opposite or interacted, "not sent, although its conditions hold"
        if isinstance(answer, FireAgain):
            assert conditions.inactive_ms, "nothing else is moved"
            if told:
                self.timers[sid] = replace(timer, due_ms=answer.moves[0][1])
        elif told:
            del self.timers[sid]


Conditional.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConditionsAreEvaluatedByWhatWasAnswered = Conditional.TestCase


def test_a_record_applied_twice_is_applied_once() -> None:
    once, twice = Mailbox("t:u", 0), Mailbox("t:u", 0)
    record = Noticed("t:u", 7, "paid", {"away": "3-a"}, [], "e1")
    apply_note(once, record, 1)
    for _ in range(2):
        apply_note(twice, record, 1)
    assert (once.seen_ms, once.user_state) == (twice.seen_ms, twice.user_state)


@pytest.mark.parametrize("how", ["", "journal", "page", "rescue"])
def test_a_timer_that_went_into_the_digest_follows_no_more(how: str) -> None:
    """A scheduled id that followed on would be armed again when storage has forgotten it, and be a repeat for the mailbox."""
    world = World()
    world.ask(SetProfile(99, "t:u", Profile(digest_types=("touch",))))
    happened(world, world.now_ms, follow={"away": "3-a"})
    assert fire(world, Conditions(0, inactive_ms=1), due_ms=world.now_ms + 1) == FireAgain([("3-a", world.now_ms + 101)])
    world.now_ms += 101
    assert fire(world, Conditions(0, inactive_ms=1)) == FireDone(["3-a"])
    if how:
        restart(world, how)
    assert happened(world, world.now_ms, follow={"away": "3-b"}).timers == {"away": "3-b"}


# -- steps -------------------------------------------------------------------------------------------------------------
MINUTE_MS = 60_000


def step(seq: int = 1, *, unless: int = 0, until_ms: int = 0, sid: str = "", **members: Any) -> Conditions:
    return Conditions(0, step=StepTerms(ChannelStep("email", MINUTE_MS, unless, **members), "m", seq, until_ms, sid))


def decided(world: World, conditions: Conditions, sid: str = "3-s") -> str:
    """What becomes of a step: the reason why it is skipped, `taken`, or `again`."""
    world.core.output.to_schedulers.clear()
    envelope = Envelope("m", b"d" * 8, 1, True, b'"id":"m","type":"alert"')
    timer = Timer(sid, "t:u", world.now_ms, 0, 600_000, envelope, conditions, Action("channel://email", "k"))
    world.core.fire([timer], world.now_ms)
    before = len(world.actions)
    world.settle()
    if len(world.actions) > before:
        return "taken"
    ((_, told),) = world.core.output.to_schedulers
    if isinstance(told, FireAgain):
        return "again"
    user_state = world.core.mailboxes["t:u"].user_state
    assert user_state is not None
    assert user_state.timeline[-1].event == "step_skipped"
    return user_state.timeline[-1].reason


def come_to(world: World, how_far: int) -> None:
    """The user comes so far with message 1."""
    if how_far >= DELIVERED:
        world.connect(1)
        world.ask(Ack(1, 1))
        world.now_ms += world.config.ack_journal_ms  # a crash before may lose it
        world.core.tick(world.now_ms)
        world.settle()
    marks = {SEEN: inbox.SEEN, READ: inbox.READ, ACTED: inbox.ARCHIVED}
    if how_far in marks:
        world.ask(MarkInbox(99, "t:u", marks[how_far], True, [1], [], 0))


@pytest.mark.parametrize("restarted", ["", "journal", "page"])
@pytest.mark.parametrize("unless", [0, DELIVERED, SEEN, READ, ACTED])
@pytest.mark.parametrize("how_far", [0, DELIVERED, SEEN, READ, ACTED])
def test_a_step_is_skipped_when_the_user_has_come_so_far(how_far: int, unless: int, restarted: str) -> None:
    world = World(inbox=InboxLimits(messages_max=10, keep_ms=HOUR_MS, pinned_max=2, numbers_max=100))
    world.publish(id="m")
    come_to(world, how_far)
    if restarted:
        restart(world, restarted)
    found = decided(world, step(unless=unless))
    if unless and how_far >= unless:
        assert found.startswith("reached: email: the user has ")
    else:
        assert found == "taken"


def test_an_acknowledged_message_that_no_inbox_keeps_is_dealt_with() -> None:
    world = World()
    world.publish(id="m")
    assert decided(world, step(unless=ACTED)) == "taken"
    come_to(world, DELIVERED)
    assert decided(world, step(unless=ACTED), "3-t") == "reached: email: the user has dealt with it"


def test_a_step_waits_for_a_delayed_message_within_its_time() -> None:
    world = World()
    waiting = step(0, unless=READ, until_ms=world.now_ms + 10)
    assert decided(world, waiting) == "again"
    world.publish(id="m")
    assert decided(world, waiting, "3-t") == "taken"
    world = World()
    assert decided(world, waiting) == "again"
    world.now_ms += 10
    assert decided(world, waiting, "3-t") == "no_message: email: the message did not come"


@pytest.mark.parametrize(("acked", "becomes"), [(False, "taken"), (True, "reached: email: the user has dealt with it")])
def test_a_step_finds_a_delayed_message_that_the_mailbox_does_not_remember(acked: bool, becomes: str) -> None:
    world = World()
    envelope = Envelope("m", b"d" * 8, 1, True, b'"id":"m","type":"alert"')
    world.fire([Timer("3-m", "t:u", world.now_ms, 0, 600_000, envelope)])
    if acked:
        come_to(world, DELIVERED)
    world.core.mailboxes["t:u"].recent.clear()
    waiting = step(0, unless=READ, until_ms=world.now_ms + 10_000, sid="3-m")
    assert decided(world, waiting) == "again"
    assert world.core.output.to_schedulers == [(3, FireAgain([("3-s", world.now_ms + 100)]))], "at once"
    world.now_ms += 100
    assert decided(world, waiting) == becomes


@pytest.mark.parametrize("restarted", ["", "journal"])
def test_the_number_of_a_delayed_message_is_remembered_for_its_last_step(restarted: str) -> None:
    world = World()
    effect = "t:u", timer_effect_id("3-m")
    terms = PolicyTerms("alert", Category(steps_ms=72 * HOUR_MS))
    message = Timer(
        "3-m", "t:u", world.now_ms, 0, 600_000, Envelope("m", b"d" * 8, 1, True, b'"id":"m","type":"alert"', policy_terms=terms)
    )
    world.core.fire([message], world.now_ms)
    if restarted:
        world.core.pages_loaded(dict.fromkeys(world.core.page_wait.take_pages_wanted()), world.now_ms)
        world.commit()
        assert world.core.output.to_schedulers == [], "it may be forgotten"
        world.crash()
        world.core.fire([message], world.now_ms)
    world.settle()
    assert world.remembered == {effect: -(-message.due_ms // 1000) + 72 * 3600}
    assert world.core.output.to_schedulers == [(3, FireDone(["3-m"]))]
    soon = replace(
        message, sid="3-n", envelope=replace(message.envelope, id="n", policy_terms=PolicyTerms("alert", Category(steps_ms=HOUR_MS)))
    )
    world.fire([soon])
    assert world.remembered.keys() == {effect}, "storage remembers each for a day"


def test_a_step_waits_for_quiet_hours_after_finding_its_message() -> None:
    world = World()
    envelope = Envelope("m", b"d" * 8, 1, True, b'"id":"m","type":"alert"')
    world.fire([Timer("3-m", "t:u", world.now_ms, 0, 600_000, envelope)])
    world.core.mailboxes["t:u"].recent.clear()
    world.ask(SetProfile(99, "t:u", Profile(quiet=(QuietHours(1, 0),))))
    waiting = step(0, until_ms=world.now_ms + 10_000, sid="3-m")
    assert decided(world, waiting) == "again"
    world.now_ms += 100
    assert decided(world, waiting) == "again"
    assert world.core.output.to_schedulers == [(3, FireAgain([("3-s", 24 * HOUR_MS)]))]


def test_a_step_waits_longer_for_a_message_still_to_come() -> None:
    world = World()
    assert decided(world, step(0, until_ms=world.now_ms + 10_000_000, sid="3-m")) == "again"
    assert world.core.output.to_schedulers == [(3, FireAgain([("3-s", world.now_ms + MINUTE_MS)]))]


@pytest.mark.parametrize("mandatory", [False, True])
def test_a_step_counts_from_the_end_of_its_message_s_quiet_hours(mandatory: bool) -> None:
    """However long they are: a weekend is longer than a step waits for a message that was cancelled."""
    world = World()
    days = tuple(QuietHours(0, 1439, 1 << day) for day in range(2)) + tuple(QuietHours(1439, 0, 1 << day) for day in range(2))
    world.ask(SetProfile(99, "t:u", Profile(quiet=days)))
    world.now_ms = due_ms = 1_700_442_000_000  # Monday, 20 November 2023, 01:00
    wednesday_ms = 1_700_611_200_000
    envelope = Envelope("m", b"d" * 8, 1, True, b'"id":"m","type":"alert"')
    message = Timer("3-m", "t:u", due_ms, 0, 600_000, envelope)
    world.fire([message])
    assert world.core.output.to_schedulers.pop() == (3, FireAgain([("3-m", wednesday_ms)]))
    waiting = replace(step(0, until_ms=due_ms + 24 * HOUR_MS, sid="3-m", mandatory=mandatory), since_ms=due_ms)
    world.now_ms += MINUTE_MS
    assert decided(world, waiting) == "again"
    assert world.core.output.to_schedulers == [(3, FireAgain([("3-s", wednesday_ms + MINUTE_MS)]))]
    world.now_ms = wednesday_ms
    world.fire([replace(message, due_ms=wednesday_ms)])
    world.now_ms += MINUTE_MS
    assert decided(world, waiting) == "taken"
    world.now_ms += MINUTE_MS
    waiting = replace(waiting, step=replace(waiting.step, id="cancelled", sid="3-c")) if waiting.step else waiting
    assert decided(world, waiting, "3-t") == "again"
    world.now_ms += 24 * HOUR_MS
    assert decided(world, waiting, "3-u") == "again", "storage may know it"
    world.now_ms += 100
    assert decided(world, waiting, "3-u") == "no_message: email: the message did not come"


def test_a_step_due_after_its_message_s_quiet_hours_counts_from_their_end() -> None:
    world = World()
    world.ask(SetProfile(99, "t:u", Profile(quiet=(QuietHours(0, 7 * 60),))))
    due_ms = 1_700_442_000_000  # 01:00
    world.now_ms = comes_ms = due_ms + 6 * HOUR_MS
    world.fire([Timer("3-m", "t:u", comes_ms, 0, 600_000, Envelope("m", b"d" * 8, 1, True, b'"id":"m","type":"alert"'))])
    terms = StepTerms(ChannelStep("email", 12 * HOUR_MS, READ), "m", 0, due_ms + 36 * HOUR_MS, "3-m")
    world.now_ms = due_ms + 12 * HOUR_MS
    for _ in range(2):  # its message is found, then its time
        assert decided(world, Conditions(due_ms, step=terms)) == "again"
        world.now_ms += 100
    world.now_ms = comes_ms + 12 * HOUR_MS
    assert world.core.output.to_schedulers == [(3, FireAgain([("3-s", world.now_ms)]))]
    assert decided(world, Conditions(due_ms, step=terms)) == "taken"


def test_a_step_that_waited_for_days_of_quiet_hours_finds_its_message() -> None:
    world = World()
    envelope = Envelope("m", b"d" * 8, 1, True, b'"id":"m","type":"alert"')
    world.fire([Timer("3-m", "t:u", world.now_ms, 0, 600_000, envelope)])
    waiting = step(0, until_ms=world.now_ms + 24 * HOUR_MS, sid="3-m")
    world.now_ms += 62 * HOUR_MS
    world.core.mailboxes["t:u"].recent.clear()
    assert decided(world, waiting) == "again"
    world.now_ms += 100
    assert decided(world, waiting) == "taken"


def test_a_step_whose_delayed_message_was_suppressed_ends() -> None:
    world = World()
    world.core.mailbox_store.restore("t:u", None, world.now_ms)
    world.ids["t:u", timer_effect_id("3-m")] = packed_result(b"d" * 8, NEVER, "cap")
    waiting = step(0, until_ms=world.now_ms + 10_000, sid="3-m")
    assert decided(world, waiting) == "again"
    world.now_ms += 100
    assert decided(world, waiting) == "gone: email: the message expired, or another one replaced it"


def test_a_step_waits_for_quiet_hours_unless_it_is_mandatory() -> None:
    world = World()
    world.publish(id="m")
    world.ask(SetProfile(9, "t:u", Profile(quiet=(QuietHours(0, 1439), QuietHours(1439, 0)))))
    assert decided(world, step()) == "again"
    assert decided(world, step(mandatory=True), "3-t") == "taken"


def test_a_user_who_turned_the_type_off_is_told_by_no_channel() -> None:
    world = World()
    world.publish(id="m")
    world.ask(SetProfile(9, "t:u", Profile(muted_types=("alert",))))
    assert decided(world, step()) == "unwanted: email: the user has muted alert"
