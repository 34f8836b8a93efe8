"""Conflation by collapse key: who is behind gets the newest and a count, who keeps up gets everything."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.constants import HIGH, LOW
from engine.core.model.envelope import Envelope
from engine.core.wire.records import SSE, Deliver, DeliverEarly, GapRange, Post, Revoke
from tests.support.shard_world import EDGE, World, connected_world, delivered, of
from tests.support.stored import decode_page


def counts(records: list[Any], conn: int = 1) -> list[tuple[str, int]]:
    """(id, how many messages it stands for) of everything delivered to the connection."""
    bodies = [json.loads(b"{" + body + b"}") for record in of(records, Deliver) if record.conn == conn for _, _, body in record.messages]
    return [(body["id"], body.get("count", 1)) for body in bodies]


def gaps(records: list[Any]) -> list[tuple[int, int]]:
    return [(record.first, record.last) for record in of(records, GapRange)]


def test_who_keeps_up_gets_every_message() -> None:
    world = connected_world()
    said = world.settle()
    for n in range(4):
        said += world.publish("u", f"a{n}", collapse="k")
    for n in range(4, 8):
        world.post("u", f"a{n}", collapse="k")  # one group: still nobody is behind
    said += world.settle()
    assert counts(said) == [(f"a{n}", 1) for n in range(8)]
    assert world.core.output.counters["conflated"] == 0


def test_behind_a_full_window_the_newest_stands_for_the_older_ones_and_the_gap_says_so() -> None:
    world = connected_world(window=2)
    for n in range(2):
        world.post("u", f"first{n}")
    said = world.settle()
    for n in range(5):
        said += world.publish("u", f"a{n}", collapse="k")
    said += world.publish("u", "other")
    assert counts(said) == [("first0", 1), ("first1", 1)]
    said = world.acknowledge(1, 2)
    assert gaps(said) == [(3, 6)]
    assert counts(said) == [("a4", 5), ("other", 1)]
    assert world.core.output.counters["conflated"] == 4


def test_messages_of_one_group_are_conflated_for_who_is_behind() -> None:
    world = connected_world(window=1)
    for n in range(2):
        world.post("u", f"x{n}")
    world.settle()
    for n in range(4):
        world.post("u", f"a{n}", collapse="k")
    world.settle()
    world.ack(1, 1)
    assert counts(world.acknowledge(1, 2))[-1] == ("a3", 4)


def test_for_the_offline_it_begins_when_more_than_a_few_wait() -> None:
    world = World(conflate_offline_min=3)
    for n in range(6):
        world.publish("u", f"a{n}", collapse="k")
    said = world.connect(1)
    assert counts(said) == [("a0", 1), ("a1", 1), ("a5", 4)]
    assert gaps(said) == [(3, 5)]


def test_a_superseded_message_in_the_offline_stream_stays_gone_over_eviction_and_crash() -> None:
    world = World(conflate_offline_min=1)
    for n in range(3):
        world.publish("u", f"a{n}", collapse="k")
        world.checkpoint()
        world.now_ms += 5000
        world.core.evict(world.now_ms)
    assert sorted(world.streams["t:u"]) == [1, 2, 3], "the stream still has them, the page knows better"
    world.crash()
    said = world.connect(1)
    assert gaps(said) == [(1, 2)]
    assert counts(said) == [("a2", 3)]


def test_a_crash_before_the_checkpoint_replays_the_same() -> None:
    world = World(conflate_offline_min=1)
    for n in range(3):
        world.publish("u", f"a{n}", collapse="k")
    world.crash()
    world.publish("u", "a3", collapse="k")
    said = world.connect(1)
    assert (gaps(said), counts(said)) == ([(1, 3)], [("a3", 4)])


def test_what_a_client_has_been_sent_is_not_superseded() -> None:
    for kind in (0, SSE):
        world = World(window=1, conflate_offline_min=0)
        world.attach(1, kind=kind)
        world.post("u", "shown", collapse="k")
        said = world.publish("u", "next", collapse="k")
        said += world.publish("u", "last", collapse="k")
        said += world.acknowledge(1, 1)
        assert counts(said) == [("shown", 1), ("last", 2)]
        world.detach(1)
        world.publish("u", "after", collapse="k")
        assert counts(world.connect(2), 2)[0] == ("last", 2)


def test_a_message_sent_while_its_successor_was_written_is_revoked_where_it_was_sent() -> None:
    world = connected_world(window=1)
    world.post("u", "x")
    world.publish("u", "a0", collapse="k")
    world.post("u", "a1", collapse="k")
    group = world.take_group()
    world.ack(1, 1)
    assert counts(world.said()) == [("a0", 1)], "sent after the group was built"
    world.append(group)
    world.core.group_committed(world.now_ms)
    said = world.settle()
    assert [(record.conn, record.ids) for record in of(said, Revoke)] == [(1, ["a0"])]
    assert counts(said) == [("a1", 2)]
    world.crash()
    said = world.connect(2, cursor=1)
    assert (gaps(said), counts(said, 2)) == ([(2, 2)], [("a1", 2)])


def test_an_early_copy_sent_while_its_successor_was_written_is_revoked() -> None:
    world = World(window=1)
    world.connect(1, early=True)
    world.publish("u", "x")
    world.publish("u", "other", priority=HIGH)  # an early copy: there is no room for another one
    world.publish("u", "a0", collapse="k", priority=HIGH)
    world.post("u", "a1", collapse="k", priority=HIGH)
    group = world.take_group()
    world.ack_ids(1, "other")
    assert [seq for record in of(world.said(), DeliverEarly) for seq, _, _ in record.messages] == [3]
    world.append(group)
    world.core.group_committed(world.now_ms)
    assert [(record.conn, record.ids) for record in of(world.settle(), Revoke)] == [(1, ["a0"])]


def test_a_lesser_message_supersedes_nothing_of_more_weight() -> None:
    world = World(conflate_offline_min=0)
    world.publish("u", "mention", collapse="k", priority=HIGH)
    world.publish("u", "noise", collapse="k", priority=LOW)
    said = world.connect(1)
    assert counts(said) == [("mention", 1), ("noise", 1)]
    world.detach(1)
    world.checkpoint()
    world.attach(2)
    world.post("u", "kept", collapse="q")
    assert ("kept", 1) in counts(world.publish("u", "fleeting", collapse="q", retain=False), 2)


def test_a_user_with_too_many_gaps_is_conflated_no_more_until_they_are_told() -> None:
    world = World(conflate_offline_min=0, gaps_max=2)
    for n in range(5):
        world.post("u", f"a{n}", collapse="k")
        world.publish("u", f"between{n}")
    mailbox = world.core.mailboxes["t:u"]
    assert len(mailbox.gone) == 2
    world.checkpoint()
    assert decode_page("t:u", world.pages["t:u"]).gone == [(1, 1), (3, 3)]


def test_only_the_keys_heard_of_last_are_remembered() -> None:
    world = World(conflate_offline_min=0, collapse_keys_max=2)
    for key in ("a", "b", "c", "a", "c"):
        world.publish("u", collapse=key)
    assert gaps(world.connect(1)) == [(3, 3)], "`a` was forgotten for `c`, `c` was not"


def test_a_repeated_id_of_a_superseded_message_gets_its_first_number() -> None:
    world = World(conflate_offline_min=0)
    world.post("u", "a0", collapse="k")
    world.publish("u", "a1", collapse="k")
    assert [record.seq for record in world.publish("u", "a0", collapse="k")] == [1]
    assert counts(world.connect(1)) == [("a1", 2)]


def test_a_post_without_a_collapse_key_is_as_it_was() -> None:
    post = Post(1, "t:u", True, 10**13, Envelope("i", b"d" * 8, 1, True, b'"id":"i"'))
    assert post.envelope.collapse == ""
    world = World()
    world.core.handle(EDGE, [post], world.now_ms)
    assert delivered(world.connect(1)) == [(1, 1)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30),
    st.integers(0, 5),
)
def test_every_message_of_a_key_is_delivered_or_stood_for_exactly_once(posts: list[tuple[str, bool]], offline_min: int) -> None:
    """The model: in order of their numbers, what is delivered of a key plus what is counted in it is everything of that key."""
    world = World(conflate_offline_min=offline_min, window=100, gaps_max=100)
    ids: dict[int, str] = {}
    for n, (key, committed) in enumerate(posts, 1):
        world.post("u", f"{key}{n}", collapse=key)
        ids[n] = key
        if committed:
            world.settle()
    world.settle()
    said = world.connect(1)
    left = {key: sum(other == key for other in ids.values()) for key in "abc"}
    for id, count in counts(said):
        left[id[0]] -= count
    assert set(left.values()) == {0}
    told = {number for first, last in gaps(said) for number in range(first, last + 1)}
    assert told.isdisjoint(seq for seq, _ in delivered(said))
    assert told | {seq for seq, _ in delivered(said)} == set(ids)
