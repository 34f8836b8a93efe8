"""What `engine scale` shows, against an engine that answers as told."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from engine.cli import scaling_progress
from engine.cli.app import app
from engine.cli.status_report import scaling_lines, state_of
from engine.config import Config
from engine.errors import EngineError


def scaling(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"settled": False, "wanted": {"shards": 4, "schedulers": 1, "edges": 1}, "by": "ann", "wanted_at_ms": 7}
    base |= {
        "have": {"shards": 4, "schedulers": 1, "edges": 1},
        "slots_left": 0,
        "slots_moved": 0,
        "moves": [],
        "joining": [],
        "leaving": [],
    }
    return base | more


def test_it_counts_what_moved_also_when_the_controller_was_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        scaling(settled=True, wanted_at_ms=3, slots_moved=100),  # from before the request
        scaling(slots_left=300, slots_moved=200),
        scaling(slots_left=100, slots_moved=50),  # another process
        scaling(settled=True, slots_moved=150),
    ]
    monkeypatch.setattr(scaling_progress, "ask_status", lambda _config: {"scaling": answers.pop(0)})
    monkeypatch.setattr(scaling_progress, "_POLL_S", 0.0)
    console = Console(record=True)
    scaling_progress.follow(Config(), scaling(slots_moved=100), console)
    assert console.export_text().startswith("4 shards, 1 scheduler, 1 edge; 250 slots moved in ")
    assert not answers


def test_an_engine_that_is_away_for_a_moment_is_asked_again_and_one_that_stays_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, Any]] = []

    def ask(_config: Config) -> dict[str, Any]:
        if not answers:
            answers.append({"scaling": {}})
            raise EngineError("away")
        return answers[-1]

    def second(_config: Config) -> dict[str, Any]:
        found = ask(_config)
        answers.append({"scaling": scaling(settled=True)})
        return found

    monkeypatch.setattr(scaling_progress, "_POLL_S", 0.0)
    monkeypatch.setattr(scaling_progress, "ask_status", second)
    scaling_progress.follow(Config(), scaling(), Console(record=True))
    answers.clear()
    monkeypatch.setattr(scaling_progress, "_AWAY_S", 0.0)
    with pytest.raises(EngineError, match="away"):
        scaling_progress.follow(Config(), scaling(), Console(record=True))


def test_an_upgrade_that_has_stopped_is_an_error_that_says_why_and_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [scaling(upgrading=["shard-1", "controller"]), scaling(upgrading=[], stopped="shard-0 not ready, and no progress for 300 s")]
    monkeypatch.setattr(scaling_progress, "ask_status", lambda _config: {"scaling": answers.pop(0)})
    monkeypatch.setattr(scaling_progress, "_POLL_S", 0.0)
    begun = scaling(upgrading=["shard-0", "shard-1", "controller"])
    with pytest.raises(EngineError, match=r"shard-0 not ready, and no progress for 300 s; 1 of 3 processes are replaced"):
        scaling_progress.follow_upgrade(Config(), begun, Console(record=True))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (scaling(slots_left=3, moves=[{"from": "shard-0", "to": "shard-2", "slots": 1}]), "3 slots to move, shard-0 to shard-2"),
        (scaling(joining=["shard-2", "shard-3"]), "waiting for shard-2, shard-3"),
        (
            scaling(joining=["shard-2"], waiting=[{"actor": "shard-2", "resource": "engine_shard", "offered": 2}]),
            "waiting for shard-2 (no node has a free `engine_shard`)",
        ),
        (scaling(leaving=["edge-1"]), "edge-1 leaves"),
        (scaling(), "changing the slot map"),
        (scaling(settled=True), "settled"),
    ],
)
def test_the_state_is_told_in_a_few_words(found: dict[str, Any], text: str) -> None:
    assert state_of(found) == text


def test_the_status_shows_decisions_of_the_autoscaler_with_their_reasons() -> None:
    decision = {"at_ms": 0, "role": "shards", "action": "scale", "have": 2, "wanted": 4, "reason": "CPU 90% for 10 s, above 70%"}
    lines = scaling_lines(scaling(autoscale="dry run", decisions=[decision]))
    assert lines[0].startswith("[yellow]changing to 4 shards, 1 schedulers, 1 edges[/], wanted by ann")
    assert lines[1] == "autoscaler: dry run"
    assert lines[2].endswith("2 to 4 shards: CPU 90% for 10 s, above 70%")
    assert scaling_lines(scaling(settled=True, autoscale="off", decisions=[])) == []


def test_the_status_says_which_actors_wait_for_a_node_and_what_it_has_to_offer() -> None:
    waiting = [{"actor": name, "resource": "engine_shard", "offered": 4} for name in ("shard-4", "shard-5")]
    waiting += [{"actor": "edge-1", "resource": "engine_edge", "offered": 1}]
    assert scaling_lines(scaling(settled=True, waiting=waiting)) == [
        "[yellow]shard-4, shard-5 wait for a node with a free `engine_shard`[/]; the nodes offer 4, all taken",
        "[yellow]edge-1 waits for a node with a free `engine_edge`[/]; the nodes offer 1, all taken",
    ]


def test_scaling_to_nothing_is_refused() -> None:
    refused = CliRunner().invoke(app, ["scale"])
    assert refused.exit_code != 0
    assert "--shards" in str(refused.exception)
