"""The claims of a scheduler: when they are advanced, how far timers may be handed out, what a successor inherits."""

from __future__ import annotations

from engine.config import Config
from engine.core.scheduler.claim_horizon import ClaimHorizon
from engine.core.scheduler.timer_wheel import NEVER

NOW = 1_790_000_000_000
CONFIG = Config(timer_claim_ms=1000)


def test_nothing_is_claimed_while_nothing_is_due() -> None:
    horizon = ClaimHorizon(CONFIG, 0, 0, NOW)
    assert horizon.to_claim(NEVER, NOW) == 0
    assert horizon.to_claim(NOW + 501, NOW) == 0
    assert horizon.asks_at(NOW + 501) == NOW + 1


def test_a_timer_due_soon_asks_for_a_claim_until_storage_confirms_it() -> None:
    horizon = ClaimHorizon(CONFIG, 0, 0, NOW)
    assert horizon.to_claim(NOW + 500, NOW) == NOW + 1000
    horizon.reach_ms = NOW + 1000
    assert horizon.asks_at(NOW + 1000) == NEVER
    assert horizon.to_claim(NOW + 1000, NOW + 999) == 0


def test_a_successor_inherits_the_furthest_claim_and_may_hand_out_up_to_the_nearest() -> None:
    horizon = ClaimHorizon(CONFIG, NOW + 3_600_000, NOW + 5, NOW)
    assert horizon.inherited_ms == NOW + 3_600_000, "the clock was set back"
    assert horizon.reach_ms == NOW + 5
    assert ClaimHorizon(CONFIG, NOW - 10, NOW - 20, NOW).inherited_ms == NOW
