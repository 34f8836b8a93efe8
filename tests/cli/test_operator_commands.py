"""What the commands of an operator do while the engine does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cli import local_engine, operator_commands, operator_request, status_report
from engine.errors import EngineError
from tests.support.command_line import answering, engine, failure


@pytest.mark.usefixtures("data_dir")
@pytest.mark.parametrize(
    ("words", "member"),
    [
        (("history", "alice"), "history"),
        (("audit",), "acts"),
        (("dead-letters", "list"), "dead_letters"),
        (("revoke", "alice"), "revoked"),
        (("rules", "list"), "active"),
    ],
)
def test_an_object_of_another_server_is_no_answer(words: tuple[str, ...], member: str) -> None:
    with answering(b'{"status": "ok"}') as (url, _):
        assert failure(engine(*words, "--url", url)) == f"the answer of {url} is not an engine's: it has no `{member}`"


@pytest.mark.usefixtures("data_dir")
def test_a_page_of_a_proxy_is_no_rules() -> None:
    with answering(b"<html>Sign in</html>") as (url, _):
        ended = engine("rules", "show", "7", "--url", url)
    assert "it is text/plain, not TOML" in failure(ended)
    assert ended.stdout == ""


def test_a_drain_outlasts_a_silent_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [{"index": 0, "pid": 1, "ready": True}, None, {"index": 0, "pid": 1, "ready": True}, {"index": 0, "pid": 2, "ready": True}]

    def ask_status(_: object) -> dict[str, Any]:
        if (row := answers.pop(0)) is None:
            raise EngineError("the controller does not answer")
        return {"edges": [row]}

    monkeypatch.setattr(operator_commands, "_DRAIN_POLL_S", 0)
    monkeypatch.setattr(local_engine, "find_engine", lambda *_: None)
    monkeypatch.setattr(operator_request, "ask", lambda *_, **__: {"connections": 7})
    monkeypatch.setattr(status_report, "ask_status", ask_status)
    operator_commands.drain("edge-0")
    assert capsys.readouterr().out.endswith("edge-0 is drained, and serves again in a new process\n")
