"""ShardCore, one behaviour at a time, over a storage of dictionaries."""

from __future__ import annotations

import pytest

from engine.core.journal.stored_formats import decode_stored
from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.envelope import Envelope, Merge
from engine.core.model.message import Message
from engine.core.model.routing import slot_of
from engine.core.shard.shard import TICK_REST_MS
from engine.core.wire import records as wire
from tests.support.operations import calls_of
from tests.support.shard_world import EDGE, RETRY, World, connected_world, delivered, of


def test_nothing_is_answered_or_delivered_before_it_is_in_the_journal() -> None:
    world = connected_world()
    world.settle()
    world.post()
    group = world.take_group()
    assert world.said() == []
    world.append(group)
    world.core.group_committed(world.now_ms)
    said = world.said()
    assert [record.status for record in of(said, wire.Posted)] == [wire.ACCEPTED]
    assert delivered(said) == [(1, 1)]


def test_a_group_rolled_back_gives_its_numbers_again_and_shows_nothing() -> None:
    world = connected_world()
    world.settle()
    world.post("u", "lost")
    assert world.core.take_group(world.now_ms) is not None
    world.core.group_refused()
    assert not of(world.said(), wire.Posted), "storage may have taken it, and a crash before the rollback would leave it there"
    world.post("u", "refused at once")
    assert [record.status for record in of(world.said(), wire.Posted)] == [wire.UNAVAILABLE]
    world.core.storage_back()
    assert [record.status for record in of(world.said(), wire.Posted)] == [wire.UNAVAILABLE]
    said = world.publish("u", "kept")
    assert [(record.status, record.seq) for record in of(said, wire.Posted)] == [(wire.ACCEPTED, 1)]
    assert delivered(said) == [(1, 1)]


def test_a_repeated_id_gets_the_first_answer_and_another_payload_a_conflict() -> None:
    world = World()
    world.publish("u", "a")
    world.post("u", "a")
    world.post("u", "a", digest=b"other..!")
    assert [(record.status, record.seq) for record in of(world.settle(), wire.Posted)] == [(wire.DUPLICATE, 1), (wire.CONFLICT, 1)]


def test_a_repeated_id_within_one_group_is_stored_once() -> None:
    world = World()
    for _ in range(3):
        world.post("u", "a")
    said = of(world.settle(), wire.Posted)
    assert sorted((record.status, record.seq) for record in said) == [(wire.ACCEPTED, 1), (wire.DUPLICATE, 1), (wire.DUPLICATE, 1)]


def test_an_id_that_only_storage_remembers_is_a_duplicate_and_the_rest_of_its_group_is_kept() -> None:
    world = World(recent_ids=1)
    world.post("u", "a")
    world.publish("u", "b")
    world.post("u", "a")
    said = of(world.publish("u", "c"), wire.Posted)
    assert {record.ref: (record.status, record.seq) for record in said} == {3: (wire.DUPLICATE, 1), 4: (wire.ACCEPTED, 3)}


def test_an_id_whose_record_cannot_be_read_is_a_conflict_and_does_no_harm() -> None:
    world = World()
    world.ids["t:u", "a"] = b"garbage"
    world.post("u", "a")
    said = of(world.publish("u", "b"), wire.Posted)
    assert {record.ref: (record.status, record.seq) for record in said} == {1: (wire.CONFLICT, 0), 2: (wire.ACCEPTED, 1)}


def test_at_most_a_window_of_messages_is_in_flight() -> None:
    world = connected_world(window=3)
    for _ in range(7):
        world.post()
    assert delivered(world.settle()) == [(1, 1), (2, 1), (3, 1)]
    assert delivered(world.acknowledge(1, 2)) == [(4, 1), (5, 1)]


def test_a_window_of_bytes_limits_too_but_one_message_always_goes() -> None:
    world = connected_world(window_bytes=10)
    for _ in range(2):
        world.post("u", "a-long-identifier" + str(world.refs))
    assert delivered(world.settle()) == [(1, 1)]
    assert delivered(world.acknowledge(1, 1)) == [(2, 1)]


