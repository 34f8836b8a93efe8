"""What an edge reports of the actions that it carries out."""

from __future__ import annotations

from collections import Counter

from engine.core.edge.circuit_breaker import BreakerState
from engine.features.actions.dispatcher import ActionFigures, families_of
from engine.gateway.metrics import EdgeMetrics
from tests.support.scrapes import rendered, values


def test_actions_are_counted_by_target() -> None:
    metrics = EdgeMetrics("edge-0")
    metrics.of_features.append(
        lambda: families_of({"ray://shop/carts.touch": ActionFigures(Counter(done=3, failed=2), 1, BreakerState.OPEN)})
    )
    text = rendered(metrics, None)
    target = ("edge-0", "ray://shop/carts.touch")
    outcomes = {"done": 3, "failed": 2, "given_up": 0}
    assert values(text, "engine_edge_actions_total") == {(target[0], name, target[1]): count for name, count in outcomes.items()}
    assert values(text, "engine_edge_actions_held") == {target: 1}
    assert values(text, "engine_edge_action_breaker_state") == {target: 2}
