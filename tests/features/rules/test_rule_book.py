"""The rules in force: read from a file, and again in a thread when it changes; a wrong file leaves the rules of before in force."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from engine.config import CATCH_MAILS, Config
from engine.errors import RulesError
from engine.features.rules import rule_book
from engine.features.rules.core.rules import Rules
from engine.features.rules.rule_book import RuleBook, parse_version
from tests.support.edge_world import DEADLINE_S, edge_world
from tests.support.waiting import until

RULES = """
[[rule]]
name = "like"
event = "post.liked"
recipients = ["user"]
type = "forum.like"

[[rule]]
name = "cart"
event = "cart.abandoned"
recipients = ["user"]
type = "touch.cart"
"""


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def names(book: RuleBook) -> list[str]:
    return [rule.name for rule in book.rules().rules]


async def test_a_file_that_could_not_be_read_is_read_again(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its mode was wrong: time and size are the same when it is right."""
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", Mock(side_effect=PermissionError(13, "Permission denied")))
        book = RuleBook(Config(rules_path=str(rules), rules_check_ms=1000), clock)
    assert "Permission denied" in book.reason()
    clock.now_ms += 1000
    await until(lambda: book.reason() == "")
    assert names(book) == ["like", "cart"]


async def test_rules_are_taken_when_their_file_changes_and_a_bad_one_leaves_the_old_in_force(
    rules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    book = RuleBook(Config(rules_path=str(rules), rules_check_ms=1000), clock)
    assert names(book) == ["like", "cart"]

    def write(text: str) -> None:
        rules.write_text(text)
        os.utime(rules, ns=(clock.now_ms + 1, clock.now_ms + 1))
        before = names(book)
        assert book._reader is None or not book._reader.is_alive(), "not looked at before it is time"
        assert before == names(book)
        clock.now_ms += 1000
        book.rules()

    with caplog.at_level(logging.ERROR):
        write('[[rule]]\nname = "like"\nevent = "e"\n')
        await until(lambda: f"{rules}:1: rule 'like': " in book.file_refused)
        assert names(book) == ["like", "cart"]
        clock.now_ms += 1000
        book.rules()
    assert len(caplog.records) == 1, "said once per change"
    write(RULES.replace('"like"', '"liked"'))
    await until(lambda: names(book) == ["liked", "cart"])
    assert book.file_refused == ""
    text = rules.read_text()
    rules.unlink()
    clock.now_ms += 1000
    assert names(book) == ["liked", "cart"]
    assert str(rules) in book.file_refused
    rules.write_text(text)
    clock.now_ms += 1000
    book.rules()
    await until(lambda: book.file_refused == "")


async def test_timers_of_a_changed_file_keep_their_conditions(rules: Path) -> None:
    clock = Clock()
    asking = RULES.replace('name = "cart"', 'name = "cart"\nfire = { unless_event = "order.paid" }')
    rules.write_text(asking)
    book = RuleBook(Config(rules_path=str(rules), rules_check_ms=1000), clock)
    rules.write_text(RULES.replace('"like"', '"liked"'))
    clock.now_ms += 1000
    book.rules()
    await until(lambda: names(book) == ["liked", "cart"])
    assert (book.rules().events_asked, book.in_force().events_asked) == (frozenset(), frozenset({"order.paid"}))
    assert book.in_force() is book.in_force()


def test_without_a_file_there_are_no_rules_and_no_refusal() -> None:
    book = RuleBook(Config(), Clock())
    assert (book.rules().rules, book.file_refused) == ((), "")


def test_rules_that_ask_for_more_than_shards_keep_are_refused(rules: Path) -> None:
    events = ", ".join(f'"e{n}"' for n in range(65))
    rules.write_text(RULES + f"fire = {{ unless_event = [{events}] }}\n")
    book = RuleBook(Config(rules_path=str(rules)), Clock())
    assert book.unread
    assert "at most 64 events" in book.reason()


async def test_an_edge_that_has_never_read_its_rules_refuses_what_needs_them_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    async with edge_world(rules_path=str(path), rules_check_ms=1) as world, world.http() as client:
        event = {"type": "post.liked", "user": "u1"}
        answer = await client.post("/v1/events", json=event)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), "without a match it would be lost"
        categorized = {"user": "u1", "type": "t", "category": "social"}
        assert (await client.post("/v1/notifications", json=categorized)).status_code == 503, "the rules may define it"
        assert (await client.post("/v1/notifications", json={"user": "u1", "type": "t"})).status_code == 202
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["degraded"]) == (200, ["rules"])
        assert 'engine_edge_degraded{edge="edge-0",part="rules"} 1.0' in (await client.get("/metrics")).text
        assert world.gateway.stats()["degraded"] == {"rules": f"{path}: No such file or directory"}
        path.write_text(RULES)
        await until(lambda: not world.gateway.metrics.reasons())
        assert (await client.post("/v1/events", json=event)).json()["matched"] == ["like"]
        assert (await client.post("/v1/notifications", json=categorized)).status_code == 422
        assert (await client.get("/readyz")).json()["degraded"] == []
        path.write_text("broken")
        await until(world.gateway.metrics.reasons)
        assert (await client.post("/v1/events", json={**event, "id": "2"})).json()["matched"] == ["like"], "the rules of before"


