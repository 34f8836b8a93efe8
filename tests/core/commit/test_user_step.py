"""Changes of profiles and subscriptions: what a group makes of several at once, what a whole profile leaves of the user's choices."""

from __future__ import annotations

from typing import Any

from engine.core.model.category import DIGEST, OFF, ON
from engine.core.policy.preferences import PreferencesPatch
from engine.core.policy.profile import Profile
from engine.core.wire.records import OK, OVERLOADED, UNAVAILABLE, ChangeProfile, Erase, ProfileIs, SetProfile, Subscribed
from tests.support.operations import calls_of
from tests.support.policy_world import later_core, profile_of
from tests.support.shard_world import World, of

KEY = "t:u"


def patch(world: World, *patches: PreferencesPatch, entries_max: int = 9) -> list[int]:
    """Ask for these changes; their numbers."""
    refs = []
    for one in patches:
        world.refs += 1
        refs.append(world.refs)
        world.tell(ChangeProfile(world.refs, KEY, one, entries_max))
    return refs


def answers(world: World) -> list[tuple[int, int, Profile | None]]:
    return [(answer.ref, answer.status, answer.profile) for answer in of(world.settle(), ProfileIs)]


def test_changes_of_two_devices_in_one_group_are_both_there_and_each_answer_has_those_before_it() -> None:
    world = World()
    first, second = patch(world, PreferencesPatch(categories={"news": OFF}), PreferencesPatch(zone="Asia/Tokyo", categories={"social": ON}))
    one = Profile(categories={"news": OFF})
    both = Profile(zone="Asia/Tokyo", categories={"news": OFF, "social": ON})
    assert answers(world) == [(first, OK, one), (second, OK, both)]
    for how in ("crash", "checkpoint and crash", "eviction", "rebuild"):
        later_core(world, how)
        assert profile_of(world).profile == both


def test_a_change_follows_the_whole_profile_and_the_erasure_that_were_asked_for_before_it() -> None:
    world = World()
    world.tell(SetProfile(90, KEY, Profile(level="vip", muted_types=("a",))))
    patch(world, PreferencesPatch(types={"a": ON, "b": DIGEST}))
    wanted = Profile(level="vip", on_types=("a",), digest_types=("b",))
    assert [profile for _, _, profile in answers(world)] == [Profile(level="vip", muted_types=("a",)), wanted]
    world.tell(Erase(91, KEY))
    patch(world, PreferencesPatch(types={"c": OFF}))
    assert [profile for _, _, profile in answers(world)] == [Profile(muted_types=("c",))]


def test_a_whole_profile_that_is_silent_about_categories_leaves_the_choices_of_the_same_group_too() -> None:
    world = World()
    patch(world, PreferencesPatch(categories={"news": OFF}))
    world.tell(SetProfile(90, KEY, Profile(level="vip"), keep_categories=True))
    kept = Profile(level="vip", categories={"news": OFF})
    assert answers(world)[-1] == (90, OK, kept)
    world.tell(SetProfile(91, KEY, Profile(level="low"), keep_categories=True))
    assert answers(world) == [(91, OK, Profile(level="low", categories={"news": OFF}))]
    world.tell(SetProfile(92, KEY, Profile(level="low")))
    assert answers(world) == [(92, OK, Profile(level="low"))]
    world.tell(SetProfile(93, KEY, None, keep_categories=True))
    assert answers(world) == [(93, OK, None)]


def test_more_choices_than_a_profile_may_have_change_nothing() -> None:
    world = World()
    first, second, third = patch(
        world, *(PreferencesPatch(types={f"t{number}": OFF, f"u{number}": OFF}) for number in range(3)), entries_max=4
    )
    full = Profile(muted_types=("t0", "u0", "t1", "u1"))
    assert answers(world)[1:] == [(second, OK, full), (third, OVERLOADED, full)]
    assert first < second
    later_core(world, "crash")
    assert profile_of(world).profile == full


def test_a_change_in_a_refused_group_is_undone_and_its_repeat_builds_on_what_there_is() -> None:
    world = World()
    patch(world, PreferencesPatch(categories={"social": ON}))
    answers(world)
    (ref,) = patch(world, PreferencesPatch(categories={"news": OFF}))
    world.fetch()
    assert world.core.take_group(world.now_ms) is not None
    world.core.group_refused()
    world.core.storage_back()
    assert [(answer.ref, answer.status) for answer in of(world.said(), ProfileIs)] == [(ref, UNAVAILABLE)]
    assert profile_of(world).profile == Profile(categories={"social": ON})
    patch(world, PreferencesPatch(categories={"news": OFF}))
    assert answers(world)[-1][2] == Profile(categories={"social": ON, "news": OFF})


def test_what_was_answered_survives_a_crash_between_journal_and_commit_of_the_next() -> None:
    world = World()
    patch(world, PreferencesPatch(categories={"news": OFF}))
    answers(world)
    patch(world, PreferencesPatch(categories={"social": ON}))
    world.fetch()
    group: Any = world.core.take_group(world.now_ms)
    world.append(group)
    world.crash()
    assert profile_of(world).profile == Profile(categories={"news": OFF, "social": ON})


def test_a_change_of_topics_waits_behind_one_not_durable_yet() -> None:
    world = World()
    first = world.subscribe("news")
    assert world.settle() == [Subscribed(first, OK, ["news"])]
    removed, again = world.subscribe(remove=["news"]), world.subscribe("news")
    group = world.core.take_group(world.now_ms)
    late = world.subscribe("news")
    assert (group is not None, world.said()) == (True, []), "by then another may have removed it"
    world.core.group_committed(world.now_ms)
    assert world.said() == [Subscribed(removed, OK, []), Subscribed(again, OK, ["news"])]
    assert world.settle() == [Subscribed(late, OK, ["news"])]
    look = world.subscribe()
    assert world.said() == [Subscribed(look, OK, ["news"])], "nothing waits any more"


def test_an_erasure_ends_only_subscriptions_asked_for_before_it() -> None:
    world = World()
    world.subscribe("old")
    world.tell(Erase(91, KEY))
    new = world.subscribe("new")
    assert of(world.settle(), Subscribed)[-1] == Subscribed(new, OK, ["new"])
    for how in ("crash", "checkpoint and crash"):
        later_core(world, how)
        ref = world.subscribe()
        assert of(world.settle(), Subscribed) == [Subscribed(ref, OK, ["new"])], how


def test_the_cost_of_a_subscription_does_not_grow_with_those_that_wait() -> None:
    def subscribe(count: int) -> int:
        world = World()
        for n in range(count):
            world.post(f"u{n}")
        world.settle()

        def work() -> None:
            for n in range(count):
                world.subscribe("news", user=f"u{n}")
            world.core.take_group(world.now_ms)

        return calls_of(work)

    assert subscribe(400) < 3 * subscribe(200)
