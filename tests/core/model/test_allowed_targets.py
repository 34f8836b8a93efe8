"""Targets that the settings of an engine allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import Config
from engine.core.model.action import parse_target
from engine.core.model.allowed_targets import not_allowed
from engine.errors import RulesError, Unavailable
from engine.features.rules.rule_book import RuleBook, read_rules
from tests.support.webhook_target import SECRET

CONFIG = Config(webhook_hosts=("Hooks.example.com", "*.shop.example"), webhook_secret=SECRET)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("https://hooks.example.com/a", ""),
        ("https://a.b.shop.example/", ""),
        ("https://shop.example/", "shop.example is not among webhook_hosts"),
        ("https://xshop.example/", "xshop.example is not among webhook_hosts"),
        ("http://hooks.example.com/", "http:// is allowed only inside webhook_networks, and there are none"),
        ("ray://shop/carts.touch", ""),
        ("ray://engine/shard-0.touch", "the engine's own actors are no targets"),
        ("serve://orders/Orders.confirm", ""),
    ],
)
def test_which_targets_are_allowed(target: str, reason: str) -> None:
    assert not_allowed(parse_target(target), CONFIG) == reason


def test_nothing_is_sent_unsigned() -> None:
    assert "webhook_secret" in not_allowed(parse_target("https://h/"), Config(webhook_hosts=("h",)))


def test_rules_with_a_target_that_is_not_allowed_are_refused_by_the_name_of_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\nname = "call"\nevent = "a"\nrecipients = ["user"]\ntype = "t"\ndo = "https://elsewhere.example/x"\n')
    with pytest.raises(RulesError, match=r"rules.toml: rule 'call': do: elsewhere.example is not among webhook_hosts"):
        read_rules(path, CONFIG)
    assert read_rules(path).rules[0].do, "without an engine only the form is checked"
    book = RuleBook(Config(rules_path=str(path)), lambda: 0)
    assert "webhook_hosts" in book.reason()
    with pytest.raises(Unavailable):
        book.rules()
