"""`engine dead-letters` as an operator types it, against an edge inside the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine.__main__ import app
from engine.core.model.constants import NORMAL
from engine.core.wire import records as wire
from engine.errors import Refused
from engine.features.dead_letters import commands
from engine.features.dead_letters.store import StoredLetter
from tests.support import command_line
from tests.support.background_loop import in_background
from tests.support.edge_world import SECRET, EdgeWorld, FakeLetters, edge_world


@pytest.fixture(scope="module")
def edge() -> Iterator[EdgeWorld]:
    with in_background(edge_world()) as world:
        yield world


@pytest.fixture
def store(edge: EdgeWorld, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> FakeLetters:
    monkeypatch.setenv("ENGINE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("ENGINE_JWT_SECRET", SECRET)
    monkeypatch.setenv("ENGINE_URL", edge.url())
    assert isinstance(edge.dead_letters, FakeLetters)
    edge.dead_letters.letters = [letter(number) for number in range(1, 251)]
    edge.shard.status = wire.ACCEPTED
    edge.shard.received.clear()
    return edge.dead_letters


def letter(number: int) -> StoredLetter:
    body = b'{"id":"m%d","ts":1,"type":"a.b","data":null}' % number
    return StoredLetter(f"{number}-0", f"u{number % 2}", number, f"m{number}", NORMAL, "no \x1b[31m renderer", 0, body)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["dead-letters", *words])


def failure(*words: str) -> str:
    return command_line.failure(run(*words))


def test_the_newest_are_listed_and_one_is_shown(store: FakeLetters) -> None:
    lines = run("list", "--limit", "2").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["250-0", "249-0"]
    assert "\x1b" not in lines[0], "what a client gave is printed safely"
    listed = [json.loads(line) for line in run("list", "--json", "--user", "u1", "--limit", "200").stdout.splitlines()]
    assert [one["seq"] for one in listed] == list(range(249, 0, -2))
    assert json.loads(run("show", "7-0").stdout)["notification"]["id"] == "m7"
    assert "no such dead letter" in failure("show", "999-0")


def test_named_letters_are_redriven_and_repeating_it_says_they_are_gone(store: FakeLetters, edge: EdgeWorld) -> None:
    assert [line.split()[:2] for line in run("redrive", "8-0", "7-0").stdout.splitlines()] == [["7-0", "accepted"], ["8-0", "accepted"]]
    assert len(edge.shard.of(wire.Post)) == 2
    assert run("redrive", "7-0").stdout == "7-0 gone\n"
    assert len(store.letters) == 248


def test_all_letters_of_a_user_are_redriven_oldest_first(store: FakeLetters, edge: EdgeWorld) -> None:
    result = run("redrive", "--all", "--user", "u0")
    assert result.exit_code == 0, repr(result.exception)
    assert [line.split()[0] for line in result.stdout.splitlines()] == [f"{number}-0" for number in range(2, 251, 2)]
    assert {one.user for one in store.letters} == {"u1"}


def test_an_engine_that_lists_few_at_once_is_asked_more_often(store: FakeLetters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with in_background(edge_world(dead_letters_page_max=30)) as edge:
        assert isinstance(edge.dead_letters, FakeLetters)
        edge.dead_letters.letters = [letter(number) for number in range(1, 71)]
        monkeypatch.setenv("ENGINE_URL", edge.url())
        assert len(run("list", "--limit", "65").stdout.splitlines()) == 65
        assert len(run("redrive", "--all", "--user", "u0").stdout.splitlines()) == 35
        assert run("drop", "--all").stdout == "dropped 35\n"


def test_what_stays_ends_the_command_with_1(store: FakeLetters, edge: EdgeWorld) -> None:
    edge.shard.status, edge.shard.detail = wire.SUPPRESSED, "muted_type: muted"
    result = run("redrive", "11-0")
    assert (result.exit_code, "11-0 suppressed" in result.stdout) == (1, True)
    assert len(store.letters) == 250


def test_a_letter_that_is_refused_holds_up_no_later_page(store: FakeLetters, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = commands._ask

    def refusing(*asked: Any) -> dict[str, Any]:
        if asked[1] == "POST" and "1-0" in asked[4]["letters"]:
            raise Refused("the tenant has as many users as it may", 429)
        return ask(*asked)

    monkeypatch.setattr(commands, "_ask", refusing)
    result = run("redrive", "--all")
    assert len(result.stdout.splitlines()) == 150
    assert isinstance(result.exception, Refused)
    assert len(store.letters) == 100


def test_letters_are_dropped(store: FakeLetters) -> None:
    assert run("drop", "1-0", "999-0").stdout == "dropped 1\n"
    assert run("drop", "--all").stdout == "dropped 249\n"
    assert run("drop", "--all").stdout == "dropped 0\n"


@pytest.mark.parametrize("command", ["redrive", "drop"])
def test_which_letters_are_meant_must_be_clear(store: FakeLetters, command: str) -> None:
    assert "ids, or --all" in failure(command)
    assert "ids, or --all" in failure(command, "1-0", "--all")
    assert "--user: only with --all" in failure(command, "1-0", "--user", "u1")
    assert "such as 1700000000000-0" in failure(command, "x")


def test_a_storage_that_is_away_is_said(store: FakeLetters) -> None:
    store.away = True
    try:
        assert failure("drop", "1-0").endswith("no answer; repeat it, nothing is delivered twice")
    finally:
        store.away = False
