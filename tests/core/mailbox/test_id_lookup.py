"""Which messages an id means, when it is pending more than once."""

from __future__ import annotations

from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.id_lookup import oldest_of, seqs_shown
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.wire.records import WEBSOCKET, Settle
from tests.support.shard_world import World, delivered


def mailbox_of(*ids: str, recent_max: int = 1) -> Mailbox:
    """One pending message for each id, numbered from 1; the last `recent_max` ids are remembered."""
    mailbox = Mailbox("t:u", 0)
    for seq, id in enumerate(ids, 1):
        mailbox.append(Message(seq, Envelope(id, b"", 1, True, b"x"), 1000, 0), b"", recent_max)
    return mailbox


def shown_on_a_connection(mailbox: Mailbox, *seqs: int) -> Attachment:
    connection = Attachment(("edge-0/1", 1), WEBSOCKET, "s", "d", 0, 0)
    for seq in seqs:
        connection.fly(mailbox.hot[seq], 0)
    return connection


def test_the_oldest_of_an_id_is_its_lowest_pending_number() -> None:
    mailbox = mailbox_of("a", "b", "a", "b")
    assert oldest_of(mailbox, ["a", "b", "unknown"]) == {"a": 1, "b": 2}


def test_a_message_that_is_being_refused_is_still_the_oldest_of_its_id() -> None:
    mailbox = mailbox_of("a", "b", "a")
    mailbox.refuse([1])
    assert list(mailbox.dying) == [1]
    assert oldest_of(mailbox, ["a"]) == {"a": 1}


def test_an_id_whose_message_is_not_in_memory_is_found_while_it_is_recent() -> None:
    mailbox = mailbox_of("a", "b", recent_max=8)
    mailbox.spilled = 2
    mailbox.cool()
    assert not mailbox.hot
    assert oldest_of(mailbox, ["a", "b"]) == {"a": 1, "b": 2}


def test_a_message_that_had_no_number_is_not_found_by_its_id() -> None:
    mailbox = mailbox_of("a")
    mailbox.remember("merged", 0, b"", 8)
    assert oldest_of(mailbox, ["merged"]) == {}


def test_on_a_connection_an_id_means_every_number_it_was_shown_there() -> None:
    mailbox = mailbox_of("a", "b", "a", "a")
    assert seqs_shown(mailbox, ["a"], shown_on_a_connection(mailbox, 3, 4)) == [3, 4]
    assert seqs_shown(mailbox, ["a"], shown_on_a_connection(mailbox, 1, 2, 3)) == [1, 3]


def test_on_a_connection_that_was_not_shown_an_id_it_means_the_oldest() -> None:
    mailbox = mailbox_of("a", "b", "a", "b")
    connection = shown_on_a_connection(mailbox, 4)
    assert seqs_shown(mailbox, ["b", "a"], connection) == [1, 4]
    assert seqs_shown(mailbox, ["unknown"], connection) == []


def _given_twice(*, window: int = 8, between: int = 0) -> World:
    """Two messages under one id, which storage had forgotten by the second, with others between them."""
    world = World(window=window, recent_ids=1)
    world.publish("u", "daily", idempotent=False)
    for _ in range(max(between, 1)):
        world.post("u")
    world.settle()
    world.publish("u", "daily", idempotent=False)
    return world


def test_an_id_that_is_pending_twice_is_acknowledged_where_it_was_shown_and_the_other_still_comes() -> None:
    world = _given_twice(window=2, between=2)
    assert delivered(world.connect(1)) == [(1, 1), (2, 1)]
    world.ack_ids(1, "daily")
    world.ack_ids(1, "m2")
    assert delivered(world.settle()) == [(3, 1), (4, 1)]
    world.ack_ids(1, "daily", "m3")
    assert delivered(world.wait(10_000)) == []


def test_an_id_that_was_shown_twice_is_acknowledged_for_both() -> None:
    world = _given_twice()
    assert delivered(world.connect(1)) == [(1, 1), (2, 1), (3, 1)]
    world.ack_ids(1, "daily")
    assert [seq for seq, _ in delivered(world.wait(1000))] == [2]


def test_an_acknowledgement_by_id_without_a_connection_is_of_the_oldest_that_is_pending() -> None:
    world = _given_twice()
    world.tell(Settle(9, "t:u", -1, ["daily"]))
    assert delivered(world.connect(1)) == [(2, 1), (3, 1)]


def test_a_refusal_by_id_is_of_one_message_and_said_twice_it_is_still_of_one() -> None:
    world = _given_twice()
    world.connect(1)
    world.nack(1, "daily")
    world.nack(1, "daily")
    world.settle()
    assert [letter.message.seq for letter in world.dead] == [1]
    assert [seq for seq, _ in delivered(world.wait(1000))][:2] == [2, 3]


def test_an_id_of_a_message_that_is_exhausted_on_the_connection_means_that_one_though_nothing_else_knows_it_any_more() -> None:
    mailbox = mailbox_of("a", "b", "a")
    connection = shown_on_a_connection(mailbox, 2)
    connection.exhausted = {1: (1000, "a")}
    mailbox.spilled = 1
    mailbox.cool()
    assert seqs_shown(mailbox, ["a"], connection) == [1]
