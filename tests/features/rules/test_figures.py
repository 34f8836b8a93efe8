"""What an edge reports of its rules."""

from __future__ import annotations

from engine.core.model.bounded_names import NAMES_MAX, OTHER
from engine.features.rules.figures import RuleCounts
from engine.gateway.metrics import EdgeMetrics
from tests.support.scrapes import rendered, values


def text_of(counts: RuleCounts) -> bytes:
    metrics = EdgeMetrics("edge-3")
    metrics.of_features.append(counts.figures)
    return rendered(metrics, None)


def test_rules_are_counted_by_name_and_reason() -> None:
    counts = RuleCounts()
    counts.triggered("cart")
    counts.skipped("cart", "own_action")
    text = text_of(counts)
    assert values(text, "engine_edge_rules_triggered_total") == {("edge-3", "cart"): 1}
    assert values(text, "engine_edge_rules_skipped_total") == {("edge-3", "own_action", "cart"): 1}


def test_many_rules_make_a_bounded_number_of_series() -> None:
    counts = RuleCounts()
    for number in range(NAMES_MAX + 50):
        counts.triggered(f"rule-{number}")
    triggered = values(text_of(counts), "engine_edge_rules_triggered_total")
    assert len(triggered) == NAMES_MAX + 1
    assert triggered["edge-3", OTHER] == 50
