"""The claims of a scheduler: when they are advanced, how far timers may be handed out, what a successor inherits."""

from __future__ import annotations

from engine.config import Config
from engine.core.scheduler.claim_horizon import ClaimHorizon

NOW = 1_790_000_000_000
CONFIG = Config(timer_claim_ms=1000)


def test_nothing_is_claimed_while_nothing_is_due() -> None:
    horizon = ClaimHorizon(CONFIG, [0, 1], {}, NOW)
    assert horizon.to_claim(None, NOW) == 0
    assert horizon.to_claim(NOW + 501, NOW) == 0
    assert horizon.asks_at(NOW + 501) == NOW + 1


def test_what_is_due_soon_is_claimed_ahead_and_reaches_as_far_as_the_last_partition() -> None:
    horizon = ClaimHorizon(CONFIG, [0, 1], {}, NOW)
    assert horizon.to_claim(NOW + 500, NOW) == NOW + 1000
    horizon.confirm(0, NOW + 1000)
    assert horizon.reach_ms == 0
    horizon.confirm(1, NOW + 1000)
    assert horizon.reach_ms == NOW + 1000
    assert horizon.asks_at(NOW + 1000) is None
    assert horizon.to_claim(NOW + 1000, NOW + 999) == 0


def test_a_successor_inherits_the_furthest_claim_and_may_hand_out_up_to_the_nearest() -> None:
    horizon = ClaimHorizon(CONFIG, [0, 1], {0: NOW + 3_600_000, 1: NOW + 5}, NOW)
    assert horizon.inherited_ms == NOW + 3_600_000, "the clock was set back"
    assert horizon.reach_ms == NOW + 5
    assert ClaimHorizon(CONFIG, [0, 1], {0: NOW - 10, 1: NOW - 20}, NOW).inherited_ms == NOW
