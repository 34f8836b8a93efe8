"""`engine preferences` as someone at a terminal types it, against an edge inside the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.__main__ import app
from engine.errors import EngineError
from tests.support.background_loop import in_background
from tests.support.edge_world import SECRET, EdgeWorld, edge_world


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EdgeWorld]:
    (tmp_path / "rules.toml").write_text('[category.news]\ntitle = "Weekly news"\n[category.billing]\nuser_may = ["on", "digest"]\n')
    with in_background(edge_world(rules_path=str(tmp_path / "rules.toml"))) as world:
        monkeypatch.setenv("ENGINE_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("ENGINE_JWT_SECRET", SECRET)
        monkeypatch.setenv("ENGINE_URL", world.url())
        yield world


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["preferences", *words])


def test_preferences_are_printed_and_changed(edge: EdgeWorld) -> None:
    untouched = run("ann").output
    assert "category news: on (default), may be on, inbox, digest, off  Weekly news\n" in untouched
    assert untouched.endswith("zone UTC, quiet hours: none\n")
    changed = run(
        "ann", "--category", "news=off", "--type", "a.*=digest", "--type", "b=inbox", "--target", "k=v=off", "--zone", "Asia/Tokyo"
    ).output
    for line in (
        "category news: off, may be",
        "type a.*: digest",
        "type b: inbox",
        "target k=v: off",
        "zone Asia/Tokyo, quiet hours: none",
    ):
        assert line in changed
    back = json.loads(run("ann", "--category", "news=default", "--json").output)
    assert (back["categories"], back["types"], back["available"]["news"]["choice"]) == ({}, {"a.*": "digest", "b": "inbox"}, "on")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--category", "billing=off"), "the category billing cannot be off: users may choose on, digest"),
        (("--category", "news"), "--category: 'news': NAME=CHOICE is needed"),
        (("--type", "=off"), "--type: '=off': NAME=CHOICE is needed"),
        (("--type", "a=never"), "one of on, digest, off"),
    ],
)
def test_what_cannot_be_chosen_says_why(edge: EdgeWorld, words: tuple[str, str], reason: str) -> None:
    result = run("ann", *words)
    assert isinstance(result.exception, EngineError), repr(result.exception)
    assert reason in str(result.exception)
    assert edge.shard.profiles == {}
