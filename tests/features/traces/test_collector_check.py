"""The collector of `trace_url`, as `engine doctor` and `engine up` look at it."""

from __future__ import annotations

import sys

import pytest

from engine.cli.feature_checks import check_at_start, of_features
from engine.config import Config
from engine.errors import ConfigError
from tests.support.free_port import free_port
from tests.support.otlp_receiver import OtlpReceiver


def test_traces_without_the_exporter_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check_at_start(Config(trace_url="http://collector:4318"))
    monkeypatch.delitem(sys.modules, "engine.features.traces.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"trace_url: .*pip install 'ray-notification-engine\[traces\]'"):
        check_at_start(Config(trace_url="http://collector:4318"))


async def found(url: str) -> tuple[str, str, str]:
    (finding,) = [finding async for finding in of_features(Config(trace_url=url)) if finding.check == "collector"]
    return finding.level, finding.found, finding.advice


async def test_a_collector_that_takes_no_spans_is_a_warning(collector: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20x")
    host = collector.url.removeprefix("http://")
    assert await found(collector.url) == ("ok", f"{host} takes spans", "")
    assert {name.lower(): value for name, value in collector.requests[-1][1].items()}["authorization"] == "Bearer x"
    collector.status = 503
    try:
        assert await found(collector.url) == ("warning", f"trace_url: {host} answers 503", "spans are dropped")
    finally:
        collector.status = 200
    for host in (f"127.0.0.1:{free_port()}", "a" * 64):
        level, told, _ = await found(f"http://{host}")
        assert (level, told.startswith(f"trace_url: {host}: ")) == ("warning", True)