async def test_publishing_goes_on_with_the_old_rules_while_a_changed_file_is_parsed(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse_rules, begun, may_end = rule_book.parse_rules, threading.Event(), threading.Event()

    def slow(text: str, source: str) -> Rules:
        begun.set()
        assert may_end.wait(DEADLINE_S / 4), "a parser that keeps the event loop waiting is never let go on"
        return parse_rules(text, source)

    async with edge_world(rules_path=str(rules), rules_check_ms=1) as world, world.http() as client:
        monkeypatch.setattr(rule_book, "parse_rules", slow)
        rules.write_text('[category.social]\ncap = 2\nper = "1h"\n' + RULES)
        item = {"user": "u1", "type": "t", "category": "social"}

        async def published() -> bool:
            answer = await client.post("/v1/notifications", json=item)
            assert answer.status_code in (202, 422), answer.text
            return answer.status_code == 202

        await until(lambda: begun.is_set() or published())
        assert not await published(), "the old rules have no such category"
        may_end.set()
        await until(published)


@pytest.mark.parametrize(
    ("step", "lacking", "given"),
    [
        ('channel = "email"', "smtp_url", {"smtp_url": "smtp://mail"}),
        ('channel = "apprise"', "apprise_urls", {"apprise_urls": ("slack://",)}),
        ('channel = "apprise", to = "oncall"', "apprise_recipients has no oncall", {"apprise_recipients": "oncall=slack://x"}),
    ],
)
def test_a_step_that_the_settings_do_not_carry_is_refused_with_the_setting(step: str, lacking: str, given: dict[str, Any]) -> None:
    text = f"[category.alert]\nsteps = [{{ {step} }}]"
    with pytest.raises(RulesError, match=rf"category\.alert\.steps\[0\]: the setting {lacking}"):
        parse_version(text, 1, Config())
    assert parse_version(text, 1, Config(**given)).steps


@pytest.mark.parametrize(("channel", "extra"), [("push", "push"), ("email", "mail"), ("apprise", "apprise")])
def test_a_step_whose_extra_is_missing_is_refused_with_its_name(channel: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(smtp_url="smtp://mail", mail_from="a@b.c", apprise_urls=("slack://",))
    text = f'[category.alert]\nsteps = [{{ channel = "{channel}" }}]'
    assert parse_version(text, 1, config).steps
    monkeypatch.setattr(rule_book, "find_spec", lambda _module: None)
    with pytest.raises(RulesError, match=rf"category\.alert\.steps\[0\]: .* install the extra `{extra}`"):
        parse_version(text, 1, config)
    if channel == "email":
        assert parse_version(text, 1, msgspec.structs.replace(config, smtp_url=CATCH_MAILS)).steps, "the catcher needs none"
