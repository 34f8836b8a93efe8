"""A status as the controller has it, and the samples of a text for Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from docs.metrics import of_features, sections
from engine.api.exposition.families import families, own_row
from engine.api.exposition.metrics_page import texts
from engine.gateway.metrics import EdgeMetrics

FAMILIES = {family.name: family for families in sections().values() for family in families}
"""Every metric of the kernel and of features, by name."""

STATUS: dict[str, Any] = {
    "version": "1.2.3",
    "shards": [
        {
            "index": 0,
            "role": "shard",
            "alive": True,
            "ready": True,
            "cpu_pct": 12.5,
            "rss_bytes": 1000,
            "restarts": 2,
            "users": 5,
            "connections": 6,
            "pending": 7,
            "lag_ms": 1500,
            "epoch": 3,
            "published": 100,
            "acknowledged": 90,
            "storage": "ok",
            "latency": [[1, 4], [5, 2], [-1, 1]],
            "send_latency": [[1, 5], [5, 3], [-1, 0]],
            "ack_latency": [[1, 0], [5, 6], [-1, 2]],
            "latency_sum_ms": 9500,
            "send_latency_sum_ms": 13,
            "ack_latency_sum_ms": 0,
            "read_latency": [[1, 0], [5, 2], [-1, 0]],
            "read_latency_sum_ms": 6,
            "clock_skew": [[1, 1], [5, 0], [-1, 1]],
            "clock_skew_sum_ms": 90000,
        },
        {"index": 1, "role": "shard", "alive": False, "ready": False},
    ],
    "schedulers": [
        {"index": 0, "alive": True, "armed": 8, "fired": 9, "storage": "down", "lateness": [[1, 1], [-1, 0]], "lateness_sum_ms": 1}
    ],
    "edges": [{"index": 0, "alive": True, "connections": {"websocket": 3, "sse": 1, "poll": 0}, "published": 50}],
    "controller": {},
    "redis": {"alive": True},
    "totals": {"connections": 4, "p50_ms": 4, "p95_ms": 9.5, "p99_ms": None},
}


def found_families(text: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def rendered(metrics: EdgeMetrics, status: dict[str, Any] | None) -> bytes:
    return b"".join(texts(families(status, metrics.edge, own_row(metrics), of_features().values()), openly=False))


def openmetrics_text(metrics: EdgeMetrics, status: dict[str, Any] | None) -> bytes:
    return b"".join(texts(families(status, metrics.edge, own_row(metrics), of_features().values()), openly=True))


def values(text: bytes, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a name by their label values, labels in alphabetical order."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in found_families(text).values()
        for sample in family.samples
        if sample.name == name
    }
