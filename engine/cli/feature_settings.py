"""The sections of settings that features bring, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.config import Section
from engine.features.actions import settings as actions
from engine.features.autoscaling import settings as autoscaling
from engine.features.history import settings as history
from engine.features.ray_events import settings as ray_events
from engine.features.reach import settings as reach
from engine.features.sources import settings as sources
from engine.features.traces import settings as traces

FEATURES: Final[Sequence[tuple[str, Section]]] = (
    ("autoscale", autoscaling.SECTION),
    ("history", history.SECTION),
    ("ray", ray_events.SECTION),
    ("ingest", sources.SECTION),
    ("traces", traces.SECTION),
    ("channels", reach.SECTION),
    ("actions", actions.SECTION),
)
"""In the order in which they are listed."""
