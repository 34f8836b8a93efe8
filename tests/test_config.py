"""The configuration object: its defaults hold every rule, and each rule names the setting that breaks it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.config import FIELDS, Config, check, redis_urls
from engine.errors import ConfigError


def test_the_defaults_hold_every_rule() -> None:
    check(Config())


def test_the_defaults_are_of_the_types_they_are_declared_with() -> None:
    for name, field in FIELDS.items():
        assert msgspec.convert(getattr(Config(), name), field.type) == field.default


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
        ("autoscale_down_share", {"autoscale_target_share": 0.8}),
        ("autoscale_down_share", {"autoscale_down_share": 0.35}),
        ("redis_timeout_ms", {"redis_url": "redis://h", "redis_replicas_min": 1, "redis_timeout_ms": 1000}),
        ("redis_replicas_min", {"redis_replicas_min": 1}),
        ("snapshot_interval_s", {"redis_url": "redis://h", "snapshot_interval_s": 60}),
        ("redis_url", {"redis_url": "redis://a redis://b redis://c", "schedulers": 3}),
        ("redis_url", {"redis_url": "redis://a redis://a", "schedulers": 2}),
        ("shards", {"redis_url": "redis://a redis://b", "schedulers": 2, "shards": 1}),
        ("schedulers", {"redis_url": "redis://a redis://b"}),
        ("autoscale_shards", {"redis_url": "redis://a redis://b", "schedulers": 2, "autoscale_shards": "1-4"}),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused_by_the_name_of_its_setting(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{name}\\b"):
        check(Config(**values))


def test_urls_of_several_servers_are_separated_by_white_space_and_a_password_may_have_some() -> None:
    assert redis_urls("") == ("",)
    assert redis_urls("redis://h") == ("redis://h",)
    assert redis_urls(" redis://a:1\n  rediss://b  redis+sentinel://c,d/e ") == ("redis://a:1", "rediss://b", "redis+sentinel://c,d/e")
    assert redis_urls("redis://u:pass word@h") == ("redis://u:pass word@h",)
    check(Config(redis_url="redis://a redis://b", schedulers=2, shards=4))
