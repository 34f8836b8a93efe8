"""`engine config`, as an operator reads it and as a program does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engine.cli.app import app
from engine.cli.settings import INTERNAL, SECTION_OF, SECTIONS
from engine.config import FIELDS
from engine.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def config(*words: str, **env: str) -> str:
    found = CliRunner().invoke(app, ["config", *words], env=env)
    assert found.exit_code == 0, found.exception
    return found.stdout


def rows(*words: str, **env: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(config("--json", *words, **env))["settings"]}


def test_every_published_setting_is_shown_by_section_within_80_columns() -> None:
    told = config()
    assert all(len(line) <= 80 for line in told.splitlines())
    assert "\u2026" not in told, "nothing is cut off"
    first_words = [line.split()[0] for line in told.splitlines() if line.strip() and not line.startswith(" ")]
    expected = ["setting"]
    for title, section in SECTIONS.items():
        expected += [f"[{title}]", *section.settings]
    assert first_words == expected
    assert "health_ms" not in told


def test_each_value_is_shown_with_its_source(folder: Path) -> None:
    (folder / "engine.toml").write_text("[engine]\nshards = 3\n[internal]\nhealth_ms = 500\n")
    found = rows(ENGINE_REDIS_URL="redis://h:1", ENGINE_HEARTBEAT_MS="20000")
    assert (found["shards"]["value"], found["shards"]["source"], found["shards"]["default"]) == (3, "engine.toml", 0)
    assert (found["heartbeat_ms"]["value"], found["heartbeat_ms"]["source"]) == (20_000, "ENGINE_HEARTBEAT_MS")
    assert (found["heartbeat_ms"]["unit"], found["heartbeat_ms"]["section"]) == ("ms", "edge")
    assert (found["redis_url"]["value"], found["redis_url"]["source"]) == ("redis://h:1", "ENGINE_REDIS_URL")
    assert (found["port"]["source"], found["port"]["allowed"]) == ("default", "an integer from 0 to 65535")
    assert found["port"]["variable"] == "ENGINE_PORT"


def test_internal_limits_are_shown_on_request_only(folder: Path) -> None:
    (folder / "engine.toml").write_text("[internal]\nhealth_ms = 500\n")
    assert {name for name in FIELDS if SECTION_OF[name] != INTERNAL} == rows().keys()
    found = rows("--internal")
    assert found.keys() == FIELDS.keys()
    assert (found["health_ms"]["value"], found["health_ms"]["variable"]) == (500, "ENGINE_INTERNAL_HEALTH_MS")
    told = config("--internal")
    assert "[internal]" in told
    assert all(len(line) <= 80 for line in told.splitlines())


def test_no_secret_is_printed() -> None:
    key = "-----BEGIN PUBLIC KEY-----\nSECRETKEY\n-----END PUBLIC KEY-----"
    env = {
        "ENGINE_JWT_SECRET": "hush-hush-hush-hush-hush-hush-hush",
        "ENGINE_REDIS_URL": "redis://user:hush@h:1/0",
        "ENGINE_JWT_JWKS_URL": "https://user:hush@issuer/jwks",
        "ENGINE_JWT_PUBLIC_KEY": key,
        "ENGINE_WEBHOOK_SECRET": "whsec_" + "hush" * 8,
        "ENGINE_HISTORY_URL": "postgresql://engine:hush@h/history",
        "ENGINE_SMTP_URL": "smtp://user:hush@h:587",
        "ENGINE_MAIL_FROM": "news@example.com",
        "ENGINE_RAY_EVENTS": "default",
        "ENGINE_RAY_EVENTS_SECRET": "hush" * 8,
        "ENGINE_SOURCES": '[{"kind": "redis", "name": "s", "connection": "redis://:hush@h/0"}]',
    }
    for told in (config(**env), config("--json", "--internal", **env)):
        assert "hush" not in told
        assert "SECRETKEY" not in told
        assert "(set)" in told
        assert "(PEM text)" in told
    assert rows(**env)["redis_url"]["value"] == "redis://user:***@h:1/0"
    assert rows(**env)["webhook_secret"]["value"] == "(set)"
    assert rows(**env)["history_url"]["value"] == "postgresql://engine:***@h/history"
    assert rows()["jwt_secret"]["value"] == rows()["webhook_secret"]["value"] == ""


def test_a_wrong_setting_is_an_error_and_not_a_table() -> None:
    found = CliRunner().invoke(app, ["config"], env={"ENGINE_PROT": "1"})
    assert isinstance(found.exception, ConfigError)
    assert "ENGINE_PORT" in str(found.exception)
    assert found.stdout == ""
