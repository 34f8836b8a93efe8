"""The scheduler core against a model of what publishers were promised, with crashes, lost answers and races."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from engine.config import Config
from engine.core.model.envelope import Envelope
from engine.core.model.routing import SlotMap, spread, timer_id
from engine.core.scheduler import scheduler_events
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.scheduler import SchedulerCore
from engine.core.scheduler.timer_wheel import NEVER
from engine.core.wire import records as wire
from tests.support.timer_storage import TimerStorage

START = 1_790_000_000_123
USERS = [f"default:u{n}" for n in range(6)]
EDGE = "edge-0/e"


def timer(sid: str, key: str, due_ms: int, *, id: str = "", body: bytes = b'"id":"x"', collapse: str = "") -> wire.Timer:
    return wire.Timer(sid, key, due_ms, START, 60_000, Envelope(id or sid, b"12345678", 1, True, body, collapse))


class Rig:
    """A scheduler core with its storage, its shards and the time; shards are sessions that collect."""

    def __init__(self, config: Config | None = None, slots: SlotMap | None = None, storage: TimerStorage | None = None) -> None:
        self.config = config or Config(timer_removal_ms=0)
        self.slots = slots or spread(2)
        self.storage = storage or TimerStorage()
        self.now = START
        self.turn: scheduler_events.WriteTimers | None = None  # storage is asked for
        self.answers: list[wire.TimerAnswer] = []
        self.moved: list[wire.Moved] = []
        self.fired: list[tuple[str, wire.Timer]] = []  # (session, timer), also repeats
        self.fires: list[wire.Fire] = []
        self.due: list[tuple[str, str]] = []
        self.refs = 0
        self.core = self.core_of(self.config)
        self.handle(scheduler_events.Opened(EDGE))

    def core_of(self, config: Config) -> SchedulerCore:
        """A new incarnation."""
        claimed_ms = self.storage.take_over()
        return SchedulerCore(config, 0, self.slots, self.now, ClaimHorizon(config, claimed_ms, claimed_ms, self.now))

    def handle(self, event: scheduler_events.Event) -> None:
        for effect in self.core.handle(event, self.now):
            match effect:
                case scheduler_events.Send(session, wire.TimerAnswer() as answer):
                    assert session == EDGE
                    self.answers.append(answer)
                case scheduler_events.Send(session, wire.Moved() as moved):
                    assert session == EDGE
                    self.moved.append(moved)
                case scheduler_events.Send(session, wire.Fire() as fire):
                    self.fires.append(fire)
                    self.fired += [(session, fired) for fired in fire.timers]
                case scheduler_events.Send(session, wire.Due(keys)):
                    self.due += [(session, key) for key in keys]
                case scheduler_events.WriteTimers():
                    assert self.turn is None, "one turn of storage at a time"
                    self.turn = effect

    def send(self, session: str, *records: Any) -> None:
        self.handle(scheduler_events.Received(session, list(records)))

    def ref(self) -> int:
        self.refs += 1
        return self.refs

    def store(self) -> None:
        """Let storage do everything it is asked."""
        while self.turn is not None:
            self.store_once()

    def store_once(self) -> None:
        assert self.turn is not None
        turn, self.turn = self.turn, None
        self.handle(scheduler_events.TimersWritten(self.storage.apply(turn), self.storage.claimed_ms))

    def store_refused(self, reach_ms: int) -> None:
        """Storage does what it is asked, but has no memory for the claim."""
        assert self.turn is not None
        turn, self.turn = self.turn, None
        self.handle(scheduler_events.TimersWritten(self.storage.apply(replace(turn, claim_ms=0)), reach_ms))

    def fail(self, *, applied: bool = False) -> None:
        """Storage does not answer."""
        assert self.turn is not None
        turn, self.turn = self.turn, None
        if applied:
            self.storage.apply(turn)
        self.handle(scheduler_events.TimersNotWritten())

    def at(self, now_ms: int) -> None:
        """The time is come; what has to be claimed for it is claimed at once."""
        self.tick(now_ms)
        if self.turn is not None and not any(part.fired or part.moved or part.requests or part.page for part in self.turn.work):
            self.store_once()

    def tick(self, now_ms: int) -> None:
        self.now = now_ms
        self.handle(scheduler_events.Ticked())

    def ask(self, request: Any) -> wire.TimerAnswer:
        """One request, answered at once."""
        self.send(EDGE, request)
        self.store()
        return self.answers[-1]

    def schedule(self, user: int, delay_ms: int, unique: str, **fields: Any) -> str:
        sid = timer_id(USERS[user], unique)
        answer = self.ask(wire.Schedule(self.ref(), False, timer(sid, USERS[user], self.now + delay_ms, **fields)))
        assert answer.status == wire.SCHEDULED
        return sid

    def open(self, shard: int, session: str = "a") -> str:
        self.handle(scheduler_events.Opened(f"shard-{shard}/{session}"))
        self.store()
        return f"shard-{shard}/{session}"

    def open_all(self) -> None:
        for shard in set(self.slots.owners):
            self.open(shard)

    def crash(self) -> None:
        """A new incarnation: memory, sessions and what was under way are gone."""
        self.turn = None
        self.core = self.core_of(self.config)
        self.handle(scheduler_events.Opened(EDGE))
        self.store()

    def sids(self) -> list[str]:
        return [fired.sid for _, fired in self.fired]


def open_rig(config: Config | None = None, slots: SlotMap | None = None) -> Rig:
    """With a session of each shard."""
    rig = Rig(config, slots)
    rig.open_all()
    return rig


def fired_once() -> tuple[Rig, str]:
    """A rig of which one timer, due 10 ms after the start, was just handed out."""
    rig = open_rig()
    sid = rig.schedule(0, 10, "a")
    rig.at(START + 10)
    return rig, sid


# -- Durable timers. ---------------------------------------------------------------------------------------------------
def test_a_durable_timer_fires_on_its_millisecond_and_not_before() -> None:
    rig = open_rig()
    sid = rig.schedule(0, 250, "a")
    rig.at(START + 249)
    assert rig.fired == []
    rig.at(START + 250)
    assert rig.fired == [(f"shard-{rig.slots.owner(USERS[0])}/a", timer(sid, USERS[0], START + 250))]


def test_waking_only_when_told_fires_every_timer_on_its_millisecond() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_horizon_ms=5000))
    dues = {rig.schedule(n % 6, delay, f"t{n}"): START + delay for n, delay in enumerate([10, 300, 4000, 70_000, 71_000, 3_600_000])}
    while len(rig.fired) < len(dues):
        at_ms = rig.core.next_at()
        assert at_ms < NEVER
        rig.at(max(at_ms, rig.now))
        rig.store()
        for session, fired in rig.fired:
            if fired.sid in dues:
                assert dues.pop(fired.sid) == rig.now
                rig.send(session, wire.FireDone([fired.sid]))
                rig.store()
        rig.fired.clear()
        if not dues:
            break
    assert rig.storage.timers == {}


def test_a_confirmed_timer_is_removed_and_known_as_fired() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireDone([sid]))
    rig.store()
    assert rig.storage.timers == {}
    assert rig.ask(wire.Cancel(rig.ref(), "default", sid)).status == wire.ALREADY_FIRED
    rig.at(START + 100_000)
    assert len(rig.fired) == 1


def test_a_stored_timer_is_told_only_where_it_is_not_the_one_asked_for() -> None:
    rig = Rig()
    sid = rig.schedule(1, 1000, "x")
    armed = rig.storage.timers[sid]
    assert rig.ask(wire.Schedule(rig.ref(), False, armed)).timers == [armed]  # sent again: it was there
    later = timer(timer_id(armed.key, "y"), armed.key, armed.due_ms)
    assert rig.ask(wire.Schedule(rig.ref(), False, later)).timers == []
    assert later.sid in rig.storage.timers


def test_an_unconfirmed_timer_has_failed_after_the_refire_time_and_is_handed_out_again() -> None:
    rig, sid = fired_once()
    failed_ms = START + 10 + rig.config.timer_refire_ms
    rig.at(failed_ms)
    rig.at(failed_ms + rig.config.timer_retry_first_ms - 1)
    assert rig.sids() == [sid]
    rig.at(failed_ms + rig.config.timer_retry_first_ms)
    assert rig.sids() == [sid, sid]


def test_a_failed_timer_waits_longer_each_time_and_then_for_the_compensation_batch() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_failures_max=4, timer_retry_cap_ms=150))
    session = f"shard-{rig.slots.owner(USERS[0])}/a"
    sid = rig.schedule(0, 10, "a")
    handed = []
    rig.at(START + 10)
    for _ in range(5):
        handed.append(rig.now)
        rig.send(session, wire.FireFailed([sid]))
        before = len(rig.fired)
        while len(rig.fired) == before:
            at_ms = rig.core.next_at()
            assert at_ms < NEVER
            rig.at(max(at_ms, rig.now))
            rig.store()
    waits = [later - earlier for earlier, later in itertools.pairwise([*handed, rig.now])]
    assert waits == [100, 150, 150, rig.config.timer_compensate_ms, rig.config.timer_compensate_ms]
    assert rig.core.stats()["failed"] == 5
    assert rig.core.stats()["compensated"] == 2
    rig.send(session, wire.FireDone([sid]))
    rig.store()
    assert rig.storage.timers == {}
    assert rig.core.stats()["degraded"] == 0


def test_what_fails_on_a_busy_shard_waits_for_the_compensation_batch_and_delays_nothing() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_claims_max=10, timer_degrade_load=0.9))
    session = f"shard-{rig.slots.owner(USERS[0])}/a"
    sids = [rig.schedule(0, 10, f"a{n}") for n in range(12)]
    rig.at(START + 10)
    assert len(rig.fired) == 10
    rig.send(session, wire.FireFailed(sids[:1]))
    assert rig.core.stats()["degraded"] == 1
    assert sorted(rig.sids()) == sorted(sids[:11]), "what did not fail took its place"
    rig.send(session, wire.FireDone(sids[1:11]))
    rig.store()
    rig.at(START + 10 + rig.config.timer_compensate_ms)
    assert rig.sids()[-1] == sids[0]
    assert rig.core.stats()["degraded"] == 0


def _degraded(count: int) -> tuple[Rig, str, int]:
    """So many timers that failed too often, in batches of two, and when the first batch was handed out."""
    rig = open_rig(Config(timer_removal_ms=0, timer_failures_max=1, timer_batch=2))
    session = f"shard-{rig.slots.owner(USERS[0])}/a"
    sids = [rig.schedule(0, 10, f"a{n}") for n in range(count)]
    rig.at(START + 10)
    rig.send(session, wire.FireFailed(sids))
    rig.fired.clear()
    assert rig.core.stats()["degraded"] == count
    first_ms = START + 10 + rig.config.timer_compensate_ms
    rig.at(first_ms - 1)
    assert rig.fired == []
    rig.at(first_ms)
    assert len(rig.fired) == 2
    return rig, session, first_ms


def test_compensation_goes_on_at_once_when_the_shard_took_the_whole_batch() -> None:
    rig, session, first_ms = _degraded(5)
    rig.send(session, wire.FireDone(rig.sids()[:1]))
    rig.at(first_ms + 1)
    assert len(rig.fired) == 2, "one of the batch is still out"
    for confirmed, handed in ((slice(1, 2), 4), (slice(2, 4), 5), (slice(4, 5), 5)):
        rig.send(session, wire.FireDone(rig.sids()[confirmed]))
        rig.at(first_ms + 2)
        assert len(rig.fired) == handed
    rig.store()
    assert rig.storage.timers == {}


def test_compensation_waits_for_its_next_time_when_something_of_the_batch_failed_again() -> None:
    for answers in ([wire.FireFailed, wire.FireDone], [wire.FireDone, wire.FireFailed]):
        rig, session, first_ms = _degraded(5)
        for sid, answer in zip(rig.sids(), answers, strict=True):
            rig.send(session, answer([sid]))
        rig.at(first_ms + rig.config.timer_compensate_ms - 1)
        assert len(rig.fired) == 2
        rig.at(first_ms + rig.config.timer_compensate_ms)
        assert len(rig.fired) == 4


def test_a_lost_session_says_nothing_about_the_batch() -> None:
    rig, session, first_ms = _degraded(4)
    shard = rig.slots.owner(USERS[0])
    rig.handle(scheduler_events.Closed(session))
    again = rig.open(shard, "b")
    assert len(rig.fired) == 4, "the two of the batch fire again at once"
    rig.send(again, wire.FireDone(rig.sids()[2:]))
    rig.at(first_ms + rig.config.timer_compensate_ms - 1)
    assert len(rig.fired) == 4
    rig.at(first_ms + rig.config.timer_compensate_ms)
    assert len(rig.fired) == 6


def test_a_failure_is_forgotten_when_the_shard_comes_back() -> None:
    rig = open_rig()
    shard = rig.slots.owner(USERS[0])
    sid = rig.schedule(0, 10, "a")
    rig.at(START + 10)
    rig.handle(scheduler_events.Closed(f"shard-{shard}/a"))
    rig.send(rig.open(shard, "b"), wire.FireFailed([sid]))
    assert rig.core.stats()["failed"] == 1
    rig.at(START + 10 + rig.config.timer_retry_first_ms)
    assert rig.sids() == [sid, sid, sid]


# -- Coming again. -----------------------------------------------------------------------------------------------------
def test_a_timer_that_had_no_effect_fires_again_at_its_new_time_only() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 500)]))
    rig.store()
    assert rig.storage.timers[sid].due_ms == START + 500
    rig.at(START + 499)
    assert rig.sids() == [sid]
    rig.at(START + 500)
    assert [fired.due_ms for _, fired in rig.fired] == [START + 10, START + 500]
    rig.send(rig.fired[1][0], wire.FireDone([sid]))
    rig.store()
    assert rig.storage.timers == {}
    assert rig.core.stats()["postponed"] == 1


def test_what_is_to_come_again_far_away_leaves_memory() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 86_400_000)]))
    rig.store()
    assert rig.core.stats()["loaded"] == 0
    rig.at(START + 86_400_000)
    rig.store()
    assert rig.sids() == [sid, sid]


@pytest.mark.parametrize("stored", [False, True])
def test_a_timer_that_is_to_come_again_can_be_cancelled(stored: bool) -> None:
    rig, sid = fired_once()
    assert rig.ask(wire.Cancel(rig.ref(), "default", sid)).status == wire.ALREADY_FIRED
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 500)]))
    if stored:
        rig.store()
    assert rig.ask(wire.Cancel(rig.ref(), "default", sid)).status == wire.OK
    rig.at(START + 1000)
    rig.store()
    assert rig.sids() == [sid]
    assert rig.core.stats()["loaded"] == 0
    assert rig.core.idle


def test_who_moves_a_timer_that_is_to_come_again_has_the_last_word() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 500)]))
    assert rig.ask(wire.Reschedule(rig.ref(), "default", sid, START + 300)).status == wire.OK
    rig.at(START + 300)
    assert rig.sids() == [sid, sid]


def test_cancelling_all_of_a_user_includes_what_is_to_come_again() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 500)]))
    assert rig.ask(wire.CancelAll(rig.ref(), USERS[0])).count == 1
    rig.at(START + 1000)
    assert rig.sids() == [sid]
    assert rig.core.stats()["loaded"] == 0


def test_a_cancel_that_gets_to_storage_before_the_move_is_not_undone_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.core.scheduler.pending_removals.SETTLED_MAX", 1)
    rig = open_rig()
    first, second, third = (rig.schedule(0, 10, name) for name in "abc")
    rig.at(START + 10)
    rig.send(rig.fired[0][0], wire.FireAgain([(first, START + 500), (second, START + 500), (third, START + 500)]))
    rig.send(EDGE, wire.Cancel(rig.ref(), "default", second), wire.Reschedule(rig.ref(), "default", third, START + 900))
    rig.store()
    rig.at(START + 500)
    rig.store()
    assert rig.sids() == [first, second, third, first]
    rig.at(START + 900)
    assert rig.sids() == [first, second, third, first, third]
    assert rig.core.idle


def test_a_timer_that_cancelling_all_came_too_late_for_keeps_its_new_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.core.scheduler.pending_removals.SETTLED_MAX", 1)
    rig = Rig()
    sids = [rig.schedule(0, 10, name) for name in "abc"]
    rig.now = START + 10
    rig.crash()
    rig.open_all()
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 500) for sid in sids]))
    assert rig.ask(wire.CancelAll(rig.ref(), USERS[0])).count == 2, (
        "the third is not moved yet: an earlier scheduler may have handed it out"
    )
    rig.at(START + 500)
    assert rig.sids() == [*sids, sids[2]]


def test_a_timer_spared_by_cancelling_all_and_then_deferred_fires_again() -> None:
    rig, sid = fired_once()
    rig.send(EDGE, wire.Inspect(rig.ref(), "default", timer_id(USERS[1], "other")))  # storage is busy meanwhile
    rig.send(EDGE, wire.CancelAll(rig.ref(), USERS[0]))
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 500)]))
    rig.store()
    assert rig.answers[-1].count == 0
    rig.at(START + 500)
    rig.store()
    assert rig.sids() == [sid, sid]


def test_a_crash_before_the_move_is_stored_fires_at_the_old_time_and_one_after_it_at_the_new() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 5000)]))
    rig.crash()
    rig.open_all()
    assert [fired.due_ms for _, fired in rig.fired] == [START + 10, START + 10]
    rig.send(rig.fired[1][0], wire.FireAgain([(sid, START + 5000)]))
    assert rig.turn is not None
    rig.storage.apply(rig.turn)
    rig.crash()
    rig.open_all()
    rig.at(START + 4999)
    assert len(rig.fired) == 2
    assert rig.ask(wire.Inspect(rig.ref(), "default", sid)).timers[0].due_ms == START + 5000
    rig.at(START + 5000)
    assert len(rig.fired) == 3


def test_a_move_whose_answer_is_lost_is_repeated_and_fires_once() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 500)]))
    rig.fail(applied=True)
    rig.at(rig.now + 1000)
    assert rig.sids() == [sid], "it waits for storage, which may not have its new time"
    rig.store()
    assert rig.sids() == [sid, sid]


def test_a_timer_that_took_effect_by_another_copy_is_not_moved() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 500)]))
    rig.send(rig.fired[0][0], wire.FireDone([sid]))
    rig.store()
    rig.at(START + 1000)
    assert rig.sids() == [sid]
    assert rig.storage.timers == {}


def test_a_word_about_a_timer_that_was_not_handed_out_moves_nothing() -> None:
    rig = open_rig()
    sid = rig.schedule(0, 100, "a")
    rig.send(f"shard-{rig.slots.owner(USERS[0])}/a", wire.FireAgain([(sid, START + 500), ("3-unknown", START), ("nonsense", START)]))
    rig.store()
    rig.at(START + 100)
    assert rig.sids() == [sid]


def test_what_storage_refuses_to_move_waits_and_is_moved_later() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireAgain([(sid, START + 500)]))
    rig.storage.full = True
    rig.store()
    assert rig.turn is None, "storage is not asked again at once"
    rig.storage.full = False
    rig.at(START + 200)
    rig.store()
    rig.at(START + 500)
    assert rig.sids() == [sid, sid]


# -- Cancelling many. --------------------------------------------------------------------------------------------------
def test_all_timers_of_a_user_are_cancelled_and_nobody_elses() -> None:
    rig = open_rig()
    for n in range(3):
        rig.schedule(0, 100 + n, f"a{n}")
    far = rig.schedule(0, 86_400_000, "far")
    other = rig.schedule(1, 100, "other")
    answer = rig.ask(wire.CancelAll(rig.ref(), USERS[0]))
    assert (answer.status, answer.count) == (wire.OK, 4)
    assert far in rig.storage.cancelled
    rig.at(START + 1000)
    assert rig.sids() == [other]


def test_the_timers_of_a_collapse_key_are_listed_and_cancelled_together() -> None:
    rig = open_rig()
    cart = [rig.schedule(0, 100 + n, f"cart{n}", collapse="cart") for n in range(2)]
    order = rig.schedule(0, 100, "order", collapse="order")
    listed = rig.ask(wire.ListTimers(rig.ref(), USERS[0], 10, "cart"))
    assert [found.sid for found in listed.timers] == cart
    assert rig.ask(wire.CancelAll(rig.ref(), USERS[0], "cart")).count == 2
    assert rig.ask(wire.CancelAll(rig.ref(), USERS[0], "cart")).count == 0
    rig.at(START + 1000)
    assert rig.sids() == [order]


def test_a_timer_that_was_handed_out_is_not_among_the_cancelled() -> None:
    rig = open_rig()
    fired = rig.schedule(0, 10, "a")
    rig.schedule(0, 1000, "b")
    rig.at(START + 10)
    assert rig.ask(wire.CancelAll(rig.ref(), USERS[0])).count == 1
    assert fired in rig.storage.timers
    rig.send(f"shard-{rig.slots.owner(USERS[0])}/a", wire.FireDone([fired]))
    rig.store()
    assert rig.storage.timers == {}


def test_nothing_of_a_user_fires_while_cancelling_all_is_under_way() -> None:
    rig = open_rig()
    rig.schedule(0, 10, "a")
    sid = timer_id(USERS[0], "late")
    rig.send(EDGE, wire.CancelAll(rig.ref(), USERS[0]))
    rig.send(EDGE, wire.Schedule(rig.ref(), False, timer(sid, USERS[0], START + 20)))
    rig.at(START + 50)
    assert rig.fired == []
    rig.store()
    assert [answer.status for answer in rig.answers[-2:]] == [wire.OK, wire.SCHEDULED]
    rig.at(START + 51)
    assert rig.sids() == [sid], "what was scheduled after it stays"


def test_cancelling_all_that_was_given_up_lets_them_fire() -> None:
    rig = open_rig()
    sid = rig.schedule(0, 10, "a")
    rig.send(EDGE, wire.CancelAll(rig.ref(), USERS[0]))
    rig.fail()
    rig.at(START + rig.config.commit_retry_ms + 1)
    assert rig.answers[-1].status == wire.UNAVAILABLE
    rig.store()
    assert rig.sids() == [sid]


def test_a_lost_answer_about_cancelling_all_fires_nothing() -> None:
    rig = open_rig()
    rig.schedule(0, 10, "a")
    rig.send(EDGE, wire.CancelAll(rig.ref(), USERS[0]))
    rig.fail(applied=True)
    rig.at(START + 100)
    rig.store()
    assert rig.answers[-1].status == wire.OK
    rig.at(START + 1000)
    assert rig.fired == []
    assert rig.core.stats()["loaded"] == 0


def test_a_lost_session_gives_its_unconfirmed_timers_to_the_next_one_at_once() -> None:
    rig, sid = fired_once()
    session = rig.fired[0][0]
    rig.handle(scheduler_events.Closed(session))
    assert rig.sids() == [sid]
    rig.open(rig.slots.owner(USERS[0]), "b")
    assert rig.fired[1][0].endswith("/b")
    assert rig.sids() == [sid, sid]


def test_timers_wait_for_a_shard_without_a_session() -> None:
    rig = Rig()
    sid = rig.schedule(0, 10, "a")
    rig.at(START + 5000)
    assert rig.fired == []
    rig.open(rig.slots.owner(USERS[0]))
    assert rig.sids() == [sid]


def test_a_timer_of_a_shard_that_is_away_can_still_be_cancelled() -> None:
    rig = Rig()
    sid = rig.schedule(0, 10, "a")
    rig.at(START + 5000)
    assert rig.ask(wire.Cancel(rig.ref(), "default", sid)).status == wire.OK
    rig.open_all()
    assert rig.fired == []


def test_a_fire_record_has_at_most_a_batch_and_its_bytes() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_batch=3, timer_batch_bytes=4000))
    for n in range(7):
        rig.schedule(0, 10, f"small{n}")
    rig.at(START + 10)
    assert [len(fire.timers) for fire in rig.fires] == [3, 3, 1]
    rig.fires.clear()
    for n in range(3):
        rig.schedule(0, 10, f"large{n}", body=b"x" * 5000)
    rig.at(START + 20)
    assert [len(fire.timers) for fire in rig.fires] == [1, 1, 1]


def test_a_shard_gets_a_bounded_number_of_unconfirmed_timers_oldest_first() -> None:
    rig = Rig(Config(timer_removal_ms=0, timer_claims_max=4, timer_batch=3))
    sids = [rig.schedule(0, 100 - n, f"t{n}") for n in range(10)]
    rig.at(START + 1000)
    session = rig.open(rig.slots.owner(USERS[0]))
    oldest_first = sids[::-1]
    assert rig.sids() == oldest_first[:4]
    rig.send(session, wire.FireDone(oldest_first[:2]))
    assert rig.sids() == oldest_first[:6]


def test_what_was_due_while_the_engine_was_down_fires_at_once_and_cannot_be_cancelled() -> None:
    rig = Rig()
    sid = rig.schedule(0, 10, "a")
    rig.now = START + 3_600_000
    rig.crash()
    assert rig.ask(wire.Cancel(rig.ref(), "default", sid)).status == wire.ALREADY_FIRED
    assert rig.ask(wire.Reschedule(rig.ref(), "default", sid, rig.now + 1000)).status == wire.ALREADY_FIRED
    rig.open_all()
    assert rig.sids() == [sid]


def test_what_may_have_fired_before_a_restart_is_refused_without_asking_storage() -> None:
    rig = Rig()
    sid = rig.schedule(0, 10, "a")
    rig.now = START + 10
    rig.crash()
    rig.send(EDGE, wire.Cancel(7, "default", sid))
    assert rig.answers[-1] == wire.TimerAnswer(7, wire.ALREADY_FIRED)


def test_a_timer_that_was_handed_out_stays_claimed_when_its_shard_goes_and_memory_is_short() -> None:
    rig = Rig(Config(timer_removal_ms=0, timer_memory_max=8, timer_claims_max=2))
    session = rig.open(rig.slots.owner(USERS[0]))
    sids = [rig.schedule(0, 10 + n, f"{n}") for n in range(4)]
    rig.at(START + 100)
    assert rig.sids() == sids[:2]
    rig.handle(scheduler_events.Closed(session))
    for n in range(20):
        rig.schedule(0, 200 + n, f"more{n:02}")
    assert [rig.ask(wire.Cancel(rig.ref(), "default", sid)).status for sid in sids] == [
        wire.ALREADY_FIRED,
        wire.ALREADY_FIRED,
        wire.OK,
        wire.OK,
    ]


def test_a_timer_confirmed_while_a_page_with_it_is_read_is_not_handed_out_again() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_horizon_ms=1000))
    sid = rig.schedule(0, 600, "a")
    rig.at(START + 600)
    rig.store()
    rig.core._loading.rewind()
    rig.at(START + 601)
    assert rig.turn is not None
    done = rig.storage.apply(rig.turn)
    rig.turn = None
    rig.send(rig.fired[0][0], wire.FireDone([sid]))
    rig.handle(scheduler_events.TimersWritten(done, rig.storage.claimed_ms))
    rig.store()
    rig.at(START + 100_000)
    assert rig.sids() == [sid]
    assert rig.core.stats()["loaded"] == 0


def test_timers_beyond_the_horizon_are_not_in_memory_and_are_read_ahead_in_pages() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_horizon_ms=1000, timer_load_max=16))
    sids = [rig.schedule(0, 10_000, f"{n:02}") for n in range(10)]
    assert rig.core.stats()["loaded"] == 0
    rig.at(START + 9_600)
    rig.store()
    assert rig.core.stats()["loaded"] == 10
    rig.at(START + 10_000)
    assert rig.sids() == sids


def test_a_moved_timer_fires_at_its_new_time_only() -> None:
    rig = open_rig()
    sooner, later = rig.schedule(0, 500, "sooner"), rig.schedule(0, 500, "later")
    assert rig.ask(wire.Reschedule(rig.ref(), "default", sooner, START + 100)).timers[0].due_ms == START + 100
    assert rig.ask(wire.Reschedule(rig.ref(), "default", later, START + 900)).status == wire.OK
    rig.at(START + 100)
    assert rig.sids() == [sooner]
    rig.at(START + 899)
    assert rig.sids() == [sooner]
    rig.at(START + 900)
    assert rig.sids() == [sooner, later]


def test_a_timer_does_not_fire_while_its_cancel_is_under_way() -> None:
    rig = open_rig()
    sid = rig.schedule(0, 10, "a")
    rig.send(EDGE, wire.Cancel(7, "default", sid))
    rig.at(START + 1000)
    assert rig.fired == []
    rig.store()
    assert rig.answers[-1] == wire.TimerAnswer(7, wire.OK, [timer(sid, USERS[0], START + 10)])
    rig.at(START + 100_000)
    assert rig.fired == []


def test_a_timer_loaded_while_its_cancel_waits_does_not_fire() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_horizon_ms=1000, commit_records_max=1))
    sid = rig.schedule(0, 1500, "a")
    rig.at(START + 1400)  # a page with the timer is under way
    assert rig.turn is not None
    rig.send(EDGE, wire.Cancel(7, "default", sid))
    rig.store_once()
    rig.at(START + 1600)
    assert rig.fired == []
    rig.store()
    assert rig.answers[-1].status == wire.OK
    assert rig.fired == []


def test_a_timer_stored_while_its_cancel_waits_does_not_fire() -> None:
    rig = open_rig(Config(timer_removal_ms=0, commit_records_max=1))
    sid = timer_id(USERS[0], "a")
    rig.send(EDGE, wire.Schedule(1, False, timer(sid, USERS[0], START + 5)), wire.Cancel(2, "default", sid))
    rig.store_once()
    rig.at(START + 100)
    rig.store()
    assert [(answer.ref, answer.status) for answer in rig.answers] == [(1, wire.SCHEDULED), (2, wire.OK)]
    assert rig.fired == []


def test_a_cancel_given_up_lets_the_timer_fire_once_storage_says_that_it_is_there() -> None:
    rig = open_rig()
    sid = rig.schedule(0, 10, "a")
    rig.send(EDGE, wire.Cancel(7, "default", sid))
    rig.fail()
    rig.at(START + rig.config.commit_retry_ms)
    rig.fail()
    rig.at(rig.now + 1)
    assert (rig.answers[-1].ref, rig.answers[-1].status) == (7, wire.UNAVAILABLE)
    assert rig.sids() == []
    rig.at(rig.now + 1000)
    rig.store()
    assert rig.sids() == [sid]


def test_another_tenants_timer_is_unknown_and_stays_armed() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_horizon_ms=1000))
    near, far = rig.schedule(0, 900, "near"), rig.schedule(0, 5000, "far")
    for sid in (near, far):
        assert rig.ask(wire.Inspect(rig.ref(), "other", sid)).status == wire.NOT_FOUND
        assert rig.ask(wire.Cancel(rig.ref(), "other", sid)).status == wire.NOT_FOUND
        assert rig.ask(wire.Reschedule(rig.ref(), "other", sid, START)).status == wire.NOT_FOUND
    rig.at(START + 900)
    assert rig.sids() == [near]


@pytest.mark.parametrize("sid", ["", "nonsense", "99-a", "x-a", "1-", "-1-a", "01-a", "٣-a"])
def test_an_id_no_timer_can_have_is_unknown(sid: str) -> None:
    assert Rig().ask(wire.Inspect(1, "default", sid)).status == wire.NOT_FOUND


def test_a_listing_leaves_out_what_is_being_fired_and_a_page_of_it_leads_to_the_next() -> None:
    rig = open_rig()
    rig.schedule(0, 10, "a")
    later = rig.schedule(0, 1000, "b")
    rig.at(START + 10)
    assert [listed.sid for listed in rig.ask(wire.ListTimers(1, USERS[0], 10)).timers] == [later]
    first = rig.ask(wire.ListTimers(1, USERS[0], 1))
    assert first.detail == "truncated"
    last = first.timers[-1]
    assert [listed.sid for listed in rig.ask(wire.ListTimers(2, USERS[0], 1, "", last.due_ms, last.sid)).timers] == [later]


def test_requests_beyond_the_limit_are_refused_at_once() -> None:
    rig = Rig(Config(timer_removal_ms=0, timer_requests_max=2))
    rig.store()
    rig.send(EDGE, *(wire.ListTimers(n, USERS[0], 1) for n in range(10)))
    assert [(answer.ref, answer.status) for answer in rig.answers] == [(n, wire.OVERLOADED) for n in range(2, 10)]


def test_confirmed_timers_gather_before_storage_is_told_to_forget_them() -> None:
    rig = open_rig(Config(timer_removal_ms=100))
    sids = [rig.schedule(0, 10 + n, f"t{n}") for n in range(3)]
    for n, sid in enumerate(sids):
        rig.at(START + 10 + n)
        rig.send(rig.fired[0][0], wire.FireDone([sid]))
    assert rig.turn is None
    assert rig.core.next_at() == START + 110
    rig.at(START + 110)
    assert rig.turn is not None
    assert [part.fired.keys() for part in rig.turn.work] == [set(sids)]
    rig.store()
    assert rig.core.idle


def test_confirmed_timers_ride_along_with_a_request() -> None:
    rig = open_rig(Config(timer_removal_ms=100))
    sid = rig.schedule(0, 10, "a")
    rig.at(START + 10)
    rig.send(rig.fired[0][0], wire.FireDone([sid]))
    rig.schedule(0, 1000, "b")
    assert sid not in rig.storage.timers


def test_while_storage_is_away_timers_fire_and_their_removal_is_repeated() -> None:
    rig, sid = fired_once()
    rig.send(rig.fired[0][0], wire.FireDone([sid]))
    rig.fail()
    assert not rig.core.idle
    assert rig.core.stats()["storage"] == "down"
    rig.at(rig.now + 1000)
    rig.fail(applied=True)
    rig.at(rig.now + 1000)
    rig.store()
    assert rig.core.idle
    assert rig.storage.timers == {}
    assert len(rig.fired) == 1


def test_a_timer_whose_storing_was_given_up_but_happened_is_found_again() -> None:
    rig = open_rig()
    rig.store()
    sid = timer_id(USERS[0], "a")
    rig.send(EDGE, wire.Schedule(1, False, timer(sid, USERS[0], START + 5000)))
    rig.fail(applied=True)
    rig.at(START + rig.config.commit_retry_ms)
    rig.fail()
    rig.at(rig.now + 1000)
    assert rig.answers[-1].status == wire.UNAVAILABLE
    rig.store()
    rig.at(START + 5000)
    assert rig.sids() == [sid]


def test_requests_of_a_partition_are_applied_in_order() -> None:
    rig = Rig()
    rig.store()
    sid = timer_id(USERS[0], "a")
    rig.send(
        EDGE,
        wire.Schedule(1, False, timer(sid, USERS[0], START + 500)),
        wire.Reschedule(2, "default", sid, START + 700),
        wire.Inspect(3, "default", sid),
        wire.Cancel(4, "default", sid),
        wire.Inspect(5, "default", sid),
    )
    rig.store()
    assert [(answer.ref, answer.status) for answer in rig.answers] == [
        (1, wire.SCHEDULED),
        (2, wire.OK),
        (3, wire.OK),
        (4, wire.OK),
        (5, wire.NOT_FOUND),
    ]
    assert rig.answers[2].timers[0].due_ms == START + 700
    assert rig.core.stats()["loaded"] == 0


def test_a_repeated_schedule_stores_one_timer_and_gets_the_same_answer() -> None:
    rig = open_rig()
    sid = rig.schedule(0, 100, "a")
    assert rig.schedule(0, 100, "a") == sid
    rig.at(START + 100)
    assert rig.sids() == [sid]


def test_a_duplicate_brings_the_first_timer() -> None:
    rig = Rig()
    first, second = timer_id(USERS[0], "a"), timer_id(USERS[0], "b")
    rig.ask(wire.Schedule(1, True, timer(first, USERS[0], START + 100, id="mine")))
    answer = rig.ask(wire.Schedule(2, True, timer(second, USERS[0], START + 900, id="mine")))
    assert (answer.status, answer.detail) == (wire.DUPLICATE, first)
    assert [found.sid for found in answer.timers] == [first]


def test_a_newer_slot_map_sends_waiting_timers_to_the_new_owner() -> None:
    rig = Rig(slots=spread(1))
    sids = {rig.schedule(n, 100, "a") for n in range(6)}
    slots = spread(3, version=2)
    rig.handle(scheduler_events.SlotsRead(slots))
    rig.slots = slots
    rig.open_all()
    rig.at(START + 100)
    assert set(rig.sids()) == sids
    assert all(session == f"shard-{slots.owner(fired.key)}/a" for session, fired in rig.fired)


def test_a_timer_that_failed_goes_to_the_new_owner_of_its_slot() -> None:
    rig = open_rig(slots=spread(1))
    sids = [rig.schedule(n, 100, "a") for n in range(6)]
    rig.at(START + 100)
    rig.slots = spread(3, version=2)
    rig.handle(scheduler_events.SlotsRead(rig.slots))
    rig.at(START + 100 + rig.config.timer_refire_ms)
    rig.open(1), rig.open(2)
    rig.at(rig.now + rig.config.timer_retry_first_ms)
    assert sorted(rig.sids()) == sorted(2 * sids)


def test_memory_is_bounded_and_keeps_the_nearest_timers() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_memory_max=20))
    rig.store()
    dues = {rig.schedule(n % 6, 50_000 - 500 * n, f"t{n:03}"): START + 50_000 - 500 * n for n in range(90)}
    assert int(str(rig.core.stats()["loaded"])) <= 20
    seen = 0
    while dues:
        at_ms = rig.core.next_at()
        assert at_ms < NEVER
        rig.at(max(at_ms, rig.now))
        rig.store()
        for session, fired in rig.fired[seen:]:
            assert dues.pop(fired.sid) == rig.now
            rig.send(session, wire.FireDone([fired.sid]))
            rig.store()
            seen += 1
        assert int(str(rig.core.stats()["loaded"])) <= 20


def test_timers_that_a_shard_refuses_do_not_crowd_out_those_of_others() -> None:
    config = Config(timer_removal_ms=0, timer_memory_max=40, timer_load_max=10, timer_claims_max=5, timer_batch=5, timer_failures_max=1)
    rig = open_rig(config)
    full = next(number for number, user in enumerate(USERS) if rig.slots.owner(user) == 0)
    other = next(number for number, user in enumerate(USERS) if rig.slots.owner(user) == 1)
    refused = {rig.schedule(full, 100 + n, f"refused{n}") for n in range(100)}
    waiting = {rig.schedule(other, 300 + n, f"waiting{n}") for n in range(50)}
    done: set[str] = set()

    def let_pass(rounds: int, *, refuse: bool) -> None:
        for _ in range(rounds):
            rig.at(rig.now + 200)
            rig.store()
            fired, rig.fired = rig.fired, []
            for session, found in fired:
                if refuse and found.sid in refused:
                    rig.send(session, wire.FireFailed([found.sid]))
                else:
                    rig.send(session, wire.FireDone([found.sid]))
                    done.add(found.sid)
            rig.store()

    let_pass(100, refuse=True)
    assert done == waiting
    let_pass(400, refuse=False)
    assert done == waiting | refused
    assert rig.storage.timers == {}


def test_timers_of_a_shard_that_is_away_do_not_crowd_out_the_others() -> None:
    rig = Rig(Config(timer_removal_ms=0, timer_memory_max=20))
    owner = rig.slots.owner(USERS[0])
    others = [n for n in range(6) if rig.slots.owner(USERS[n]) != owner]
    rig.open(1 - owner)
    away = {rig.schedule(0, 10 + n, f"away{n:03}") for n in range(60)}
    rig.at(START + 1000)
    for n in range(40):
        sid = rig.schedule(others[n % len(others)], 100, f"here{n}")
        rig.at(rig.now + 100)
        assert rig.sids()[-1] == sid
        rig.send(rig.fired[-1][0], wire.FireDone([sid]))
        rig.store()
    assert int(str(rig.core.stats()["loaded"])) <= 20
    rig.fired.clear()
    session = rig.open(owner)
    while rig.fired:
        fired, rig.fired = rig.fired, []
        sids = [timer.sid for _, timer in fired]
        away -= set(sids)
        rig.send(session, wire.FireDone(sids))
        rig.store()
    assert away == set()


def test_requests_about_a_timer_that_wait_together_are_answered_as_in_one_order_when_the_first_answer_of_storage_is_lost() -> None:
    rig = Rig()
    sid = rig.schedule(0, 1000, "a")
    rig.send(EDGE, wire.Schedule(90, False, timer(timer_id(USERS[0], "b"), USERS[0], START + 1000)))  # storage is busy
    rig.send(EDGE, wire.Reschedule(91, "default", sid, START + 500))
    rig.send(EDGE, wire.Cancel(92, "default", sid))
    rig.store_once()
    rig.fail(applied=True)
    rig.tick(START + 100)
    rig.store()
    answered = {answer.ref: answer.status for answer in rig.answers}
    assert (answered[91], answered[92]) == (wire.NOT_FOUND, wire.OK), "as if it had been cancelled first"
    assert rig.ask(wire.Cancel(rig.ref(), "default", sid)).status == wire.OK, "its publisher may not have had the answer"


# -- Claims. -----------------------------------------------------------------------------------------------------------
def test_nothing_is_handed_out_before_its_claim_is_durable() -> None:
    rig = open_rig()
    sid = rig.schedule(0, 5000, "a")
    rig.tick(START + 5000)
    assert rig.fired == []
    rig.fail()
    rig.tick(START + 6000)
    assert rig.fired == []
    rig.store()
    assert rig.sids() == [sid]


def test_a_claim_that_storage_refuses_is_written_again_later() -> None:
    """Redis without memory answers at once: a scheduler that repeated it at once would take all the time of both."""
    rig = open_rig()
    sid = rig.schedule(0, 60_000, "a")
    reach_ms = rig.storage.claimed_ms
    rig.tick(START + 60_000)
    rig.store_refused(reach_ms)
    assert rig.turn is None
    assert rig.core.next_at() == rig.now + 50
    rig.tick(rig.now + 50)
    rig.store()
    assert [fired.sid for _, fired in rig.fired] == [sid]


def test_timers_that_follow_each_other_share_a_claim() -> None:
    rig = open_rig()
    for n in range(100):
        rig.schedule(n % 6, 3000 + 10 * n, f"t{n:02}")
    claims = 0
    while len(rig.fired) < 100:
        at_ms = rig.core.next_at()
        assert at_ms < NEVER
        before = len(rig.fired)
        rig.tick(max(at_ms, rig.now))
        claims += rig.turn is not None
        rig.store()
        assert all(fired.due_ms == rig.now for _, fired in rig.fired[before:]), "late"
    assert claims <= 2


def test_a_zombie_hands_out_only_what_its_successor_counts_as_claimed() -> None:
    rig = open_rig(Config(timer_removal_ms=0, timer_claim_ms=1000))
    near, far = rig.schedule(0, 400, "near"), rig.schedule(0, 1500, "far")
    zombie = rig.core
    rig.crash()
    assert rig.ask(wire.Cancel(rig.ref(), "default", near)).status == wire.ALREADY_FIRED
    assert rig.ask(wire.Cancel(rig.ref(), "default", far)).status == wire.OK
    effects = zombie.handle(scheduler_events.Ticked(), START + 10_000)
    assert [timer.sid for effect in effects if isinstance(effect, scheduler_events.Send) for timer in effect.record.timers] == [near]


def test_what_was_scheduled_after_a_clock_was_set_back_can_be_cancelled() -> None:
    rig = open_rig()
    before = rig.schedule(0, 10, "before")
    rig.now -= 3_600_000
    rig.crash()
    rig.open_all()
    after, far = rig.schedule(0, 600, "after"), rig.schedule(1, 1_800_000, "far")
    assert rig.ask(wire.Cancel(rig.ref(), "default", before)).status == wire.ALREADY_FIRED
    assert rig.ask(wire.Cancel(rig.ref(), "default", far)).status == wire.OK, "it is not in memory"
    assert rig.ask(wire.Cancel(rig.ref(), "default", after)).status == wire.OK
    rig.at(START + 10)
    rig.store()
    assert rig.sids() == [before]


# -- Partitions that move. ---------------------------------------------------------------------------------------------
def test_a_request_for_another_scheduler_s_partition_is_answered_with_the_slot_map_that_says_so() -> None:
    rig = open_rig(slots=spread(2, 7, schedulers=2))
    sids = [timer_id(user, "a") for user in USERS]
    for sid, user in zip(sids, USERS, strict=True):
        rig.send(EDGE, wire.Schedule(rig.ref(), False, timer(sid, user, START + 1000)))
    rig.store()
    own = [answer.ref for answer in rig.answers if answer.status == wire.SCHEDULED]
    assert own == [ref for ref, sid in enumerate(sids, 1) if int(sid.partition("-")[0]) % 2 == 0]
    assert rig.moved == [wire.Moved(ref, -1, 7) for ref in range(1, 7) if ref not in own]
    assert rig.moved
    assert own


def test_a_scheduler_that_the_slot_map_does_not_have_serves_no_partition_and_still_wakes_shards() -> None:
    slots = spread(2, 7)
    core = SchedulerCore(Config(), 1, slots, START, ClaimHorizon(Config(), 0, 0, START))
    assert core.handle(scheduler_events.Opened(EDGE), START) == []
    assert core.caught_up
    assert core.next_at() == NEVER
    request = wire.Cancel(1, "default", timer_id(USERS[0], "a"))
    assert core.handle(scheduler_events.Received(EDGE, [request]), START) == [scheduler_events.Send(EDGE, wire.Moved(1, -1, 7))]
    core.handle(scheduler_events.Opened("shard-0/a"), START)
    core.handle(scheduler_events.Received("shard-0/a", [wire.Arm("k", START + 10)]), START)
    assert core.handle(scheduler_events.Ticked(), START + 10) == [scheduler_events.Send("shard-0/a", wire.Due(["k"]))]


def test_a_scheduler_that_steps_down_writes_and_answers_what_it_has_taken_and_nothing_else() -> None:
    rig = Rig(Config(timer_removal_ms=100, commit_records_max=2))
    session = rig.open(rig.slots.owner(USERS[0]), "a")
    rig.ask(wire.Schedule(rig.ref(), False, timer(timer_id(USERS[0], "fires"), USERS[0], START + 10)))
    rig.store()
    rig.at(START + 10)
    rig.store()
    for n in range(5):
        rig.send(EDGE, wire.Schedule(rig.ref(), False, timer(timer_id(USERS[0], f"t{n}"), USERS[0], START + 10 + n)))
    fired = rig.sids()
    rig.send(session, wire.FireDone(fired))
    rig.handle(scheduler_events.Retired())
    rig.send(EDGE, wire.Cancel(99, "default", timer_id(USERS[0], "t4")))
    rig.at(START + 20)
    rig.store_once()  # what was under way
    while rig.turn is not None:
        assert not rig.core.idle
        assert rig.turn.claim_ms == 0, "nothing is claimed for hand-outs"
        assert all(part.page is None for part in rig.turn.work), "nor read"
        rig.store_once()
    assert [answer.status for answer in rig.answers[-5:]] == [wire.SCHEDULED] * 5
    assert 99 not in [answer.ref for answer in rig.answers], "its edge repeats it"
    assert rig.sids() == fired, "nothing more is handed out"
    assert rig.storage.fired == set(fired), "without waiting for more removals"
    assert rig.core.idle
    assert rig.core.next_at() == NEVER


def test_a_scheduler_that_steps_down_tries_again_when_storage_fails() -> None:
    rig = Rig()
    rig.send(EDGE, wire.Schedule(1, False, timer(timer_id(USERS[0], "a"), USERS[0], START + 1000)))
    rig.handle(scheduler_events.Retired())
    rig.fail()
    at_ms = rig.core.next_at()
    assert at_ms < NEVER
    rig.at(at_ms)
    rig.store()
    assert [answer.status for answer in rig.answers] == [wire.SCHEDULED]


# -- Volatile timers. --------------------------------------------------------------------------------------------------
def test_a_volatile_timer_is_due_once_at_its_latest_arming() -> None:
    rig = Rig()
    session = rig.open(0)
    rig.send(session, wire.Arm("k", START + 100), wire.Arm("k", START + 300), wire.Arm("other", START + 200))
    rig.at(START + 299)
    assert rig.due == [(session, "other")]
    rig.at(START + 300)
    assert rig.due == [(session, "other"), (session, "k")]
    rig.at(START + 1000)
    assert len(rig.due) == 2


def test_volatile_timers_go_with_their_session() -> None:
    rig = Rig()
    old, other = rig.open(0, "a"), rig.open(1, "a")
    rig.send(old, wire.Arm("k", START + 100))
    rig.send(other, wire.Arm("k", START + 100))
    rig.handle(scheduler_events.Closed(old))
    rig.open(0, "b")
    rig.at(START + 100)
    assert rig.due == [(other, "k")]


def test_nothing_to_do_means_nothing_to_wake_for_but_reading_ahead() -> None:
    rig = open_rig()
    assert rig.core.next_at() == START + rig.config.timer_horizon_ms // 2 + 1


# -- Everything at once. -----------------------------------------------------------------------------------------------
_TINY = Config(
    timer_horizon_ms=1000,
    timer_load_max=16,
    timer_memory_max=8,
    timer_batch=2,
    timer_claims_max=4,
    timer_refire_ms=500,
    commit_records_max=3,
    commit_retry_ms=300,
)


class Promises(RuleBasedStateMachine):
    """Whatever happens, what publishers were answered comes true."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(_TINY)
        self.rig.store()
        self.made = 0
        self.asked: dict[int, Any] = {}  # requests without an answer
        self.due: dict[str, int] = {}  # latest confirmed due time of stored timers
        self.unsure: set[str] = set()  # a request about it got no sure answer
        self.gone: set[str] = set()  # cancelled for sure
        self.doomed: set[str] = set()  # answered 409: it takes effect
        self.handed: set[str] = set()
        self.done: set[str] = set()
        self.again: dict[str, int] = {}  # not before this, unless the scheduler dies or the publisher moves it
        self.unconfirmed: dict[str, list[str]] = {}  # per open session
        self.sessions = 0
        self.zombies: list[SchedulerCore] = []
        self.latest = START
        self.before: dict[int, set[str]] = {}  # what a CancelAll is about

    # What has come out.
    def _look(self) -> None:
        for answer in self.rig.answers:
            self._answered(self.asked.pop(answer.ref), answer)
        self.rig.answers.clear()
        for session, fired in self.rig.fired:
            assert fired.sid not in self.gone, "cancelled, and fired"
            if fired.sid not in self.unsure:
                assert self.rig.now >= max(self.due.get(fired.sid, 0), self.again.get(fired.sid, 0)), "fired early"
            self.handed.add(fired.sid)
            if session in self.unconfirmed:
                self.unconfirmed[session].append(fired.sid)
        self.rig.fired.clear()

    def _answered(self, request: Any, answer: wire.TimerAnswer) -> None:
        if isinstance(request, wire.Schedule):
            if answer.status == wire.SCHEDULED:
                self.due[request.timer.sid] = request.timer.due_ms
            else:
                assert answer.status == wire.UNAVAILABLE
                self.unsure.add(request.timer.sid)
            return
        if isinstance(request, wire.CancelAll):
            self._cancelled_all(request, answer)
            return
        sid = request.sid
        if answer.status == wire.UNAVAILABLE:
            self.unsure.add(sid)
        elif answer.status == wire.ALREADY_FIRED:
            self.doomed.add(sid)
        elif answer.status == wire.OK and isinstance(request, wire.Cancel):
            assert sid not in self.handed, "fired, and answered as cancelled"
            self.gone.add(sid)
        elif answer.status == wire.OK:
            assert sid not in self.handed, "fired, and answered as moved"
            self.again.pop(sid, None)
            self.due[sid] = request.due_ms
        else:
            assert answer.status == wire.NOT_FOUND
            if not self._is_being_cancelled(sid):  # by a request that was applied before this one, and not answered yet
                assert sid in self.unsure or (sid in self.gone and not isinstance(request, wire.Cancel))
            self.gone.add(sid)

    def _is_being_cancelled(self, sid: str) -> bool:
        return any(
            sid in self.before[asked.ref] if isinstance(asked, wire.CancelAll) else isinstance(asked, wire.Cancel) and asked.sid == sid
            for asked in self.asked.values()
        )

    def _cancelled_all(self, request: wire.CancelAll, answer: wire.TimerAnswer) -> None:
        storage = self.rig.storage
        beside = {asked.timer.sid for asked in self.asked.values() if isinstance(asked, wire.Schedule) and asked.timer.key == request.key}
        before = self.before.pop(request.ref)
        if answer.status == wire.UNAVAILABLE:
            self.unsure |= before
            return
        cancelled = {sid for sid in before | beside if sid in storage.cancelled}
        assert not cancelled & self.handed, "fired, and cancelled with the others"
        self.gone |= cancelled
        inherited_ms = self.rig.core._horizon.inherited_ms
        left = {sid for sid in before if sid in storage.timers and not storage.is_claimed(storage.timers[sid], inherited_ms)}
        assert left <= self.handed, "neither cancelled nor handed out"

    def _ask(self, request: Any) -> None:
        self.asked[request.ref] = request
        self.rig.send(EDGE, request)
        self._look()

    # What can happen.
    @rule(user=st.integers(0, 5), delay=st.one_of(st.integers(-50, 100), st.integers(0, 3000)))
    def schedule(self, user: int, delay: int) -> None:
        self.made += 1
        sid = timer_id(USERS[user], f"{self.made:04}")
        self._ask(wire.Schedule(self.rig.ref(), False, timer(sid, USERS[user], self.rig.now + delay)))

    @precondition(lambda self: self.due)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._ask(wire.Cancel(self.rig.ref(), "default", data.draw(st.sampled_from(sorted(self.due)))))

    @rule(user=st.integers(0, 5))
    def cancel_all(self, user: int) -> None:
        request = wire.CancelAll(self.rig.ref(), USERS[user])
        waiting = [asked.timer for asked in self.asked.values() if isinstance(asked, wire.Schedule)]
        self.before[request.ref] = {known.sid for known in [*self.rig.storage.timers.values(), *waiting] if known.key == USERS[user]}
        self._ask(request)

    @precondition(lambda self: any(self.unconfirmed.values()))
    @rule(data=st.data())
    def shard_cannot(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(name for name, sids in self.unconfirmed.items() if sids)))
        self.rig.send(session, wire.FireFailed([self.unconfirmed[session].pop(0)]))
        self._look()

    @precondition(lambda self: any(self.unconfirmed.values()))
    @rule(data=st.data(), delay=st.integers(0, 3000))
    def shard_wants_it_again(self, data: st.DataObject, delay: int) -> None:
        session = data.draw(st.sampled_from(sorted(name for name, sids in self.unconfirmed.items() if sids)))
        sid = self.unconfirmed[session].pop(0)
        while sid in self.unconfirmed[session]:  # a shard answers the copies that are under way to it as it answered the first
            self.unconfirmed[session].remove(sid)
        if sid not in self.done and sid not in self.gone:
            self.handed.discard(sid)
            for sids in self.before.values():
                sids.discard(sid)  # a CancelAll of that time came too late for it
            self.doomed.discard(sid)
            self.again[sid] = self.rig.now + delay
        self.rig.send(session, wire.FireAgain([(sid, self.rig.now + delay)]))
        self._look()

    @precondition(lambda self: self.due)
    @rule(data=st.data(), delay=st.integers(0, 3000))
    def move(self, data: st.DataObject, delay: int) -> None:
        self._ask(wire.Reschedule(self.rig.ref(), "default", data.draw(st.sampled_from(sorted(self.due))), self.rig.now + delay))

    @rule(step=st.one_of(st.integers(1, 50), st.integers(1, 2000)))
    def time_passes(self, step: int) -> None:
        self.rig.tick(self.rig.now + step)
        self.latest = max(self.latest, self.rig.now)
        self._look()

    @precondition(lambda self: self.rig.turn is not None)
    @rule()
    def storage_answers(self) -> None:
        self.rig.store_once()
        self._look()

    @precondition(lambda self: self.rig.turn is not None)
    @rule(applied=st.booleans())
    def storage_fails(self, applied: bool) -> None:
        self.rig.fail(applied=applied)
        self._look()

    @rule(shard=st.integers(0, 1))
    def shard_opens(self, shard: int) -> None:
        self.shard_closes(shard)
        self.sessions += 1
        session = f"shard-{shard}/{self.sessions}"
        self.unconfirmed[session] = []
        self.rig.handle(scheduler_events.Opened(session))
        self._look()

    @rule(shard=st.integers(0, 1))
    def shard_closes(self, shard: int) -> None:
        for session in [name for name in self.unconfirmed if name.startswith(f"shard-{shard}/")]:
            del self.unconfirmed[session]
            self.rig.handle(scheduler_events.Closed(session))
        self._look()

    @precondition(lambda self: any(self.unconfirmed.values()))
    @rule(data=st.data())
    def shard_confirms(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(name for name, sids in self.unconfirmed.items() if sids)))
        self._confirm(session, data.draw(st.integers(1, len(self.unconfirmed[session]))))

    def _confirm(self, session: str, count: int) -> None:
        sids, self.unconfirmed[session] = self.unconfirmed[session][:count], self.unconfirmed[session][count:]
        self.done.update(sids)
        self.rig.send(session, wire.FireDone(sids))
        self._look()

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), late=st.integers(0, 3000))
    def zombie_goes_on(self, data: st.DataObject, late: int) -> None:
        """By whatever clock: what it writes is refused, what it hands out counts."""
        zombie = data.draw(st.sampled_from(self.zombies))
        for effect in zombie.handle(scheduler_events.Ticked(), self.latest + late):
            if isinstance(effect, scheduler_events.Send) and isinstance(effect.record, wire.Fire):
                sids = {fired.sid for fired in effect.record.timers}
                assert not sids & self.gone, "cancelled, and fired by a zombie"
                self.handed |= sids

    @rule(applied=st.booleans(), lives_on=st.booleans(), set_back=st.sampled_from([0, 0, 0, 1500, 10_000]))
    def scheduler_crashes(self, applied: bool, lives_on: bool, set_back: int) -> None:
        if lives_on:
            self.zombies.append(self.rig.core)
        self.rig.now -= set_back
        if self.rig.turn is not None and applied:
            self.rig.storage.apply(self.rig.turn)
        for request in self.asked.values():
            if isinstance(request, wire.CancelAll):
                self.unsure |= self.before.pop(request.ref)
            else:
                self.unsure.add(request.timer.sid if isinstance(request, wire.Schedule) else request.sid)
        self.again.clear()
        self.asked.clear()
        self.unconfirmed.clear()
        self.rig.turn = None
        self.rig.core = self.rig.core_of(_TINY)
        self.rig.handle(scheduler_events.Opened(EDGE))
        self._look()

    @rule(data=st.data(), lives_on=st.booleans())
    def partitions_move(self, data: st.DataObject, lives_on: bool) -> None:
        """It steps down, and the next one takes over when it has finished, or will not wait any longer."""
        fires = len(self.rig.fires)
        self.rig.handle(scheduler_events.Retired())
        self._look()
        for _ in range(data.draw(st.integers(0, 8))):
            at_ms = self.rig.core.next_at()
            if self.rig.turn is not None:
                self.storage_answers() if data.draw(st.integers(0, 3)) else self.storage_fails(data.draw(st.booleans()))
            elif at_ms < NEVER:
                self.time_passes(max(at_ms - self.rig.now, 1))
        assert len(self.rig.fires) == fires, "handed out by a scheduler that steps down"
        assert self.asked == {} or not self.rig.core.idle, "finished, and requests from before have no answer"
        self.scheduler_crashes(False, lives_on, 0)

    @invariant()
    def memory_stays_bounded(self) -> None:
        # Claimed and frozen timers are kept whatever happens; both have limits of their own.
        assert int(str(self.rig.core.stats()["loaded"])) <= _TINY.timer_memory_max + 2 * _TINY.timer_claims_max + 16 + len(self.asked)

    @invariant()
    def nothing_is_missed(self) -> None:
        """It never sleeps while there is something it could do."""
        at_ms = self.rig.core.next_at()
        if at_ms < NEVER and at_ms <= self.rig.now and self.rig.turn is None:
            self.rig.handle(scheduler_events.Ticked())
            again_ms = self.rig.core.next_at()
            assert self.rig.turn is not None or again_ms > self.rig.now, "would spin"
            self._look()

    def teardown(self) -> None:
        """When all is well again, everything promised happens, sleeping only as told."""
        for shard in (0, 1):
            self.shard_opens(shard)
        for _ in range(2000):
            if self.rig.turn is not None:
                self.storage_answers()
            elif any(self.unconfirmed.values()):
                for session in self.unconfirmed:
                    self._confirm(session, len(self.unconfirmed[session]))
            elif not self.rig.storage.timers and self.rig.core.idle:
                break
            else:
                at_ms = self.rig.core.next_at()
                assert at_ms < NEVER, "sleeps for ever with timers in storage"
                self.rig.at(max(self.rig.now, at_ms))
                self._look()
        assert self.rig.storage.timers == {}
        assert self.rig.core.stats()["loaded"] == 0
        sure = self.due.keys() - self.gone - self.unsure
        assert sure <= self.done
        assert self.doomed - self.unsure <= self.done
        assert not self.asked


Promises.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestPromisesHoldThroughCrashesAndRaces = Promises.TestCase
