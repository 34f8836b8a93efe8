"""What Prometheus reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from engine.gateway.metrics import PUBLISH_BUCKETS_MS, EdgeMetrics, prefers_openmetrics
from tests.support.edge_world import edge_world

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


def families(text: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def rendered(metrics: EdgeMetrics, status: dict[str, Any] | None) -> bytes:
    return metrics.render(status)[0]


def values(text: bytes, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a name by their label values, labels in alphabetical order."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in families(text).values()
        for sample in family.samples
        if sample.name == name
    }


def test_snapshots_have_an_age_and_failures_where_they_are_taken() -> None:
    assert not {"engine_snapshot_age_seconds", "engine_snapshot_failures"} & set(families(rendered(EdgeMetrics("edge-0"), STATUS)))
    for snapshots, age in (({"count": 0, "failures": 2, "error": "full"}, {}), ({"count": 1, "failures": 2, "age_s": 61.5}, {(): 61.5})):
        text = rendered(EdgeMetrics("edge-0"), STATUS | {"redis": {"alive": True, "snapshots": snapshots}})
        assert values(text, "engine_snapshot_failures_total") == {(): 2}
        found = families(text)
        assert (values(text, "engine_snapshot_age_seconds") if "engine_snapshot_age_seconds" in found else {}) == age


def test_an_edge_tells_what_it_has_counted() -> None:
    metrics = EdgeMetrics("edge-3", lambda: 9, lambda: {"shard-0": "tcp", "shard-1": "tcp", "scheduler-0": "ray", "scheduler-1": ""})
    metrics.published.update(["accepted", "accepted", "duplicate"])
    metrics.refused[429] += 1
    metrics.connections["sse"] += 2
    metrics.closes[4401] += 1
    metrics.frames_received = 5
    metrics.frames_sent = 6
    metrics.messages_sent = 7
    metrics.acks = 8
    text = rendered(metrics, None)
    assert values(text, "engine_edge_published_total") == {("edge-3", "accepted"): 2, ("edge-3", "duplicate"): 1}
    assert values(text, "engine_edge_refused_total") == {("429", "edge-3"): 1}
    assert values(text, "engine_edge_connections") == {("edge-3", "websocket"): 0, ("edge-3", "sse"): 2, ("edge-3", "poll"): 0}
    assert values(text, "engine_edge_closes_total") == {("4401", "edge-3"): 1}
    assert values(text, "engine_edge_frames_received_total") == {("edge-3",): 5}
    assert values(text, "engine_edge_frames_sent_total") == {("edge-3",): 6}
    assert values(text, "engine_edge_messages_sent_total") == {("edge-3",): 7}
    assert values(text, "engine_edge_acks_total") == {("edge-3",): 8}
    assert values(text, "engine_edge_link_calls_total") == {("edge-3",): 9}
    assert values(text, "engine_edge_links") == {("unix", "edge-3"): 0, ("tcp", "edge-3"): 2, ("ray", "edge-3"): 1}
    assert "process_resident_memory_bytes" in families(text)


def test_publish_latency_is_a_cumulative_histogram_in_seconds() -> None:
    metrics = EdgeMetrics("edge-0")
    for elapsed_ms in (0.5, 1, 1.5, 4, 99_999):
        metrics.publish_took(elapsed_ms)
    text = rendered(metrics, None)
    buckets = values(text, "engine_edge_publish_seconds_bucket")
    assert [buckets["edge-0", bound] for bound in ("0.001", "0.002", "0.003", "0.005", "10.0", "+Inf")] == [2, 3, 3, 4, 4, 5]
    assert len(buckets) == len(PUBLISH_BUCKETS_MS) + 1
    assert values(text, "engine_edge_publish_seconds_count") == {("edge-0",): 5}
    assert values(text, "engine_edge_publish_seconds_sum") == {("edge-0",): 100.006}


def test_the_engines_status_becomes_metrics_of_every_actor() -> None:
    text = rendered(EdgeMetrics("edge-0"), STATUS)
    assert values(text, "engine_info") == {("1.2.3",): 1}
    assert values(text, "engine_up") == {("0", "shard"): 1, ("1", "shard"): 0, ("0", "scheduler"): 1, ("0", "edge"): 1}
    assert values(text, "engine_cpu_ratio") == {("0", "shard"): 0.125}
    assert values(text, "engine_restarts_total") == {("0", "shard"): 2}
    assert values(text, "engine_published_total") == {("0",): 100}
    assert values(text, "engine_pending_messages") == {("0",): 7}
    assert values(text, "engine_journal_lag_seconds") == {("0",): 1.5}
    assert values(text, "engine_timers_armed") == {("0",): 8}
    assert values(text, "engine_storage_up") == {("0", "shard"): 1, ("0", "scheduler"): 0}
    assert values(text, "engine_connections") == {("edge-0", "websocket"): 3, ("edge-0", "sse"): 1, ("edge-0", "poll"): 0}
    assert values(text, "engine_delivery_seconds_bucket") == {("0.001", "0"): 4, ("0.005", "0"): 6, ("+Inf", "0"): 7}
    assert values(text, "engine_first_send_seconds_bucket") == {("0.001", "0"): 5, ("0.005", "0"): 8, ("+Inf", "0"): 8}
    assert values(text, "engine_ack_seconds_bucket") == {("0.001", "0"): 0, ("0.005", "0"): 6, ("+Inf", "0"): 8}
    assert values(text, "engine_delivery_recent_seconds") == {("0.5",): 0.004, ("0.95",): 0.0095}


def test_what_an_actor_does_not_tell_is_left_out_and_without_a_status_everything_is() -> None:
    metrics = EdgeMetrics("edge-0")
    assert ("1",) not in values(rendered(metrics, STATUS), "engine_published_total")
    assert "engine_up" not in families(rendered(metrics, None))
    for broken in ({}, {"shards": None, "totals": None}, {"shards": ["x", {}], "edges": [{"connections": 5}]}):
        assert "engine_info" in families(rendered(metrics, broken))


def test_every_histogram_has_the_sum_and_the_count_of_what_it_observed() -> None:
    metrics = EdgeMetrics("edge-0")
    metrics.publish_took(4)
    found = families(rendered(metrics, STATUS)).values()
    histograms = {family.name: {sample.name for sample in family.samples} for family in found if family.type == "histogram"}
    assert len(histograms) == 5
    for name, samples in histograms.items():
        assert samples == {f"{name}_bucket", f"{name}_count", f"{name}_sum"}
    text = rendered(metrics, STATUS)
    assert values(text, "engine_delivery_seconds_sum") == {("0",): 9.5}
    assert values(text, "engine_delivery_seconds_count") == {("0",): 7}
    assert values(text, "engine_timer_lateness_seconds_sum") == {("0",): 0.001}


def test_what_an_edge_counts_and_what_the_status_says_of_it_have_the_same_label() -> None:
    text = rendered(EdgeMetrics("edge-0"), STATUS)
    named = {sample.labels["edge"] for family in families(text).values() for sample in family.samples if "edge" in sample.labels}
    assert named == {"edge-0"}


@pytest.mark.parametrize(
    ("accept", "preferred"),
    [
        ("", False),
        ("*/*", False),
        ("text/html, */*;q=0.1", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0", True),
        ("Application/OpenMetrics-Text;VERSION=1.0.0;q=1.000", True),
        ("application/openmetrics-text; version=0.0.1, text/plain;q=0.1", False),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nan", False),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.3", False),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",  # Prometheus 3
            True,
        ),
        (";,=;;q,", False),
    ],
)
def test_openmetrics_is_for_those_who_prefer_it(accept: str, preferred: bool) -> None:
    assert prefers_openmetrics(accept) is preferred


def test_both_formats_say_the_same() -> None:
    metrics = EdgeMetrics("edge-0", lambda: 9)
    metrics.published["accepted"] += 2
    metrics.publish_took(4)
    plain, plain_type = metrics.render(STATUS)
    other, other_type = metrics.render(STATUS, "application/openmetrics-text; version=1.0.0")
    assert plain_type == "text/plain; version=0.0.4; charset=utf-8"
    assert other_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert other.endswith(b"# EOF\n")

    def samples(found: Iterable[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
        every = (sample for family in found if not family.name.startswith("process_") for sample in family.samples)
        return {(sample.name, tuple(sorted(sample.labels.items())), sample.value) for sample in every}

    read = list(openmetrics.text_string_to_metric_families(other.decode()))  # this parser checks what the specification demands
    assert samples(read) == samples(text_string_to_metric_families(plain.decode()))
    assert len(read) == len({family.name for family in read})


def test_every_name_follows_the_conventions_and_says_what_it_is() -> None:
    for family in families(rendered(EdgeMetrics("edge-0"), STATUS)).values():
        assert re.fullmatch(r"(engine|process)_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert not family.name.endswith(("_ms", "_pct", "_count"))


def test_two_edges_in_one_process_do_not_share_numbers() -> None:
    first, second = EdgeMetrics("edge-0"), EdgeMetrics("edge-1")
    first.acks += 1
    assert values(rendered(second, None), "engine_edge_acks_total") == {("edge-1",): 0}


async def test_a_running_edge_counts_what_passes_through_it() -> None:
    async with edge_world() as world, world.http() as client, world.connect("u1"):
        await world.publish("u1", 3)
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert values(answer.content, "engine_edge_published_total") == {("edge-0", "accepted"): 3}
        assert values(answer.content, "engine_edge_connections")["edge-0", "websocket"] == 1
        assert values(answer.content, "engine_edge_publish_seconds_count") == {("edge-0",): 1}
        assert values(answer.content, "engine_info") == {("test",): 1}
        answer = await client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
        assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert list(openmetrics.text_string_to_metric_families(answer.text))
