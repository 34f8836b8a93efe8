"""What an edge counts, and reports."""

from __future__ import annotations

from engine.core.model.bounded_names import NAMES_MAX, OTHER
from engine.gateway.metrics import PUBLISH_BUCKETS_MS, EdgeMetrics
from tests.support.edge_world import edge_world
from tests.support.scrapes import rendered, values


def test_an_edge_reports_what_it_has_counted() -> None:
    metrics = EdgeMetrics("edge-3", lambda: 9, lambda: {"shard-0": "tcp", "shard-1": "tcp", "scheduler-0": "ray", "scheduler-1": ""})
    metrics.published("acme", ["accepted", "accepted", "duplicate"])
    metrics.published("other", ["accepted"])
    metrics.cancelled("acme", 2)
    metrics.refused[429] += 1
    metrics.connections["sse"] += 2
    for code in (4401, *range(3000, 3050)):
        metrics.closed(code)
    metrics.frames_received = 5
    metrics.frames_sent = 6
    metrics.messages_sent = 7
    metrics.acks = 8
    text = rendered(metrics, None)
    published = {("edge-3", "accepted", "acme"): 2, ("edge-3", "duplicate", "acme"): 1, ("edge-3", "accepted", "other"): 1}
    assert values(text, "engine_edge_published_total") == published
    assert metrics.published_count == 4
    assert values(text, "engine_edge_cancelled_total") == {("edge-3", "acme"): 2}
    assert values(text, "engine_edge_refused_total") == {("429", "edge-3"): 1}
    now = {"websocket": 0, "sse": 2, "poll": 0}
    assert values(text, "engine_edge_connections") == {("edge-3", transport): count for transport, count in now.items()}
    assert values(text, "engine_edge_closes_total") == {("4401", "edge-3"): 1, ("3000", "edge-3"): 50}
    assert values(text, "engine_edge_frames_received_total") == {("edge-3",): 5}
    assert values(text, "engine_edge_frames_sent_total") == {("edge-3",): 6}
    assert values(text, "engine_edge_messages_sent_total") == {("edge-3",): 7}
    assert values(text, "engine_edge_acks_total") == {("edge-3",): 8}
    assert values(text, "engine_edge_link_calls_total") == {("edge-3",): 9}
    assert values(text, "engine_edge_links") == {("unix", "edge-3"): 0, ("tcp", "edge-3"): 2, ("ray", "edge-3"): 1}


def test_a_million_tenants_make_a_bounded_number_of_series() -> None:
    metrics = EdgeMetrics("edge-0")
    for number in range(NAMES_MAX + 50):
        metrics.published(f"tenant-{number}", ["accepted"])
    published = values(rendered(metrics, None), "engine_edge_published_total")
    assert len(published) == NAMES_MAX + 1
    assert published["edge-0", "accepted", OTHER] == 50


def test_publish_latency_is_a_cumulative_histogram_in_seconds() -> None:
    metrics = EdgeMetrics("edge-0")
    for elapsed_ms in (0, 1, 2, 4, 99_999):
        metrics.publish_took(elapsed_ms)
    text = rendered(metrics, None)
    buckets = values(text, "engine_edge_publish_seconds_bucket")
    assert [buckets["edge-0", bound] for bound in ("0.001", "0.002", "0.003", "0.005", "10.0", "+Inf")] == [2, 3, 3, 4, 4, 5]
    assert len(buckets) == len(PUBLISH_BUCKETS_MS) + 1
    assert values(text, "engine_edge_publish_seconds_count") == {("edge-0",): 5}
    assert values(text, "engine_edge_publish_seconds_sum") == {("edge-0",): 100.006}


def test_two_edges_in_one_process_do_not_share_numbers() -> None:
    first, second = EdgeMetrics("edge-0"), EdgeMetrics("edge-1")
    first.acks += 1
    assert values(rendered(second, None), "engine_edge_acks_total") == {("edge-1",): 0}


async def test_a_running_edge_counts_what_passes_through_it() -> None:
    async with edge_world() as world, world.http() as client, world.connect("u1"):
        await world.publish("u1", 3)
        sid = (await client.post("/v1/notifications", json={"user": "u1", "type": "t", "delay": 60})).json()["results"][0]["scheduled_id"]
        assert (await client.delete(f"/v1/scheduled/{sid}")).status_code == 200
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        published = {("edge-0", "accepted", "default"): 3, ("edge-0", "scheduled", "default"): 1}
        assert values(answer.content, "engine_edge_published_total") == published
        assert values(answer.content, "engine_edge_cancelled_total") == {("edge-0", "default"): 1}
        assert values(answer.content, "engine_edge_connections")["edge-0", "websocket"] == 1
        assert values(answer.content, "engine_edge_publish_seconds_count") == {("edge-0",): 2}
        assert values(answer.content, "engine_info") == {("test",): 1}
