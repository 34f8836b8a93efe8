"""`engine rules`: a file is checked, explained and tested before it is in force."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.__main__ import app
from engine.errors import RulesError

TOUCH = Path(__file__).parents[4] / "examples" / "touch"


def run(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["rules", *arguments])
    if isinstance(result.exception, RulesError):
        raise result.exception
    assert result.exit_code == exit_code, result.output
    return result.output


def test_a_good_file_is_said_to_be_good() -> None:
    assert "5 rules, categories touch, nothing wrong" in run("check", str(TOUCH / "rules.toml"))


def test_a_bad_file_is_refused_with_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\nname = "a"\nevent = "e"\ntype = "t"\nrecipients = ["u"]\ndelay = "soon"\n')
    with pytest.raises(RulesError, match=r"rules\.toml:1: rule 'a': delay"):
        run("check", str(path))
    with pytest.raises(RulesError, match="No such file"):
        run("check", str(tmp_path / "none.toml"))


def test_an_event_is_explained_rule_by_rule(tmp_path: Path) -> None:
    payload = tmp_path / "event.json"
    payload.write_text('{"user": "ann", "actor": "bob"}')
    told = run("explain", str(TOUCH / "rules.toml"), "cart.abandoned", f"@{payload}", "--level", "vip", "--active", "3h")
    assert "download: no, it is about file.downloaded" in told
    assert "cart: matches\n  would send " in told
    assert '"delay":2160000' in told
    assert "category touch: 3 in 1 d, the same type once in 3 d, 10 of all categories in 7 d, waits for quiet hours to end\n" in told
    assert "cancels what waits for ann under 'cart/ann'" in run("explain", str(TOUCH / "rules.toml"), "order.paid", '{"user": "ann"}')
    assert r"leaves out \x1b[2J: " in run("explain", str(TOUCH / "rules.toml"), "cart.abandoned", r'{"user": "\u001b[2J"}')
    for none in ("[]", '{"a":' * 5000):
        with pytest.raises(RulesError, match="no JSON object"):
            run("explain", str(TOUCH / "rules.toml"), "e", none)
    with pytest.raises(RulesError, match=r"person\.active"):
        run("explain", str(TOUCH / "rules.toml"), "e", "{}", "--active", "x")


def test_cases_are_run_and_those_that_do_not_hold_are_said(tmp_path: Path) -> None:
    assert "9 of 9 cases hold" in run("test", str(TOUCH / "rules.toml"), str(TOUCH / "cases.toml"))
    cases = tmp_path / "cases.toml"
    cases.write_text((TOUCH / "cases.toml").read_text().replace('"36m"', '"35m"'))
    told = run("test", str(TOUCH / "rules.toml"), str(cases), exit_code=1)
    assert "vip, active lately: six tenths of it: notification 1: delay: expected '35m', found 2160000" in told
    assert "8 of 9 cases hold" in told
    cases.write_text("[[case]]\nnam = 1\n")
    with pytest.raises(RulesError):
        run("test", str(TOUCH / "rules.toml"), str(cases))
