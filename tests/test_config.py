"""The configuration object: its defaults hold every rule, and each rule names the setting that breaks it."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from engine.config import FIELDS, STORES_DEFAULT, Config, check, store_urls
from engine.core.model.constants import AT_MAX_MS
from engine.errors import ConfigError


def test_the_defaults_hold_every_rule() -> None:
    check(Config())


def test_the_defaults_are_of_the_types_they_are_declared_with() -> None:
    for name, field in FIELDS.items():
        assert msgspec.convert(getattr(Config(), name), field.type) == field.default


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if type(field.default) is int])
def test_no_number_can_exceed_what_storage_and_links_count_to(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(10**18, FIELDS[name].type)


@pytest.mark.parametrize("name", ["collapse_window_s_max", "delay_s_max", "history_ttl_s", "inbox_ttl_s", "ttl_s_max", "user_forget_s"])
def test_no_time_ahead_can_exceed_the_timer_wheel(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(AT_MAX_MS // 1000 - int(time.time()), FIELDS[name].type)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ack_timeout_factor", {"ack_timeout_factor": 1.0}),
        ("link_pacing_ms", {"link_pacing_ms": float("nan")}),
        ("link_pacing_ms", {"link_ack_pacing_ms": -1.0}),
        ("link_calls_share", {"link_calls_share": 1.0}),
        ("link_ports", {"link_ports": "20000"}),
        ("link_ports", {"link_ports": "20000-"}),
        ("link_ports", {"link_ports": "20099-20000"}),
        ("link_ports", {"link_ports": "80-90"}),
        ("link_ports", {"link_ports": "60000-65536"}),
        ("link_tls_key, link_tls_ca", {"link_tls_cert": "cert.pem"}),
        ("link_tls_cert", {"link_tls_key": "key.pem", "link_tls_ca": "ca.pem"}),
        ("link_timeout_ms", {"link_timeout_ms": 1000}),
        ("reconnect_jitter", {"reconnect_jitter": 1.0}),
        ("reconnect_delays_ms", {"reconnect_delays_ms": ()}),
        ("reconnect_delays_ms", {"reconnect_delays_ms": (1000, 0)}),
        ("heartbeat_ms", {"heartbeat_ms": 60_000}),
        ("data_bytes_max", {"data_bytes_max": 2 << 20}),
        ("client_frames_burst", {"client_frames_burst": 100}),
        ("frame_requests_max", {"frame_requests_max": 50_000}),
        ("collapse_window_s_max", {"collapse_window_s_max": 2 * 86_400}),
        ("digest_ms", {"digest_ms": 86_400_001}),
        ("ttl_s_default", {"ttl_s_default": 31 * 86_400}),
        ("timer_degrade_load", {"timer_degrade_load": 0.0}),
        ("redis_timeout_ms", {"redis_url": "redis://h", "redis_replicas_min": 1, "redis_timeout_ms": 1000}),
        ("redis_replicas_min", {"redis_replicas_min": 1}),
        ("snapshot_interval_s", {"redis_url": "redis://h", "snapshot_interval_s": 60}),
        ("shards", {"redis_url": "redis+cluster://a/2", "shards": 1}),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused_by_the_name_of_its_setting(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{name}\\b"):
        check(Config(**values))


def test_the_url_of_a_cluster_names_each_of_its_stores() -> None:
    assert store_urls("") == ("",)
    assert store_urls("redis+sentinel://h,h/e") == ("redis+sentinel://h,h/e",)
    assert store_urls("redis+cluster://u:p@h:1,h:2/2?a=b") == ("redis+cluster://u:p@h:1,h:2/2?a=b#0", "redis+cluster://u:p@h:1,h:2/2?a=b#1")
    assert len(store_urls("rediss+cluster://h")) == len(store_urls("rediss+cluster://h/")) == STORES_DEFAULT
    assert store_urls("redis+cluster://h/2#1") == ("redis+cluster://h/2#1",)
    check(Config(redis_url="redis+cluster://h:1,h:2/2", shards=4))


@pytest.mark.parametrize("url", ["redis://a redis://b", "redis+cluster://h/3", "redis+cluster://h/0", "redis+cluster://h/4/"])
def test_several_urls_and_numbers_of_stores_that_cannot_be_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^redis_url: .*allowed"):
        check(Config(redis_url=url))
