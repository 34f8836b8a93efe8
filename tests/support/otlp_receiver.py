"""A collector: OTLP over HTTP, decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


class ReceivedSpan(NamedTuple):
    name: str
    process: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    error: str
    attributes: dict[str, Any]


class OtlpReceiver:
    """Takes spans; while `status` is not 200, it answers with that instead."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.status = 200
        self.spans: list[ReceivedSpan] = []
        self.requests: list[tuple[str, dict[str, str], int]] = []  # path, headers, spans

    def of(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of a trace, by their beginning."""
        return sorted((span for span in list(self.spans) if span.trace_id == trace_id), key=lambda span: span.start_ns)

    def names(self, trace_id: str) -> list[str]:
        return [span.name for span in self.of(trace_id)]

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)
        found = []
        for resource_spans in request.resource_spans:
            resource = {attribute.key: attribute.value.string_value for attribute in resource_spans.resource.attributes}
            for scope_spans in resource_spans.scope_spans:
                found += [_received(span, resource["service.instance.id"]) for span in scope_spans.spans]
        self.requests.append((path, headers, len(found)))
        if self.status == 200:
            self.spans += found


def _received(span: Span, process: str) -> ReceivedSpan:
    values = {attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in span.attributes}
    error = span.status.message if span.status.code == Status.STATUS_CODE_ERROR else ""
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    return ReceivedSpan(span.name, process, *ids, span.start_time_unix_nano, span.end_time_unix_nano, error, values)


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(receiver.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = OtlpReceiver(server.server_port)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        serving.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            serving.join()
