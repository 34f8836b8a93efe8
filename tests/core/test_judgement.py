"""What a shard knows of its users and makes of it: profiles, counters and activity in mailbox, page, journal and rescue."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core import rescue
from engine.core.asking import GetProfile, ProfileIs, SetProfile
from engine.core.batch import OK, UNAVAILABLE, Detach, Moved, Settle
from engine.core.checkpoint import decode_page
from engine.core.person import Person
from engine.core.policy import Counters, Recent
from engine.core.profile import Profile
from engine.core.quiet import Quiet
from engine.core.slots import SlotMap
from tests.core.shard_world import World, of

NIGHT = Profile(zone="Europe/Berlin", level="vip", quiet=(Quiet(22 * 60, 7 * 60),), muted_types=("promo.*",))


def put(world: World, profile: Profile | None = NIGHT, user: str = "u") -> int:
    world.refs += 1
    world.tell(SetProfile(world.refs, f"t:{user}", profile))
    return world.refs


def profile_of(world: World, user: str = "u") -> ProfileIs:
    world.refs += 1
    world.tell(GetProfile(world.refs, f"t:{user}"))
    (answer,) = of(world.settle(), ProfileIs)
    assert answer.ref == world.refs
    return answer


def later_core(world: World, how: str) -> None:
    """The shard is another process now, or the mailbox has left memory."""
    if how == "crash":
        world.crash()
    elif how == "checkpoint and crash":
        world.checkpoint()
        world.crash()
    elif how == "eviction":
        world.checkpoint()
        world.now_ms += world.policy.mailbox_idle_ms
        assert world.core.evict(world.now_ms) == 1
    else:
        payloads = list(rescue.payloads(world.core.mailboxes.values(), 1000))
        world.journal = [(-1, payload) for payload in payloads]
        world.pages.clear()
        world.crash()


WAYS = ["crash", "checkpoint and crash", "eviction", "rescue"]


def test_nobody_has_a_profile_until_one_is_set() -> None:
    world = World()
    assert profile_of(world) == ProfileIs(1, OK, None, 0)
    assert world.core.mailboxes["t:u"].person is None


def test_a_profile_is_answered_when_it_is_durable_and_not_before() -> None:
    world = World()
    ref = put(world)
    world.fetch()
    group = world.core.take_group(world.now_ms)
    assert group is not None
    assert of(world.said(), ProfileIs) == []
    world.append(group)
    world.core.group_committed(world.now_ms)
    assert of(world.said(), ProfileIs) == [ProfileIs(ref, OK, NIGHT, 0)]
    assert profile_of(world).profile == NIGHT


@pytest.mark.parametrize("how", WAYS)
def test_a_profile_survives(how: str) -> None:
    world = World()
    put(world)
    world.settle()
    later_core(world, how)
    assert profile_of(world).profile == NIGHT
    put(world, None)
    world.settle()
    later_core(world, how)
    assert profile_of(world).profile is None


def test_of_two_profiles_in_one_group_the_later_one_stands_also_after_a_crash() -> None:
    world = World()
    put(world, Profile(level="normal"))
    put(world, NIGHT)
    assert [answer.profile for answer in of(world.settle(), ProfileIs)] == [Profile(level="normal"), NIGHT]
    assert profile_of(world).profile == NIGHT
    world.crash()
    assert profile_of(world).profile == NIGHT


def test_without_storage_a_profile_is_refused_and_what_was_under_way_waits_for_the_rollback() -> None:
    world = World()
    first = put(world)
    world.fetch()
    assert world.core.take_group(world.now_ms) is not None
    second = put(world, Profile(level="x"))
    world.core.group_refused()
    assert of(world.said(), ProfileIs) == [ProfileIs(second, UNAVAILABLE)]
    third = put(world)
    assert of(world.said(), ProfileIs) == [ProfileIs(third, UNAVAILABLE)]
    world.core.storage_back()
    assert of(world.said(), ProfileIs) == [ProfileIs(first, UNAVAILABLE)]
    assert profile_of(world).profile is None
    put(world)
    world.settle()
    assert profile_of(world).profile == NIGHT


def test_a_mailbox_with_a_profile_on_its_way_does_not_leave_memory() -> None:
    world = World(mailbox_idle_ms=0)
    profile_of(world)
    put(world)
    assert world.core.evict(world.now_ms) == 0
    group = world.core.take_group(world.now_ms)
    assert group is not None
    assert world.core.evict(world.now_ms) == 0
    world.append(group)
    world.core.group_committed(world.now_ms)
    assert world.core.evict(world.now_ms) == 0, "not before its page is written"
    world.checkpoint()
    assert world.core.evict(world.now_ms) == 1


def test_a_shard_that_does_not_own_the_user_says_so() -> None:
    world = World()
    world.core.slot_map = SlotMap(9, (1,) * 1024)
    ref = put(world)
    assert world.said() == [Moved(ref, -1, 9)]


@pytest.mark.parametrize("how", WAYS)
def test_what_counts_survives(how: str) -> None:
    world = World()
    profile_of(world)
    counters = Counters({"touch": Recent(1000, [5, 6])}, {"a": (5, 1005)})
    mailbox = world.core.mailboxes["t:u"]
    mailbox.person, mailbox.seen_ms = Person(None, counters), 77
    world.core.cabinet.mark(mailbox)
    if how == "crash":  # counters alone are not journalled: they come with the messages that they count
        world.checkpoint()
    later_core(world, how)
    assert profile_of(world).active_ms == 77
    assert world.core.mailboxes["t:u"].person == Person(None, counters)


def test_a_user_is_active_by_connecting_and_acknowledging_and_not_by_getting_messages() -> None:
    world = World()
    world.post()
    world.settle()
    assert profile_of(world).active_ms == 0
    world.now_ms += 10
    world.attach(1)
    world.settle()
    connected_ms = world.now_ms
    assert profile_of(world).active_ms == connected_ms
    world.now_ms += 10
    world.post()
    world.attach(2, resume=True, cursor=0)
    world.settle()
    assert profile_of(world).active_ms == connected_ms, "a connection that outlived its link is no new one"
    for act in (lambda: world.ack(1, 1), lambda: world.ack_ids(1, "m2"), lambda: world.tell(Settle(900, "t:u", 2, []))):
        world.now_ms += 10
        act()
        assert profile_of(world).active_ms == world.now_ms


def test_activity_is_in_the_page_after_an_acknowledgement_and_after_the_last_connection_ended() -> None:
    world = World()
    world.attach(1)
    world.post()
    world.settle()
    world.now_ms += 10
    world.ack(1, 1)
    world.settle()
    world.checkpoint()
    assert page(world).seen_ms == world.now_ms
    world.attach(2)
    world.settle()
    world.now_ms += 500
    world.tell(Detach(1, 1000), Detach(2, 1000))
    world.settle()
    world.checkpoint()
    assert page(world).seen_ms == world.now_ms - 500


def test_of_who_only_connected_and_never_got_anything_no_page_is_written() -> None:
    world = World()
    world.attach(1)
    world.settle()
    world.detach(1)
    world.settle()
    world.checkpoint()
    assert world.pages == {}


def test_profiles_weigh_in_the_memory_of_the_shard() -> None:
    world = World()
    profile_of(world)
    before = world.core.cabinet.tally.bytes
    put(world, Profile(muted_types=tuple(f"type{n}" for n in range(50))))
    world.settle()
    world.checkpoint()
    assert world.core.cabinet.tally.bytes > before + 50 * 70


def page(world: World) -> Any:
    return decode_page(world.pages["t:u"])
