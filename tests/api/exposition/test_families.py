"""What the controller's status says becomes metrics, of every actor that answers."""

from __future__ import annotations

from typing import Any

import pytest

from engine.gateway.metrics import EdgeMetrics
from tests.support.scrapes import STATUS, found_families, rendered, values


def edge_row(index: int, metrics: EdgeMetrics, **fields: Any) -> dict[str, Any]:
    """What an edge reports to the controller."""
    return {"index": index, "alive": True, "figures": metrics.figures(), **metrics.latencies(), **fields}


def test_every_actor_of_the_status_has_its_numbers() -> None:
    text = rendered(EdgeMetrics("edge-0"), STATUS)
    assert values(text, "engine_info") == {("1.2.3",): 1}
    assert values(text, "engine_cpu_ratio") == {("0", "shard"): 0.125}
    assert values(text, "engine_restarts_total") == {("0", "shard"): 2}
    assert values(text, "engine_published_total") == {("0",): 100}
    assert values(text, "engine_pending_messages") == {("0",): 7}
    assert values(text, "engine_journal_lag_seconds") == {("0",): 1.5}
    assert values(text, "engine_timers_armed") == {("0",): 8}
    assert values(text, "engine_storage_up") == {("0", "shard"): 1, ("0", "scheduler"): 0}
    assert values(text, "engine_delivery_seconds_bucket") == {("0.001", "0"): 4, ("0.005", "0"): 6, ("+Inf", "0"): 7}
    assert values(text, "engine_first_send_seconds_bucket") == {("0.001", "0"): 5, ("0.005", "0"): 8, ("+Inf", "0"): 8}
    assert values(text, "engine_ack_seconds_bucket") == {("0.001", "0"): 0, ("0.005", "0"): 6, ("+Inf", "0"): 8}
    assert values(text, "engine_delivery_recent_seconds") == {("0.5",): 0.004, ("0.95",): 0.0095}
    assert values(text, "engine_delivery_seconds_sum") == {("0",): 9.5}
    assert values(text, "engine_delivery_seconds_count") == {("0",): 7}
    assert values(text, "engine_timer_lateness_seconds_sum") == {("0",): 0.001}


def test_who_does_not_answer_is_named_and_its_old_numbers_are_left_out() -> None:
    silent = {"index": 1, "alive": False, "ready": False, "published": 70, "storage": "ok", "figures": {"sent": [["acme", "sse", 5]]}}
    text = rendered(EdgeMetrics("edge-0"), {**STATUS, "shards": [STATUS["shards"][0], silent]})
    up = {("0", "shard"): 1, ("1", "shard"): 0, ("0", "scheduler"): 1, ("0", "edge"): 1, ("0", "controller"): 1}
    assert values(text, "engine_up") == up
    assert values(text, "engine_published_total") == {("0",): 100}
    assert values(text, "engine_tenant_sent_total") == {}
    assert ("1", "shard") not in values(text, "engine_storage_up")


def test_any_edge_has_the_numbers_of_all_edges_its_own_as_they_are_now() -> None:
    own, other = EdgeMetrics("edge-0"), EdgeMetrics("edge-1")
    other.acks = 5
    other.publish_took(4)
    status = {**STATUS, "edges": [edge_row(0, own, queued=2), edge_row(1, other, queued=3)]}
    own.acks = 3
    own.connections["sse"] += 2
    text = rendered(own, status)
    assert values(text, "engine_edge_acks_total") == {("edge-0",): 3, ("edge-1",): 5}
    assert values(text, "engine_edge_connections")["edge-0", "sse"] == 2
    assert values(text, "engine_edge_publish_seconds_count") == {("edge-0",): 0, ("edge-1",): 1}
    assert values(text, "engine_edge_publish_requests_waiting") == {("edge-0",): 2, ("edge-1",): 3}
    status["edges"][1]["alive"] = False
    assert values(rendered(own, status), "engine_edge_acks_total") == {("edge-0",): 3}


