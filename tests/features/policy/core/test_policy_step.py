"""What a shard knows of its users and makes of it: profiles, counters and activity in mailbox, page, journal and rescue."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.commit.first_result import packed_result
from engine.core.inbox.inbox import ALL, InboxLimits
from engine.core.model.category import DAY_MS, INBOX, Category, PolicyTerms
from engine.core.model.constants import HIGH
from engine.core.model.envelope import Merge
from engine.core.model.routing import SLOTS, SlotMap
from engine.core.policy.profile import Profile
from engine.core.policy.user_state import Counters, Recent, UserState
from engine.core.wire import records as wire
from engine.features.policy.core.policy_step import DIGEST
from engine.features.windows.core.aggregation import windows_of
from engine.features.windows.core.aggregation_window import Windows
from tests.support.policy_world import (
    CAPPED,
    DIGEST_MS,
    HOUR_MS,
    MANDATORY,
    NIGHT,
    ONCE,
    SEVEN_AM,
    TEN_PM,
    WithoutWindows,
    at,
    fire,
    later,
    later_core,
    profile_of,
    put,
    shown,
    told,
    wants,
)
from tests.support.shard_world import World, connected_world, of
from tests.support.stored import decode_page

WAYS = ["crash", "checkpoint and crash", "eviction", "rescue"]


def windows(world: World) -> Windows:
    found = windows_of(world.core.mailboxes["t:u"])
    assert found is not None
    return found


def test_nobody_has_a_profile_until_one_is_set() -> None:
    world = World()
    assert profile_of(world) == wire.ProfileIs(1, wire.OK, None, 0)
    assert world.core.mailboxes["t:u"].user_state is None


def test_a_profile_is_answered_when_it_is_durable_and_not_before() -> None:
    world = World()
    ref = put(world)
    world.fetch()
    group = world.take_group()
    assert of(world.said(), wire.ProfileIs) == []
    world.append(group)
    world.core.group_committed(world.now_ms)
    assert of(world.said(), wire.ProfileIs) == [wire.ProfileIs(ref, wire.OK, NIGHT, 0)]
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
    assert [answer.profile for answer in of(world.settle(), wire.ProfileIs)] == [Profile(level="normal"), NIGHT]
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
    assert of(world.said(), wire.ProfileIs) == [wire.ProfileIs(second, wire.UNAVAILABLE)]
    third = put(world)
    assert of(world.said(), wire.ProfileIs) == [wire.ProfileIs(third, wire.UNAVAILABLE)]
    world.core.storage_back()
    assert of(world.said(), wire.ProfileIs) == [wire.ProfileIs(first, wire.UNAVAILABLE)]
    assert profile_of(world).profile is None
    put(world)
    world.settle()
    assert profile_of(world).profile == NIGHT


def test_a_mailbox_with_a_profile_on_its_way_does_not_leave_memory() -> None:
    world = World(mailbox_idle_ms=0)
    profile_of(world)
    put(world)
    assert world.core.evict(world.now_ms) == 0
    group = world.take_group()
    assert world.core.evict(world.now_ms) == 0
    world.append(group)
    world.core.group_committed(world.now_ms)
    assert world.core.evict(world.now_ms) == 0, "not before its page is written"
    world.checkpoint()
    assert world.core.evict(world.now_ms) == 1


def test_a_shard_that_does_not_own_the_user_says_so() -> None:
    world = World()
    world.core.slot_map = SlotMap(9, (1,) * SLOTS, 2)
    ref = put(world)
    assert world.said() == [wire.Moved(ref, -1, 9)]


@pytest.mark.parametrize("how", WAYS)
def test_what_counts_survives(how: str) -> None:
    world = World()
    profile_of(world)
    counters = Counters({"touch": Recent(1000, [5, 6])}, {"a": (5, 1005)})
    mailbox = world.core.mailboxes["t:u"]
    mailbox.user_state, mailbox.seen_ms = UserState(None, counters), 77
    world.core.mailbox_store.mark(mailbox)
    if how == "crash":  # counters alone are not journalled: they come with the messages that they count
        world.checkpoint()
    later_core(world, how)
    assert profile_of(world).active_ms == 77
    assert world.core.mailboxes["t:u"].user_state == UserState(None, counters)


def test_a_user_is_active_by_connecting_and_acknowledging_and_not_by_getting_messages() -> None:
    world = World()
    world.publish()
    assert profile_of(world).active_ms == 0
    world.now_ms += 10
    world.connect(1)
    connected_ms = world.now_ms
    assert profile_of(world).active_ms == connected_ms
    world.now_ms += 10
    world.post()
    world.connect(2, resume=True, cursor=0)
    assert profile_of(world).active_ms == connected_ms, "a connection that outlived its link is no new one"
    for act in (lambda: world.ack(1, 1), lambda: world.ack_ids(1, "m2"), lambda: world.tell(wire.Settle(900, "t:u", 2, []))):
        world.now_ms += 10
        act()
        assert profile_of(world).active_ms == world.now_ms


def test_activity_is_in_the_page_after_an_acknowledgement_and_after_the_last_connection_ended() -> None:
    world = connected_world()
    world.publish()
    world.now_ms += 10
    world.ack(1, 1)
    world.persist()
    assert page(world).seen_ms == world.now_ms
    world.connect(2)
    world.now_ms += 500
    world.tell(wire.Detach(1, 1000), wire.Detach(2, 1000))
    world.persist()
    assert page(world).seen_ms == world.now_ms - 500


def test_of_who_only_connected_and_never_got_anything_no_page_is_written() -> None:
    world = connected_world()
    world.settle()
    world.detach(1)
    world.persist()
    assert world.pages == {}


def test_profiles_weigh_in_the_memory_of_the_shard() -> None:
    world = World()
    profile_of(world)
    before = world.core.mailbox_store.memory.bytes
    put(world, Profile(muted_types=tuple(f"type{n}" for n in range(50))))
    world.persist()
    assert world.core.mailbox_store.memory.bytes > before + 50 * 70


def page(world: World) -> Any:
    return decode_page("t:u", world.pages["t:u"])


# -- Messages evaluated. ------------------------------------------------------------------------------------------------
def timeline(world: World, user: str = "u") -> list[tuple[str, str, str]]:
    user_state = world.core.mailboxes[f"t:{user}"].user_state
    return [] if user_state is None else [(entry.id, entry.event, entry.reason.partition(":")[0]) for entry in user_state.timeline]


def test_a_muted_message_is_suppressed_with_its_reason_and_gets_no_number() -> None:
    world = World()
    wants(world, Profile(muted_types=("promo.*",), muted_targets=("thread:9",)))
    answer = told(world, type="promo.sale", id="m1")
    assert (answer.status, answer.seq) == (wire.SUPPRESSED, 0)
    assert answer.detail == "muted_type: the user has muted promo.*"
    assert told(world, target="thread:9", id="m2").detail.startswith("muted_target: ")
    assert told(world, MANDATORY, type="promo.law").status == wire.ACCEPTED
    assert told(world).seq == 2
    assert timeline(world) == [("m1", "suppressed", "muted_type"), ("m2", "suppressed", "muted_target")]
    assert world.core.output.counters["suppressed"] == 2


@pytest.mark.parametrize("how", WAYS)
def test_a_cap_holds_within_a_group_across_groups_and_after_whatever_happens_to_the_shard(how: str) -> None:
    world = World()
    refs = [world.post(policy_terms=CAPPED, more=b',"type":"a"') for _ in range(3)]
    answers = {answer.ref: answer for answer in of(world.settle(), wire.Posted)}
    assert [answers[ref].status for ref in refs] == [wire.ACCEPTED, wire.ACCEPTED, wire.SUPPRESSED]
    assert answers[refs[2]].detail.startswith("cap: the user got 2 of touch in 1 d")
    if how == "eviction":
        world.attach(1)
        world.ack(1, 2)
        world.detach(1)
        world.settle()
    later_core(world, how)
    assert told(world, CAPPED).status == wire.SUPPRESSED
    world.now_ms += DAY_MS
    assert told(world, CAPPED).status == wire.ACCEPTED


def test_a_page_newer_than_a_rescue_keeps_what_it_counts() -> None:
    world = World()
    told(world, CAPPED)
    later_core(world, "rescue")
    world.connect(1)
    told(world, CAPPED)
    world.detach(1)
    world.settle()
    world.checkpoint(full=False)
    world.crash()
    assert told(world, CAPPED).status == wire.SUPPRESSED


def test_one_users_cap_is_nobody_elses_and_high_priority_passes_it() -> None:
    world = World()
    for _ in range(2):
        assert told(world, CAPPED).status == wire.ACCEPTED
    assert told(world, CAPPED, user="v").status == wire.ACCEPTED
    assert told(world, CAPPED, priority=HIGH).status == wire.ACCEPTED
    assert told(world, CAPPED).status == wire.SUPPRESSED


def test_the_same_type_comes_once_also_when_the_group_was_refused_and_rolled_back_between() -> None:
    world = World()
    world.post(policy_terms=ONCE, more=b',"type":"a"')
    world.fetch()
    assert world.core.take_group(world.now_ms) is not None
    world.core.group_refused()
    world.core.storage_back()
    world.said()
    assert told(world, ONCE, type="a").status == wire.ACCEPTED, "what never was counts for nothing"
    assert told(world, ONCE, type="a").detail.startswith("same_type: ")
    assert told(world, ONCE, type="b").status == wire.ACCEPTED


def test_a_message_that_storage_knew_counts_for_nothing_and_leaves_its_place_to_another() -> None:
    world = World()
    world.ids["t:u", "known"] = packed_result(b"d" * 8, 7, "")
    refs = [world.post(id=id, policy_terms=CAPPED, more=b',"type":"a"') for id in ("known", "m1", "m2")]
    answers = {answer.ref: answer for answer in of(world.settle(), wire.Posted)}
    assert [answers[ref].status for ref in refs] == [wire.DUPLICATE, wire.ACCEPTED, wire.ACCEPTED]
    assert told(world, CAPPED).status == wire.SUPPRESSED


def test_a_repeat_of_what_was_delivered_is_a_duplicate_whatever_its_cap_says_now() -> None:
    world = World()
    told(world, CAPPED, id="m1")
    told(world, CAPPED, id="m2")
    assert told(world, CAPPED, id="m1") == wire.Posted(world.refs, wire.DUPLICATE, 1)
    world.crash()
    assert told(world, CAPPED, id="m2") == wire.Posted(world.refs, wire.DUPLICATE, 2)


def test_a_mailbox_stays_in_memory_while_the_journal_is_told_why_its_message_was_put_off() -> None:
    world = at(TEN_PM)
    wants(world, NIGHT)
    world.checkpoint()
    world.post(more=b',"type":"a.b","data":1')
    assert world.core.take_group(world.now_ms) is not None
    assert world.evict() == 0
    world.core.group_committed(world.now_ms)
    assert [answer.status for answer in of(world.said(), wire.Posted)] == [wire.DEFERRED]


def test_quiet_hours_defer_a_publishers_message_and_store_nothing_of_it() -> None:
    world = at(TEN_PM)
    wants(world, NIGHT)
    world.attach(1)
    answer = told(world, id="m1")
    assert (answer.status, answer.seq, answer.until_ms) == (wire.DEFERRED, 0, SEVEN_AM)
    assert answer.detail.startswith("quiet_hours: quiet hours in Europe/Berlin for another 9 h")
    assert told(world, priority=HIGH).status == wire.ACCEPTED
    assert ("t:u", "m1") not in world.ids
    assert timeline(world) == [("m1", "deferred", "quiet_hours")]
    world.now_ms = SEVEN_AM
    assert told(world, id="m1").status == wire.ACCEPTED


def test_a_timer_that_fires_in_quiet_hours_comes_again_when_they_end_and_takes_effect_then_once() -> None:
    world = at(TEN_PM + HOUR_MS)
    wants(world, NIGHT)
    assert fire(world) == [wire.FireAgain([("3-abc", SEVEN_AM)])]
    assert timeline(world) == [("late", "deferred", "quiet_hours")]
    world.crash()
    assert fire(world, due_ms=TEN_PM + HOUR_MS) == [wire.FireAgain([("3-abc", SEVEN_AM)])], "the word was lost with the shard"
    assert timeline(world) == [("late", "deferred", "quiet_hours")], "told once"
    world.now_ms = SEVEN_AM
    assert fire(world) == [wire.FireDone(["3-abc"])]
    assert world.core.mailboxes["t:u"].head == 1
    world.crash()
    assert fire(world) == [wire.FireDone(["3-abc"])]
    assert world.core.mailboxes["t:u"].head == 1


def test_a_timer_of_a_scheduler_whose_clock_is_ahead_is_not_taken_for_its_own_copy() -> None:
    world = at(SEVEN_AM - 5)
    wants(world, NIGHT)
    assert fire(world, due_ms=SEVEN_AM) == [wire.FireAgain([("3-abc", SEVEN_AM + 100)])]
    world.now_ms = SEVEN_AM + 90
    assert fire(world, due_ms=SEVEN_AM + 100) == [wire.FireDone(["3-abc"])]


@pytest.mark.parametrize("how", WAYS)
def test_a_repeat_of_what_was_suppressed_gets_the_first_answer_also_when_it_would_be_delivered_now(how: str) -> None:
    world = World()
    told(world, CAPPED)
    told(world, CAPPED)
    first = told(world, CAPPED, id="third")
    assert (first.status, first.detail.partition(":")[0]) == (wire.SUPPRESSED, "cap")
    later_core(world, how)
    world.now_ms += 30 * 24 * HOUR_MS
    assert told(world, CAPPED, id="fourth").status == wire.ACCEPTED, "the cap's time is over"
    again = told(world, CAPPED, id="third")
    assert (again.status, again.detail) == (wire.SUPPRESSED, first.detail)
    assert told(world, CAPPED, id="third", digest=b"another!").status == wire.CONFLICT


def test_of_two_of_one_id_in_one_group_both_are_suppressed_once() -> None:
    world = World()
    told(world, CAPPED)
    told(world, CAPPED)
    refs = [world.post(id="x", policy_terms=CAPPED), world.post(id="x", policy_terms=CAPPED)]
    answers = {answer.ref: answer.status for answer in of(world.settle(), wire.Posted)}
    assert [answers[ref] for ref in refs] == [wire.SUPPRESSED, wire.SUPPRESSED]
    assert timeline(world) == [("x", "suppressed", "cap")]
    refs = [world.post(id="x", policy_terms=CAPPED), world.post(id="x", policy_terms=CAPPED)]
    answers = {answer.ref: answer.status for answer in of(world.settle(), wire.Posted)}
    assert [answers[ref] for ref in refs] == [wire.SUPPRESSED, wire.SUPPRESSED], "storage knows the id, and everyone is answered"


def test_a_timer_that_was_suppressed_has_had_its_effect_for_ever() -> None:
    world = World()
    told(world, CAPPED)
    told(world, CAPPED)
    assert fire(world, policy_terms=CAPPED) == [wire.FireDone(["3-abc"])]
    world.now_ms += 30 * 24 * HOUR_MS
    assert fire(world, policy_terms=CAPPED) == [wire.FireDone(["3-abc"])], "its scheduler had died before it heard that"
    assert world.core.mailboxes["t:u"].head == 2
    assert timeline(world) == [("late", "suppressed", "cap")]


def test_who_has_been_active_since_is_not_touched() -> None:
    world = connected_world()
    world.settle()
    since = PolicyTerms("", Category(), world.now_ms)
    assert told(world, since).status == wire.ACCEPTED
    world.now_ms += 5
    world.ack(1, 1)
    assert told(world, since).detail == "interacted: the user has been active since"


def test_the_timeline_is_bounded_and_survives_a_crash() -> None:
    world = World(decisions_max=3)
    wants(world, Profile(muted_types=("a",)))
    for n in range(5):
        told(world, type="a", id=f"m{n}")
    kept = [(f"m{n}", "suppressed", "muted_type") for n in (2, 3, 4)]
    assert timeline(world) == kept
    world.crash()
    profile_of(world)
    assert timeline(world) == kept
    world.checkpoint()
    world.crash()
    profile_of(world)
    assert timeline(world) == kept


# -- Windows evaluated. -------------------------------------------------------------------------------------------------
WINDOW = {"merge": Merge(300), "collapse": "likes"}


def test_a_summary_counts_once_however_many_messages_it_is_of() -> None:
    world = connected_world()
    for _ in range(5):
        assert told(world, CAPPED, **WINDOW).status == wire.MERGED
    assert [message["count"] for message in later(world)] == [5]
    assert told(world, CAPPED).status == wire.ACCEPTED
    assert told(world, CAPPED).status == wire.SUPPRESSED


def test_a_window_whose_category_is_used_up_ends_with_nothing_and_says_why() -> None:
    world = connected_world()
    assert told(world, CAPPED, **WINDOW).status == wire.MERGED
    told(world, CAPPED)
    told(world, CAPPED)
    assert later(world) == []
    assert timeline(world)[-1][1:] == ("suppressed", "cap")
    assert windows(world).open == {}


def test_two_windows_that_end_together_share_what_their_category_allows() -> None:
    world = connected_world()
    told(world, CAPPED)
    for key in ("likes", "replies"):
        assert told(world, CAPPED, merge=Merge(300), collapse=key).status == wire.MERGED
    assert len(later(world)) == 1
    assert timeline(world)[-1][1:] == ("suppressed", "cap")


@pytest.mark.parametrize("terms", [(CAPPED, MANDATORY), (MANDATORY, CAPPED), (None, MANDATORY)])
def test_a_summary_with_a_mandatory_message_passes_caps_and_mutes(terms: tuple[PolicyTerms | None, ...]) -> None:
    world = connected_world()
    for one in terms:
        assert told(world, one, **WINDOW).status == wire.MERGED
    for _ in range(2):
        told(world, CAPPED)
    wants(world, Profile(muted_types=("a.b",)))
    assert [message["count"] for message in later(world)] == [2]


def test_a_muted_message_does_not_count_in_a_window() -> None:
    world = connected_world()
    wants(world, Profile(muted_types=("spam",)))
    assert told(world, **WINDOW).status == wire.MERGED
    assert told(world, type="spam", **WINDOW).status == wire.SUPPRESSED
    assert "count" not in later(world)[0]


@pytest.mark.parametrize("how", ["nothing", *WAYS])
def test_quiet_hours_hold_a_window_open_until_they_end_and_what_comes_meanwhile_counts(how: str) -> None:
    world = at(TEN_PM - 100)
    wants(world, NIGHT)
    for _ in range(2):
        assert told(world, ttl_ms=1000, **WINDOW).status == wire.MERGED
    assert later(world) == []
    assert windows(world).next_ms == SEVEN_AM
    assert told(world, ttl_ms=1000, **WINDOW).status == wire.MERGED
    if how not in ("nothing", "eviction"):  # with an open window a mailbox does not leave memory
        later_core(world, how)
        profile_of(world)
    world.connect(1)
    assert later(world, SEVEN_AM - world.now_ms - 1) == []
    (summary,) = later(world, 1)
    assert summary["count"] == 3


def test_a_leading_message_is_evaluated_at_once_and_the_rest_of_its_window_at_its_end() -> None:
    world = World()
    leading = {"merge": Merge(300, True), "collapse": "likes"}
    world.attach(1)
    assert told(world, CAPPED, **leading).status == wire.ACCEPTED
    assert told(world, CAPPED, **leading).status == wire.MERGED
    assert [message["count"] for message in later(world)] == [2]
    assert told(world, CAPPED, **leading).status == wire.SUPPRESSED


def since(world: World) -> PolicyTerms:
    """Not delivered when the user is active after now."""
    return PolicyTerms("", Category(), world.now_ms)


@pytest.mark.parametrize("how", ["nothing", "checkpoint and crash", "rescue"])
def test_a_summary_has_what_came_after_the_user_was_active(how: str) -> None:
    world = World()
    leading = {"merge": Merge(300, True), "collapse": "likes"}
    world.connect(1)
    world.now_ms += 5
    assert told(world, since(world), **leading).status == wire.ACCEPTED
    world.now_ms += 5
    world.acknowledge(1, 1)
    world.now_ms += 5
    assert told(world, since(world), **leading).status == wire.MERGED
    if how == "nothing":
        assert [message["count"] for message in later(world)] == [2]
        return
    later_core(world, how)
    later(world)
    assert world.core.mailboxes["t:u"].head == 2


@pytest.mark.parametrize("unless_active", [True, False])
def test_a_summary_is_suppressed_only_if_each_message_would_be(unless_active: bool) -> None:
    world = connected_world()
    assert told(world).status == wire.ACCEPTED
    for late in (False, True):
        terms = since(world) if unless_active or not late else None
        assert told(world, terms, **WINDOW).status == wire.MERGED
        world.now_ms += 5
    world.acknowledge(1, 1)
    assert [message["count"] for message in later(world)] == ([] if unless_active else [2])


@pytest.mark.parametrize("leading", [True, False])
def test_a_summary_counts_before_the_message_whose_arrival_sends_it(leading: bool) -> None:
    world = connected_world()
    merge = {"merge": Merge(300, leading), "collapse": "likes"}
    told(world, CAPPED)
    for _ in range(2):
        told(world, CAPPED, merge=Merge(300), collapse="likes")
    world.now_ms += 300
    assert told(world, CAPPED, **merge).status == (wire.SUPPRESSED if leading else wire.MERGED)
    assert world.core.mailboxes["t:u"].head == 2


def test_a_message_joins_the_window_that_its_arrival_extends() -> None:
    world = at(TEN_PM - 100)
    wants(world, NIGHT)
    told(world, ttl_ms=1000, **WINDOW)
    world.now_ms += 300
    assert told(world, ttl_ms=1000, merge=Merge(300, True), collapse="likes").status == wire.MERGED
    assert (windows(world).open["likes"].count, windows(world).next_ms) == (2, SEVEN_AM)


# -- The digest. ---------------------------------------------------------------------------------------------------------
FORUM = Profile(digest_types=("forum.*",))


def test_what_a_user_wants_in_the_digest_comes_as_one_message_that_counts_by_type() -> None:
    world = connected_world()
    wants(world, FORUM)
    for type in ("forum.like", "forum.like", "forum.reply"):
        answer = told(world, type=type, id=f"d{world.refs}", ttl_ms=2 * DIGEST_MS)
        assert (answer.status, answer.detail) == (wire.MERGED, f"window until {world.now_ms + DIGEST_MS}")
    assert told(world, type="other").status == wire.ACCEPTED
    assert told(world, type="forum.like", priority=HIGH).status == wire.ACCEPTED
    (digest,) = later(world, DIGEST_MS)
    assert (digest["type"], digest["count"], digest["collapse"], digest["text"]) == ("digest", 3, "digest", "3 notifications")
    assert digest["data"] == {"types": {"forum.like": 2, "forum.reply": 1}}
    assert [event for _, event, _ in timeline(world)] == ["digested"] * 3
    assert world.core.output.counters["digested"] == 3


def test_the_policy_without_windows_delivers_messages_of_the_digest() -> None:
    world = WithoutWindows()
    world.attach(1)
    wants(world, FORUM)
    assert told(world, type="forum.like").status == wire.ACCEPTED
    assert told(world, CAPPED, merge=Merge(1000, False, ""), collapse="c").status == wire.ACCEPTED
    assert [told(world, CAPPED).status for _ in range(2)] == [wire.ACCEPTED, wire.SUPPRESSED]


def test_a_message_alone_in_the_digest_comes_as_it_is() -> None:
    world = connected_world()
    wants(world, FORUM)
    told(world, type="forum.like", id="only", ttl_ms=2 * DIGEST_MS)
    assert [message["id"] for message in later(world, DIGEST_MS)] == ["only"]


def test_a_message_that_expires_before_the_digest_comes_at_once() -> None:
    world = connected_world()
    wants(world, FORUM)
    assert told(world, type="forum.like", ttl_ms=DIGEST_MS).status == wire.ACCEPTED
    assert told(world, type="forum.like", ttl_ms=DIGEST_MS, **WINDOW).status == wire.MERGED
    assert list(windows(world).open) == ["likes"]
    assert told(world, type="forum.like", ttl_ms=DIGEST_MS + 1).status == wire.MERGED
    world.now_ms += DIGEST_MS - 300
    assert told(world, type="forum.like", ttl_ms=301).status == wire.MERGED
    assert [message["count"] for message in later(world) if message["type"] == "digest"] == [2]


def test_a_message_that_expires_before_the_digest_waits_for_quiet_hours() -> None:
    world = at(TEN_PM)
    wants(world, Profile(zone=NIGHT.zone, quiet=NIGHT.quiet, digest_types=("forum.*",)))
    assert told(world, type="forum.like", ttl_ms=DIGEST_MS).status == wire.DEFERRED


def test_a_question_waits_for_no_digest() -> None:
    world = World()
    wants(world, FORUM)
    assert [answer.status for answer in of(world.publish(more=b',"type":"forum.ask","ask":{"text":true}'), wire.Posted)] == [wire.ACCEPTED]


def test_a_digest_has_room_beside_a_full_table_of_windows_and_takes_messages_out_of_windows_of_their_own() -> None:
    world = World(windows_max=1)
    wants(world, FORUM)
    assert told(world, **WINDOW).status == wire.MERGED
    assert told(world, type="forum.like", ttl_ms=2 * DIGEST_MS, merge=Merge(300), collapse="forum").status == wire.MERGED
    assert set(windows(world).open) == {"likes", DIGEST}


def test_an_open_digest_takes_no_room_from_windows() -> None:
    world = World(windows_max=1)
    wants(world, FORUM)
    assert told(world, type="forum.like", ttl_ms=2 * DIGEST_MS).status == wire.MERGED
    assert [told(world, merge=Merge(300), collapse=key).status for key in ("likes", "replies")] == [wire.MERGED, wire.ACCEPTED]


def test_a_digest_survives_crashes_counts_repeats_once_and_waits_for_the_end_of_quiet_hours() -> None:
    world = at(TEN_PM - 1000)
    wants(world, Profile(zone="Europe/Berlin", quiet=NIGHT.quiet, digest_types=("forum.*",)))
    told(world, type="forum.like", id="d1", ttl_ms=2 * DIGEST_MS)
    world.crash()
    assert told(world, type="forum.like", id="d1", ttl_ms=2 * DIGEST_MS).status == wire.DUPLICATE
    world.checkpoint()
    world.crash()
    profile_of(world)
    told(world, type="forum.like", id="d2", ttl_ms=2 * DIGEST_MS)
    assert later(world, DIGEST_MS) == []
    assert windows(world).next_ms == SEVEN_AM
    world.crash()
    profile_of(world)
    world.connect(1)
    (digest,) = later(world, SEVEN_AM - world.now_ms)
    assert digest["count"] == 2


# -- The inbox only. -----------------------------------------------------------------------------------------------------
KEPT = InboxLimits(messages_max=20, keep_ms=30 * DAY_MS, pinned_max=2, numbers_max=100)
FEED = Profile(inbox_types=("feed.*",), on_types=("feed.reply",), categories={"news": INBOX})


def reader(**changes: Any) -> World:
    """A connected user who wants what is new in the feed in the inbox only."""
    world = World(**{"inbox": KEPT, **changes})
    wants(world, FEED)
    world.connect(1, counts=True)
    return world


def listed(world: World) -> tuple[list[tuple[int, bool]], int, int]:
    """The inbox, newest first: numbers, and whether they are acknowledged; how many are unread and unseen."""
    world.refs += 1
    (answer,) = of(world.ask(wire.ReadInbox(world.refs, "t:u", 0, 100, ALL)), wire.InboxIs)
    assert all(row.body for row in answer.rows)
    return [(row.seq, row.acked) for row in answer.rows], answer.unread, answer.unseen


def test_what_a_user_wants_in_the_inbox_only_is_numbered_and_counted_and_not_sent() -> None:
    world = reader()
    answer = told(world, type="feed.like", id="quiet")
    assert (answer.status, answer.seq, answer.detail) == (wire.ACCEPTED, 1, "inbox: the user wants feed.* in the inbox only")
    assert told(world, PolicyTerms("news"), id="news").detail.startswith("inbox: ")
    world.core.tick(world.now_ms)
    said = world.settle()
    assert [(record.unread, record.unseen) for record in of(said, wire.Counts)] == [(2, 2)]
    told(world, type="feed.reply", id="loud")
    said = world.publish(id="after")
    assert of(said, wire.GapRange) == []
    assert listed(world) == ([(4, False), (3, False), (2, True), (1, True)], 4, 4)
    assert world.core.output.counters["delivered"] == 2
    assert world.core.output.counters["inboxed"] == 2
    assert (told(world, type="feed.like", id="quiet").status, told(world, type="feed.like", id="quiet").seq) == (wire.DUPLICATE, 1)


@pytest.mark.parametrize("how", WAYS)
def test_what_is_in_the_inbox_only_stays_there_and_unsent(how: str) -> None:
    world = World(inbox=KEPT)
    wants(world, FEED)
    told(world, id="before")
    for id in ("f1", "f2"):
        told(world, type="feed.like", id=id, ttl_ms=DAY_MS)
    told(world, type="other", id="after")
    later_core(world, how)
    assert listed(world)[0] == [(4, False), (3, True), (2, True), (1, False)]
    said = world.connect(1)
    assert [message["seq"] for message in shown(said)] == [1, 4]
    assert of(said, wire.GapRange) == []


def test_a_page_newer_than_a_rescue_keeps_what_is_in_its_inbox() -> None:
    world = reader()
    told(world, type="feed.like")
    later_core(world, "rescue")
    world.connect(2)
    told(world, type="feed.reply")
    world.detach(2)
    world.settle()
    world.checkpoint(full=False)
    world.crash()
    assert listed(world)[0] == [(2, False), (1, True)]


def test_what_is_for_the_inbox_only_pushes_out_nothing_that_waits_to_be_sent() -> None:
    world = World(inbox=KEPT, offline_max=20)
    wants(world, FEED)
    told(world, id="waits", ttl_ms=DAY_MS)
    for number in range(40):
        told(world, type="feed.like", id=f"f{number}", ttl_ms=DAY_MS)
    later_core(world, "crash")
    said = world.connect(1)
    assert [message["seq"] for message in shown(said)] == [1]
    assert of(said, wire.GapRange) == []


def test_what_was_in_storage_alone_is_in_the_inbox_after_the_page_was_read_again() -> None:
    world = World(inbox=KEPT)
    wants(world, FEED)
    told(world, type="feed.like", id="f1")
    world.checkpoint()
    world.crash()
    assert listed(world) == ([(1, True)], 1, 1)


def test_the_inbox_waits_for_no_quiet_hours_and_counts_against_no_cap() -> None:
    world = at(TEN_PM, inbox=KEPT)
    wants(world, Profile(zone="Europe/Berlin", quiet=NIGHT.quiet, inbox_types=("feed.*",)))
    limited = PolicyTerms("touch", Category(cap=1, same_type_ms=DAY_MS))
    assert [told(world, limited, type="feed.like", id=id).status for id in "abc"] == [wire.ACCEPTED] * 3
    world.now_ms = SEVEN_AM
    assert told(world, limited, type="other").status == wire.ACCEPTED
    assert told(world, limited, type="other").status == wire.SUPPRESSED
    state = world.core.mailboxes["t:u"].user_state
    world.crash()
    profile_of(world)
    assert world.core.mailboxes["t:u"].user_state.counters == state.counters


def test_urgent_messages_are_sent_also_where_the_inbox_alone_is_wanted() -> None:
    world = reader()
    told(world, type="feed.like", priority=HIGH)
    assert world.core.output.counters["delivered"] == 1


@pytest.mark.parametrize("nowhere", ["no inbox", "category", "broadcast"])
def test_where_the_inbox_keeps_nothing_of_a_type_who_wants_it_there_is_sent_it(nowhere: str) -> None:
    world = reader(**({} if nowhere == "category" else {"inbox": None}))
    if nowhere == "broadcast":
        world.deliver_broadcast("all", more=b',"type":"feed.like"')
    else:
        answer = told(world, PolicyTerms("noise", Category(inbox_ms=0)) if nowhere == "category" else None, type="feed.like")
        assert (answer.status, answer.detail) == (wire.ACCEPTED, "")
    assert world.core.output.counters["delivered"] == 1


def test_what_is_not_to_be_retained_is_suppressed_where_the_inbox_alone_is_wanted() -> None:
    answer = told(reader(), type="feed.like", retain=False)
    assert (answer.status, answer.detail) == (wire.SUPPRESSED, "inbox: the user wants feed.* in the inbox only, which does not keep it")


def test_a_window_for_the_inbox_only_gathers_and_sends_nothing() -> None:
    world = reader()
    assert told(world, type="feed.like", **WINDOW).status == wire.MERGED
    assert told(world, type="feed.like", **WINDOW).status == wire.MERGED
    assert later(world) == []
    assert listed(world)[0] == [(1, True)]
    leading = {**WINDOW, "merge": Merge(300, True)}
    assert told(world, type="feed.like", **leading).seq == 2
    assert told(world, type="feed.like", **leading).status == wire.MERGED
    assert later(world) == []
    assert listed(world)[0] == [(3, True), (2, True), (1, True)]


def test_a_message_in_the_inbox_only_supersedes_none_that_waits_to_be_sent() -> None:
    world = World(inbox=KEPT, conflate_offline_min=1)
    wants(world, FEED)
    told(world, type="score", collapse="game", id="a")
    told(world, type="feed.score", collapse="game", id="b")
    told(world, type="score", collapse="game", id="c")
    assert listed(world)[0] == [(3, False), (2, True)], "c supersedes a"


def test_a_delayed_message_for_the_inbox_only_goes_there_when_it_is_due() -> None:
    world = World(inbox=KEPT)
    wants(world, Profile(inbox_types=("a",)))
    world.attach(1)
    assert fire(world) == [wire.FireDone(["3-abc"])]
    assert listed(world)[0] == [(1, True)]
