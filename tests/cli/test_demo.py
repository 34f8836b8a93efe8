"""The settings of a trial: only where nothing says that the engine is more than that."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cli.demo import is_demo, with_demo
from engine.config import CATCH_MAILS, Config
from engine.features.rules.rule_book import RuleBook


def test_engine_without_settings_catches_mails_and_has_demo_rules() -> None:
    assert is_demo(Config())
    config = with_demo(Config(), 8000)
    assert (config.smtp_url, config.public_url) == (CATCH_MAILS, "http://127.0.0.1:8000")
    assert RuleBook(config, lambda: 0).rules().channels_of("demo") == {"email"}


@pytest.mark.parametrize(
    "given",
    [
        {"smtp_url": "smtp://mail", "mail_from": "a@b.c"},
        {"redis_url": "redis://db"},
        {"jwt_secret": "s" * 32},
        {"jwt_public_key": "k"},
        {"host": "0.0.0.0"},
        {"address": "auto", "redis_url": "redis://db"},
    ],
)
def test_an_engine_that_is_configured_is_no_demo(given: dict[str, Any]) -> None:
    assert not is_demo(Config(**given))


def test_the_demo_keeps_settings_that_were_given() -> None:
    given = Config(rules_path="mine.toml", mail_from="a@b.c", public_url="https://notify.example.com")
    assert with_demo(given, 8000) == Config(
        rules_path="mine.toml", mail_from="a@b.c", public_url="https://notify.example.com", smtp_url=CATCH_MAILS
    )
