"""Traces on an edge: what requests publish, what connections are sent and acknowledge, and calls of targets."""

from __future__ import annotations

from functools import partial

from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.core.model.trace_context import trace_in
from engine.features.traces.edge_spans import EdgeSpans
from engine.features.traces.figures import METRICS
from engine.features.traces.spans import Attributes, Spans, spans_of
from engine.features.traces.traced_requests import TracedRequest
from engine.gateway.ports import TargetCall


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge. Raises ConfigError: the exporter is not installed."""
    gateway, spans = ports.gateway, spans_of(ports.config, ports.name)
    if spans is None:
        return EdgeFeature("traces", metrics=METRICS)
    gateway.observers = [EdgeSpans(spans)]
    gateway.begin_trace = partial(TracedRequest, spans)
    gateway.record_call = partial(_record_call, spans)
    return EdgeFeature("traces", drain=spans.flush, counts=spans.counts, metrics=METRICS)


def _record_call(spans: Spans, call: TargetCall) -> None:
    attributes: Attributes = {
        "messaging.message.id": call.id, "engine.tenant": call.tenant, "engine.target": call.target, "engine.attempt": call.tries,
    }  # fmt: skip
    spans.add("action", trace_in(call.body), call.begun_ns, attributes, error=call.error)
