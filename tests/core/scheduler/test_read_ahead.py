"""Reading timers ahead: the frontier never passes a timer that is not in memory."""

from __future__ import annotations

from engine.config import Config
from engine.core.model.envelope import Envelope
from engine.core.model.routing import spread, timer_id
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.firing import Firing
from engine.core.scheduler.read_ahead import ReadAhead
from engine.core.scheduler.scheduler_events import BEGINNING, ReadTimers, TimersRead
from engine.core.scheduler.timer_wheel import NEVER
from engine.core.wire.records import Timer

NOW = 1_790_000_000_000
KEY = "default:ann"


def loading(**settings: int) -> tuple[ReadAhead, Firing]:
    config = Config(timer_horizon_ms=10_000, **settings)  # type: ignore[arg-type]
    firing = Firing(config, spread(1), ClaimHorizon(config, 0, 0, NOW))
    return ReadAhead(config, [3], firing, NOW), firing


def timer(unique: str, due_ms: int) -> Timer:
    return Timer(timer_id(KEY, unique), KEY, due_ms, NOW, 1000, Envelope(unique, b"12345678", 1, True, b""))


def test_pages_follow_each_other_up_to_the_horizon_and_then_rest_for_half_of_it() -> None:
    part, firing = loading(timer_load_max=2)
    assert part.pages(NOW)[3].after == BEGINNING
    first, second, third = (timer(name, NOW + 1000) for name in "abc")
    part.loaded(3, TimersRead([first, second], (NOW + 1000, second.sid)), NOW, ())
    assert part.pages(NOW)[3] == ReadTimers((NOW + 1000, second.sid), NOW + 10_000, 2, 4 << 20)
    part.loaded(3, TimersRead([third], None), NOW, ())
    assert part.pages(NOW) == {}
    assert part.next_at() == NOW + 5001
    assert part.pages(NOW + 5000) == {}
    assert part.pages(NOW + 5001)[3].after == (NOW + 10_001, "")
    assert len(firing) == 3


def test_a_frontier_put_back_while_a_page_is_read_stays_back() -> None:
    part, _ = loading()
    part.pages(NOW)
    part.loaded(3, TimersRead([], None), NOW, ())
    assert part.pages(NOW + 6000) != {}
    part.rewind(3)
    part.loaded(3, TimersRead([], None), NOW + 6000, ())
    assert part.pages(NOW + 6000)[3].after == BEGINNING


def test_pages_that_could_not_be_read_are_asked_for_again() -> None:
    part, _ = loading()
    asked = part.pages(NOW)
    assert part.next_at() == NEVER
    part.abandon()
    assert part.pages(NOW) == asked


def test_a_page_never_brings_more_than_memory_has_room_for() -> None:
    part, firing = loading(timer_memory_max=10, timer_load_max=100)
    for n in range(7):
        firing.add(timer(f"{n}", NOW + 60_000), NOW)
    assert part.pages(NOW)[3].limit == 3


def test_a_timer_moved_by_a_request_whose_answer_was_lost_follows_storage() -> None:
    part, firing = loading()
    part.pages(NOW)
    firing.add(timer("a", NOW + 100), NOW)
    part.loaded(3, TimersRead([timer("a", NOW + 900)], None), NOW, ())
    known = firing.get(timer("a", 0).sid)
    assert known is not None
    assert known.due_ms == NOW + 900
