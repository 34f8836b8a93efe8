"""The settings of traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.config import HTTP_URL, Config, Section, SettingRule, with_port


def rules(config: Config) -> Iterator[SettingRule]:
    """See `Section`."""
    yield (
        not config.trace_url or with_port(HTTP_URL, config.trace_url),
        "trace_url: allowed is the http:// or https:// URL of an OpenTelemetry collector, such as http://collector:4318, without a user "
        "(OTEL_EXPORTER_OTLP_HEADERS has tokens), or empty for no traces",  # not the value: a user has a password
    )


SECTION: Final = Section(
    "OpenTelemetry spans of a message's way (docs/TRACES.md); none by default",
    {
        "trace_url": "http:// or https:// URL of a collector that takes OTLP over HTTP, such as http://collector:4318; empty for none",
        "trace_ratio": "share of messages that are traced when their publisher gives no `traceparent`, 0 to 1",
    },
    rules,
)
