"""The timers of a message's steps: the same for every repeat, other ones for every other message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.action import ChannelCap
from engine.core.model.category import Category, PolicyTerms
from engine.core.model.constants import HIGH, NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.routing import partition_of, partition_of_timer
from engine.core.model.step import READ, ChannelStep
from engine.core.wire.records import Timer
from engine.features.policy.core.contact_policy import UNLIMITED
from engine.features.reach.core.step_timers import step_timers

STEPS = (ChannelStep("email", 600_000, READ), ChannelStep("email", 1_800_000))


def timers(key: str, id: str, *, seq: int = 7, message_ms: int = 1000, now_ms: int = 1000) -> list[Timer]:
    envelope = Envelope(id, b"d" * 8, 1, True, b'"id":"m","type":"t"')
    return list(step_timers(key, envelope, STEPS, seq=seq, sid="3-m", message_ms=message_ms, ttl_ms=60_000, now_ms=now_ms))


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_ids_name_user_message_and_step_alone(user: str, other_user: str, id: str, other_id: str) -> None:
    first, again = timers(f"t:{user}", id), timers(f"t:{user}", id, message_ms=5000, now_ms=5000)
    assert [timer.sid for timer in first] == [timer.sid for timer in again]
    others = timers(f"t:{other_user}", other_id)
    assert ({timer.sid for timer in first} & {timer.sid for timer in others} == set()) == ((user, id) != (other_user, other_id))
    assert {partition_of_timer(timer.sid) for timer in first} == {partition_of(f"t:{user}")}


def test_a_step_is_due_after_its_message() -> None:
    assert [timer.due_ms for timer in timers("t:u", "m")] == [601_000, 1_801_000]
    assert [timer.action is not None and timer.action.target for timer in timers("t:u", "m")] == ["channel://email"] * 2


def capped(step: ChannelStep, limits: Category = UNLIMITED, priority: int = NORMAL) -> ChannelCap | None:
    """The cap that goes with the action of a step."""
    envelope = Envelope("m", b"d" * 8, priority, True, b"", policy_terms=PolicyTerms("news", limits))
    (timer,) = step_timers("t:u", envelope, [step], seq=7, sid="", message_ms=1000, ttl_ms=60_000, now_ms=1000)
    assert timer.action is not None
    return timer.action.cap


def test_the_cap_of_a_step_goes_with_its_action_but_not_of_what_must_reach_the_user() -> None:
    step = ChannelStep("email", cap=3, cap_ms=60_000)
    assert capped(step) == ChannelCap("news", 3, 60_000)
    assert capped(step, priority=HIGH) is None
    assert capped(step, Category(mandatory=True)) is None
    assert capped(ChannelStep("email", mandatory=True, cap=3)) is None
    assert capped(ChannelStep("email")) is None


def test_only_the_steps_of_a_delayed_message_wait_for_it() -> None:
    waits = [
        [(step.until_ms, step.sid) for timer in timers("t:u", "m", seq=seq) if timer.conditions and (step := timer.conditions.step)]
        for seq in (7, 0)
    ]
    assert waits == [[(0, ""), (0, "")], [(601_000 + 86_400_000, "3-m"), (1_801_000 + 86_400_000, "3-m")]]
