"""A record that ends its shard: which one it was, and how it is refused when it comes a third time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from engine.core.model.envelope import Envelope
from engine.core.model.routing import SlotMap, spread
from engine.core.shard.poison import RecordFailed, fingerprint, refused_after
from engine.core.wire.records import ACCEPTED, POISONED, UNAVAILABLE, Ack, Attach, FireDone, Hangup, Post, Posted, Timer
from tests.support.shard_world import EDGE, World, of

POST = Post(1, "t:bad", True, 2_000_000, Envelope("bad", b"d" * 8, 1, True, b'"id":"bad"'))
TIMER = Timer("3-x", "t:bad", 1_000_000, 0, 60_000, Envelope("late", b"d" * 8, 1, True, b'"id":"late"'))


class FailingMap(SlotMap, frozen=True):
    def owner(self, key: str) -> int:
        if key == "t:bad":
            raise ZeroDivisionError
        return super().owner(key)


class Failing(World):
    """Whatever concerns the user `bad` raises."""

    def _new_core(self) -> None:
        super()._new_core()
        self.core.slot_map = FailingMap(1, spread(1).owners, 1)


def test_a_record_that_is_sent_again_is_recognised() -> None:
    assert fingerprint(POST) == fingerprint(replace(POST, ref=9, expires_ms=3_000_000))
    assert fingerprint(POST) == fingerprint(replace(POST, envelope=replace(POST.envelope, body=b"taken later"))), "by its publisher"
    assert fingerprint(POST) != fingerprint(replace(POST, envelope=replace(POST.envelope, digest=b"e" * 8)))
    unrepeatable = replace(POST, envelope=replace(POST.envelope, digest=b""))
    assert fingerprint(unrepeatable) != fingerprint(replace(unrepeatable, envelope=replace(unrepeatable.envelope, body=b"other")))
    assert fingerprint(Ack(1, 5)) != fingerprint(Ack(1, 6))
    assert refused_after({"a": 1, "b": 2, "c": 3}) == {"b", "c"}


@pytest.mark.parametrize("record", [POST, Attach(1, "t:bad", 0, "", 0, "s", "")])
def test_the_failure_names_the_record_and_the_core_journals_nothing_more(record: Any) -> None:
    world = Failing()
    world.post("good")
    world.fetch()
    with pytest.raises(RecordFailed) as failure:
        world.tell(record)
    assert failure.value.record is record
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert world.core.take_group(world.now_ms) is None


def test_a_timer_that_fails_is_named() -> None:
    world = Failing()
    with pytest.raises(RecordFailed) as failure:
        world.core.fire([TIMER], world.now_ms)
    assert failure.value.record is TIMER


@pytest.mark.parametrize("timer", [False, True])
def test_what_fails_behind_its_page_is_named_as_it_will_be_sent_again(timer: bool) -> None:
    world = World()
    if timer:
        world.core.fire([TIMER], world.now_ms)
    else:
        world.tell(POST)
    world.core.post_queue.add = None  # type: ignore[method-assign,assignment]
    with pytest.raises(RecordFailed) as failure:
        world.settle()
    assert failure.value.record is (TIMER if timer else POST)


def test_a_refused_record_is_answered_and_the_rest_of_its_batch_is_taken() -> None:
    world = Failing()
    attach = Attach(1, "t:bad", 0, "", 0, "s", "")
    world.core.refused_records = frozenset(map(fingerprint, (POST, attach, TIMER)))
    good = replace(POST, ref=2, key="t:good", envelope=replace(POST.envelope, id="good"))
    world.core.handle(EDGE, [POST, attach, good], world.now_ms)
    records = world.fire([TIMER])
    assert [(answer.ref, answer.status, answer.detail) for answer in of(records, Posted)] == [(1, UNAVAILABLE, POISONED), (2, ACCEPTED, "")]
    assert of(records, Hangup) == [Hangup(1, 1011, POISONED)]
    assert world.core.output.to_schedulers == [(3, FireDone(["3-x"]))]
