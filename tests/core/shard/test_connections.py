"""Refusals: whatever dies or breaks before the dead-letter stream has a refused message, it is refused or comes again."""

from __future__ import annotations

import pytest

from engine.core.model.constants import HIGH, LOW
from engine.core.model.routing import slot_of
from engine.core.shard import connections
from engine.core.shard.presence import OFFLINE
from engine.core.wire import records as wire
from tests.support.shard_world import EDGE, World, connected_world, delivered, of


def refusing_the_second_of_three() -> World:
    """One connection has got three messages, and has refused the second. Nothing is written yet."""
    world = connected_world()
    for id in ("a", "b", "c"):
        world.post(id=id)
    assert delivered(world.settle()) == [(1, 1), (2, 1), (3, 1)]
    world.nack(1, "b")
    return world


def dead(world: World) -> list[str]:
    return [letter.message.envelope.id for letter in world.dead]


@pytest.mark.parametrize("written", ["by the journal", "by a page"])
def test_an_acknowledgement_behind_a_refusal_does_not_make_a_successor_forget_it(written: str) -> None:
    world = refusing_the_second_of_three()
    world.ack(1, 3)
    world.now_ms += 300
    assert world.commit()
    if written == "by a page":
        world.checkpoint()
    world.crash()
    assert [seq for seq, _ in delivered(world.connect(2), 2)] == [2], "it was refused, and nobody has it yet"
    assert world.core.mailboxes["t:u"].floor == 1


def test_once_it_is_among_the_dead_letters_the_acknowledgement_behind_it_counts_whole() -> None:
    world = refusing_the_second_of_three()
    world.acknowledge(1, 3)
    assert dead(world) == ["b"]
    world.now_ms += 300
    assert world.commit()
    world.crash()
    assert delivered(world.connect(2), 2) == []
    assert world.core.mailboxes["t:u"].floor == 3


def test_a_refusal_is_confirmed_when_the_dead_letters_have_the_message_and_not_before() -> None:
    world = refusing_the_second_of_three()
    assert of(world.said(), wire.NacksStored) == []
    assert of(world.settle(), wire.NacksStored) == [wire.NacksStored(1, ["b"])]


def test_what_is_settled_or_was_never_sent_is_confirmed_at_once() -> None:
    world = refusing_the_second_of_three()
    world.ack_ids(1, "a")
    world.settle()
    world.nack(1, "a", "b", "never sent")
    assert of(world.said(), wire.NacksStored) == [wire.NacksStored(1, ["a", "b", "never sent"])]
    assert dead(world) == ["b"]


def test_an_edge_that_repeats_itself_while_the_message_is_on_its_way_is_told_too() -> None:
    world = refusing_the_second_of_three()
    world.core.opened("edge-0/2")
    world.core.handle("edge-0/2", [wire.Attach(1, "t:u", 0, "e1", 1, "s1", "", True, 3), wire.Nack(1, ["b"], "cannot")], world.now_ms)
    world.settle()
    assert dead(world) == ["b"]
    world.core.closed(EDGE, world.now_ms)
    assert world.core.mailboxes["t:u"].floor == 2


def announced_after_a_crash() -> World:
    """The edge announces what outlived the shard: the connection had got all three messages, which only storage has now."""
    world = World(recent_ids=1)
    for id in ("a", "b", "c"):
        world.post(id=id)
    world.persist()
    world.crash()
    world.attach(1, cursor=0, resume=True, sent=3)
    return world


def test_a_refusal_of_what_only_storage_has_waits_for_the_read_and_so_does_what_is_acknowledged_behind_it() -> None:
    world = announced_after_a_crash()
    world.nack(1, "b")
    said = world.acknowledge(1, 3)
    assert dead(world) == ["b"]
    assert of(said, wire.NacksStored) == [wire.NacksStored(1, ["b"])]
    mailbox = world.core.mailboxes["t:u"]
    assert (mailbox.floor, mailbox.dying, mailbox.hot) == (3, {}, {})


def test_a_refusal_of_two_of_which_only_the_newer_id_is_known_takes_both() -> None:
    world = announced_after_a_crash()
    world.nack(1, "c", "a")
    said = world.acknowledge(1, 3)
    assert sorted(dead(world)) == ["a", "c"], "the acknowledgement behind it settles only what was not refused"
    assert of(said, wire.NacksStored) == [wire.NacksStored(1, ["c"]), wire.NacksStored(1, ["a"])]
    assert world.core.mailboxes["t:u"].floor == 3


