"""The checks of the collector that `trace_url` names."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

import httpx

from engine.config import Config
from engine.errors import Unavailable

_ANSWER_S: Final = 5.0


def look(config: Config) -> str:
    """Raises ConfigError: the exporter is not installed here. Asked at the start, where somebody reads it, and not in every actor."""
    if config.trace_url:
        import engine.features.traces.otlp  # noqa: F401  # here: it takes 0.1 s
    return ""


def reach(config: Config) -> str:
    """Whether the collector takes an export without spans; "" where none is named. Raises Unavailable: it does not."""
    if not config.trace_url:
        return ""
    from opentelemetry.util.re import parse_env_headers

    from engine.features.traces.otlp import collector_url

    url = collector_url(config)
    host = urlsplit(url).netloc
    headers = parse_env_headers(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""), liberal=True)  # a token of the collector
    try:
        answer = httpx.post(url, content=b"", headers={**headers, "Content-Type": "application/x-protobuf"}, timeout=_ANSWER_S)
    except (httpx.HTTPError, UnicodeError) as error:  # the latter of a host that no resolver takes
        raise Unavailable(f"trace_url: {host}: {str(error) or type(error).__name__}") from error
    if not answer.is_success:
        raise Unavailable(f"trace_url: {host} answers {answer.status_code}")
    return f"{host} takes spans"
