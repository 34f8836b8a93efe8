"""Which mailboxes leave memory, when, and that nothing is lost with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.core.journal.journal_records import PAGE_RECENT_IDS
from engine.core.mailbox.memory import MAILBOX_BYTES
from engine.core.model.constants import HIGH, LOW, NORMAL
from engine.core.model.envelope import Merge
from engine.core.model.routing import slot_of
from engine.core.shard import mailbox_store
from engine.core.wire.records import ACCEPTED, DUPLICATE, Deliver, Explain, GetProfile, Post, Posted, ProfileIs, Trace
from tests.support.shard_world import World, connected_world, delivered, of
from tests.support.stored import decode_page

ALL = 1 << 40
"""More bytes than there are: everything that may be evicted is."""


def written(*users: str, **limits: int) -> World:
    """Each user has a mailbox in memory that storage has completely: one message, acknowledged long ago."""
    world = World(**limits)
    for user in users:
        world.post(user, f"id-{user}")
        world.connect(1, user)
        world.ack(1, 1)
        world.detach(1)
        world.now_ms += 1
    world.settle()
    world.now_ms += world.config.ack_journal_ms
    world.persist()
    return world


def in_memory(world: World) -> list[str]:
    return [key.removeprefix("t:") for key in world.core.mailboxes]


def evict(world: World, wanted_bytes: int = ALL) -> int:
    return world.core.evict(world.now_ms, wanted_bytes)


def ask(world: World, user: str) -> None:
    world.refs += 1
    world.tell(GetProfile(world.refs, f"t:{user}"))


def test_what_nobody_uses_leaves_memory_at_once_when_it_is_wanted_and_otherwise_when_it_is_idle() -> None:
    world = written("ann")
    assert evict(world, 0) == 0
    assert evict(world, 1) == 1
    world = written("ann")
    world.now_ms += world.config.mailbox_idle_ms
    assert evict(world, 0) == 1
    assert in_memory(world) == []


def test_the_least_recently_used_go_first_and_only_as_many_as_are_wanted() -> None:
    world = written("ann", "bob", "cid", "dan")
    world.post("ann", retain=False)  # used again, and as clean as before: nobody is connected
    world.settle()
    weight = world.core.mailboxes["t:bob"].weight
    assert evict(world, weight + 1) == 2
    assert in_memory(world) == ["ann", "dan"]
    assert evict(world, 1) == 1
    assert in_memory(world) == ["ann"]


def test_the_mailboxes_of_a_slot_are_found_without_a_look_at_the_others() -> None:
    world = written("ann", "bob", "cid")
    store = world.core.mailbox_store
    slots = {user: slot_of(f"t:{user}") for user in ("ann", "bob", "cid")}
    assert store.keys_in([slots["cid"], slots["ann"]]) == [f"t:{user}" for user in sorted(("ann", "cid"), key=slots.__getitem__)]
    store.drop(["t:cid"])
    assert evict(world, 1) == 1
    assert store.keys_in(slots.values()) == ["t:bob"]
    ask(world, "ann")
    world.settle()
    assert store.keys_in([slots["ann"]]) == ["t:ann"]


def test_an_evicted_user_comes_back_as_they_were() -> None:
    world = written("ann")
    world.publish("ann", "second")
    world.checkpoint()
    assert evict(world) == 1
    assert [(record.status, record.seq) for record in of(world.publish("ann", "second"), Posted)] == [(DUPLICATE, 2)]
    assert delivered(world.connect(1, "ann")) == [(2, 1)]


def test_how_often_a_message_was_sent_outlasts_memory_also_when_storage_had_it_before() -> None:
    world = World()
    world.post("ann", "m")
    world.attach(1, "ann")
    world.persist()
    world.detach(1)
    world.checkpoint()
    assert evict(world) == 1
    ((_, attempt, _),) = [message for record in of(world.connect(2, "ann"), Deliver) for message in record.messages]
    assert attempt == 2


def test_whoever_is_connected_stays_and_may_go_once_the_last_connection_has_ended() -> None:
    world = connected_world()
    world.connect(2)
    assert evict(world) == 0
    world.detach(1)
    assert evict(world) == 0
    world.detach(2)
    world.now_ms += world.config.mailbox_idle_ms
    assert evict(world) == 1


def test_what_storage_does_not_have_stays_until_a_checkpoint_has_written_it() -> None:
    world = World()
    world.publish()
    assert evict(world) == 0
    store = world.core.mailbox_store
    assert store.take_checkpoint(True, 1000) is not None
    store.fill_checkpoint(10, world.now_ms)
    assert evict(world) == 0, "it is being written"
    store.checkpoint_failed()
    assert evict(world) == 0, "it could not be written"
    world.checkpoint()
    assert evict(world) == 1


def test_a_part_of_a_checkpoint_has_fewer_mailboxes_when_they_have_many_messages() -> None:
    world = World()
    for user in ("a", "b", "c", "d"):
        for _ in range(30):
            world.post(user)
    for user in ("e", "f", "g", "h"):
        world.post(user)
    world.settle()
    store = world.core.mailbox_store
    checkpoint = store.take_checkpoint(True, 1000)
    assert checkpoint is not None
    parts = []
    while store.fill_checkpoint(4, world.now_ms):
        parts.append(len(checkpoint.spills) - sum(parts))
    parts.append(len(checkpoint.spills) - sum(parts))
    assert parts == [1, 1, 1, 1, 4]
    assert sum(len(spill.entries) for spill in checkpoint.spills) == 4 * 30 + 4


def test_what_a_checkpoint_has_written_may_go_some_at_a_time_and_none_is_forgotten() -> None:
    world, users = World(), [f"u{n}" for n in range(5)]
    for user in users:
        world.post(user)
    world.settle()
    store = world.core.mailbox_store
    assert store.take_checkpoint(True, 1000) is not None
    store.fill_checkpoint(10, world.now_ms)
    for left in (3, 1):
        assert store.checkpoint_done(2)
        assert store.take_checkpoint(True, 1000) is None, "one is under way"
        assert evict(world) == 2
        assert len(in_memory(world)) == left
    assert not store.checkpoint_done(2)
    assert evict(world) == 1


def test_what_something_waits_for_stays() -> None:
    world = written("ann", "bob")
    world.post("ann")
    world.fetch()
    assert evict(world) == 1, "nothing waits for the other one"
    assert in_memory(world) == ["ann"]
    group = world.take_group()
    assert evict(world) == 0, "its post is on its way to the journal"
    world.append(group)
    world.core.group_committed(world.now_ms)
    world.persist()
    assert evict(world) == 1


def test_a_mailbox_whose_windows_are_to_be_closed_stays() -> None:
    world = World()
    world.publish(collapse="likes", merge=Merge(1000), more=b',"data":null')
    world.checkpoint()
    world.now_ms += 1000
    world.core.tick(world.now_ms)
    assert evict(world) == 0
    world.persist()
    assert evict(world) == 1


def test_messages_that_were_read_for_a_user_who_left_meanwhile_leave_memory_again() -> None:
    world = World()
    world.publish()
    world.checkpoint()
    evict(world)
    world.attach(1)
    world.core.pages_loaded({"t:u": world.page("t:u")}, world.now_ms)
    assert world.core.mailboxes["t:u"].loading
    world.detach(1)
    world.checkpoint()
    assert evict(world) == 0, "its read is under way"
    world.fetch()
    assert not world.core.mailboxes["t:u"].hot
    world.checkpoint()
    assert evict(world) == 1


def test_ids_that_the_page_leaves_out_stay_for_as_long_as_an_edge_may_repeat_them() -> None:
    world = World(recent_ids=100, mailbox_idle_ms=10**9, publish_timeout_ms=5000)
    for n in range(PAGE_RECENT_IDS + 1):
        world.publish("u", f"made-here-{n}", idempotent=False)
    world.checkpoint()
    world.now_ms += 4999
    assert evict(world) == 0
    world.post("u", "made-here-0", idempotent=False)
    assert [record.status for record in of(world.settle(), Posted)] == [DUPLICATE], "only memory knows it"
    world.now_ms += 5000
    assert evict(world) == 1


def test_a_hand_over_takes_along_when_a_connected_user_was_last_seen() -> None:
    world = written("ann")
    world.now_ms += 60_000
    world.core.tick(world.now_ms)
    world.connect(2, "ann")
    store = world.core.mailbox_store
    checkpoint = store.take_whole([slot_of("t:ann")], quiet=False)
    assert checkpoint is not None
    assert not store.fill_checkpoint(2, world.now_ms)
    (spill,) = checkpoint.spills
    assert decode_page("t:ann", spill.page).seen_ms == world.now_ms


def test_when_a_user_without_a_page_was_active_is_known_until_they_are_idle() -> None:
    world = connected_world(mailbox_idle_ms=5000)
    world.settle()
    world.detach(1)
    assert evict(world) == 0
    world.now_ms += 5000
    assert evict(world) == 1


def test_one_call_looks_at_a_bounded_number_of_mailboxes_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox_store, "_EVICTIONS_MAX", 10)
    world = World()
    for n in range(25):
        ask(world, f"u{n}")
    world.settle()
    assert [evict(world) for _ in range(4)] == [10, 10, 5, 0]
    for n in range(12):
        world.attach(n, f"c{n}")
    world.settle()
    ask(world, "last")
    world.settle()
    assert [evict(world) for _ in range(3)] == [0, 1, 0], "connected ones are looked at once, not at every call"


def test_reading_any_number_of_users_fills_no_memory_and_stops_nobody() -> None:
    # Before, nothing was evicted for `mailbox_idle_ms`: memory filled up to its limit, and every post was refused meanwhile.
    world = World(shard_memory_bytes_max=1000 * MAILBOX_BYTES, posts_pending_max=10_000)
    questions: tuple[Callable[[int, str], Any], ...] = (
        GetProfile,
        lambda ref, key: Trace(ref, key, "m"),
        lambda ref, key: Explain(ref, key, 0, Post(ref, key, True, world.now_ms, envelope)),
    )
    ref = world.post("first")
    envelope = next(iter(world.core.page_wait.take("t:first")))[1].post.envelope  # type: ignore[union-attr]
    largest = 0
    for n in range(10_000):
        world.refs += 1
        world.tell(questions[n % 3](world.refs, f"t:stranger{n}"))
        if n % 100 == 99:
            answers = world.settle()
            assert len(answers) == 100
            largest = max(largest, world.core.admission.bytes)
            world.now_ms += world.config.pressure_calm_ms // 10
            world.core.tick(world.now_ms)
            for priority in (HIGH, NORMAL, LOW):
                world.post("u", priority=priority)
            assert {record.status for record in of(world.settle(), Posted)} == {ACCEPTED}
            world.checkpoint()
    assert ref
    assert largest < world.config.shard_memory_bytes_max / 2
    assert world.core.admission.pressure.level == 0


def test_questions_that_wait_for_their_pages_count_with_their_bytes() -> None:
    world = World(posts_pending_max=10, shard_memory_bytes_max=100_000)
    for n in range(10):
        ask(world, f"u{n}")
    ask(world, "one more")
    assert [type(record).__name__ for record in world.said()] == ["Rejected"]
    assert len(of(world.settle(), ProfileIs)) == 10
    world.post("x", more=b"x" * 200_000)
    (_, pending) = world.core.page_wait.take("t:x")[0]
    world.tell(Explain(1, "t:x", 0, pending.post))  # type: ignore[union-attr]
    assert world.core.admission.bytes > 200_000


def test_short_memory_writes_no_page_of_an_evicted_mailbox() -> None:
    world = World()
    world.core.delivery.hold_low = True
    world.attach(1)
    world.publish(id="a", priority=LOW)
    world.detach(1)
    world.checkpoint()
    assert world.evict() == 1
    world.publish(id="b")
    world.core.mailbox_store.spill_idle(world.core.delivery.held.values())
    world.checkpoint()
    world.crash()
    assert delivered(world.connect(2), 2) == [(1, 1), (2, 1)]


def test_a_hand_over_writes_what_a_mailbox_is_after_its_eviction() -> None:
    world = World(recent_ids=100)
    for _ in range(PAGE_RECENT_IDS + 1):
        world.publish()
    world.connect(1, cursor=world.core.mailboxes["t:u"].head)
    world.detach(1)
    world.now_ms += world.config.ack_journal_ms
    world.persist()
    store = world.core.mailbox_store
    checkpoint = store.take_whole([slot_of("t:u")], quiet=False)
    assert checkpoint is not None
    world.now_ms += world.config.publish_timeout_ms
    assert evict(world) == 1
    world.publish()
    assert not store.fill_checkpoint(2, world.now_ms)
    (spill,) = checkpoint.spills
    assert decode_page("t:u", spill.page).head == PAGE_RECENT_IDS + 2


def test_dead_letters_of_a_long_outage_are_written_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox_store, "_LETTERS_MAX", 2)
    world = connected_world()
    for id in "abc":
        world.publish(id=id)
    store, before = world.core.mailbox_store, world.core.mailbox_store.memory.bytes
    for _ in range(2):
        world.nack(1, "a", "b", "c")
    assert store.memory.bytes == before, "posts are refused before they fill the memory"
    letters = [store.take_dead_letters(), store.take_dead_letters(), store.take_dead_letters()]
    assert [[letter.message.envelope.id for letter in some] for some in letters] == [["a", "b"], ["c"], []]
    assert letters[0][0].by == [("edge-0/1", 1)], "a client that repeats itself fills no memory"
    for some in letters:
        world.core.dead_lettered(some, world.now_ms)
    assert store.memory.messages == 0
