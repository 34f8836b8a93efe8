"""Questions about a user, changes of their state, and erasure: answered once they are true, admitted as posts are."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.model.constants import HIGH, NORMAL
from engine.core.model.routing import slot_of, spread
from engine.core.policy.preferences import PreferencesPatch
from engine.core.policy.profile import Profile
from engine.core.shard.mailbox_store import Swept
from engine.core.shard.shard import ShardCore
from engine.core.shard.user_requests import URGENT, admission_of
from engine.core.wire import records as wire
from tests.support.shard_world import EDGE, World, connected_world, delivered, of

KEY = "t:u"
SLOT = slot_of(KEY)
QUIET = Profile(level="high")
READS = (wire.Probe(1, KEY, "", 0), wire.GetProfile(1, KEY), wire.Trace(1, KEY, "m"))
CHANGES = (
    wire.SetProfile(1, KEY, QUIET),
    wire.ChangeProfile(1, KEY, PreferencesPatch(zone="Asia/Tokyo"), 9),
    wire.Subscribe(1, KEY, ["a"], []),
    wire.Happened(1, KEY, 1, "paid", {}),
)


def pressed(world: World, share: float) -> None:
    """So much of what may wait for its commit does wait."""
    while len(world.core.post_queue) < world.config.posts_pending_max * share:
        world.post("filler", priority=HIGH)
        world.fetch()
    world.core.tick(world.now_ms)
    world.said()


@pytest.mark.parametrize(
    ("record", "answer"), [(wire.SetProfile(1, KEY, QUIET), wire.ProfileIs), (wire.Happened(1, KEY, 1, "paid", {}), wire.Followed)]
)
def test_a_change_is_answered_once_it_is_durable_and_survives_a_crash_then(record: Any, answer: type) -> None:
    world = World()
    world.tell(record)
    world.fetch()
    assert len(world.core.user_requests.waiting) == 1
    group = world.take_group()
    assert world.said() == []
    world.append(group)
    world.core.group_committed(world.now_ms)
    assert [(record.ref, record.status) for record in of(world.said(), answer)] == [(1, wire.OK)]
    world.crash()
    state = world.core.mailboxes[KEY].user_state
    assert state is not None
    assert state.profile == QUIET or "paid" in state.events


def test_of_two_changes_the_later_one_holds() -> None:
    world = World()
    assert [record.ref for record in of(world.ask(wire.SetProfile(1, KEY, QUIET), wire.SetProfile(2, KEY, None)), wire.ProfileIs)] == [1, 2]
    assert [record.profile for record in of(world.ask(wire.GetProfile(3, KEY)), wire.ProfileIs)] == [None]


def test_a_group_has_a_bounded_number_of_changes() -> None:
    world = World(commit_records_max=2)
    for topic in "abc":
        world.subscribe(topic)
    world.fetch()
    assert len(world.take_group().riders.notes) == 2
    world.core.group_committed(world.now_ms)
    assert [answer.topics for answer in of(world.settle(), wire.Subscribed)] == [["a"], ["a", "b"], ["a", "b", "c"]]


def test_while_storage_is_away_a_change_in_a_group_is_answered_after_the_rollback_and_any_other_at_once() -> None:
    world = World()
    world.tell(wire.SetProfile(1, KEY, QUIET))
    world.fetch()
    assert world.core.take_group(world.now_ms) is not None
    world.tell(wire.SetProfile(2, KEY, QUIET))
    world.core.group_refused()
    world.tell(wire.SetProfile(3, KEY, QUIET))
    assert [(record.ref, record.status) for record in world.said()] == [(2, wire.UNAVAILABLE), (3, wire.UNAVAILABLE)]
    world.core.storage_back()
    assert [(record.ref, record.status) for record in world.said()] == [(1, wire.UNAVAILABLE)]
    assert [record.profile for record in of(world.ask(wire.GetProfile(4, KEY)), wire.ProfileIs)] == [None]


def test_what_takes_no_memory_is_always_answered_what_frees_it_or_tells_of_life_nearly_always() -> None:
    explained = wire.Explain(1, KEY, 0, None)  # type: ignore[arg-type]
    assert {admission_of(record, in_memory=True) for record in (*READS, explained)} == {None}
    assert {admission_of(record, in_memory=False) for record in (*READS[1:], explained)} == {NORMAL}
    assert {admission_of(record, in_memory=there) for record in CHANGES for there in (True, False)} == {NORMAL}
    assert admission_of(READS[0], in_memory=False) == URGENT
    assert {admission_of(wire.Settle(1, KEY, 1, []), in_memory=there) for there in (True, False)} == {URGENT}


def test_under_pressure_changes_and_reads_of_pages_are_rejected_with_the_time_to_come_back() -> None:
    world = World(posts_pending_max=100)
    world.publish()
    pressed(world, 0.85)
    strangers = (wire.GetProfile(1, "t:x"), wire.Trace(2, "t:y", "m"), wire.Subscribe(3, "t:z", [], []))
    world.tell(*strangers, *CHANGES)
    said = world.said()
    assert [(type(record), record.ref, record.status) for record in said] == [
        (wire.Rejected, record.ref, wire.OVERLOADED) for record in (*strangers, *CHANGES)
    ]
    assert min(record.retry_ms for record in said) > 0
    assert world.core.output.counters["refused_questions"] == len(CHANGES) + len(strangers)
    world.tell(*READS, wire.Settle(1, KEY, 1, []))
    assert [type(record) for record in world.said()] == [wire.Probed, wire.ProfileIs, wire.Traced, wire.Settled]
    pressed(world, 1)
    world.tell(*READS, wire.Settle(1, KEY, 1, []), wire.Probe(2, "t:x", "", 0))
    assert [type(record) for record in world.said()] == [wire.Probed, wire.ProfileIs, wire.Traced, wire.Rejected, wire.Rejected]
    world.calm_down()
    assert {type(record) for record in world.ask(*strangers)} == {wire.ProfileIs, wire.Traced, wire.Subscribed}


def test_changes_that_wait_for_a_group_count_as_posts_that_wait() -> None:
    world = World(posts_pending_max=10)
    world.publish()
    for n in range(10):
        world.tell(wire.SetProfile(n, KEY, QUIET))
    assert world.core.admission.waiting == 10
    world.tell(wire.SetProfile(10, KEY, QUIET))
    assert [type(record) for record in world.said()] == [wire.Rejected]
    assert len(of(world.settle(), wire.ProfileIs)) == 10


# -- erasing a user ----------------------------------------------------------------------------------------------------
def erase(world: World) -> list[Any]:
    """Ask to erase the user; what the core said."""
    return world.ask(wire.Erase(7, KEY))


def used_world() -> World:
    """A user with all there may be: pending and refused messages, subscriptions, a profile, a page, a stream, a connection."""
    world = connected_world()
    world.subscribe("news")
    world.tell(wire.SetProfile(900, KEY, Profile(level="low")))
    for id in ("a", "b", "c"):
        world.post(id=id)
    world.settle()
    world.detach(1)
    world.checkpoint()
    world.attach(1)
    world.publish(id="d")
    assert world.pages[KEY]
    assert sorted(world.streams[KEY]) == [1, 2, 3]
    return world


def stored(world: World) -> str:
    """Everything that storage has, as text."""
    return repr((world.pages, world.streams, world.windows, world.looks, world.journal))


def answered(world: World) -> list[int]:
    return [record.status for record in of(world.said(), wire.ErasureDone)]


def test_an_erased_user_is_in_neither_memory_page_stream_nor_journal_when_it_is_answered() -> None:
    world = used_world()
    said = erase(world)
    assert of(said, wire.Hangup) == [wire.Hangup(1, 4403, "the user was erased")]
    assert of(said, wire.ErasureDone) == [], "storage still has the user"
    assert "'t:u'" in stored(world)
    world.checkpoint()
    assert answered(world) == [wire.OK]
    assert "'t:u'" not in stored(world)
    mailbox = world.core.mailboxes[KEY]
    assert mailbox.idle
    assert (mailbox.topics, mailbox.recent, mailbox.seen_ms) == ({}, {}, 0)
    assert mailbox.user_state is None
    assert world.core.connections.count == 0


def test_a_message_after_the_erasure_has_a_new_number_also_after_eviction_and_a_crash() -> None:
    world = used_world()
    world.tell(wire.Erase(7, KEY))
    world.persist()
    assert world.floors == {SLOT: 4}
    world.evict()
    assert KEY not in world.core.mailboxes
    world.attach(1)
    assert delivered(world.publish(id="new")) == [(5, 1)]
    world.crash()
    world.attach(1)
    assert delivered(world.publish(id="e")) == [(5, 1), (6, 1)], "no gap before the first, which is not the number one"


@pytest.mark.parametrize("crash", ["before the group", "after the group", "after the checkpoint"])
def test_a_crash_in_between_leaves_a_repeat_that_erases_the_rest(crash: str) -> None:
    world = used_world()
    world.tell(wire.Erase(7, KEY))
    if crash != "before the group":
        world.settle()
    if crash == "after the checkpoint":
        world.checkpoint()
    world.crash()
    if crash == "after the group":
        assert world.core.mailboxes[KEY].idle, "the journal has the erasure"
        world.checkpoint()
        assert "'t:u'" not in stored(world), "without the repeat"
    world.tell(wire.Erase(8, KEY))
    world.persist()
    assert answered(world) == [wire.OK]
    assert "'t:u'" not in stored(world)


def test_an_erasure_beside_a_broadcast_of_its_group_is_repeated_at_replay() -> None:
    world = used_world()
    world.broadcast("everyone")
    world.follow()
    erase(world)
    world.crash()
    assert world.core.mailboxes[KEY].idle


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_dead_letter_under_way_to_storage_ends_with_its_erased_user(is_stored: bool) -> None:
    world = used_world()
    world.nack(1, "d")
    store = world.core.mailbox_store
    letters = store.take_dead_letters()
    world.tell(wire.Erase(7, KEY))
    world.persist()
    world.evict()
    assert KEY not in world.core.mailboxes
    if is_stored:
        world.core.dead_lettered(letters, world.now_ms)
    else:
        store.dead_letters_failed(letters)
    assert (len(letters), store.dead_letters) == (1, [])


def test_what_comes_while_the_erasure_is_written_is_kept() -> None:
    world = used_world()
    erase(world)
    world.publish(id="new")
    world.checkpoint()
    assert answered(world) == [wire.OK]
    assert sorted(world.streams[KEY]) == [5]
    world.crash()
    assert delivered(world.connect(2), 2) == [(5, 1)]


def test_an_event_that_comes_while_the_erasure_is_written_is_kept() -> None:
    world = used_world()
    erase(world)
    world.tell(wire.Happened(8, KEY, world.now_ms, "paid"))
    world.persist()
    assert answered(world) == [wire.OK]
    world.crash()
    world.connect(2)
    user_state = world.core.mailboxes[KEY].user_state
    assert user_state is not None
    assert user_state.events == {"paid": world.now_ms}
    assert user_state.profile is None


def test_an_erasure_spares_what_earlier_checkpoints_have_of_later_messages() -> None:
    world = used_world()
    erase(world)
    world.publish(id="new")
    world.core.mailbox_store.mark_urgent(world.core.mailboxes[KEY])
    world.checkpoint(full=False)
    world.checkpoint()
    assert answered(world) == [wire.OK]
    assert sorted(world.streams[KEY]) == [5]
    assert delivered(world.connect(2), 2) == [(5, 1)]


@pytest.mark.parametrize("full", [False, True])
def test_a_crash_after_an_erasure_keeps_what_came_since(full: bool) -> None:
    world = used_world()
    erase(world)
    world.post(id="new")
    world.subscribe("later")
    world.settle()
    journal = world.journal
    world.core.mailbox_store.mark_urgent(world.core.mailboxes[KEY])
    world.checkpoint(full=full)
    world.journal = journal  # not trimmed yet
    world.crash()
    mailbox = world.core.mailboxes[KEY]
    assert list(mailbox.topics) == ["later"]
    assert mailbox.user_state is None
    world.checkpoint()
    assert sorted(world.streams[KEY]) == [5]
    assert delivered(world.connect(2), 2) == [(5, 1)]


def test_a_hand_over_takes_along_what_came_after_an_erasure() -> None:
    world = used_world()
    erase(world)
    world.attach(2)
    world.publish(retain=False)
    store = world.core.mailbox_store
    checkpoint = store.take_whole([SLOT], quiet=False)
    assert checkpoint is not None
    while store.fill_checkpoint(2, world.now_ms):
        pass
    (spill,) = checkpoint.spills
    assert [seq for seq, _ in spill.entries] == [5], "also one that is not to be retained"


def test_a_checkpoint_that_fails_is_repeated_before_the_answer() -> None:
    world = used_world()
    erase(world)
    store = world.core.mailbox_store
    checkpoint = store.take_checkpoint(True, 1000)
    assert checkpoint is not None
    while store.fill_checkpoint(2, world.now_ms):
        pass
    store.checkpoint_failed()
    assert store.take_erased() == []
    world.checkpoint()
    assert answered(world) == [wire.OK]
    assert "'t:u'" not in stored(world)


def test_an_erasure_that_failed_stays_one_though_the_sweep_comes_between() -> None:
    world = used_world()
    page = world.page(KEY)
    assert page is not None
    erase(world)
    store = world.core.mailbox_store
    assert store.take_checkpoint(True, 1000) is not None
    while store.fill_checkpoint(2, world.now_ms):
        pass
    world.core.swept(Swept(KEY, page, False, 0))
    store.checkpoint_failed()
    world.checkpoint()
    assert answered(world) == [wire.OK]


def test_an_erasure_that_began_during_a_checkpoint_is_answered_after_the_next() -> None:
    """The one under way leaves the journal with what came before the erasure."""
    world = used_world()
    store = world.core.mailbox_store
    checkpoint = store.take_checkpoint(True, 1000)
    assert checkpoint is not None
    erase(world)
    while store.fill_checkpoint(2, world.now_ms):
        pass
    store.checkpoint_done()
    assert store.take_erased() == []
    world.checkpoint()
    assert answered(world) == [wire.OK]


def test_without_storage_an_erasure_is_unavailable() -> None:
    world = used_world()
    world.tell(wire.Erase(7, KEY))
    assert world.core.take_group(world.now_ms) is not None
    world.core.group_refused()
    assert answered(world) == []
    world.core.storage_back()
    assert answered(world) == [wire.UNAVAILABLE]
    assert delivered(world.connect(2), 2), "nothing was erased"


def test_a_user_who_was_not_there_is_erased_at_once() -> None:
    world = World()
    world.tell(wire.Erase(7, KEY))
    world.persist()
    assert answered(world) == [wire.OK]
    assert not world.pages
    assert world.floors == {SLOT: 0}


# -- users who are gone ------------------------------------------------------------------------------------------------
def gone_world() -> World:
    """A user who acknowledged two messages, left, and was evicted."""
    world = connected_world()
    world.post()
    world.publish()
    world.ack(1, 2)
    world.detach(1, 1000)
    world.settle()
    world.now_ms += world.config.ack_journal_ms
    world.persist()
    world.evict()
    assert KEY in world.pages
    assert KEY not in world.core.mailboxes
    return world


def sweep(world: World) -> None:
    """What the shell does with a page that is due."""
    page = world.page(KEY)
    assert page is not None
    world.core.swept(Swept(KEY, page, False, 0))
    world.persist()
    world.core.evict(world.now_ms)


def test_the_page_of_a_user_who_is_gone_is_deleted_and_the_next_number_is_a_new_one() -> None:
    world = gone_world()
    assert world.looks[KEY] <= world.now_ms + world.config.user_forget_s * 1000
    sweep(world)
    assert KEY not in world.pages
    assert KEY not in world.core.mailboxes
    world.attach(1, cursor=2)
    assert delivered(world.publish()) == [(3, 1)]


def test_a_user_who_comes_back_before_the_checkpoint_keeps_the_page() -> None:
    world = gone_world()
    page = world.page(KEY)
    assert page is not None
    world.core.swept(Swept(KEY, page, False, 0))
    world.settle()
    world.attach(1)
    world.persist()
    assert KEY in world.pages
    assert not world.floors


def test_preferences_outlive_their_user() -> None:
    world = gone_world()
    world.subscribe("news")
    world.persist()
    assert world.looks[KEY] == 0, "the sweep has no reason to look"
    sweep(world)
    assert KEY in world.pages


def test_messages_that_have_expired_do_not_keep_a_page() -> None:
    world = World()
    world.publish(ttl_ms=1000)
    world.checkpoint()
    world.evict()
    page = world.page(KEY)
    assert page is not None
    assert world.looks[KEY] == page.oldest_expires_ms
    world.core.swept(Swept(KEY, page, True, 0))
    world.persist()
    assert world.looks[KEY] == world.now_ms + world.config.user_forget_s * 1000
    world.evict()
    sweep(world)
    assert KEY not in world.pages


@pytest.mark.parametrize("expires", [False, True])
def test_a_page_that_changed_after_the_sweep_read_it_stays_as_it_is(expires: bool) -> None:
    world = gone_world()
    stale = world.page(KEY)
    assert stale is not None
    world.publish()
    world.checkpoint()
    world.evict()
    newer = world.page(KEY)
    assert newer is not None
    assert newer.head > stale.head
    world.core.swept(Swept(KEY, stale, expires, 0))
    world.persist()
    assert world.page(KEY) == newer
    assert [record.seq for record in of(world.publish(), wire.Posted)] == [newer.head + 1], "one number names one message"


def test_the_sweep_looks_again_at_messages_that_came_meanwhile() -> None:
    world = World()
    world.publish(ttl_ms=1000)
    world.checkpoint()
    read = world.page(KEY)
    assert read is not None
    world.publish()
    world.checkpoint()
    world.core.swept(Swept(KEY, read, True, 0))
    world.checkpoint()
    assert world.looks[KEY] == read.oldest_expires_ms


def test_what_the_sweep_found_waits_for_no_post() -> None:
    world = gone_world()
    page = world.page(KEY)
    assert page is not None
    world.core.swept(Swept(KEY, page, False, 0))
    assert (world.core.page_wait.count, world.core.page_wait.bytes) == (0, 0)
    world.settle()
    assert (world.core.page_wait.count, world.core.page_wait.bytes) == (0, 0)


def test_a_visitor_without_messages_gets_no_page_in_a_slot_with_deleted_ones() -> None:
    world = gone_world()
    sweep(world)
    world.attach(1)
    world.detach(1, 1000)
    world.persist()
    assert KEY not in world.pages
    assert [record.seq for record in of(world.publish(), wire.Posted)] == [3]


@pytest.mark.parametrize(
    "asked",
    [
        wire.Trace(9, KEY, "m"),
        wire.ReadBacklog(9, KEY, 10, 1000),
        wire.ReadUser(9, KEY),
        wire.ReadInbox(9, KEY, 0, 10, 0),
        wire.MarkInbox(9, KEY, 1, True, [], [], -1),
        wire.GetProfile(9, KEY),
        *CHANGES[:2],
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_a_question_of_a_missing_feature_is_rejected(asked: Any) -> None:
    world = World()
    world.core = ShardCore(0, world.config, spread(1), "e1")
    world.core.opened(EDGE)
    world.publish()
    (answer,) = of(world.ask(asked), wire.Rejected)
    assert (answer.ref, answer.status) == (asked.ref, wire.UNAVAILABLE)
