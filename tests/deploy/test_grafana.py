"""deploy/grafana: every query asks a running engine for metrics and labels that it has, and the provisioning finds the files."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from engine.api.exposition.catalogue import Family
from tests.support.promql import groups_of, labels_left, selectors_of
from tests.support.running_engine import RunningEngine
from tests.support.scrapes import FAMILIES
from tests.support.waiting import until

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted((DEPLOY / "grafana").glob("*.json"))}
TARGETS = [
    pytest.param(target["expr"], target["legendFormat"], id=f"{name}: {panel['title']} {target['refId']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel["targets"]
]
VARIABLES = [variable["query"]["query"] for dashboard in DASHBOARDS.values() for variable in dashboard["templating"]["list"][1:]]
OF_PROMETHEUS = {"job", "instance", "le"}


def sampled(name: str) -> Family | None:
    """The metric of which a sample has this name."""
    for family in FAMILIES.values():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}[family.kind]
        if name in {family.name + suffix for suffix in suffixes}:
            return family
    return None


@pytest.mark.parametrize(("query", "legend"), TARGETS)
def test_a_query_names_metrics_and_labels_of_the_catalogue(query: str, legend: str) -> None:
    selectors = selectors_of(query)
    assert selectors
    for metric, matchers in selectors:
        family = sampled(metric)
        assert family is not None, f"{metric} is not among the metrics"
        assert ("job", "=", "engine") in matchers, f"{metric} may be another engine's"
        assert {label for label, _, _ in matchers} <= {*family.labels, *OF_PROMETHEUS}
        assert metric.endswith(("_total", "_bucket")) == (f"rate({metric}" in query or f"increase({metric}" in query), (
            "only counters have rates"
        )
    for labels, inner in groups_of(query):
        for metric, _ in selectors_of(inner):
            family = sampled(metric)
            assert family is not None
            assert labels <= {*family.labels, "le"}, f"{metric} has no such label"
    left = labels_left(query)
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= (left or set()), f"the result has only {left}"


@pytest.mark.parametrize("query", [target.values[0] for target in TARGETS])
def test_what_several_edges_say_is_not_added_up(query: str) -> None:
    """Each edge has the figures of all: a sum goes over what `max` has made of them, with all labels that tell series apart."""
    for selector in re.finditer(r"(?:(?:rate|increase)\()?(engine_\w+)\{", query):
        before = query[: selector.start()]
        family = sampled(selector[1])
        assert family is not None
        enclosing = re.search(r"(max|min)(?: by \(([^)]*)\))? \($|(max|min)\($", before)
        assert enclosing, f"{selector[1]} is not within `max by`"
        if "sum" in before.rpartition("/")[2]:
            kept = set(re.findall(r"\w+", enclosing[2] or ""))
            fixed = {label for label, operator, _ in selectors_of(query[selector.start() :])[0].matchers if operator == "="}
            lost = set(family.labels) - kept - fixed
            assert not lost or (family.name == "engine_decisions" and 'decision="delivered"' in query and lost == {"reason"})


@pytest.mark.parametrize("query", VARIABLES)
def test_a_variable_takes_the_values_of_a_label_that_exists(query: str) -> None:
    metric, label = re.fullmatch(r'label_values\((engine_\w+)\{job="engine"\}, (\w+)\)', query).groups()  # type: ignore[union-attr]
    family = sampled(metric)
    assert family is not None
    assert label in family.labels


@pytest.mark.parametrize(("name", "dashboard"), DASHBOARDS.items(), ids=DASHBOARDS)
def test_a_dashboard_has_an_identity_and_panels_that_do_not_overlap(name: str, dashboard: dict[str, Any]) -> None:
    assert dashboard["uid"] == f"engine-{name}"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in dashboard["panels"]):
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_view_that_operators_need_is_there() -> None:
    assert DASHBOARDS.keys() == {"overview", "delivery", "timers-and-rules", "tenants", "cluster"}


def test_the_provisioning_finds_dashboards_and_prometheus_where_compose_puts_them() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounts = dict(reversed(volume.removesuffix(":ro").split(":")) for volume in compose["grafana"]["volumes"])
    provisioning = DEPLOY / mounts["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "engine.yaml").read_text())["providers"]
    assert set(DASHBOARDS) == {path.stem for path in (DEPLOY / mounts[provider["options"]["path"]]).glob("*.json")}
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    prometheus = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    (job,) = prometheus["scrape_configs"]
    assert job["job_name"] == "engine"
    assert job["static_configs"] == [{"targets": ["engine:8000"]}]
    config = next(word.partition("=")[2] for word in compose["prometheus"]["command"] if word.startswith("--config.file="))
    mounted = [volume.split(":")[1] for volume in compose["prometheus"]["volumes"]]
    assert config in mounted
    assert all(str(Path(config).parent / file) in mounted for file in prometheus["rule_files"])


RARE = {
    "engine_history_lag_seconds",  # with a history only
    "engine_tenant_trimmed_total",  # of full offline queues
    "engine_tenant_expired_total",
    "engine_edge_rules_skipped_total",  # the rules of this engine skip nobody
    "engine_edge_actions_total",  # two seconds after the event
    "engine_slots_left",  # while an engine is scaled
    "engine_slots_moved_total",
}
"""What this engine may have nothing of; the catalogue has their labels."""


async def traffic(engine: RunningEngine) -> None:
    """Something of each kind: sends by every transport, a repeat, a refusal by a client, decisions, timers, rules."""
    headers = {"Authorization": f"Bearer {engine.token('grafana', 'connect publish admin', tenant='dash')}"}
    async with (
        httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=30, trust_env=False, verify=False) as client,
        engine.connect("grafana", tenant="dash") as socket,
    ):
        await engine.receive(socket, "welcome")
        await client.put("/v1/users/quiet/profile", json={"mute": {"types": ["promo.*"]}, "digest": {"types": ["news.*"]}})
        hour = {"from": "00:00", "to": "23:59"}
        await client.put("/v1/users/night/profile", json={"zone": "UTC", "quiet": [hour]})
        items = [
            {"user": "grafana", "type": "test.a", "id": "one"},
            {"user": "grafana", "type": "test.b", "id": "two"},
            {"user": "quiet", "type": "promo.sale"},
            {"user": "quiet", "type": "news.today"},
            {"user": "night", "type": "promo.sale"},
            {"user": "quiet", "type": "back.soon", "category": "touch"},
            {"user": "grafana", "type": "test.fires", "delay": 0.01},
        ]
        await engine.publish(*items, tenant="dash")
        (later,) = await engine.publish({"user": "quiet", "type": "test.later", "delay": 60}, tenant="dash")
        assert (await client.delete(f"/v1/scheduled/{later['scheduled_id']}")).status_code == 200
        await client.post("/v1/events", json={"type": "cart.abandoned", "user": "grafana", "data": {"item": "hat"}})
        await client.post("/v1/events", json={"type": "order.paid", "user": "grafana"})
        await engine.receive(socket, "messages")
        await socket.send(json.dumps({"type": "nack", "ids": ["two"], "reason": "test"}))
        await client.get("/v1/poll", params={"wait": 0})
        await client.get("/v1/nothing")
        while all(message["attempt"] == 1 for message in (await engine.receive(socket, "messages"))["messages"]):
            pass  # until one is sent again, for want of an acknowledgement
        await socket.send(json.dumps({"type": "ack", "ids": ["one"], "ts": int(time.time() * 1000)}))


async def test_a_running_engine_exports_what_the_dashboards_ask_for(engine: RunningEngine) -> None:
    await traffic(engine)
    headers = {"Authorization": f"Bearer {engine.token('prometheus', 'metrics')}", "Accept": "application/openmetrics-text"}

    async def lacking() -> set[tuple[str, str]]:
        async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=30, trust_env=False, verify=False) as client:
            text = (await client.get("/metrics")).text
        exported: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                exported.setdefault(sample.name, set()).update(sample.labels)
        asked: set[tuple[str, str]] = set()
        for query in (target.values[0] for target in TARGETS):
            for metric, matchers in selectors_of(query):
                asked |= {(metric, ""), *((metric, label) for label, _, _ in matchers if label not in OF_PROMETHEUS)}
            for labels, inner in groups_of(query):
                asked |= {(metric, label) for metric, _ in selectors_of(inner) for label in labels}
        return {(metric, label) for metric, label in asked if metric not in RARE and label not in {"", *exported.get(metric, ())}} | {
            (metric, "") for metric, _ in asked if metric not in RARE | exported.keys()
        }

    assert not await until(lacking, holds=lambda missing: not missing, within_s=30, look_s=0.2)
