"""Where the values of settings come from, which names exist, and what a wrong one is answered with."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from engine.cli.settings import INTERNAL, SECTION_OF, SECTIONS, allowed, checked, load, load_with_sources, remark, unit, variable
from engine.config import FIELDS, Config
from engine.errors import ConfigError
from engine.features.sources.core import sources_of
from engine.http.cors import origin_allowed
from tests.support.kubernetes import service_variables

OF_OWN_RAY: dict[str, Any] = {"ray_publish": ("default",), "ray_listen": ("default",)}
"""Without `address`."""


def reason(path: Path, text: str = "", env: dict[str, str] | None = None, **options: Any) -> str:
    """What `load` refuses this with."""
    path /= "engine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(options, env or {}, path)
    assert str(caught.value).isprintable(), "one line"
    return str(caught.value)


# -- what is published -------------------------------------------------------------------------------------------------
def test_every_published_setting_is_a_field_of_one_section_and_has_a_meaning() -> None:
    published = [name for section in SECTIONS.values() for name in section.settings]
    assert len(set(published)) == len(published)
    assert set(published) <= FIELDS.keys()
    assert all(meaning for section in SECTIONS.values() for meaning in section.settings.values())
    assert {name for name, title in SECTION_OF.items() if title != INTERNAL} == set(published)


def test_no_section_is_called_like_a_setting() -> None:
    assert not {*SECTIONS, INTERNAL} & FIELDS.keys()


def test_documents_for_users_name_published_settings_only() -> None:
    root = Path(__file__).parents[2]
    for name in FIELDS:
        for path in (
            "deploy/ray-cluster.yaml",
            "README.md",
            "PROTOCOL.md",
            "docs/PROTOCOL-OPERATING.md",
            "docs/USING.md",
            "docs/CLUSTER.md",
        ):
            if f"ENGINE_{name.upper()}" in (root / path).read_text():
                assert SECTION_OF[name] != INTERNAL, f"{path} names {name}"


def test_the_reference_of_settings_is_what_its_script_writes() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "SETTINGS.md").read_text()
    assert page == runpy.run_path(str(docs / "settings.py"))["reference"](), "python docs/settings.py"
    assert {name for section in SECTIONS.values() for name in section.settings} == set(re.findall(r"^\| `([a-z_]+)`", page, re.MULTILINE))


def test_a_setting_states_its_unit_and_what_it_takes() -> None:
    assert [unit(name) for name in ("heartbeat_ms", "ttl_s_default", "data_bytes_max", "publish_rate_initial_per_s")] == [
        "ms", "s", "bytes", "per s"
    ]  # fmt: skip
    assert [unit(name) for name in ("session_stream_max", "port", "redis_timeout_ms")] == ["", "", "ms"]
    assert allowed("port") == "an integer from 0 to 65535"
    assert allowed("retry_tries") == "an integer from 1 to 10^13"
    assert allowed("redis_fsync") == "one of always, everysec"
    assert allowed("allowed_origins").startswith("a list")
    assert allowed("autoscale_dry_run") == "true or false"
    assert allowed("trace_ratio") == "a number from 0 to 1"
    assert allowed("ray_listen").endswith("each 1 to 64 letters, digits, _ . and -")


# -- sources -----------------------------------------------------------------------------------------------------------
def test_an_option_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text('[edge]\nport = 1\nhost = "file"\n[engine]\nshards = 3\n[delivery]\nretry_tries = 7\n')
    env = {"ENGINE_PORT": "2", "ENGINE_HOST": "variable", "ENGINE_EDGES": ""}
    loaded = load_with_sources({"port": 4, "redis_url": "redis://h", "edges": None}, env, path)
    assert (loaded.config.port, loaded.config.host, loaded.config.shards, loaded.config.edges) == (4, "variable", 3, 1)
    assert loaded.sources == {
        "port": "--port", "redis_url": "--redis", "host": "ENGINE_HOST", "shards": str(path), "retry_tries": str(path)
    }  # fmt: skip


def test_without_sources_everything_has_its_default(tmp_path: Path) -> None:
    assert load_with_sources({}, {}, tmp_path / "none.toml") == load_with_sources(None, {}, tmp_path / "none.toml")
    assert load({}, {}, tmp_path / "none.toml") == Config(**OF_OWN_RAY)


def test_a_list_is_written_with_commas_in_the_environment_and_as_a_list_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text('[edge]\nallowed_origins = ["https://a", "https://b"]\n[internal]\nreconnect_delays_ms = [1, 2]\n')
    from_file = load({}, {}, path)
    env = {"ENGINE_ALLOWED_ORIGINS": "https://a, https://b,", "ENGINE_INTERNAL_RECONNECT_DELAYS_MS": "1,2"}
    assert load({}, env, tmp_path / "none.toml") == from_file
    assert from_file.allowed_origins == ("https://a", "https://b")
    assert from_file.reconnect_delays_ms == (1, 2)
    path.write_text('[edge]\nallowed_origins = "https://a, https://b"\n[internal]\nreconnect_delays_ms = "1,2"\n')
    assert load({}, {}, path) == from_file, "a text with commas in the file"
    assert load({"allowed_origins": "https://a,https://b", "reconnect_delays_ms": "1,2"}, {}, tmp_path / "none.toml") == from_file


@pytest.mark.parametrize(
    "origin",
    ["https://app.example", "http://localhost:3000", "https://[::1]:8443", "HTTPS://App.Example:443", "http://10.0.0.5", "*"],
)
def test_an_allowed_origin_is_a_scheme_a_host_and_perhaps_a_port(tmp_path: Path, origin: str) -> None:
    loaded = load({}, {"ENGINE_ALLOWED_ORIGINS": origin}, tmp_path / "none.toml")
    assert loaded.allowed_origins == (origin,)
    assert origin == "*" or origin_allowed(origin.lower(), "engine.example", loaded)


@pytest.mark.parametrize(
    "origin",
    [
        "app.example", "https://*.example.com", "https://app.example/", "https://app.example/path", "https://app.example?x", "https://",
        "wss://app.example", "capacitor://localhost", "null", "https://app.example:0", "https://app.example:65536", "https://app.example:",
        "https://user@app.example", "https://bücher.example", "https://[zz]", "https://[::1", "https://a b",
    ],
)  # fmt: skip
def test_an_origin_that_no_browser_sends_is_refused_with_the_allowed_form(tmp_path: Path, origin: str) -> None:
    told = reason(tmp_path, env={"ENGINE_ALLOWED_ORIGINS": f"https://a,{origin}"})
    assert f"allowed_origins: {origin!r} is not allowed" in told
    assert "https://HOST[:PORT]" in told


def test_rules_are_found_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({}, {"ENGINE_RULES_PATH": "rules.toml"}).rules_path == str(tmp_path / "rules.toml")


def test_internal_limits_are_set_through_their_own_door_only(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text("[internal]\nhealth_ms = 500\n")
    assert load({}, {"ENGINE_INTERNAL_HEALTH_TIMEOUT_MS": "3000"}, path) == Config(health_ms=500, health_timeout_ms=3000, **OF_OWN_RAY)
    assert variable("health_ms") == "ENGINE_INTERNAL_HEALTH_MS"
    assert variable("port") == "ENGINE_PORT"
    told = reason(tmp_path, env={"ENGINE_HEALTH_MS": "500"})
    assert "not part of the interface" in told
    assert "ENGINE_INTERNAL_HEALTH_MS" in told
    assert "[internal]" in reason(tmp_path, "[engine]\nhealth_ms = 500\n")


def test_variables_of_the_clients_are_left_alone(tmp_path: Path) -> None:
    assert load({}, {"ENGINE_TOKEN": "x", "ENGINE_URL": "http://h", "ENGINEER": "ann"}, tmp_path / "none.toml") == Config(**OF_OWN_RAY)


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("port = 9000\n", ["port is a setting of the section [edge]"]),
        ("health_ms = 9\n", ["internal limit", "[internal]"]),
        ("prot = 9000\n", ["unknown setting 'prot'", "port in [edge]"]),
        ("[edge]\nhots = 'x'\n", ["[edge]", "unknown setting 'hots'", "host in [edge]"]),
        ("[edge]\nredis_url = 'x'\n", ["redis_url is a setting of the section [redis]"]),
        ("[internal]\nport = 1\n", ["port is a setting of the section [edge]"]),
        ("[internal]\nhelth_ms = 1\n", ["unknown setting 'helth_ms'", "health_ms in [internal]"]),
        ("[limit]\noffline_max = 1\n", ["no section 'limit'", "[limits]"]),
        (
            "[zzzzzz]\n",
            [
                "no section 'zzzzzz'",
                "engine, edge, redis, auth, delivery, limits, links, tenants, autoscale, history, ray, ingest, "
                "traces, channels, actions, internal",
            ],
        ),
        ("[edges]\nport = 1\n", ["no section 'edges'", "edges is a setting of the section [engine]", "sections are engine, edge, redis"]),
        ("[[edges]]\nport = 1\n", ["no section 'edges'"]),
        ("[health_ms]\nport = 1\n", ["no section 'health_ms'", "internal limit", "sections are engine, edge, redis"]),
        ("edge = 1\n", ["edge is a section", "[edge]"]),
        ("[[edge]]\nport = 1\n", ["edge is a section"]),
        ("[edge]\nport = 65536\n", ["port", "engine.toml", "65536 is not allowed", "an integer from 0 to 65535"]),
        ("[engine]\nlog_level = 'LOUD'\n", ["log_level", "'LOUD'", "DEBUG, INFO"]),
        ("[engine]\nqqqqqqq = 1\n", ["unknown setting 'qqqqqqq'", "`engine config`"]),
        ("port =\n", ["engine.toml"]),
    ],
)
def test_a_wrong_file_is_answered_with_the_place_and_what_is_allowed(tmp_path: Path, text: str, told: list[str]) -> None:
    answer = reason(tmp_path, text)
    assert [part for part in ["engine.toml", *told] if part not in answer] == []


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("ENGINE_PROT", "1", ["unknown setting 'ENGINE_PROT'", "ENGINE_PORT?"]),
        ("ENGINE_port", "1", ["ENGINE_port", "its variable is ENGINE_PORT"]),
        ("ENGINE_INTERNAL_PORT", "1", ["published", "ENGINE_PORT"]),
        ("ENGINE_INTERNAL_HELTH_MS", "1", ["ENGINE_INTERNAL_HEALTH_MS?"]),
        ("ENGINE_PORT", "many", ["port (ENGINE_PORT)", "'many' is not allowed", "an integer from 0 to 65535"]),
        ("ENGINE_JWKS_URL", "https://i", ["ENGINE_JWT_JWKS_URL?"]),
        ("ENGINE_PORT", "9" * 5000, ["port (ENGINE_PORT)", "..."]),
        ("ENGINE_TTL_S_DEFAULT", "3d", ["'3d' is not allowed", "an integer from 1 to 10^13, in seconds, such as 3600 for 1h"]),
        ("ENGINE_INBOX_TTL_S", "1" + "0" * 18, ["inbox_ttl_s", "an integer from 1 to 31536000000"]),
        ("ENGINE_CONNECTIONS_MAX", "1" + "0" * 18, ["connections_max", "an integer from 1 to 10^13"]),
        ("ENGINE_HEARTBEAT_MS", "30s", ["'30s' is not allowed", "in milliseconds, such as 1500 for 1.5s"]),
        ("ENGINE_DATA_BYTES_MAX", "64K", ["'64K' is not allowed", "in bytes, such as 1048576 for 1 MiB"]),
    ],
)
def test_a_wrong_variable_is_answered_with_its_name_and_what_is_allowed(tmp_path: Path, key: str, text: str, told: list[str]) -> None:
    answer = reason(tmp_path, env={key: text})
    assert [part for part in told if part not in answer] == []
    assert len(answer) < 250


def test_a_variable_that_is_no_misspelt_setting_is_left_alone_and_reported(tmp_path: Path) -> None:
    loaded = load_with_sources({}, {"ENGINE_HOME": "/opt", "ENGINE_DIR": "/srv/engine", "ENGINE_PORT": "81"}, tmp_path / "none.toml")
    assert (loaded.config.port, loaded.left_alone) == (81, ("ENGINE_DIR", "ENGINE_HOME"))
    assert "ENGINE_DIR, ENGINE_HOME" in remark(loaded.left_alone)
    assert remark(()) == ""


def test_what_kubernetes_says_of_a_service_named_engine_is_no_setting(tmp_path: Path) -> None:
    loaded = load_with_sources(
        {}, service_variables("engine", "http", 80) | service_variables("engine-redis", "redis", 6379), tmp_path / "none.toml"
    )
    assert loaded == load_with_sources({}, {}, tmp_path / "none.toml")


def test_only_the_port_of_a_service_may_be_an_address(tmp_path: Path) -> None:
    assert "tcp://10.0.0.5:6379" in reason(tmp_path, env={"ENGINE_SHARDS": "tcp://10.0.0.5:6379"})
    assert load({}, {"ENGINE_REDIS_URL": "tcp://10.0.0.5:6379"}, tmp_path / "none.toml").redis_url == "tcp://10.0.0.5:6379"


def test_only_jobs_of_the_engines_own_ray_may_publish_and_listen(tmp_path: Path) -> None:
    own, cluster = load({}, {}, tmp_path / "none.toml"), load({}, {"ENGINE_ADDRESS": "auto"}, tmp_path / "none.toml")
    assert [(made.ray_publish, made.ray_listen) for made in (own, cluster)] == [(("default",), ("default",)), ((), ())]
    (tmp_path / "engine.toml").write_text("[auth]\nray_publish = []\n")
    closed = load({}, {"ENGINE_RAY_LISTEN": "shop"}, tmp_path / "engine.toml")
    assert (closed.ray_publish, closed.ray_listen) == ((), ("shop",))


def test_a_wrong_option_is_named_as_it_is_typed(tmp_path: Path) -> None:
    assert "(--data-dir)" in reason(tmp_path, data_dir=5)
    assert "(--redis)" in reason(tmp_path, redis_url=5)
    assert "unknown setting 'prot'" in reason(tmp_path, prot=5)


def test_a_secret_of_the_wrong_type_is_not_repeated_in_the_answer(tmp_path: Path) -> None:
    assert "4711" not in reason(tmp_path, "[auth]\njwt_secret = 4711\n")


def test_a_configuration_that_a_program_made_is_checked_as_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = checked(Config(redis_url="redis://:word@host", rules_path="rules.toml", ray_publish=("default",)))
    assert (made.redis_url, made.rules_path, made.ray_publish) == ("redis://:word@host", str(tmp_path / "rules.toml"), ("default",))
    assert "word" not in repr(made)
    for wrong in ({"port": 70_000}, {"edges": "two"}, {"ray_publish": ("no:tenant",)}, {"ttl_s_default": 1 << 40}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            checked(Config(**wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["collector:4318", "grpc://collector:4317", "http://user:hush@collector:4318", "http://"])
def test_a_collector_is_an_http_url_without_a_user(url: str) -> None:
    with pytest.raises(ConfigError, match="trace_url") as refused:
        load({}, {"ENGINE_TRACE_URL": url})
    assert "hush" not in str(refused.value)
    assert load({}, {"ENGINE_TRACE_URL": "http://collector:4318", "ENGINE_TRACE_RATIO": "0.5"}).trace_ratio == 0.5


def test_tables_of_sources_are_read_with_the_files_of_their_connections(tmp_path: Path) -> None:
    (tmp_path / "orders-db").write_text("postgresql://app:hush@db/app\n")
    (tmp_path / "engine.toml").write_text('[[source]]\nkind = "postgresql"\nname = "orders"\nconnection_file = "orders-db"\n')
    config = load(env={}, toml_path=tmp_path / "engine.toml")
    (source,) = sources_of(config.sources)
    assert (source.name, source.connection) == ("orders", "postgresql://app:hush@db/app")
    assert "hush" not in repr(config)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[source]\nname = 'a'\n", "[[source]] on a line of its own"),
        ("[[source]]\nconnection_file = 'missing'\n", "connection_file: [Errno 2]"),
        ("[[source]]\nconnection_file = 'f'\nconnection = 'c'\n", "without a `connection` beside it"),
        ("[[source]]\nname = 2026-01-01\n", "allowed are texts and numbers"),
    ],
)
def test_a_wrong_table_of_a_source_is_answered_with_what_is_allowed(tmp_path: Path, text: str, told: str) -> None:
    assert told in reason(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("webhook_hosts", {"webhook_hosts": ("https://hooks.example.com",), "webhook_secret": "whsec_" + "A" * 32}),
        ("push_hosts", {"push_hosts": ("*",)}),
        ("tenant_hosts", {"tenant_hosts": ("hooks.example.com:443",)}),
        ("question_targets", {"question_targets": ("hooks.example.com",)}),
        ("question_targets", {"question_targets": ("*",)}),
        ("smtp_url", {"smtp_url": "smtp://mail:65536", "mail_from": "a@b.c"}),
        ("trace_url", {"trace_url": "http://collector:http"}),
        ("public_url", {"public_url": "https://notify.example.com:65536"}),
        ("autoscale_down_share", {"autoscale_target_share": 0.8}),
        ("autoscale_down_share", {"autoscale_down_share": 0.35}),
        ("autoscale_shards", {"redis_url": "redis+cluster://a/2", "autoscale_shards": "1-4"}),
    ],
)
def test_a_value_that_breaks_a_rule_of_a_feature_is_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{name}\\b"):
        checked(Config(**values))
