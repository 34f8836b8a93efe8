"""`engine replay` as a user types it, against a server inside the test."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import RulesError
from tests.support.background_loop import in_background
from tests.support.command_line import engine, failure
from tests.support.publish_server import Engine, rejects, running

EXAMPLE = Path(__file__).parents[4] / "examples" / "github"
RULES = str(EXAMPLE / "rules.toml")

pytestmark = pytest.mark.usefixtures("data_dir")


@pytest.fixture
def accepting() -> Iterator[Engine]:
    with in_background(running()) as server:
        yield server


def test_the_recording_of_the_example_is_replayed_by_the_rules_beside_it(accepting: Engine) -> None:
    result = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", accepting.url)
    assert result.exit_code == 0, result.output
    assert "39 deliveries read, 21 of 21 notifications published" in result.stdout
    assert re.search(r"comment +8 +8", result.stdout)
    assert "accepted 21" in result.stdout
    assert "Codertocat 20, octocat 1" in result.stdout
    assert "no rule for this event 16" in result.stdout
    again = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", accepting.url)
    assert "39 deliveries read, 0 of 21 notifications published" in again.stdout
    assert "duplicate 21" in again.stdout
    assert "--fresh" in again.stdout
    assert len(accepting.accepted) == 21
    fresh = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", accepting.url, "--fresh", "--user-prefix", "test-")
    assert "accepted 21" in fresh.stdout
    assert {item["user"] for item in list(accepting.accepted.values())[21:]} == {"test-Codertocat", "test-octocat"}


def test_a_recorders_own_delivery_id_identifies_the_delivery(accepting: Engine, tmp_path: Path) -> None:
    line = json.loads((EXAMPLE / "handwritten.jsonl").read_text().splitlines()[1])
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({**line, "delivery": f"guid-{n}"}) + "\n" for n in (1, 2, 1)))
    assert engine("replay", str(file), "--url", accepting.url, "--rules", RULES).exit_code == 0
    assert list(accepting.accepted) == ["run-failed/guid-1", "run-failed/guid-2"]


def test_malformed_lines_are_counted_with_their_numbers_and_do_not_stop_the_rest(accepting: Engine, tmp_path: Path) -> None:
    good = (EXAMPLE / "handwritten.jsonl").read_text().splitlines()
    file = tmp_path / "a.jsonl"
    bad = [b"{oops", b'{"event": "e"}', b'{"event": "e", "payload": []}', b'{"event": "\xff"}', b'{"event":' + b"[" * 5000]
    file.write_bytes(b"\n".join([good[0].encode(), b"", *bad, good[1].encode(), b""]))
    result = engine("replay", str(file), "--url", accepting.url, "--rules", RULES)
    assert result.exit_code == 0
    assert "2 deliveries read, 2 of 3 notifications published" in result.stdout
    assert "5 malformed lines" in result.stdout
    assert [int(number) for number in re.findall(r"line (\d+):", result.stdout)] == [3, 4, 5, 6, 7]


def test_a_file_that_is_none_is_an_error(accepting: Engine, tmp_path: Path) -> None:
    assert "No such file" in failure(engine("replay", "nowhere.jsonl", "--url", accepting.url))
    (tmp_path / "prose.txt").write_text("hello\nworld\n")
    assert engine("replay", "prose.txt", "--url", accepting.url, "--rules", RULES).exit_code == 1
    (tmp_path / "cut.gz").write_bytes((EXAMPLE / "deliveries.jsonl.gz").read_bytes()[:5000])
    assert "cannot be read to its end" in failure(engine("replay", "cut.gz", "--url", accepting.url, "--rules", RULES))


def test_rejected_notifications_are_listed_and_the_exit_code_says_so() -> None:
    with in_background(running(rejects("github.star"))) as server:
        result = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", server.url)
        assert result.exit_code == 1
        assert "2 notifications rejected" in result.stdout
        assert "not a type" in result.stdout
        assert "accepted 19" in result.stdout


def test_own_rules_are_used_and_wrong_ones_told_with_their_place(accepting: Engine, tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text('[[rule]]\nname = "pushes"\nevent = "push"\nrecipients = ["pusher.name"]\ntype = "git.push"\n')
    result = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--rules", str(rules), "--url", accepting.url)
    assert re.search(r"pushes +2 +2", result.stdout)
    rules.write_text('[[rule]]\nname = "pushes"\nevent = "push"\ntype = "git.push"\n')
    assert "mine.toml:1: rule 'pushes'" in failure(engine("replay", "x", "--rules", str(rules)), RulesError)
    assert "No such file" in failure(engine("replay", "x", "--rules", "nowhere.toml"), RulesError)


PING_RULES = '[[rule]]\nname = "pings"\nevent = "ping"\nrecipients = ["sender.login"]\ntype = "git.ping"\n'


def test_the_configured_rules_come_before_those_beside_the_recording(
    accepting: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(PING_RULES)
    monkeypatch.setenv("ENGINE_RULES_PATH", "mine.toml")
    assert re.search(r"pings +1 +1", engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", accepting.url).stdout)


def test_the_rules_beside_the_recording_are_used_when_no_others_are_named(accepting: Engine, tmp_path: Path) -> None:
    (tmp_path / "recorded").mkdir()
    recording = tmp_path / "recorded" / "deliveries.jsonl.gz"
    recording.write_bytes((EXAMPLE / "deliveries.jsonl.gz").read_bytes())
    (recording.parent / "rules.toml").write_text(PING_RULES)
    assert re.search(r"pings +1 +1", engine("replay", str(recording), "--url", accepting.url).stdout)


@pytest.mark.parametrize("recording", ["a.jsonl", "-"])
def test_a_replay_without_rules_is_an_error_that_names_the_ways_to_give_some(recording: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    if recording == "-":
        (tmp_path / "rules.toml").write_text(PING_RULES)
    reason = failure(engine("replay", recording, "--url", "http://127.0.0.1:1"))
    assert "--rules" in reason
    assert "rules_path" in reason


def test_a_rate_is_kept(accepting: Engine) -> None:
    begun = time.monotonic()
    assert engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--rate", "100", "--url", accepting.url).exit_code == 0
    assert time.monotonic() - begun >= 38 / 100


def test_help_shows_examples() -> None:
    assert "engine replay" in engine("replay", "--help").stdout