def test_without_a_controller_an_edge_serves_its_own_numbers_and_says_so() -> None:
    own = EdgeMetrics("edge-0")
    own.acks = 3
    text = rendered(own, None)
    assert values(text, "engine_up") == {("0", "controller"): 0}
    assert values(text, "engine_edge_acks_total") == {("edge-0",): 3}


def test_numbers_with_labels_of_their_own_keep_the_label_of_their_actor() -> None:
    figures = {"sent": [["acme", "websocket", 5], ["(other)", "sse", 1]], "decisions": [["suppressed", "cap", "touch", 2]]}
    text = rendered(EdgeMetrics("edge-0"), {**STATUS, "shards": [{**STATUS["shards"][0], "figures": figures}]})
    assert values(text, "engine_tenant_sent_total") == {("0", "acme", "websocket"): 5, ("0", "(other)", "sse"): 1}
    assert values(text, "engine_decisions_total") == {("touch", "suppressed", "cap", "0"): 2}


@pytest.mark.parametrize("broken", [{}, {"shards": None, "totals": None, "edges": [{"index": 0}]}, {"shards": ["x", {}], "version": "1"}])
def test_a_status_of_another_version_leaves_out_what_it_has_not(broken: dict[str, Any]) -> None:
    assert "engine_edge_acks" in found_families(rendered(EdgeMetrics("edge-0"), broken))


def test_every_histogram_has_the_sum_and_the_count_of_what_it_observed() -> None:
    metrics = EdgeMetrics("edge-0")
    metrics.publish_took(4)
    found = found_families(rendered(metrics, STATUS)).values()
    histograms = {family.name: {sample.name for sample in family.samples} for family in found if family.type == "histogram"}
    assert len(histograms) == 7
    for name, samples in histograms.items():
        assert samples == {f"{name}_bucket", f"{name}_count", f"{name}_sum"}


def test_snapshots_have_an_age_and_failures_where_they_are_taken() -> None:
    assert not {"engine_snapshot_age_seconds", "engine_snapshot_failures"} & set(found_families(rendered(EdgeMetrics("edge-0"), STATUS)))
    for snapshots, age in (({"count": 0, "failures": 2, "error": "full"}, {}), ({"count": 1, "failures": 2, "age_s": 61.5}, {(): 61.5})):
        text = rendered(EdgeMetrics("edge-0"), STATUS | {"redis": {"alive": True, "snapshots": snapshots}})
        assert values(text, "engine_snapshot_failures_total") == {(): 2}
        assert values(text, "engine_snapshot_age_seconds") == age


def test_each_store_has_its_memory() -> None:
    stores = [{"alive": True, "used_memory_bytes": 5, "memory_bytes_max": 9}, {"alive": False}]
    text = rendered(EdgeMetrics("edge-0"), STATUS | {"redis": {**stores[0], "alive": False, "stores": stores}})
    assert values(text, "engine_redis_up") == {(): 0}
    assert values(text, "engine_redis_memory_bytes") == {("0",): 5}
    assert values(text, "engine_redis_memory_max_bytes") == {("0",): 9}


def test_scaling_shows_what_is_wanted_and_what_there_is() -> None:
    scaling = {
        "wanted": {"shards": 3, "edges": 2},
        "have": {"shards": 2, "edges": 2},
        "waiting": [{"actor": "shard-2"}],
        "slots_left": 7,
        "slots_moved": 5,
        "decisions": [{"role": "shards", "action": "scale", "wanted": 3}, {"role": "shards", "action": "scale", "wanted": 2}],
    }
    text = rendered(EdgeMetrics("edge-0"), STATUS | {"scaling": scaling})
    assert values(text, "engine_actors_wanted") == {("shard",): 3, ("edge",): 2}
    assert values(text, "engine_actors") == {("shard",): 2, ("edge",): 2}
    assert values(text, "engine_actors_waiting")["shard",] == 1
    assert (values(text, "engine_slots_left"), values(text, "engine_slots_moved_total")) == ({(): 7}, {(): 5})
    assert values(text, "engine_autoscaler_wanted") == {("scale", "shard"): 3}
