"""`engine rules list`, `push`, `stage` and so on as an operator types them, against an edge inside the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from engine.__main__ import app
from tests.support import command_line
from tests.support.background_loop import in_background
from tests.support.edge_world import SECRET, EdgeWorld, edge_world
from tests.support.rules_storage import FakeRulesStore

RULES = '[[rule]]\nname = "like"\nevent = "post.liked"\nrecipients = ["user"]\ntype = "forum.like"\ntitle = "{}"\n'


class _LiveRow(dict[str, object]):
    """The edge's row of the status, as it is when it is asked for."""

    def __init__(self, world: EdgeWorld) -> None:
        super().__init__(index=0)
        self._world = world

    def get(self, name: str, default: object = None) -> object:
        return self._world.rules.stats() if name == "rules" else super().get(name, default)

    def __getitem__(self, name: str) -> object:
        return self.get(name)


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EdgeWorld]:
    with in_background(edge_world()) as world:
        world.status["edges"] = [_LiveRow(world)]
        monkeypatch.setenv("ENGINE_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("ENGINE_JWT_SECRET", SECRET)
        monkeypatch.setenv("ENGINE_URL", world.url())
        yield world


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES.format("one"))
    return path


def run(*words: str) -> str:
    result = invoke(*words)
    assert result.exit_code == 0, repr(result.exception)
    return result.stdout


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["rules", *words])


def failure(*words: str) -> str:
    return command_line.failure(invoke(*words))


def publish(edge: EdgeWorld, user: str) -> None:
    headers = {"Authorization": f"Bearer {edge.token('app')}"}
    answer = httpx.post(edge.url("/v1/events"), json={"type": "post.liked", "user": user}, headers=headers, trust_env=False)
    assert answer.status_code == 202


def test_a_version_is_pushed_staged_rolled_back_and_listed(edge: EdgeWorld, file: Path) -> None:
    assert run("list").startswith("there are no rules\nedge-0: version 0\n")
    assert run("push", str(file)) == "version 1 is in force; 1 of 1 edges run it so\n"
    assert run("show", "1") == file.read_text()
    file.write_text(RULES.format("two"))
    told = run("push", str(file), "--share", "0.1")
    assert told == "version 1 is in force, version 2 for 0.1 of the users; 1 of 1 edges run it so\n"
    assert "version 2 for 0.5 of the users" in run("stage", "2", "0.5")
    lines = run("list").splitlines()
    assert lines[0] == "version 1 is in force, version 2 for 0.5 of the users"
    assert [line.split()[:2] for line in lines[1:3]] == [["2", "staged"], ["1", "active"]]
    assert lines[-1] == "edge-0: version 1, version 2 for 0.5 of the users"
    assert run("rollback").startswith("version 1 is in force;")
    assert run("rollback", "--to", "0").startswith("the rules file is in force;")
    assert [one["what"] for one in json.loads(run("list", "--json"))["changes"]][:2] == ["rolled back", "unstaged"]


def test_a_dry_run_shows_what_recent_events_would_have_made(edge: EdgeWorld, file: Path) -> None:
    run("push", str(file))
    publish(edge, "ann")
    file.write_text(RULES.format("two") + RULES.format("x").replace('"like"', '"other"').replace('["user"]', '["user"]\ndelay = "1h"'))
    told = run("push", str(file), "--dry-run")
    assert '  ~ like for ann: {"data":{"title":"one"}} -> {"data":{"title":"two"}}\n' in told
    assert told.endswith("1 events, 0 of them with the same outcome as under version 1\n")
    assert run("push", str(file), "--share", "0").startswith("version 2 is stored, version 1 is in force;")
    assert run("dry-run", "2", "--type", "post.liked") == told
    assert json.loads(run("dry-run", "2", "--json", "--tenant", "nobody"))["events"] == 0


def test_what_the_engine_refuses_is_said_with_its_reason(edge: EdgeWorld, file: Path) -> None:
    file.write_text(RULES.format("one") + 'delay = "soon"\n')
    assert "rules:1: rule 'like': delay: a duration looks like" in failure("push", str(file))
    assert "no version 9" in failure("stage", "9", "0.5")
    assert "no stored version 9" in failure("show", "9")
    assert "No such file" in failure("push", str(file.parent / "none.toml"))
    assert edge.rules_store.stored.stamp == ""


def test_a_change_that_somebody_else_was_faster_with_is_refused(edge: EdgeWorld, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = FakeRulesStore.change

    async def slow(store: FakeRulesStore, *arguments: object) -> object:
        monkeypatch.setattr(FakeRulesStore, "change", change)
        async with edge.http("bob", scopes="operator") as client:
            await asyncio.gather(client.put("/v1/rules", content=RULES.format("theirs"), headers={"If-Match": "*"}))
        return await change(store, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeRulesStore, "change", slow)
    assert "changed meanwhile" in failure("push", str(file))
    assert "theirs" in run("show", "1")


def test_an_engine_without_its_storage_is_said(edge: EdgeWorld, file: Path) -> None:
    edge.rules_store.away = True
    assert failure("push", str(file)) == "rules: away; `engine rules list` shows what is in force"