def test_a_message_not_acknowledged_comes_again_with_the_next_attempt_and_others_go_on_without_it() -> None:
    world = connected_world()
    assert delivered(world.publish()) == [(1, 1)]
    assert delivered(world.wait(10_000)) == [(1, 2), (1, 3)]
    assert delivered(world.publish()) == [(2, 1)]
    world.ack_ids(1, "m2")
    assert delivered(world.wait(10_000)) == [], "it waits for another connection"
    assert delivered(world.connect(2), 2) == [(1, 4)]


def test_a_client_that_was_quick_once_and_takes_its_time_afterwards_sees_no_repeats() -> None:
    world = connected_world()
    world.publish(id="quick")
    world.now_ms += 2
    world.ack(1, 1)
    for seq in range(2, 6):
        assert delivered(world.publish()) == [(seq, 1)]
        assert delivered(world.wait(350)) == []
        world.ack(1, seq)


def test_a_client_that_has_become_slow_is_given_more_time_after_one_message_was_repeated_for_it() -> None:
    world = connected_world()
    for seq in range(1, 41):
        world.publish()
        world.now_ms += 2
        world.ack(1, seq)
    world.publish()
    assert delivered(world.wait(600)) == [(41, 2), (41, 3)], "the timeout was down to its floor"
    world.ack(1, 41)
    assert delivered(world.publish()) == [(42, 1)]
    assert delivered(world.wait(350)) == []


def test_a_client_that_answers_nothing_gets_one_window_until_it_does() -> None:
    world = connected_world(window=2)
    for id in "abc":
        world.post("u", id)
    world.settle()
    world.wait(10_000)
    assert delivered(world.settle()) == []
    world.ack_ids(1, "b")
    assert delivered(world.settle()) == [(3, 1)]


def test_the_place_of_an_exhausted_message_is_free_when_another_device_acknowledges_it() -> None:
    world = connected_world(window=1)
    world.publish("u", "a")
    world.wait(10_000)
    world.ask(wire.Settle(9, "t:u", -1, ["a"]))
    assert delivered(world.publish("u", "b")) == [(2, 1)]


@pytest.mark.parametrize("ttl_ms", [300, 5000])
def test_the_place_of_an_exhausted_message_is_free_when_it_has_expired(ttl_ms: int) -> None:
    world = connected_world(window=1)
    world.publish("u", "a", ttl_ms=ttl_ms)
    world.wait(10_000)
    assert delivered(world.publish("u", "b")) == [(2, 1)]


def test_messages_behind_exhausted_ones_come_when_these_expire() -> None:
    world = connected_world(window=1)
    world.publish("u", "a", ttl_ms=20_000)
    world.post("u", "b")
    world.settle()
    world.wait(10_000)
    assert delivered(world.publish("u", "c")) == []
    world.now_ms += 11_000
    world.core.tick(world.now_ms)
    assert delivered(world.settle()) == [(2, 1)]


def test_a_timer_that_a_scheduler_lost_holds_no_evicted_mailbox() -> None:
    world = connected_world()
    world.publish()
    world.now_ms += 440  # about what it waits for an acknowledgement
    assert world.core.delivery.arms(world.now_ms)
    world.detach(1)
    world.persist()
    world.core.delivery.scheduler_reset(lambda _: True)
    assert world.core.evict(world.now_ms, 1 << 40) == 1
    world.connect(2)
    assert delivered(world.wait(10_000), 2) == [(1, 3), (1, 4)]


def test_only_mailboxes_whose_messages_have_expired_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    world, sent = World(window=1), list[str]()
    for conn, user in enumerate("uvw"):
        world.attach(conn, user)
        world.publish(user, ttl_ms=20_000 + conn * 1000)
        world.publish(user, ttl_ms=60_000)
    world.wait(10_000)
    send = world.core.delivery.send
    monkeypatch.setattr(world.core.delivery, "send", lambda mailbox, *rest: (sent.append(mailbox.key), send(mailbox, *rest)))
    world.now_ms += 11_000
    world.core.tick(world.now_ms)
    assert sent == ["t:u", "t:v"]


def test_a_client_that_left_before_its_messages_expired_is_sent_nothing() -> None:
    world = connected_world(window=1)
    world.publish("u", "a", ttl_ms=20_000)
    world.publish("u", "b")
    world.wait(10_000)
    world.detach(1)
    world.now_ms += 11_000
    world.core.tick(world.now_ms)
    assert delivered(world.settle()) == []


