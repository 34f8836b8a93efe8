"""Rules that come with a feature. `shipped/` has a file for each setting that switches such a feature on and names its tenant.

They are in force beside every version, so that switching a feature on is enough. `engine.features.rules.core.staging` says when a
version takes their place.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

from engine.config import Config
from engine.features.rules.core.staging import ShippedRules
from engine.features.rules.core.toml_loader import parse_rules

_SETTING: Final = "ray_events"


def shipped_text() -> str:
    """The rules that come with the events of Ray, as TOML."""
    return (resources.files(__package__) / "shipped" / f"{_SETTING}.toml").read_text("utf-8")


def shipped_rules(config: Config) -> ShippedRules | None:
    """The rules that come with what is switched on; None: with nothing."""
    if not config.ray_events:
        return None
    return ShippedRules(parse_rules(shipped_text(), f"the rules of {_SETTING}"), config.ray_events)
