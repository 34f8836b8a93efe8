"""The checks of settings and services that features bring: `engine doctor` makes all, `engine up` those of settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from msgspec import Struct

from engine.cli.finding import Finding
from engine.config import Config
from engine.errors import EngineError
from engine.features.history import database_check as history
from engine.features.ray_events import cluster_check as ray_events
from engine.features.reach import extras_check as extras
from engine.features.reach import mail_check as mail
from engine.features.rules import settings_check as rules
from engine.features.sources import sources_check as sources
from engine.features.traces import collector_check as traces


class FeatureCheck(Struct, frozen=True):
    """One check.

    Attributes:
        feature: its name.
        look: what was found, "" for nothing to look at. It blocks, and raises EngineError.
        at_start: `engine up` makes it too, and does not start when it fails.
        is_needed: the engine does not do what it promises when it fails; else the finding is a warning.
        advice: what to do about a failure.
    """

    feature: str
    look: Callable[[Config], str]
    at_start: bool = False
    is_needed: bool = True
    advice: str = ""


FEATURES: Final[Sequence[FeatureCheck]] = (
    FeatureCheck("rules", rules.look, at_start=True, advice="`engine rules check FILE` after each change of `rules_path`"),
    FeatureCheck("history", history.look),
    FeatureCheck("ray events", ray_events.look, at_start=True, advice="docs/RAY-EVENTS.md has what a cluster needs"),
    FeatureCheck("sources", sources.look, at_start=True),
    FeatureCheck("servers of sources", sources.reach, advice="docs/SOURCES.md has what each needs; `engine source ddl` prints tables"),
    FeatureCheck("channels", extras.look, advice="docs/STEPS.md has what each channel needs"),
    FeatureCheck("traces", traces.look, at_start=True),
    FeatureCheck("collector", traces.reach, is_needed=False, advice="spans are dropped"),
    FeatureCheck("mail", mail.look, advice="`smtp_url`: host, port, login, and smtps:// or smtp://"),
)


def check_at_start(config: Config) -> None:
    """Raise EngineError when the settings of a feature cannot be used."""
    for check in FEATURES:
        if check.at_start:
            check.look(config)


async def of_features(config: Config) -> AsyncIterator[Finding]:
    """The findings of features."""
    for check in FEATURES:
        try:
            if found := await asyncio.to_thread(check.look, config):
                yield Finding(check.feature, "ok", found)
        except EngineError as error:
            yield Finding(check.feature, "failed" if check.is_needed else "warning", str(error), check.advice)