def test_nothing_acknowledged_comes_again_on_any_connection() -> None:
    world = connected_world()
    for _ in range(4):
        world.post()
    world.settle()
    world.ack(1, 2)
    world.ack_ids(1, "m4")
    world.detach(1)
    assert delivered(world.connect(2), 2) == [(3, 2)]


def test_an_acknowledgement_beyond_the_newest_message_is_a_fault_and_settles_nothing() -> None:
    world = connected_world()
    world.publish()
    said = world.acknowledge(1, 99)
    assert [record.code for record in of(said, wire.Fault)] == ["unknown_seq"]
    world.detach(1)
    assert delivered(world.connect(2), 2) == [(1, 2)]


def test_presenting_a_cursor_acknowledges_everything_up_to_it() -> None:
    world = World()
    for _ in range(3):
        world.post()
    world.settle()
    said = world.connect(1, cursor=2)
    assert [(w.resumed, w.from_seq, w.head) for w in of(said, wire.Welcome)] == [("ok", 3, 3)]
    assert delivered(said) == [(3, 1)]


def test_a_cursor_is_journalled_only_when_it_acknowledges_something() -> None:
    world = World()
    for _ in range(2):
        world.post()
    world.settle()
    world.attach(1, cursor=0)
    world.now_ms += world.core.config.ack_journal_ms
    assert world.core.take_group(world.now_ms) is None
    world.attach(2, cursor=1)
    world.now_ms += world.core.config.ack_journal_ms
    group = world.take_group()
    assert [(record.floor, record.acked) for record in group.handled] == [(1, [])]


def test_a_cursor_of_another_epoch_or_from_the_future_is_a_gap_and_delivery_from_the_oldest_pending() -> None:
    for cursor, epoch in ((1, "old"), (99, "e1")):
        world = World()
        world.publish()
        said = world.connect(1, cursor=cursor, epoch=epoch)
        assert [w.resumed for w in of(said, wire.Welcome)] == ["gap"]
        assert delivered(said) == [(1, 1)]


def test_a_cursor_from_the_future_is_answered_after_a_look_at_storage() -> None:
    world = World()
    world.publish()
    world.attach(1, cursor=2)
    world.attach(2, cursor=1)
    assert [(w.conn, w.resumed) for w in of(world.said(), wire.Welcome)] == [(2, "ok")]
    said = world.publish()
    assert [(w.conn, w.resumed) for w in of(said, wire.Welcome)] == [(1, "gap")]
    assert delivered(said, 1) == delivered(said, 2) == [(2, 1)]


def test_a_connection_whose_slot_leaves_meanwhile_is_sent_on() -> None:
    world = World()
    world.publish()
    world.attach(1, cursor=2)
    world.core.release([slot_of("t:u")])
    assert [record.conn for record in of(world.settle(), wire.Moved)] == [1]
    assert world.core.connections.attached() == []


def test_a_connection_that_ends_meanwhile_is_not_attached() -> None:
    world = World()
    world.publish()
    world.attach(1, cursor=2)
    world.detach(1)
    assert of(world.settle(), wire.Welcome) == []
    assert world.core.connections.attached() == []


def test_the_first_device_to_acknowledge_settles_it_and_the_others_hear_of_it() -> None:
    world = connected_world()
    world.attach(2)
    said = world.publish("u", "a")
    assert delivered(said, 1) == delivered(said, 2) == [(1, 1)]
    assert [(r.conn, r.ids) for r in of(world.acknowledge(2, 1), wire.Revoke)] == [(1, ["a"])]
    assert delivered(world.wait(10_000), 1) == []


def test_one_connection_too_many_ends_the_oldest() -> None:
    world = World(connections_per_user_max=2)
    for conn in (1, 2, 3):
        world.attach(conn)
    said = world.settle()
    assert [(h.conn, h.code) for h in of(said, wire.Hangup)] == [(1, 4409)]
    assert {record.conn for record in of(world.publish(), wire.Deliver)} == {2, 3}


