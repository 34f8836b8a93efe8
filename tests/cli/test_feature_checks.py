"""The checks that features bring, of `engine doctor` and `engine up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli.feature_checks import check_at_start, of_features
from engine.cli.finding import Finding
from engine.config import Config
from engine.errors import RulesError
from engine.features.history.history_database import HistoryDatabase

RULE = '[[rule]]\nname = "one"\nevent = "photo.liked"\nrecipients = ["user"]\ntype = "liked"\n'


async def only(config: Config) -> Finding:
    (finding,) = [finding async for finding in of_features(config)]
    return finding


async def test_a_rules_file_that_cannot_be_used_is_told_and_keeps_the_engine_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    config = Config(rules_path=str(path))
    path.write_text(RULE)
    assert (await only(config)).found == f"1 rules in {path}"
    check_at_start(config)
    path.write_text(RULE.replace("event", "evnt"))
    finding = await only(config)
    assert (finding.level, "evnt" in finding.found) == ("failed", True)
    with pytest.raises(RulesError, match="evnt"):
        check_at_start(config)


async def test_the_file_of_the_history_is_not_made_by_the_check(tmp_path: Path) -> None:
    config = Config(history_url="sqlite:///history.db", data_dir=str(tmp_path))
    assert (await only(config)).level == "ok"
    assert not (tmp_path / "history.db").exists()
    database = HistoryDatabase(config.history_url, config.data_dir)
    database.migrate()
    database.close()
    assert (await only(config)).found.endswith("answers")
    (tmp_path / "history.db").write_bytes(b"not a database at all" * 100)
    assert (await only(config)).level == "failed"
