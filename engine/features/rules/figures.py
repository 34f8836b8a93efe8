"""What an edge counts of its rules, and the metrics of it."""

from __future__ import annotations

from collections import Counter
from typing import Final

from engine.api.exposition.catalogue import FeatureMetrics, counter
from engine.core.model.bounded_names import BoundedNames
from engine.gateway.metrics import Figures

METRICS: Final = FeatureMetrics(
    "Edges",
    "edge",
    (
        counter("rules_triggered", "engine_edge_rules_triggered", "Notifications and actions that rules made of events.", "edge", "rule"),
        counter(
            "rules_skipped",
            "engine_edge_rules_skipped",
            "Users for whom a rule that matched made nothing, and why.",
            "edge",
            "rule",
            "reason",
        ),
    ),
)


class RuleCounts:
    """The counts of one edge."""

    def __init__(self) -> None:
        self._rules = BoundedNames()
        self._triggered: Counter[str] = Counter()  # by rule
        self._skipped: Counter[tuple[str, str]] = Counter()  # by rule and reason

    def triggered(self, rule: str) -> None:
        """A rule made a notification or an action of an event."""
        self._triggered[self._rules.of(rule)] += 1

    def skipped(self, rule: str, reason: str) -> None:
        """A rule matched and made nothing for somebody; `reason` is one of a few words."""
        self._skipped[self._rules.of(rule), reason] += 1

    def figures(self) -> Figures:
        """See `EdgeMetrics.figures`."""
        return {
            "rules_triggered": list(self._triggered.items()),
            "rules_skipped": [(*labels, count) for labels, count in self._skipped.items()],
        }
