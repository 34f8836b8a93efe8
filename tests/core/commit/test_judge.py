"""A shard without a judge of features delivers special messages at once."""

from __future__ import annotations

from collections.abc import Mapping

from engine.core.commit.judge import NO_JUDGE, Judge
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.model.category import DAY_MS, OFF, Category, PolicyTerms
from engine.core.model.envelope import Merge
from engine.core.policy.conditions import Conditions
from engine.core.policy.profile import Profile
from engine.core.policy.user_state import UserState
from engine.core.wire.records import ACCEPTED, FireDone
from tests.support.policy_world import NIGHT, fire, shown, told
from tests.support.shard_world import World

MUTED = Profile(muted_types=("a.*",))


class Plain(World):
    """A shard without the features that decide."""

    def judge(self, mailboxes: Mapping[str, Mailbox], memory: Memory) -> Judge:
        return NO_JUDGE


def connected(profile: Profile = NIGHT) -> Plain:
    world = Plain()
    world.connect(1)
    world.core.mailboxes["t:u"].user_state = UserState(profile)
    return world


def test_a_message_with_policy_terms_is_delivered_at_once() -> None:
    world = connected(MUTED)
    for _ in range(2):
        assert told(world, PolicyTerms("touch", Category(cap=1, cap_ms=DAY_MS, default=OFF))).status == ACCEPTED
    assert world.core.mailboxes["t:u"].head == 2


def test_a_message_with_a_window_is_delivered_at_once() -> None:
    world = connected()
    assert told(world, collapse="likes", merge=Merge(60_000, False, "")).status == ACCEPTED
    assert world.core.mailboxes["t:u"].judge_state is None


def test_a_broadcast_is_delivered_whatever_the_user_wishes() -> None:
    world = connected(MUTED)
    assert [message["id"] for message in shown(world.deliver_broadcast("b", more=b',"type":"a.b"'))] == ["b"]


def test_a_timer_sends_its_message_whatever_its_conditions() -> None:
    world = connected()
    world.core.mailboxes["t:u"].seen_ms = world.now_ms
    assert fire(world, conditions=Conditions(1, unless_active=True)) == [FireDone(["3-abc"])]
    assert world.core.mailboxes["t:u"].head == 1


def test_replay_without_a_judge_gives_the_same_messages() -> None:
    world = connected()
    told(world, PolicyTerms("touch", Category(cap=1, cap_ms=DAY_MS)), id="m")
    world.crash()
    assert list(world.core.mailboxes["t:u"].hot) == [1]
