"""Spans to a collector: the OpenTelemetry SDK's batches, by OTLP over HTTP (protobuf).

The SDK's own variables hold where the settings say nothing: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS
(such as a token of the collector), _TIMEOUT, _COMPRESSION and _CERTIFICATE, and OTEL_BSP_* for the batches. They are those of the engine's
processes, that is of Ray's nodes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from engine import __version__
from engine.config import Config
from engine.errors import ConfigError
from engine.features.traces.spans import FinishedSpan

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError as _missing:
    raise ConfigError("trace_url: the exporter is needed: pip install 'ray-notification-engine[traces]'") from _missing

QUEUE_MAX: Final = 8192
"""Spans that wait, some 10 MB."""

_BATCH: Final = 1024
_DELAY_MS: Final = 10_000

_PATH: Final = "/v1/traces"
"""What OTLP over HTTP adds to the URL of a collector."""

_KINDS: Final = {"publish": SpanKind.SERVER, "send": SpanKind.PRODUCER, "action": SpanKind.CLIENT}
_SCOPE: Final = InstrumentationScope("ray-notification-engine", __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def collector_url(config: Config) -> str:
    """Where spans are sent: `trace_url`, with OTLP's path where it has none."""
    url = config.trace_url
    return url if urlsplit(url).path.strip("/") else url.rstrip("/") + _PATH


class _CountingExporter(SpanExporter):
    """Counts what another exporter could send; called in the thread of the batches."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.taken = 0
        self.exported = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class OtlpSink:
    """Exports the spans of one process.

    Args:
        process: its name, `service.instance.id` of its spans.
    """

    def __init__(self, config: Config, process: str) -> None:
        self._resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME") or "ray-notification-engine",
                "service.version": __version__,
                "service.namespace": config.namespace,
                "service.instance.id": process,
            }
        )
        self._exporter = _CountingExporter(OTLPSpanExporter(collector_url(config)))
        self._queue_max = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or QUEUE_MAX)
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=self._queue_max,
            schedule_delay_millis=None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _DELAY_MS,
            max_export_batch_size=None if os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") else min(_BATCH, self._queue_max),
        )
        self._added = 0
        self._full = 0

    @property
    def exported(self) -> int:
        """Spans that the collector has taken."""
        return self._exporter.exported

    @property
    def dropped(self) -> int:
        """Spans that found the queue full, or that the collector did not take in time. Those of an export under way are counted too."""
        return self._full + self._exporter.taken - self._exporter.exported

    def add(self, span: FinishedSpan) -> None:
        """Take a span, without waiting."""
        if self._added - self._exporter.taken >= self._queue_max:
            self._full += 1
            return
        self._added += 1
        trace_id = int(span.trace_id, 16)
        parent = SpanContext(trace_id, int(span.parent_id, 16), True, _SAMPLED) if span.parent_id else None
        self._batches.on_end(
            ReadableSpan(
                span.name,
                SpanContext(trace_id, int(span.span_id, 16), False, _SAMPLED),
                parent,
                self._resource,
                span.attributes,
                kind=_KINDS.get(span.name, SpanKind.INTERNAL),
                instrumentation_scope=_SCOPE,
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                start_time=span.start_ns,
                end_time=max(span.end_ns, span.start_ns),
            )
        )

    def flush(self) -> None:
        """Export what waits. Blocks, for a time-out of the exporter for each batch: the SDK's own time-out here has no effect."""
        self._batches.force_flush()
