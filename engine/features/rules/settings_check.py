"""The check of the rules file, before the engine starts and by `engine doctor`."""

from __future__ import annotations

from pathlib import Path

from engine.config import Config


def look(config: Config) -> str:
    """How many rules `rules_path` has, "" where it is empty. Raises RulesError: the file cannot be used."""
    if not config.rules_path:
        return ""
    from engine.features.rules.rule_book import read_rules  # with the templates of rules, when there are any

    return f"{len(read_rules(Path(config.rules_path), config).rules)} rules in {config.rules_path}"
