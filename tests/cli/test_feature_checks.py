"""The checks that features bring, of `engine doctor` and `engine up`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.cli.feature_checks import check_at_start, of_features
from engine.cli.finding import Finding
from engine.config import Config
from engine.errors import RulesError
from engine.features.history.history_database import HistoryDatabase
from engine.features.reach import extras_check
from tests.support.mail_server import mail_server
from tests.support.redis_server import RedisServer

RULE = '[[rule]]\nname = "one"\nevent = "photo.liked"\nrecipients = ["user"]\ntype = "liked"\n'


async def only(config: Config) -> Finding:
    (finding,) = [finding async for finding in of_features(config)]
    return finding


async def test_a_rules_file_that_cannot_be_used_is_told_and_keeps_the_engine_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    config = Config(rules_path=str(path))
    path.write_text(RULE)
    assert (await only(config)).found == f"1 rules in {path}"
    check_at_start(config)
    path.write_text(RULE.replace("event", "evnt"))
    finding = await only(config)
    assert (finding.level, "evnt" in finding.found) == ("failed", True)
    with pytest.raises(RulesError, match="evnt"):
        check_at_start(config)


async def found(config: Config) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.level, finding.found) async for finding in of_features(config)}


async def test_the_servers_of_sources_are_asked_what_waits(redis_client: Redis, redis_server: RedisServer) -> None:
    source = {"kind": "redis", "name": "orders", "connection": redis_server.url, "stream": "orders"}
    await redis_client.xadd("orders", {"body": "{}"})
    answering = await found(Config(sources=json.dumps([source])))
    assert answering["servers of sources"] == ("ok", "orders: 1 rows wait, 0 are dead")
    away = await found(Config(sources=json.dumps([{**source, "connection": "redis://127.0.0.1:1"}])))
    assert (away["sources"][0], away["servers of sources"][0]) == ("ok", "failed")
    assert away["servers of sources"][1].startswith("source orders: ConnectionError ")


async def test_the_mail_server_is_greeted_and_gets_no_mail() -> None:
    with mail_server() as server:
        assert (await found(Config(smtp_url=server.url, mail_from="a@b.c")))["mail"] == (
            "ok",
            f"127.0.0.1:{server.port} answers, without TLS",
        )
        assert server.mails == []
    for place in (f"127.0.0.1:{server.port}", f"{'a' * 64}:25"):
        level, told = (await found(Config(smtp_url=f"smtp://{place}", mail_from="a@b.c")))["mail"]
        assert (level, told.startswith(f"{place}: ")) == ("failed", True)


@pytest.mark.parametrize(
    ("given", "extra"),
    [
        ({"push_contact": "mailto:a@b.c"}, "push"),
        ({"smtp_url": "smtp://127.0.0.1:1", "mail_from": "a@b.c"}, "mail"),
        ({"apprise_urls": ("slack://",)}, "apprise"),
    ],
)
async def test_a_setting_whose_extra_is_missing_is_told(given: dict[str, Any], extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await found(Config(**given)))["channels"][0] == "ok"
    monkeypatch.setattr(extras_check, "find_spec", lambda _module: None)
    level, told = (await found(Config(**given)))["channels"]
    assert (level, f"install the extra `{extra}`" in told, next(iter(given)) in told) == ("failed", True, True)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"apprise_recipients": "ops=slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/ oncall=slakc://token"},
            "oncall: no URL of a service",
        ),
        ({"apprise_recipients": "oncall=json://[::1/token"}, "oncall: no URL of a service"),
        ({"tenant_channels": ("push", "emial")}, "'emial' is not allowed; allowed are "),
    ],
)
async def test_a_recipient_or_channel_that_does_not_exist_is_told(given: dict[str, Any], why: str) -> None:
    level, told = (await found(Config(**given)))["channels"]
    assert (level, told.startswith(f"{next(iter(given))}: {why}"), "token" in told) == ("failed", True, False)


async def test_the_file_of_the_history_is_not_made_by_the_check(tmp_path: Path) -> None:
    config = Config(history_url="sqlite:///history.db", data_dir=str(tmp_path))
    assert (await only(config)).level == "ok"
    assert not (tmp_path / "history.db").exists()
    database = HistoryDatabase(config.history_url, config.data_dir)
    database.migrate()
    database.close()
    assert (await only(config)).found.endswith("answers")
    (tmp_path / "history.db").write_bytes(b"not a database at all" * 100)
    assert (await only(config)).level == "failed"
    assert (await only(Config(history_url="sqlite:///history.db/another.db", data_dir=str(tmp_path)))).level == "failed"