def test_a_connection_that_ends_while_its_refusal_waits_for_a_read_leaves_nothing_behind() -> None:
    world = announced_after_a_crash()
    world.core.pages_loaded({key: world.page(key) for key in world.core.page_wait.take_pages_wanted()}, world.now_ms)
    world.nack(1, "b")
    world.ack(1, 3)
    world.detach(1)
    assert [seq for seq, _ in delivered(world.connect(2), 2)] == [1, 2, 3]
    assert dead(world) == []


# -- without a connection ----------------------------------------------------------------------------------------------
def offline_with_three(**changes: object) -> World:
    """The user is away; memory has neither the three messages nor their ids."""
    world = World(recent_ids=1, **changes)
    for id in ("a", "b", "c"):
        world.post(id=id)
    world.persist()
    world.crash()
    return world


def test_a_request_to_refuse_is_answered_when_the_dead_letters_have_its_messages() -> None:
    world = connected_world()
    for id in ("a", "b", "c"):
        world.post(id=id)
    world.settle()
    world.tell(wire.Refuse(9, "t:u", ["b", "c"], "cannot"))
    assert of(world.said(), wire.Settled) == []
    said = world.settle()
    assert (of(said, wire.Settled), dead(world)) == ([wire.Settled(9)], ["b", "c"])
    world.tell(wire.Refuse(10, "t:u", ["b", "never sent"], "cannot"))
    assert of(world.said(), wire.Settled) == [wire.Settled(10)]


@pytest.mark.parametrize("window", [8, 1])
def test_a_request_to_refuse_reads_what_only_storage_has(window: int) -> None:
    world = offline_with_three(window=window)
    said = world.ask(wire.Refuse(9, "t:u", ["b", "never sent"], "cannot"))
    assert (of(said, wire.Settled), dead(world)) == ([wire.Settled(9)], ["b"])
    assert [seq for seq, _ in delivered(world.connect(1), 1)] == [1, 3][:window]


@pytest.mark.parametrize("window", [8, 1])
def test_an_acknowledgement_by_http_reads_ids_that_only_storage_has(window: int) -> None:
    world = offline_with_three(window=window)
    world.tell(wire.Settle(9, "t:u", -1, ["b", "never sent"]))
    assert of(world.said(), wire.Settled) == []
    assert of(world.settle(), wire.Settled) == [wire.Settled(9)]
    assert [seq for seq, _ in delivered(world.connect(1), 1)] == [1, 3][:window]


def test_later_requests_do_not_begin_the_search_for_an_id_anew() -> None:
    world = offline_with_three(window=1)
    world.tell(wire.Settle(9, "t:u", -1, ["never sent"]))
    said = []
    for ref in range(10, 20):
        world.fetch()
        said += world.said()
        world.tell(wire.Settle(ref, "t:u", -1, ["never sent"]))
    assert wire.Settled(9) in said


def test_an_acknowledged_number_of_another_epoch_settles_nothing() -> None:
    world = World()
    world.post(id="a")
    world.publish(id="b")
    assert of(world.ask(wire.Settle(8, "t:u", 1, ["b"], 0, "e0")), wire.Settled) == [
        wire.Settled(8, "1 is a number of epoch e0, and this is e1")
    ]
    assert delivered(world.connect(1), 1) == [(1, 1), (2, 1)]
    assert of(world.ask(wire.Settle(9, "t:u", 1, [], 0, "e1")), wire.Settled) == [wire.Settled(9)]
    assert world.core.mailboxes["t:u"].floor == 1


def test_acknowledged_ids_are_settled_in_every_epoch() -> None:
    world = connected_world()
    world.publish(id="a")
    assert of(world.ask(wire.Settle(9, "t:u", -1, ["a"], 0, "e0")), wire.Settled) == [wire.Settled(9)]
    assert world.core.mailboxes["t:u"].floor == 1


def test_an_acknowledgement_by_http_that_waits_follows_its_slot() -> None:
    world = offline_with_three()
    world.core.pages_loaded({"t:u": world.page("t:u")}, world.now_ms)
    world.tell(wire.Settle(9, "t:u", -1, ["b"]))
    world.core.release([slot_of("t:u")])
    assert [(one.ref, one.conn) for one in of(world.said(), wire.Moved)] == [(9, -1)]


def test_a_request_to_refuse_outlives_the_last_connection() -> None:
    world = offline_with_three()
    world.attach(1, cursor=0, resume=True, sent=3)
    world.core.pages_loaded({key: world.page(key) for key in world.core.page_wait.take_pages_wanted()}, world.now_ms)
    world.tell(wire.Nack(1, ["a"], "cannot"), wire.Refuse(9, "t:u", ["b"], "cannot"))
    world.detach(1)
    assert of(world.settle(), wire.Settled) == [wire.Settled(9)]
    assert dead(world) == ["b"]