def test_what_expired_is_announced_as_a_gap_before_anything_after_it() -> None:
    world = World()
    world.post(ttl_ms=1000)
    world.post(ttl_ms=1000)
    world.publish(ttl_ms=60_000)
    world.wait(2000)
    said = [record for record in world.connect(1) if isinstance(record, wire.GapRange | wire.Deliver)]
    assert [type(record) for record in said] == [wire.GapRange, wire.Deliver]
    assert (said[0].first, said[0].last) == (1, 2)
    assert delivered(said) == [(3, 1)]


def test_trimmed_messages_are_announced_as_a_gap() -> None:
    world = World(offline_max=5)
    for _ in range(8):
        world.post()
    world.settle()
    said = world.connect(1)
    assert [(r.first, r.last) for r in of(said, wire.GapRange)] == [(1, 3)]
    assert [seq for seq, _ in delivered(said)] == [4, 5, 6, 7, 8]


def test_what_was_trimmed_stays_gone_for_a_successor_that_has_the_journal_only() -> None:
    world = World(offline_max=5)
    for _ in range(5):
        world.post()
    world.settle()
    world.connect(1)
    for _ in range(3):
        world.post()
    world.settle()
    world.crash()
    assert [seq for seq, _ in delivered(world.connect(1))] == [4, 5, 6, 7, 8]


def test_offline_messages_leave_memory_and_come_back_from_the_stream() -> None:
    world = World(window=4)
    for _ in range(10):
        world.post()
    world.persist()
    assert world.core.mailboxes["t:u"].hot == {}
    assert world.journal == []
    world.attach(1)
    got: list[int] = []
    for _ in range(10):
        fresh = [seq for seq, _ in delivered(world.settle())]
        if not fresh:
            break
        got += fresh
        world.ack(1, fresh[-1])
    assert got == list(range(1, 11))


def test_what_becomes_cold_while_a_read_is_under_way_is_not_forgotten() -> None:
    world = World(window=2)
    for _ in range(4):
        world.post()
    world.persist()
    assert delivered(world.connect(1)) == [(1, 1), (2, 1)]
    world.ack_ids(1, "m2")  # room for 3, which is asked for
    reads = world.core.mailbox_store.take_reads_wanted(1000)
    assert [(read.first, read.last) for read in reads] == [(3, 4)]
    world.detach(1)
    world.checkpoint(full=False)
    world.core.read_done(reads[0], [decode_stored(world.streams["t:u"][seq]) for seq in (3, 4)], world.now_ms)
    got = delivered(world.connect(2), 2)
    assert [seq for seq, _ in got] == [1, 3]


def test_what_the_stream_has_lost_is_announced_as_a_gap() -> None:
    world = World()
    for _ in range(4):
        world.post()
    world.persist()
    del world.streams["t:u"][2]
    said = world.connect(1)
    assert [(r.first, r.last) for r in of(said, wire.GapRange)] == [(2, 2)]
    assert [seq for seq, _ in delivered(said)] == [1, 3, 4]


def test_a_disconnect_moves_the_unacknowledged_to_the_offline_stream_at_once() -> None:
    world = connected_world()
    world.publish()
    world.detach(1)
    assert world.core.mailbox_store.urgent
    world.checkpoint(full=False)
    assert list(world.streams["t:u"]) == [1]
    assert world.journal, "only a full checkpoint covers the journal"


def test_a_crash_loses_nothing_accepted_and_reuses_no_number() -> None:
    world = connected_world()
    for _ in range(3):
        world.post()
    world.settle()
    world.ack(1, 1)
    world.now_ms += 500
    world.settle()
    world.crash()
    world.post()
    assert delivered(world.connect(1)) == [(2, 1), (3, 1), (4, 1)]


def test_a_crash_between_checkpoint_and_trim_applies_nothing_twice() -> None:
    world = World()
    for _ in range(3):
        world.post()
    world.settle()
    journal = list(world.journal)
    world.checkpoint()
    world.journal = journal
    world.crash()
    said = world.connect(1)
    assert delivered(said) == [(1, 1), (2, 1), (3, 1)]
    assert of(said, wire.GapRange) == []


def test_what_is_committed_while_a_checkpoint_is_filled_survives_a_crash_behind_it() -> None:
    world = World()
    users = [f"u{n}" for n in range(5)]
    for user in users:
        world.post(user)
    world.settle()
    for user in users:
        world.post(user)  # committed between the first filling, of two users, and the second
    world.checkpoint()
    world.crash()
    for conn, user in enumerate(users):
        world.attach(conn, user)
    said = world.settle()
    assert [delivered(said, conn) for conn in range(5)] == [[(1, 1), (2, 1)]] * 5
    assert of(said, wire.GapRange) == []


