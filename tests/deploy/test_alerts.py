"""The alert rules ask for figures that exist, with labels that they have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from engine.gateway.metrics import EdgeMetrics
from tests.support.scrapes import rendered

PATH = Path(__file__).parents[2] / "deploy" / "alerts.yaml"
RULES: list[dict[str, Any]] = [rule for group in yaml.safe_load(PATH.read_text())["groups"] for rule in group["rules"]]

ROW = {"index": 0, "alive": True, "ready": True, "restarts": 0, "storage": "ok", "lag_ms": 1, "quarantined": 0, "degraded": 0}
FIGURES = ("pressure", "exhausted", "delivered", "dead_lettered", "trimmed", "refused_high")
STATUS: dict[str, Any] = {
    "shards": [{**ROW, **dict.fromkeys(FIGURES, 0)}],
    "schedulers": [ROW],
    "redis": {"snapshots": {"failures": 0}},
    "edges": [{**ROW, "connections": {"websocket": 1, "sse": 1, "poll": 1}}],
}


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, set[str]]]:
    """Names of samples, with the values of each label."""
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(rendered(EdgeMetrics("edge-0"), STATUS).decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_what_is_told(rule: dict[str, Any], told: dict[str, dict[str, set[str]]]) -> None:
    selectors = re.findall(r"(engine_\w+)\{([^}]*)\}", rule["expr"])
    assert len(selectors) == len(re.findall(r"engine_", rule["expr"])), "each figure is of one scrape job"
    for name, matchers in selectors:
        assert name in told, f"{name} is not among the metrics"
        for label, value in re.findall(r'(\w+)!?="([^"]*)"', matchers):
            assert label == "job" or value in told[name][label]
    for labels, name in re.findall(r"by \(([^)]*)\) \((?:\w+\()?(engine_\w+)", rule["expr"]):
        assert set(re.findall(r"\w+", labels)) <= told[name].keys()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_says_how_bad_it_is_and_what_it_means(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert used <= set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
