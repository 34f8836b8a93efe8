"""`engine inbox` as someone at a terminal types it, against an edge inside the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from engine.__main__ import app
from tests.support import command_line
from tests.support.background_loop import in_background
from tests.support.edge_world import SECRET, EdgeWorld, edge_world


@pytest.fixture
def edge(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[EdgeWorld]:
    with in_background(edge_world()) as world:
        monkeypatch.setenv("ENGINE_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("ENGINE_JWT_SECRET", SECRET)
        monkeypatch.setenv("ENGINE_URL", world.url())
        asyncio.run(world.publish("ann", 3, type="post.liked"))
        asyncio.run(world.publish("ann", type="build.failed", id="b1", data={"title": "Nightly \x1b[31m[b]"}))
        yield world


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["inbox", *words])


def failure(*words: str) -> str:
    return command_line.failure(run(*words))


def test_an_inbox_is_listed_newest_first_with_its_marks_and_its_next_page(edge: EdgeWorld) -> None:
    first, second, counts = run("list", "ann", "--limit", "2").output.splitlines()
    assert first.startswith("*  ")
    assert first.endswith(" b1")
    assert "\x1b" not in first
    assert "Nightly" in first
    assert "post.liked" in second
    assert counts == "4 unread, 4 unseen; more: --before 3"
    assert len(run("list", "ann", "--before", "3").output.splitlines()) == 3
    assert [json.loads(line)["type"] for line in run("list", "ann", "--text", "nightly", "--json").output.splitlines()] == ["build.failed"]


def test_messages_are_marked_by_ids_by_a_number_and_all_at_once(edge: EdgeWorld) -> None:
    assert run("mark", "ann", "read", "b1").output == "3 unread, 3 unseen\n"
    assert run("mark", "ann", "pin", "b1").exit_code == 0
    assert " ^ " in run("list", "ann", "--type", "build.*").output
    assert run("mark", "ann", "archive", "--upto", "2").output == "1 unread, 1 unseen\n"
    assert run("mark", "ann", "seen", "--all").output == "1 unread, 0 unseen\n"
    assert failure("mark", "ann", "read", "b1", "none") == "not in the inbox: none"


def test_a_mark_up_to_an_event_id_of_lost_data_is_refused(edge: EdgeWorld) -> None:
    newest = json.loads(run("list", "ann", "--limit", "1", "--json").output)["event_id"]
    assert failure("mark", "ann", "read", "--upto", f"lost-{newest}").startswith("4 is a number of epoch lost-")
    assert run("mark", "ann", "read", "--upto", newest).output == "0 unread, 0 unseen\n"


def test_a_mark_that_cannot_be_is_explained(edge: EdgeWorld) -> None:
    assert failure("mark", "ann", "loved", "b1") == "loved: a mark is one of read, unread, seen, archive, unarchive, pin, unpin"
    for words in ((), ("b1", "--all"), ("--upto", "3", "--all")):
        assert failure("mark", "ann", "read", *words) == "what to mark: exactly one of IDS, --upto and --all is needed"
    assert failure("mark", "ann", "read", "--upto", "x-") == "x-: neither a number nor an event_id"
