"""What a shard core hands out: session events stay within their limit, whatever storage does."""

from __future__ import annotations

import pytest

from engine.core.shard import output as module
from engine.core.shard.output import SessionEvent, ShardOutput
from tests.support.shard_world import World


def event(number: int) -> SessionEvent:
    return SessionEvent("connect", "t:u", f"s{number}", "", "edge-0", 0, number, 0)


def moments(output: ShardOutput) -> list[int]:
    return [event.at_ms for event in output.session_events]


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> ShardOutput:
    monkeypatch.setattr(module, "SESSION_EVENTS_MAX", 5)
    return ShardOutput()


def test_beyond_their_limit_the_oldest_session_events_are_dropped(output: ShardOutput) -> None:
    output.session_events.extend(event(n) for n in range(7))
    assert moments(output) == [2, 3, 4, 5, 6]
    assert [taken.at_ms for taken in output.take_session_events(2)] == [2, 3]
    assert moments(output) == [4, 5, 6]


@pytest.mark.parametrize(("later", "kept"), [(0, [0, 1, 2]), (3, [1, 2, 3, 4, 5]), (5, [3, 4, 5, 6, 7])])
def test_events_that_were_not_written_are_the_oldest_again_and_leave_first(output: ShardOutput, later: int, kept: list[int]) -> None:
    output.session_events.extend(event(n) for n in range(3))
    taken = output.take_session_events(9)
    output.session_events.extend(event(n) for n in range(3, 3 + later))
    output.return_session_events(taken)
    assert moments(output) == kept


def test_an_outage_with_many_reconnects_stays_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSION_EVENTS_MAX", 5)
    world = World()
    for _ in range(10):
        world.attach(1)
        world.core.pages_loaded(dict.fromkeys(world.core.take_pages_wanted()), world.now_ms)
        world.detach(1)
    assert len(world.core.output.session_events) == 5
