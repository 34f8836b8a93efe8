"""What a shard records of its messages: nothing without a history; with one every outcome, and what is journalled again after a crash."""

from __future__ import annotations

from typing import Any

from engine.core.model.envelope import Merge
from engine.core.wire.outcomes import ERASED, AcceptedOutcome, AcknowledgedOutcome, AnyOutcome, Outcome, SentOutcome, is_journalled
from engine.core.wire.records import Ack, Erase, Settle
from tests.support.shard_world import EDGE, World, connected_world


def recorded(world: World) -> list[AnyOutcome]:
    log = world.core.output.outcomes
    assert log is not None
    return log.take(1000)


def events(world: World) -> list[str]:
    """The names of what was recorded, connections left out."""
    names: dict[type, str] = {AcceptedOutcome: "accepted", SentOutcome: "sent", AcknowledgedOutcome: "acknowledged"}
    found = [names.get(type(outcome)) or outcome.event for outcome in recorded(world)]  # type: ignore[union-attr]
    return [event for event in found if event not in ("connect", "disconnect", "suspect", "back", "offline")]


def world_with_history(**limits: Any) -> World:
    return World(history_url="sqlite:///there-is-one", **limits)


def test_without_a_history_nothing_is_recorded() -> None:
    world = connected_world()
    world.publish()
    world.ack(1, 1)
    assert world.core.output.outcomes is None


def test_a_message_is_recorded_from_its_acceptance_to_its_acknowledgement() -> None:
    world = world_with_history()
    world.connect(1)
    recorded(world)
    world.publish()
    accepted, sent = recorded(world)
    assert isinstance(accepted, AcceptedOutcome)
    assert isinstance(sent, SentOutcome)
    assert (accepted.key, accepted.seq, accepted.id, sent.id, sent.seq, sent.attempt, sent.node) == ("t:u", 1, "m1", "m1", 1, 1, "edge-0")
    sent_ms = world.now_ms
    world.now_ms += 30
    world.core.handle(EDGE, [Ack(1, 1, sent_ms + 20)], world.now_ms)
    (acknowledged,) = recorded(world)
    assert isinstance(acknowledged, AcknowledgedOutcome)
    assert (acknowledged.id, acknowledged.sent_ms, acknowledged.client_ms, acknowledged.at_ms) == (
        "m1",
        sent_ms,
        sent_ms + 20,
        world.now_ms,
    )
    assert world.core.output.read_latency.exact[20] == 1
    assert world.core.output.clock_skew.exact[0] == 1


def test_repeats_revocations_and_acknowledgements_without_a_connection_are_recorded() -> None:
    world = world_with_history()
    world.attach(1)
    world.connect(2)
    world.publish()
    recorded(world)
    world.now_ms += 500
    world.core.delivery.due(["t:u"], world.now_ms)
    assert events(world) == ["sent", "sent"]
    world.ack(1, 1)
    assert events(world) == ["acknowledged", "revoked"]
    world.publish()
    recorded(world)
    world.tell(Settle(900, "t:u", 2, []))
    assert events(world) == ["acknowledged", "revoked", "revoked"]


def test_what_was_never_delivered_is_recorded_with_its_reason() -> None:
    world = world_with_history()
    world.publish(ttl_ms=100)
    world.now_ms += 200
    world.connect(1)
    found = [outcome for outcome in recorded(world) if isinstance(outcome, Outcome) and outcome.event in ("expired", "gap")]
    assert sorted((outcome.event, outcome.id) for outcome in found) == [("expired", "m1"), ("gap", "")]


def test_the_successor_of_a_killed_shard_records_the_same_acceptances_again() -> None:
    world = world_with_history()
    world.post()
    world.publish()
    before = [outcome for outcome in recorded(world) if is_journalled(outcome)]
    assert len(before) == 2
    world.crash()
    world.settle()
    assert [outcome for outcome in recorded(world) if is_journalled(outcome)] == before


def test_the_successor_of_a_killed_shard_records_the_same_adoptions_again() -> None:
    world = world_with_history()
    world.connect(1)
    world.drop(world.broadcast("b1"))
    world.deliver_broadcast("b2", category="news", more=b',"type":"notice"')
    before = [outcome for outcome in recorded(world) if is_journalled(outcome)]
    (accepted,) = before
    assert isinstance(accepted, AcceptedOutcome)
    assert (accepted.id, accepted.seq, accepted.kind, accepted.category) == ("b2", 2, "notice", "news")
    world.crash()
    world.settle()
    assert [outcome for outcome in recorded(world) if is_journalled(outcome)] == before


def test_a_message_that_counts_in_a_window_is_recorded_as_merged() -> None:
    world = world_with_history()
    world.publish(collapse="likes", merge=Merge(1000, False))
    (merged,) = recorded(world)
    assert isinstance(merged, Outcome)
    assert (merged.event, merged.id, merged.reason) == ("merged", "m1", "window: likes")
    world.now_ms += 1500
    world.core.tick(world.now_ms)
    world.settle()
    assert events(world) == ["accepted"]


def test_what_a_cursor_acknowledges_in_storage_is_recorded() -> None:
    world = world_with_history()
    for _ in range(3):
        world.post()
    world.settle()
    world.checkpoint()  # nobody is connected: the bodies leave memory
    recorded(world)
    world.attach(1, cursor=2)
    found = [outcome for outcome in recorded(world) if isinstance(outcome, AcknowledgedOutcome)]
    assert [(outcome.id, outcome.seq) for outcome in found] == [("m1", 1), ("m2", 2)]


def test_an_erasure_is_recorded_behind_everything_else_of_its_user() -> None:
    world = world_with_history()
    world.publish()
    world.ask(Erase(7, "t:u"))
    assert events(world) == ["accepted", ERASED]
