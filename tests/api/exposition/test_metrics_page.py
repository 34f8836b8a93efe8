"""`GET /metrics`: for whom, and in which format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from engine.api.exposition.metrics_page import LINES_MAX, page, prefers_openmetrics, texts, without_figures
from engine.core.model.bounded_names import NAMES_MAX
from engine.core.model.trace_context import TraceContext, traced_body
from engine.gateway.metrics import EdgeMetrics
from tests.support.edge_world import edge_world
from tests.support.scrapes import STATUS, openmetrics_text, rendered, values

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


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


def openmetrics_of(metrics: EdgeMetrics, status: dict[str, Any]) -> list[Metric]:
    """Read by the parser of the library, which checks what the specification demands."""
    return list(openmetrics.text_string_to_metric_families(openmetrics_text(metrics, status).decode()))


async def test_both_formats_say_the_same() -> None:
    async def status() -> dict[str, Any]:
        return STATUS

    metrics = EdgeMetrics("edge-0", lambda: 9)
    metrics.published("acme", ["accepted", "accepted"])
    metrics.publish_took(4, "order-17", 1_000_000)
    plain, plain_type = await page(metrics, status, "", ())
    other, other_type = await page(metrics, status, OPENMETRICS, ())
    assert plain_type == "text/plain; version=0.0.4; charset=utf-8"
    assert other_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert other.endswith(b"# EOF\n")

    def samples(found: Iterable[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
        return {(sample.name, tuple(sorted(sample.labels.items())), sample.value) for family in found for sample in family.samples}

    read = openmetrics_of(metrics, STATUS)
    assert samples(read) == samples(text_string_to_metric_families(plain.decode()))
    assert len(read) == len({family.name for family in read})
    assert b"order-17" in other
    assert b"order-17" not in plain


def test_many_tenants_are_written_a_few_lines_at_a_time() -> None:
    metrics = EdgeMetrics("edge-0")
    for number in range(NAMES_MAX):
        metrics.published(f"tenant-{number}", ["accepted", "duplicate"])
    text = rendered(metrics, STATUS)
    assert len(values(text, "engine_edge_published_total")) == 2 * NAMES_MAX
    assert text.count(b"# TYPE engine_edge_published_total counter") == 1
    published = [metric for metric in openmetrics_of(metrics, STATUS) if metric.name == "engine_edge_published"]
    parts = list(texts(published, openly=False))
    assert [part.count(b"\n") for part in parts] == [LINES_MAX + 2, *[LINES_MAX] * (2 * NAMES_MAX // LINES_MAX - 1)]


def exemplars(found: Iterable[Metric], name: str) -> dict[str, tuple[str, float, float]]:
    """By upper bound of the bucket: id, value, time."""
    return {
        sample.labels["le"]: (sample.exemplar.labels["message_id"], sample.exemplar.value, float(sample.exemplar.timestamp or 0))
        for family in found
        for sample in family.samples
        if family.name == name and sample.exemplar is not None
    }


def test_exemplars_name_a_message_of_each_bucket() -> None:
    metrics = EdgeMetrics("edge-0")
    metrics.publish_took(4, "order-17", 1_000_500)
    metrics.publish_took(99_999, "order-18", 1_000_600)
    row = {**STATUS["shards"][0], "exemplars": {"latency": [(1, 'tricky "id" \\', 4, 2_000_000), (2, "away", 60_000, 3_000_000)]}}
    found = openmetrics_of(metrics, {**STATUS, "shards": [row]})
    assert exemplars(found, "engine_edge_publish_seconds") == {
        "0.005": ("order-17", 0.004, 1000.5),
        "+Inf": ("order-18", 99.999, 1000.6),
    }
    assert exemplars(found, "engine_delivery_seconds") == {"0.005": ('tricky "id" \\', 0.004, 2000), "+Inf": ("away", 60, 3000)}


@pytest.mark.parametrize(("chars", "shown"), [(118, True), (119, False), (128, False)])
def test_an_id_that_is_longer_than_an_exemplar_may_be_is_left_out(chars: int, shown: bool) -> None:
    metrics = EdgeMetrics("edge-0")
    metrics.publish_took(4, "ä" * chars, 1_000_500)
    assert bool(exemplars(openmetrics_of(metrics, STATUS), "engine_edge_publish_seconds")) is shown


def test_the_status_for_operators_has_no_figures_of_metrics() -> None:
    metrics = EdgeMetrics("edge-0")
    row = {"index": 0, "published": 5, "figures": metrics.figures(), **metrics.latencies()}
    assert without_figures({"edges": [row], "version": "1", "redis": {}}) == {
        "edges": [{"index": 0, "published": 5}],
        "version": "1",
        "redis": {},
    }


async def test_metrics_name_tenants_so_they_need_a_token_for_them() -> None:
    async with edge_world() as world, world.http(scopes="connect publish admin events") as client:
        assert (await client.get("/metrics", headers={"Authorization": ""})).status_code == 401
        refused = await client.get("/metrics")
        assert (refused.status_code, refused.headers["www-authenticate"].partition(" ")[0]) == (403, "Bearer")
        for scopes in ("metrics", "operator"):
            async with world.http(scopes=scopes) as allowed:
                answer = await allowed.get("/metrics", headers={"Accept": OPENMETRICS})
                assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
                assert answer.headers["vary"] == "accept"
                assert list(openmetrics.text_string_to_metric_families(answer.text))


def test_a_trace_is_named_beside_the_message_and_in_place_of_one_with_a_long_id() -> None:
    metrics = EdgeMetrics("edge-0")
    metrics.publish_took(1, "order-17", 1_000_500, traced_body(TraceContext("a" * 32, "1" * 16, True), b""))
    metrics.publish_took(4, "b" * 79, 1_000_500, traced_body(TraceContext("c" * 32, "1" * 16, True), b""))
    found = [
        sample for metric in openmetrics_of(metrics, STATUS) if metric.name == "engine_edge_publish_seconds" for sample in metric.samples
    ]
    labels = [sample.exemplar.labels for sample in found if sample.exemplar is not None]
    assert labels == [{"trace_id": "a" * 32, "message_id": "order-17"}, {"trace_id": "c" * 32}]