def test_a_request_to_refuse_is_forgotten_with_its_link_session_and_may_be_repeated() -> None:
    world = offline_with_three()
    world.core.pages_loaded({"t:u": world.page("t:u")}, world.now_ms)
    world.tell(wire.Refuse(9, "t:u", ["b"], "cannot"))
    world.core.closed(EDGE, world.now_ms)
    world.core.opened("edge-0/2")
    world.core.handle("edge-0/2", [wire.Refuse(9, "t:u", ["b"], "cannot")], world.now_ms)
    assert of(world.settle(), wire.Settled) == [wire.Settled(9)]
    assert dead(world) == ["b"]


def test_a_request_to_refuse_follows_its_slot_to_the_next_owner() -> None:
    world = offline_with_three()
    world.core.pages_loaded({"t:u": world.page("t:u")}, world.now_ms)
    world.tell(wire.Refuse(9, "t:u", ["b"], "cannot"))
    world.core.release([slot_of("t:u")])
    assert [(one.ref, one.conn) for one in of(world.said(), wire.Moved)] == [(9, -1)]
    world.fetch()
    assert of(world.said(), wire.Settled) == []


def test_erasing_the_user_answers_a_request_to_refuse() -> None:
    world = World()
    world.publish(id="a")
    world.tell(wire.Refuse(9, "t:u", ["a"], "cannot"), wire.Erase(10, "t:u"))
    while world.commit():
        pass
    assert of(world.said(), wire.Settled) == [wire.Settled(9)]


def test_requests_to_refuse_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUESTS_MAX", 1)
    world = World()
    for id in ("a", "b"):
        world.post(id=id)
    world.settle()
    world.tell(wire.Refuse(8, "t:u", ["a"], "cannot"), wire.Refuse(9, "t:u", ["b"], "cannot"))
    assert [(one.ref, one.status) for one in of(world.said(), wire.Rejected)] == [(9, wire.OVERLOADED)]
    assert of(world.settle(), wire.Settled) == [wire.Settled(8)]


# -- early copies ------------------------------------------------------------------------------------------------------
def test_acknowledging_an_early_copy_leaves_the_gaps_below_it_to_be_announced() -> None:
    world = World(window=1, conflate_offline_min=1)
    world.attach(1, early=True)
    for id, priority, collapse in (("a", LOW, ""), ("b", LOW, "k"), ("c", LOW, "k"), ("d", HIGH, "")):
        world.publish(id=id, priority=priority, collapse=collapse)
    world.ack_ids(1, "d")
    world.settle()
    world.ack_ids(1, "a")
    said = world.settle()
    assert of(said, wire.GapRange) == [wire.GapRange(1, 2, 2)], "the newer message of its key replaced it"
    assert delivered(said) == [(3, 1)]


# -- Frames of features. -----------------------------------------------------------------------------------------------
def test_a_resumed_connection_gets_no_early_copy_of_what_it_has() -> None:
    """It comes again in its place, behind the one that is to be read."""
    world = World(window=2)
    world.publish()
    world.persist()
    world.publish(priority=HIGH)
    world.crash()
    world.attach(1, cursor=0, resume=True, sent=2, early=True)
    said = world.settle()
    assert delivered(said) == [(1, 1), (2, 1)]
    assert of(said, wire.DeliverEarly) == []


def test_frames_reach_the_connections_of_their_user_and_are_answered() -> None:
    world = connected_world()
    world.connect(2)
    world.core.handle(EDGE, [wire.Show("part", [("t:u", b"{}"), ("t:nobody", b"{}")])], world.now_ms)
    assert of(world.said(), wire.Shown) == [wire.Shown("part", [(1, b"{}"), (2, b"{}")], True)]
    assert world.core.mailboxes.keys() == {"t:u"}, "nothing is loaded for a frame"


@pytest.mark.parametrize("kind", [wire.WEBSOCKET, wire.SSE, wire.POLL])
def test_a_connection_that_is_announced_twice_ends_once(kind: int) -> None:
    """What moved away and came back may have been announced before the edge hears that it had moved."""
    world = World()
    world.connect(1, kind=kind)
    world.publish("u")
    said = world.connect(1, cursor=0, resume=True, sent=1, kind=kind)
    assert delivered(said) == []
    said = world.publish("u")
    assert delivered(said) == [(2, 1)]
    assert world.core.connections.count == 1
    world.core.output.session_events.clear()
    world.detach(1, code=1000)
    assert world.core.connections.presence.state("t:u") == OFFLINE
    assert [event.event for event in world.core.output.session_events] == ["disconnect", "offline"]