def test_attempts_go_on_counting_over_a_crash_and_an_eviction() -> None:
    world = connected_world()
    world.publish()
    world.detach(1)
    world.checkpoint(full=False)
    world.checkpoint()
    world.crash()
    assert delivered(world.connect(2), 2) == [(1, 2)]


def test_an_edge_that_announces_its_connections_again_does_not_get_everything_again() -> None:
    world = connected_world()
    for _ in range(3):
        world.post()
    world.settle()
    world.core.closed(EDGE, world.now_ms)
    world.core.opened(EDGE)
    said = world.ask(wire.Attach(1, "t:u", 0, "e1", 1, "s1", "", True, 3))
    assert of(said, wire.Welcome) == []
    assert delivered(said) == []
    assert [seq for seq, _ in delivered(world.wait(1000))][:2] == [2, 3]


def test_a_renewed_link_settles_no_gap_that_was_not_announced() -> None:
    world = connected_world()
    for id, ttl_ms in (("a", 60_000), ("b", 100), ("c", 60_000)):
        world.post(id=id, ttl_ms=ttl_ms)
    assert delivered(world.settle()) == [(1, 1), (2, 1), (3, 1)]
    world.core.closed(EDGE, world.now_ms)
    world.core.opened(EDGE)
    world.now_ms += 200
    assert of(world.connect(2), wire.GapRange) == [wire.GapRange(2, 2, 2)]
    world.attach(1, cursor=0, resume=True, sent=3)
    world.ack_ids(1, "c", "a")
    world.settle()
    assert of(world.connect(3), wire.GapRange) == [wire.GapRange(3, 2, 2)], "no connection but the second was sent it"


def test_a_connection_that_outlived_its_epoch_is_sent_to_reconnect() -> None:
    world = World()
    assert [(h.conn, h.code) for h in of(world.ask(wire.Attach(1, "t:u", 0, "e0", 5, "s1", "", True, 5)), wire.Hangup)] == [(1, 1012)]
    assert world.core.mailboxes["t:u"].connections == {}


def test_a_refused_message_goes_to_the_dead_letters_and_is_settled_only_then() -> None:
    world = connected_world()
    world.post("u", "bad")
    world.publish("u", "good")
    world.nack(1, "bad")
    assert world.core.mailboxes["t:u"].floor == 0
    world.checkpoint()
    assert list(world.streams["t:u"]) == [1, 2], "for storage it is pending until it is dead-lettered"
    world.settle()
    assert [(letter.message.envelope.id, letter.reason) for letter in world.dead] == [("bad", "cannot")]
    world.ack(1, 2)
    assert world.core.mailboxes["t:u"].floor == 2


def test_a_message_not_retained_is_suppressed_when_nobody_is_connected() -> None:
    world = World()
    assert [record.status for record in of(world.publish(retain=False), wire.Posted)] == [wire.SUPPRESSED]
    world.attach(1)
    said = world.publish(retain=False)
    assert delivered(said) == [(1, 1)]
    world.detach(1)
    world.checkpoint()
    world.publish()
    said = world.connect(2)
    assert [(r.first, r.last) for r in of(said, wire.GapRange)] == [(1, 1)]
    assert delivered(said, 2) == [(2, 1)]


def test_plain_sse_is_never_sent_a_message_twice_and_goes_on_when_bytes_are_written() -> None:
    world = World(window=2)
    world.attach(1, kind=wire.SSE)
    for _ in range(4):
        world.post()
    assert delivered(world.settle()) == [(1, 1), (2, 1)]
    assert delivered(world.wait(10_000)) == []
    assert delivered(world.ask(wire.Written(1, 2))) == [(3, 1), (4, 1)]
    world.detach(1)
    assert delivered(world.connect(2), 2)[:2] == [(1, 2), (2, 2)]


def test_a_poll_gets_everything_pending_and_its_end_makes_it_pending_again() -> None:
    world = World()
    world.publish()
    assert delivered(world.connect(1, kind=wire.POLL)) == [(1, 1)]
    world.detach(1)
    assert delivered(world.connect(2, cursor=1), 2) == []


