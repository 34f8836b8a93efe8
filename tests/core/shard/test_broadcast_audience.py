"""Broadcasts in the shard core, one behaviour at a time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from engine.core.journal.journal_records import Adopted
from engine.core.journal.rebuild import payloads
from engine.core.journal.stored_formats import decode_stored
from engine.core.model.constants import HIGH, LOW
from engine.core.model.envelope import Envelope
from engine.core.model.message import SharedBody
from engine.core.model.routing import audience_key, slot_of
from engine.core.model.sealed import sealed, unsealed
from engine.core.wire import records as wire
from tests.support.shard_world import EDGE, World, delivered, of
from tests.support.stored import decode_journal, salvage_journal


def ids(said: list[Any], conn: int = 1) -> list[str]:
    """Ids of what was delivered to the connection, in order."""
    return [
        body.split(b'"')[3].decode()
        for record in said
        if isinstance(record, wire.Deliver) and record.conn == conn
        for _, _, body in record.messages
    ]


def world_with(*users: str, **changes: Any) -> World:
    """Users with a connection each, numbered from 1."""
    world = World(**{"adopt_max": 100, **changes})
    for conn, user in enumerate(users, 1):
        world.attach(conn, user)
    world.settle()
    return world


# -- Adoption. ---------------------------------------------------------------------------------------------------------
def test_a_broadcast_gets_the_next_number_of_every_connected_mailbox_of_its_tenant() -> None:
    world = world_with("a", "b")
    world.attach(3, "c")
    world.publish("a")
    world.broadcast("b1")
    said = world.deliver_broadcast("other", tenant="other")
    assert [delivered(said, conn) for conn in (1, 2, 3)] == [[(2, 1)], [(1, 1)], [(1, 1)]]
    assert [ids(said, conn) for conn in (1, 2, 3)] == [["b1"]] * 3


def test_nothing_is_delivered_before_the_adoption_is_in_the_journal_and_the_journal_has_no_body() -> None:
    world = world_with("a", "b")
    pos = world.broadcast("b1")
    world.follow()
    group = world.take_group()
    assert world.said() == []
    records = {slot: decode_journal(payload) for slot, payload in group.payloads.items()}
    assert records == {slot_of(key): [Adopted(pos, world.now_ms, [(key, 1)])] for key in ("t:a", "t:b")}
    world.append(group)
    world.core.group_committed(world.now_ms)
    assert ids(world.said()) == ["b1"]


def test_a_body_travels_once_and_all_connections_leave_as_one_record() -> None:
    world = world_with("a", "b", "c")
    pos = world.broadcast("b1")
    world.follow()
    world.commit()
    assert world.raw() == [wire.Shared(pos, b'"id":"b1"'), wire.DeliverShared(pos, [(1, 1, 1), (2, 1, 1), (3, 1, 1)])]
    world.bodies.put(pos, b'"id":"b1"')
    world.attach(4, "a")
    assert wire.Shared not in {type(record) for record in world.raw()}


def test_mailboxes_share_the_one_body_of_the_log() -> None:
    world = world_with("a", "b")
    pos = world.broadcast("b1")
    world.settle()
    broadcast = world.core.broadcast_audience.log.get(pos)
    assert broadcast is not None
    bodies = [world.core.mailboxes[key].hot[1].envelope.body for key in ("t:a", "t:b")]
    assert all(body is broadcast.envelope.body for body in bodies)
    memory = world.core.mailbox_store.memory
    assert memory.messages == 2
    with pytest.raises(TypeError):
        wire.encode([wire.Deliver(1, [(1, 1, bodies[0])])])  # it can only be referred to


def test_adoption_goes_in_chunks_and_posts_come_first() -> None:
    world = world_with("a", "b", "c", adopt_max=2)
    world.broadcast("b1")
    world.follow()
    world.post("c", "p1")
    assert world.commit()
    said = world.said()
    assert [record.seq for record in of(said, wire.Posted)] == [1]
    assert ids(said, 3) == ["p1"]
    assert [ids(said, conn) for conn in (1, 2)] == [["b1"], ["b1"]]
    assert world.commit()
    assert ids(world.said(), 3) == ["b1"]
    assert not world.commit()


def test_numbers_follow_the_order_of_the_log_and_each_entry_is_taken_once() -> None:
    world = world_with("a", adopt_max=2)
    for number in range(5):
        world.broadcast(f"b{number}")
    said = world.settle()
    assert ids(said) == [f"b{number}" for number in range(5)]
    assert delivered(said) == [(seq, 1) for seq in range(1, 6)]
    assert ids(world.connect(9, "a", 5), 9) == []


def test_a_mailbox_that_is_behind_for_low_and_urgent_ones_takes_each_once() -> None:
    world = world_with("a")
    world.broadcast("low")
    assert ids(world.deliver_broadcast("urgent", priority=HIGH)) == ["low", "urgent"]


def test_who_is_away_gets_it_when_coming_back_and_so_do_newcomers() -> None:
    world = world_with("a")
    world.detach(1)
    world.deliver_broadcast("b1")
    assert not world.journal
    for conn, user in ((2, "a"), (3, "new")):
        assert ids(world.connect(conn, user), conn) == ["b1"]


def test_what_expired_first_is_never_numbered() -> None:
    world = World()
    world.broadcast("short", ttl_ms=1000)
    world.deliver_broadcast("long", ttl_ms=10_000)
    world.now_ms += 1000
    said = world.connect(1)
    assert (ids(said), delivered(said), of(said, wire.GapRange)) == (["long"], [(1, 1)], [])


def test_what_is_not_retained_is_for_whoever_is_connected_when_it_comes() -> None:
    world = world_with("a")
    world.broadcast("now", retain=False)
    assert ids(world.deliver_broadcast("kept")) == ["now", "kept"]
    assert ids(world.connect(2, "b"), 2) == ["kept"]


def test_a_connection_that_outlived_its_link_session_was_connected_all_the_time() -> None:
    world = world_with("a")
    world.core.closed(EDGE, world.now_ms)
    world.core.opened(EDGE)
    world.broadcast("now", retain=False)
    world.follow()
    assert ids(world.connect(1, "a", 0, resume=True)) == ["now"]


def test_an_unacknowledged_broadcast_is_repeated_and_then_left_to_the_next_connection_like_any_message() -> None:
    world = world_with("a")
    assert delivered(world.deliver_broadcast("b1")) == [(1, 1)]
    assert [attempt for _, attempt in delivered(world.wait(10_000))] == [2, 3]
    world.attach(2, "a")
    assert delivered(world.acknowledge(2, 1)) == []
    assert delivered(world.deliver_broadcast("b2")) == [(2, 1)]


def test_it_can_be_acknowledged_and_refused_by_its_id() -> None:
    world = world_with("a")
    world.broadcast("b1")
    world.deliver_broadcast("b2")
    world.ack_ids(1, "b1")
    world.nack(1, "b2")
    world.settle()
    assert world.core.mailboxes["t:a"].floor == 2
    assert [letter.message.envelope.id for letter in world.dead] == ["b2"]
    assert b"{%b}" % world.dead[0].message.envelope.body == b'{"id":"b2"}'


def test_a_user_with_a_full_window_leaves_broadcasts_in_the_log_until_there_is_room() -> None:
    world = world_with("a", window=4)
    for number in range(10):
        world.broadcast(f"b{number}")
    assert len(delivered(world.settle())) == 4
    assert world.core.mailboxes["t:a"].head == 4
    assert delivered(world.acknowledge(1, 1)) == []  # half a window at a time
    assert delivered(world.acknowledge(1, 2)) == [(5, 1), (6, 1)]
    while (head := world.core.mailboxes["t:a"].head) < 10:
        world.acknowledge(1, head)


def test_a_window_of_expired_messages_does_not_hold_broadcasts_up() -> None:
    world = world_with("a", window=4)
    for number in range(4):
        world.broadcast(f"b{number}", ttl_ms=500)
    world.settle()
    world.now_ms += 500
    assert ids(world.deliver_broadcast("later")) == ["later"]
    assert world.core.output.counters["expired"] == 4


def test_one_lasting_message_holds_no_broadcast_back_when_the_others_expire() -> None:
    world = world_with("a", window=4)
    world.publish("a", ttl_ms=100_000)
    for _ in range(3):
        world.publish("a", ttl_ms=500)
    world.now_ms += 500
    assert ids(world.deliver_broadcast("later")) == ["later"]


@pytest.mark.parametrize("cold", [False, True])
def test_a_full_window_takes_waiting_broadcasts_when_its_messages_expire(cold: bool) -> None:
    world = world_with("a", window=4)
    for _ in range(4):
        world.publish("a", ttl_ms=20_000)
    if cold:
        world.wait(10_000)
        world.checkpoint()
        assert not world.core.mailboxes["t:a"].hot
    world.deliver_broadcast("waits", ttl_ms=100_000)
    assert world.core.mailboxes["t:a"].head == 4
    shown: list[str] = []
    while not shown:
        due_ms = world.core.broadcast_step.next_ms
        assert due_ms is not None
        world.now_ms = due_ms
        world.core.tick(due_ms)
        shown = ids(world.settle())
    assert shown == ["waits"]
    assert world.core.broadcast_step.next_ms is None


def test_a_full_window_sees_newer_messages_expire() -> None:
    world = world_with("a", window=2)
    for _ in range(2):
        world.publish("a", ttl_ms=10_000_000)
    world.deliver_broadcast("waits", ttl_ms=10_000_000)
    for seq in range(3, 6):
        world.publish("a", ttl_ms=1000)
        world.ack_ids(1, f"m{seq - 2}")
    world.settle()
    assert world.core.mailboxes["t:a"].head == 5
    world.now_ms += 60_000
    world.core.tick(world.now_ms)
    assert ids(world.settle())[-1:] == ["waits"]


def test_a_full_window_sees_messages_leave_unacknowledged() -> None:
    world = world_with("a", window=2)
    for _ in range(2):
        world.publish("a", ttl_ms=10_000_000)
    world.deliver_broadcast("waits", ttl_ms=10_000_000)
    mailbox = world.core.mailboxes["t:a"]
    for seq in (1, 2):
        mailbox.supersede(seq)
    world.now_ms += 5_000
    world.core.tick(world.now_ms)
    assert ids(world.settle())[-1:] == ["waits"]


def test_a_subscription_begins_where_a_mailbox_of_another_shard_is() -> None:
    world = world_with("a")
    mailbox = world.core.mailboxes["t:a"]
    mailbox.log_pos = 1 << 50
    world.subscribe("news", user="a")
    world.settle()
    assert mailbox.topics == {"news": 1 << 50}


def test_a_poll_is_told_that_broadcasts_wait_for_it() -> None:
    world = World()
    world.deliver_broadcast("b1")
    said = world.connect(1, kind=wire.POLL)
    (welcome,) = of(said, wire.Welcome)
    assert welcome.head >= welcome.from_seq
    assert ids(said) == ["b1"]
    world.detach(1)
    (welcome,) = of(world.connect(2, cursor=1, kind=wire.POLL), wire.Welcome)
    assert welcome.head < welcome.from_seq


def test_under_pressure_low_broadcasts_stay_in_the_log_and_urgent_ones_take_them_along() -> None:
    world = world_with("a")
    admission = world.core.admission
    admission.pressure.level = 2
    assert ids(world.deliver_broadcast("low")) == []
    assert not world.core.wants_commit
    assert ids(world.deliver_broadcast("urgent", priority=HIGH)) == ["low", "urgent"]
    assert ids(world.deliver_broadcast("low again")) == []
    admission.pressure.level = 0
    assert world.core.wants_commit
    assert ids(world.settle()) == ["low again"]


@pytest.mark.parametrize("how", ["connects", "acknowledges", "subscribed", "refused"])
def test_an_urgent_broadcast_that_waits_is_adopted_under_pressure(how: str) -> None:
    world = world_with("a", window=2)
    if how == "acknowledges":
        world.publish("a")
        world.publish("a")
    elif how == "connects":
        world.detach(1)
    elif how == "subscribed":
        world.subscribe("news", user="a")
        group = world.take_group()
    world.broadcast("urgent", "news" if how == "subscribed" else "", priority=HIGH)
    world.follow()
    if how == "acknowledges":
        world.settle()
        world.ack(1, 2)
    elif how == "connects":
        world.attach(1, "a")
    elif how == "subscribed":
        world.append(group)
        world.core.group_committed(world.now_ms)
    else:
        world.take_group()
        world.core.group_refused()
        world.core.storage_back()
    world.core.admission.pressure.level = 2
    assert ids(world.settle()) == ["urgent"]


def test_a_request_undoes_the_one_before_it_that_is_being_written() -> None:
    world = world_with("a")
    for before, after in (((), ("news",)), (("news",), ())):
        world.subscribe(*after, user="a", remove=before)
        group = world.take_group()
        world.subscribe(*before, user="a", remove=after)
        world.append(group)
        world.core.group_committed(world.now_ms)
        assert [answer.topics for answer in of(world.settle(), wire.Subscribed)] == [[*after], [*before]]
        assert [*world.core.mailboxes["t:a"].topics] == [*before]
        world.subscribe("news", user="a")
        world.settle()


def test_numbers_acknowledged_between_unanswered_messages_hold_no_broadcast_back() -> None:
    world = world_with("a")
    last = 2 * world.config.window
    for number in range(last + 1):
        world.publish("a", f"p{number}")
        if 0 < number < last:
            world.ack_ids(1, f"p{number}")
    world.wait(10_000)
    world.checkpoint()
    assert world.core.mailboxes["t:a"].cold == (1, last + 1)
    assert ids(world.deliver_broadcast("b")) == ["b"]


# -- Storage. ----------------------------------------------------------------------------------------------------------
def test_what_is_spilled_is_the_position_and_reading_it_back_finds_the_body() -> None:
    world = world_with("a")
    pos = world.broadcast("b1")
    world.settle()
    world.detach(1)
    world.checkpoint(full=False)
    (blob,) = world.streams["t:a"].values()
    assert (decode_stored(blob).pos, decode_stored(blob).envelope.body) == (pos, b"")
    assert not world.core.mailboxes["t:a"].hot
    said = world.connect(2, "a")
    assert ids(said, 2) == ["b1"]
    body = world.core.mailboxes["t:a"].hot[1].envelope.body
    assert isinstance(body, SharedBody)


def test_what_the_log_dropped_is_a_gap_for_whom_it_was_spilled() -> None:
    world = world_with("a")
    pos = world.broadcast("b1")
    world.publish("a", "p1")
    world.detach(1)
    world.checkpoint(full=False)
    world.drop(pos)
    said = world.connect(2, "a")
    assert ids(said, 2) == ["p1"]
    assert len(of(said, wire.GapRange)) == 1


@pytest.mark.parametrize("appended", [True, False])
@pytest.mark.parametrize("dropped", [True, False])
def test_a_crash_gives_the_same_number_again_or_none(appended: bool, dropped: bool) -> None:
    world = world_with("a", "b")
    pos = world.broadcast("b1")
    world.follow()
    group = world.take_group()
    if appended:
        world.append(group)
    if dropped:
        world.drop(pos)
    world.crash()
    world.attach(1, "a")
    said = world.publish("a", "p1")
    expected = {
        (True, False): (["b1", "p1"], 0),
        (True, True): (["p1"], 1),
        (False, False): (["p1", "b1"], 0),
        (False, True): (["p1"], 0),
    }[appended, dropped]
    assert (ids(said), len(of(said, wire.GapRange))) == expected
    assert len({seq for seq, _ in delivered(said)}) == len(ids(said))


def test_a_refused_adoption_is_tried_again_when_storage_is_back() -> None:
    world = world_with("a")
    world.broadcast("b1")
    world.follow()
    assert world.core.take_group(world.now_ms) is not None
    world.core.group_refused()
    assert ids(world.settle()) == []
    world.core.storage_back()
    assert delivered(world.settle()) == [(1, 1)]


def test_a_group_that_is_built_again_numbers_the_broadcasts_again() -> None:
    world = world_with("a")
    world.publish("a", "p1")
    world.core.mailboxes["t:a"].recent.clear()
    world.post("a", "p1")
    world.broadcast("b1")
    world.follow()
    assert delivered(world.settle()) == [(2, 1)]


def test_the_cursor_survives_an_eviction() -> None:
    world = world_with("a")
    world.deliver_broadcast("b1")
    world.ack(1, 1)
    world.detach(1)
    world.settle()
    world.now_ms += 10_000
    world.persist()
    assert world.core.evict(world.now_ms) == 1
    assert ids(world.connect(2, "a"), 2) == []


def test_a_rescue_puts_the_body_back_the_cursor_and_the_subscriptions_too() -> None:
    world = world_with("a")
    world.subscribe("news", user="a")
    world.settle()
    pos = world.broadcast("b1", "news")
    world.settle()
    world.journal = [(1, payload) for payload in payloads(world.core.mailboxes.values(), 1 << 20)]
    world.log.clear()  # the log has lost it too
    world.crash()
    mailbox = world.core.mailboxes["t:a"]
    assert mailbox.hot[1].envelope.body == b'"id":"b1"'
    assert mailbox.log_pos == pos
    assert mailbox.topics == {"news": 0}


def test_a_damaged_adoption_leaves_numbers_unaccounted_for_and_a_damaged_subscription_does_not() -> None:
    world = world_with("a")
    world.subscribe("news", user="a")
    world.settle()
    world.deliver_broadcast("b1")
    topics, adopted = (unsealed(payload) for _, payload in world.journal)
    assert salvage_journal(sealed(topics[:-1] + b"\xc1")).complete is False  # where it ends is unknown
    assert salvage_journal(sealed(topics.replace(b"\xa4news", b"\xa4\xff\xff\xff\xff"))).complete is True
    assert salvage_journal(sealed(adopted.replace(b"t:a", b"\xff\xff\xff"))).complete is False


# -- Topics. -----------------------------------------------------------------------------------------------------------
def test_a_subscription_is_answered_when_it_is_durable_and_counts_from_then_on() -> None:
    world = world_with("a", "b")
    world.deliver_broadcast("before", "news")
    ref = world.subscribe("news", user="a")
    assert world.said() == []
    assert world.settle() == [wire.Subscribed(ref, wire.OK, ["news"])]
    world.broadcast("after", "news")
    said = world.deliver_broadcast("else", "other")
    assert (ids(said, 1), ids(said, 2)) == (["after"], [])


def test_what_is_published_while_the_subscription_is_on_its_way_is_for_the_subscriber() -> None:
    world = world_with("a")
    world.subscribe("news", user="a")
    group = world.take_group()
    world.broadcast("meanwhile", "news")
    world.broadcast("for all")
    world.follow()
    world.append(group)
    world.core.group_committed(world.now_ms)
    assert ids(world.settle()) == ["meanwhile", "for all"]


def test_a_new_connection_during_a_subscription_skips_nothing() -> None:
    world = world_with("a")
    world.subscribe("news", user="a")
    assert world.core.take_group(world.now_ms) is not None
    world.broadcast("early", "news")
    world.follow()
    world.attach(2, "a")
    world.core.group_committed(world.now_ms)
    assert ids(world.settle()) == ["early"]


def test_a_subscription_survives_a_crash_and_ends_with_unsubscribing() -> None:
    world = world_with("a")
    world.subscribe("news", "more", user="a")
    world.settle()
    world.crash()
    world.broadcast("one", "news")
    assert ids(world.connect(1, "a")) == ["one"]
    ref = world.subscribe(user="a", remove=["news"])
    assert of(world.settle(), wire.Subscribed) == [wire.Subscribed(ref, wire.OK, ["more"])]
    world.broadcast("two", "news")
    assert ids(world.deliver_broadcast("three", "more")) == ["three"]


def test_a_subscription_survives_an_eviction() -> None:
    world = World(adopt_max=100)
    world.subscribe("news", user="a")
    world.settle()
    world.now_ms += 10_000
    world.checkpoint()
    assert world.core.evict(world.now_ms) == 1
    world.broadcast("one", "news")
    assert ids(world.connect(1, "a")) == ["one"]


def test_subscribing_again_changes_nothing_and_is_answered_by_a_group() -> None:
    world = world_with("a")
    world.subscribe("news", user="a")
    world.settle()
    world.detach(1)
    world.broadcast("one", "news")
    world.follow()
    ref = world.subscribe("news", user="a")
    assert world.said() == [], "at a successor it may change something"
    assert world.settle() == [wire.Subscribed(ref, wire.OK, ["news"])]
    assert ids(world.connect(2, "a"), 2) == ["one"]


def test_more_topics_than_allowed_are_refused_and_fewer_never_are() -> None:
    world = world_with("a", topics_per_user_max=2)
    refs = [world.subscribe("x", "y", user="a"), world.subscribe("z", user="a"), world.subscribe(user="a", remove=["x"])]
    said = world.settle()
    assert sorted(of(said, wire.Subscribed), key=lambda answer: answer.ref) == [
        wire.Subscribed(refs[0], wire.OK, ["x", "y"]),
        wire.Subscribed(refs[1], wire.OVERLOADED, ["x", "y"]),
        wire.Subscribed(refs[2], wire.OK, ["y"]),
    ]


def test_without_storage_a_subscription_is_refused_and_one_under_way_waits_for_the_rollback() -> None:
    world = world_with("a")
    first = world.subscribe("x", user="a")
    assert world.core.take_group(world.now_ms) is not None
    second = world.subscribe("y", user="a")
    world.core.group_refused()
    third = world.subscribe("z", user="a")
    assert [(answer.ref, answer.status) for answer in world.said()] == [(second, wire.UNAVAILABLE), (third, wire.UNAVAILABLE)]
    world.core.storage_back()
    assert world.said() == [wire.Subscribed(first, wire.UNAVAILABLE, [])]
    assert world.core.mailboxes["t:a"].topics == {}


def test_a_token_makes_its_connection_a_member_also_of_what_came_while_nobody_was_there() -> None:
    world = World()
    world.deliver_broadcast("before", "team")
    assert ids(world.connect(1, "a", topics=["team"])) == ["before"]
    world.detach(1)
    world.deliver_broadcast("meanwhile", "team")
    assert ids(world.connect(2, "a", topics=["team"]), 2) == ["before", "meanwhile"]


def test_a_membership_ends_with_its_connection_and_begins_with_it_when_others_are_there() -> None:
    world = world_with("a")
    world.broadcast("one", "team")
    assert ids(world.deliver_broadcast("for all")) == ["for all"]
    world.deliver_broadcast("two", "team")
    assert "two" not in ids(world.connect(2, "a", topics=["team"]), 2)
    said = world.deliver_broadcast("three", "team")
    assert (ids(said, 1), ids(said, 2)) == (["three"], ["three"])
    world.detach(2)
    assert ids(world.deliver_broadcast("four", "team")) == []


def test_a_renewed_token_ends_the_memberships_it_does_not_name_and_begins_new_ones_from_here_on() -> None:
    world = World()
    world.connect(1, "a", topics=["team", "news"])
    world.deliver_broadcast("old news", "sport")
    world.tell(wire.Rejoin(1, ("news", "sport")))
    for topic in ("team", "news", "sport"):
        world.broadcast(f"to {topic}", topic)
    assert ids(world.settle()) == ["to news", "to sport"]
    world.tell(wire.Rejoin(1, ()))
    assert ids(world.deliver_broadcast("to nobody", "news")) == []


def test_a_renewed_token_counts_for_what_the_mailbox_has_not_adopted_yet_and_for_no_other_connection() -> None:
    world = World()
    world.connect(1, "a", topics=["team"])
    world.broadcast("not adopted yet", "team")
    world.follow()
    assert ids(world.ask(wire.Rejoin(1, ()))) == []
    world.connect(2, "a", topics=["team"])
    world.tell(wire.Rejoin(1, ()))
    assert ids(world.deliver_broadcast("for the other token", "team"), 2) == ["for the other token"]


def test_a_token_renewed_while_the_page_is_read_counts() -> None:
    world = World()
    world.attach(1, "a", topics=["team"])
    world.tell(wire.Rejoin(1, ()))
    assert ids(world.deliver_broadcast("b1", "team")) == []


# -- Timers. -----------------------------------------------------------------------------------------------------------
def timer_of(world: World, sid: str = "1-x", ttl_ms: int = 1000) -> wire.Timer:
    return wire.Timer(sid, audience_key("t", ""), world.now_ms, 0, ttl_ms, Envelope("b1", b"d" * 8, LOW, True, b'"id":"b1"'))


def test_a_delayed_broadcast_goes_into_the_log_once_however_often_it_fires() -> None:
    world = world_with("a")
    world.core.fire([timer_of(world)], world.now_ms)
    world.core.fire([timer_of(world)], world.now_ms)
    assert not world.core.output.to_schedulers
    assert ids(world.settle()) == ["b1"]
    assert ids(world.fire([timer_of(world)])) == []
    assert [record for _, record in world.core.output.to_schedulers] == [wire.FireDone(["1-x"])] * 2
    assert len(world.log) == 1


def test_the_key_that_a_delayed_broadcast_could_be_cancelled_by_is_no_key_of_its_message() -> None:
    world = world_with("a")
    timer = timer_of(world)
    world.core.fire([replace(timer, envelope=replace(timer.envelope, collapse="notice"))], world.now_ms)
    (announcement,) = world.core.broadcast_audience.take_announcements()
    assert (announcement.entry.envelope.id, announcement.entry.envelope.collapse) == ("b1", "")
    assert b',"due":' in announcement.entry.envelope.body


def test_a_delayed_broadcast_that_storage_does_not_take_has_failed_and_may_fire_again() -> None:
    world = world_with("a")
    world.core.fire([timer_of(world)], world.now_ms)
    assert world.core.broadcast_audience.announcements
    assert len(world.core.broadcast_audience.take_announcements()) == 1
    world.core.fired_timers.failed(["1-x"])
    assert [record for _, record in world.core.output.to_schedulers] == [wire.FireFailed(["1-x"])]
    assert ids(world.fire([timer_of(world)])) == ["b1"]


def test_positions_are_sorted_in_every_journal_record() -> None:
    world = world_with("a", "b", "c")
    for number in range(4):
        world.broadcast(f"b{number}")
    world.follow()
    world.commit()
    assert len(world.journal) == len({slot_of(f"t:{user}") for user in "abc"})
    found = []
    for _, payload in world.journal:
        records = [record for record in decode_journal(payload) if isinstance(record, Adopted)]
        assert all(earlier.pos < later.pos for earlier, later in pairwise(records))
        found += [(seq, key) for record in records for key, seq in record.numbers]
    assert sorted(found) == [(seq, f"t:{user}") for seq in range(1, 5) for user in "abc"]


@pytest.mark.parametrize("known", [False, True])
def test_a_successor_gives_nobody_an_unretained_broadcast_of_before_they_came(known: bool) -> None:
    world = World()
    if known:
        world.publish()
        world.checkpoint()
    world.log_end = world.now_ms * 1000  # positions are microseconds
    world.deliver_broadcast("before", retain=False)
    world.now_ms += 1
    since_ms = world.now_ms
    assert len(delivered(world.connect(1, since_ms=since_ms))) == known
    world.log_end = world.now_ms * 1000
    world.broadcast("meanwhile", retain=False)
    world.crash()
    assert ids(world.connect(1, cursor=known, resume=True, sent=known, since_ms=since_ms)) == ["meanwhile"]


@pytest.mark.parametrize("resume", [False, True])
def test_a_successor_gives_the_unretained_to_the_older_of_two_connections(resume: bool) -> None:
    """Though it hears of the younger one first, which began after the broadcast."""
    world = World()
    since_ms = world.now_ms
    world.connect(1, since_ms=since_ms)
    world.now_ms += 1
    world.log_end = world.now_ms * 1000  # positions are microseconds
    world.broadcast("meanwhile", retain=False)
    world.now_ms += 1
    world.crash()
    assert not ids(world.connect(2, cursor=0 if resume else None, resume=resume, since_ms=world.now_ms))
    assert set(ids(world.connect(1, cursor=0, resume=True, since_ms=since_ms))) == {"meanwhile"}


def two_devices(**limits: int) -> tuple[World, int]:
    """A user with two connections, the second with a token that names a topic; and when that began, ms."""
    world = World(**limits)
    world.attach(1, "a", since_ms=world.now_ms)
    world.log_end = world.now_ms * 1000 + 1000  # positions are microseconds
    world.deliver_broadcast("before", "team")
    world.now_ms += 2
    world.log_end = world.now_ms * 1000
    world.connect(2, "a", topics=["team"], since_ms=world.now_ms)
    return world, world.now_ms


def cut_off(world: World, crash: bool) -> None:
    """The shard does not know of the second connection."""
    if crash:
        world.crash()
        world.attach(1, "a", 0, resume=True, since_ms=world.now_ms - 2)
    else:
        world.detach(2)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_a_token_counts_while_its_connection_is_announced_anew(crash: bool, retain: bool, passed: bool) -> None:
    """Though the user has another connection, with a token that does not name the topic, and what is for all has passed."""
    world, since_ms = two_devices()
    assert ids(world.deliver_broadcast("with both", "team"), 2) == ["with both"]
    world.ack(2, 1)
    world.checkpoint()
    cut_off(world, crash)
    world.broadcast("meanwhile", "team", retain=retain)
    if passed:
        world.broadcast("for all")
    assert ids(world.settle(), 1) == ["for all"] * passed
    world.attach(2, "a", 0, resume=True, sent=1, since_ms=since_ms, topics=["team"])
    assert sorted(ids(world.settle(), 2)) == ["for all"] * passed + ["meanwhile"]
    assert ids(world.settle()) == [], "once"


def test_an_owed_broadcast_follows_what_was_held_under_pressure() -> None:
    world, since_ms = two_devices()
    cut_off(world, crash=False)
    world.broadcast("meanwhile", "team")
    world.core.delivery.hold_low = True
    assert ids(world.deliver_broadcast("for all"), 1) == []
    world.core.delivery.hold_low = False
    world.attach(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"])
    assert delivered(world.settle(), 1) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("crash", [False, True])
def test_a_full_window_takes_owed_broadcasts_in_parts(crash: bool) -> None:
    world, since_ms = two_devices(window=2)
    cut_off(world, crash)
    for number in range(3):
        world.broadcast(f"team {number}", "team")
    assert ids(world.deliver_broadcast("for all"), 1) == ["for all"]
    got = ids(world.connect(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"]), 2)
    world.broadcast("newer")
    for seq in range(1, 6):
        got += ids(world.acknowledge(2, seq), 2)
    assert got == ["for all", "team 0", "team 1", "team 2", "newer"]


def test_a_lost_owed_broadcast_is_a_gap() -> None:
    world, since_ms = two_devices()
    cut_off(world, crash=False)
    world.broadcast("meanwhile", "team", ttl_ms=10)
    world.deliver_broadcast("for all")
    world.now_ms += 20
    world.drop(*world.core.broadcast_audience.log.expired(world.now_ms))
    said = world.connect(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"])
    assert ids(said, 2) == ["for all"]
    assert [(gap.first, gap.last) for gap in of(said, wire.GapRange) if gap.conn == 2] == [(2, 2)]


def test_a_token_is_owed_nothing_from_before_its_connection() -> None:
    world, since_ms = two_devices()
    world.core.closed(EDGE, world.now_ms)
    world.core.opened(EDGE)
    world.attach(1, "a", 0, resume=True, since_ms=since_ms - 2)
    world.deliver_broadcast("for all")
    assert ids(world.connect(2, "a", 0, resume=True, since_ms=since_ms + 5, topics=["team"]), 2) == ["for all"]


def during_a_group(world: World, happens: Callable[[], None]) -> None:
    """It happens between the taking of a group and its commit."""
    world.follow()
    group = world.take_group()
    happens()
    world.append(group)
    world.core.group_committed(world.now_ms)


def test_a_group_under_way_adopts_nothing_that_is_owed_a_second_time() -> None:
    world, since_ms = two_devices()
    world.broadcast("in the group", "team")
    during_a_group(world, lambda: world.detach(2))
    world.deliver_broadcast("for all")
    assert ids(world.connect(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"]), 2) == ["in the group", "for all"]


def test_broadcasts_passed_by_a_group_under_way_are_owed() -> None:
    world, since_ms = two_devices()
    cut_off(world, crash=False)
    world.broadcast("meanwhile", "team")
    world.broadcast("for all")
    during_a_group(world, lambda: world.attach(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"]))
    assert ids(world.settle(), 2) == ["for all", "meanwhile"]


@pytest.mark.parametrize("dropped", [False, True])
def test_a_topic_that_leaves_during_a_group_is_owed_nothing_of_it(dropped: bool) -> None:
    """Though its id is forgotten, or the log has dropped it."""
    world, since_ms = two_devices(recent_ids=2)
    pos = world.broadcast("in the group", "team")
    during_a_group(world, lambda: world.detach(2))
    world.broadcast("for all")
    for _ in range(3):
        world.post("a")
    world.settle()
    if dropped:
        world.drop(pos)
    said = world.connect(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"])
    assert ids(said, 2).count("in the group") == 1
    assert of(said, wire.GapRange) == []


def test_a_refused_group_adopts_nothing_of_a_topic_that_leaves_meanwhile() -> None:
    world, since_ms = two_devices()
    world.broadcast("in the group", "team")
    world.follow()
    assert world.core.take_group(world.now_ms) is not None
    world.detach(2)
    world.core.group_refused()
    world.core.storage_back()
    world.deliver_broadcast("for all")
    assert ids(world.connect(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"]), 2) == ["for all", "in the group"]


def test_another_connection_with_the_topic_meanwhile_takes_nothing_from_what_is_owed() -> None:
    world, since_ms = two_devices()
    cut_off(world, crash=False)
    world.broadcast("meanwhile", "team")
    world.deliver_broadcast("for all")
    world.attach(3, "a", topics=["team"])
    world.deliver_broadcast("to the other", "team")
    world.detach(3)
    assert ids(world.connect(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"]), 2) == ["for all", "to the other", "meanwhile"]


def test_the_older_connection_is_owed_more_when_it_is_announced_last() -> None:
    world, since_ms = two_devices()
    world.broadcast("early", "team")
    world.now_ms += 2
    world.log_end = world.now_ms * 1000
    world.attach(3, "a", topics=["team"])
    younger_since_ms = world.now_ms
    world.crash()
    world.attach(1, "a", 0, resume=True, since_ms=since_ms - 2)
    world.broadcast("late", "team")
    world.deliver_broadcast("for all")
    assert ids(world.connect(3, "a", 0, resume=True, since_ms=younger_since_ms, topics=["team"]), 3) == ["for all", "late"]
    assert ids(world.connect(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"]), 2) == ["for all", "late", "early"]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_a_subscription_made_meanwhile_takes_nothing_from_what_is_owed(crash: bool, passed: bool) -> None:
    world, since_ms = two_devices()
    cut_off(world, crash)
    world.broadcast("meanwhile", "team")
    if passed:
        world.broadcast("for all")
    world.settle()
    world.subscribe("team", user="a")
    world.settle()
    world.deliver_broadcast("subscribed", "team")
    world.attach(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"])
    assert ids(world.settle(), 2) == ["for all"] * passed + ["subscribed", "meanwhile"]


def test_a_renewed_token_is_owed_nothing_from_before_it_named_the_topic() -> None:
    world, since_ms = two_devices()
    world.tell(wire.Rejoin(2, ()))
    world.broadcast("not for the token", "team")
    world.deliver_broadcast("for all")
    world.tell(wire.Rejoin(2, ("team",)))
    world.detach(2)
    assert ids(world.connect(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"]), 2) == ["for all"]


def test_erasure_ends_what_is_owed() -> None:
    world, since_ms = two_devices()
    assert ids(world.deliver_broadcast("with both", "team"), 2) == ["with both"]
    world.ack(2, 1)
    world.detach(2)
    world.deliver_broadcast("for all")
    world.ask(wire.Erase(99, "t:a"))
    world.connect(4, "a")
    assert ids(world.connect(2, "a", 0, resume=True, sent=1, since_ms=since_ms, topics=["team"]), 2) == []


def test_owed_broadcasts_are_adopted_once_though_their_topic_leaves() -> None:
    world, since_ms = two_devices(adopt_max=1)
    cut_off(world, crash=False)
    names = [f"team {number}" for number in range(4)]
    for name in names:
        world.broadcast(name, "team")
    world.deliver_broadcast("for all")
    for _ in names:
        world.attach(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"])
        during_a_group(world, lambda: world.detach(2))
    assert {*ids(world.connect(2, "a", 0, resume=True, since_ms=since_ms, topics=["team"]), 2)} == {"for all", *names}
    assert world.core.mailbox_store.mailboxes["t:a"].head == 1 + len(names)
