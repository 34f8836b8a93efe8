"""What the commands of an operator do while the engine does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cli import local_engine, operator_commands, operator_request, status_report
from engine.errors import EngineError


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