def test_acknowledging_without_a_connection_reaches_offline_messages() -> None:
    world = World()
    world.post("u", "a")
    world.publish("u", "b")
    world.checkpoint()
    said = of(world.ask(wire.Settle(77, "t:u", -1, ["a"]), wire.Settle(78, "t:u", 99, [])), wire.Settled)
    assert [(s.ref, bool(s.error)) for s in said] == [(77, False), (78, True)]
    assert delivered(world.connect(1)) == [(2, 1)]


def test_a_probe_tells_whether_anyone_is_connected() -> None:
    world = World()
    world.tell(wire.Probe(1, "t:u", "c", 0))
    world.attach(1)
    assert [(p.ref, p.state) for p in of(world.ask(wire.Probe(2, "t:u", "c", 0)), wire.Probed)] == [(1, "offline"), (2, "connected")]


def test_a_durable_timer_takes_effect_once_however_often_it_fires() -> None:
    world = World(recent_ids=1)
    timer = wire.Timer("3-abc", "t:u", world.now_ms, world.now_ms, 60_000, Envelope("a", b"d" * 8, 1, True, b'"id":"a"'))
    world.connect(1)
    for _ in range(2):
        world.fire([timer, timer])
        world.publish()
    world.crash()
    world.fire([timer])
    assert [partition for partition, _ in world.core.output.to_schedulers] == [3]
    assert isinstance(world.core.output.to_schedulers[0][1], wire.FireDone)
    assert world.core.mailboxes["t:u"].head == 3


def test_a_durable_timer_that_comes_after_its_time_to_live_is_done_without_effect() -> None:
    world = World()
    world.core.fire([wire.Timer("3-abc", "t:u", world.now_ms - 5000, 0, 1000, Envelope("a", b"d" * 8, 1, True, b""))], world.now_ms)
    assert [record.sids for _, record in world.core.output.to_schedulers] == [["3-abc"]]
    assert world.core.take_group(world.now_ms) is None


def test_posts_that_wait_for_a_page_count_among_those_that_wait() -> None:
    world = World(posts_pending_max=3)
    for number in range(5):
        world.post(f"u{number}")
    assert [record.status for record in of(world.said(), wire.Posted)] == [wire.OVERLOADED, wire.OVERLOADED]
    assert sorted(record.status for record in of(world.settle(), wire.Posted)) == [wire.ACCEPTED] * 3
    for number in range(5):
        world.post(f"v{number}")
    keys = world.core.page_wait.take_pages_wanted()
    world.core.pages_failed(keys)
    world.said()
    world.post("w1")
    world.post("w2")
    world.post("w3")
    assert not of(world.said(), wire.Posted), "those that were refused wait no more"


@pytest.mark.parametrize(("kind", "again"), [(wire.SSE, []), (wire.WEBSOCKET, [(1, 2), (2, 2)])])
def test_after_a_restart_a_plain_event_stream_is_not_sent_again_what_it_has(kind: int, again: list[tuple[int, int]]) -> None:
    world = World()
    world.attach(1, kind=kind)
    for _ in range(2):
        world.post()
    assert len(delivered(world.settle())) == 2
    world.checkpoint()
    world.crash()
    assert delivered(world.connect(1, kind=kind, cursor=0, resume=True, sent=2)) == again
    assert delivered(world.publish()) == [(3, 1)]


def test_a_connection_that_is_ahead_has_its_part_read_and_the_others_lose_nothing() -> None:
    world = World(window=4)
    for _ in range(12):
        world.post()
    world.persist()
    world.crash()
    world.attach(1, kind=wire.SSE, cursor=0, resume=True, sent=8)  # it has written these, and nobody has acknowledged them
    assert delivered(world.settle()) == [(9, 1), (10, 1), (11, 1), (12, 1)]
    world.attach(2)
    got = []
    for _ in range(4):
        got += delivered(world.settle(), 2)
        world.ack(2, got[-1][0])
    assert [seq for seq, _ in got] == list(range(1, 13))


def test_a_delayed_message_is_revoked_by_its_own_id_only() -> None:
    mailbox = Mailbox("t:u", 0)
    mailbox.head = mailbox.spilled = 1
    mailbox.cold = (1, 1)
    mailbox.recent = {"a": (1, b""), "timer:3-x": (1, b"")}
    silent = Attachment(("edge-0/1", 1), wire.WEBSOCKET, "s", "", 1, 0)
    silent.exhausted = {1: (10_000, "a")}
    mailbox.connections[silent.conn] = silent
    assert mailbox.settle_through(1, None, 0, RETRY).revoked == {silent.conn: ["a"]}


def test_what_cools_while_a_later_part_is_read_is_not_lost() -> None:
    mailbox = Mailbox("t:u", 0)
    mailbox.head = mailbox.spilled = 9
    mailbox.cold = (6, 9)
    messages = {seq: Message(seq, Envelope(f"m{seq}", b"", 1, True, b""), 1 << 50, 0) for seq in range(1, 10)}
    mailbox.hot = {seq: messages[seq] for seq in range(1, 6)}
    mailbox.cool()
    assert mailbox.loaded(6, 7, [messages[6], messages[7]]) == 2
    assert [seq for seq in range(1, 10) if seq not in mailbox.hot and mailbox.is_cold(seq)] == [1, 2, 3, 4, 5, 8, 9]
    assert mailbox.loaded(8, 9, [messages[8]]) == 1
    assert mailbox.gone == [(9, 9)]
    assert mailbox.loaded(1, 5, [messages[seq] for seq in range(1, 6)]) == 5
    assert not [seq for seq in range(1, 9) if seq not in mailbox.hot]


def test_idle_mailboxes_leave_memory_and_come_back_whole() -> None:
    world = World()
    world.publish()
    world.checkpoint()
    world.now_ms += 5000
    assert world.core.evict(world.now_ms) == 1
    world.post()
    assert delivered(world.connect(1)) == [(1, 1), (2, 1)]


def test_a_user_of_another_shard_is_answered_with_moved() -> None:
    world = World()
    world.core.index = 1
    world.post()
    world.attach(1)
    assert [(m.ref, m.conn) for m in world.said()] == [(1, -1), (-1, 1)]


def test_a_connection_that_ends_while_its_page_is_read_is_never_attached() -> None:
    world = connected_world()
    world.detach(1)
    assert of(world.settle(), wire.Welcome) == []


def test_an_acknowledgement_that_comes_while_the_page_is_read_counts() -> None:
    world = connected_world()
    world.settle()
    world.publish()
    world.checkpoint()
    world.crash()
    world.attach(1, cursor=0, resume=True, sent=1)
    assert not [record for record in world.acknowledge(1, 1) if isinstance(record, wire.Deliver)]
    assert world.core.mailboxes["t:u"].floor == 1


def test_the_cost_of_stats_does_not_grow_with_the_mailboxes() -> None:
    few, many = World(), World()
    for world, count in ((few, 1), (many, 50)):
        for n in range(count):
            world.post(f"u{n}")
        world.settle()
    assert many.core.stats(0)["pending"] == 50
    assert calls_of(lambda: many.core.stats(0)) == calls_of(lambda: few.core.stats(0))


# -- Ticks. ----------------------------------------------------------------------------------------------------------------
def test_a_shard_with_nothing_under_way_asks_for_a_tick_a_second_later() -> None:
    world = connected_world()
    world.settle()
    assert world.core.next_tick_ms(world.now_ms) == world.now_ms + TICK_REST_MS


def test_a_shard_asks_for_a_tick_when_a_window_ends() -> None:
    world = World()
    world.publish(collapse="likes", merge=Merge(300))
    assert world.core.next_tick_ms(world.now_ms) == world.now_ms + 300


def test_a_shard_asks_for_a_tick_when_a_suspect_user_is_to_be_offline() -> None:
    world = connected_world()
    world.settle()
    world.detach(1)
    world.settle()
    world.now_ms += world.core.config.offline_after_ms - 400
    assert world.core.next_tick_ms(world.now_ms) == world.now_ms + 400
    world.now_ms += 500
    assert world.core.next_tick_ms(world.now_ms) == world.now_ms


def test_a_shard_with_posts_that_wait_is_ticked_at_once() -> None:
    world = connected_world()
    world.settle()
    world.post()
    assert world.core.next_tick_ms(world.now_ms) == world.now_ms
