"""What features store: `engine verify` checks it, and reports keys that nobody has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.features.actions import stored as actions
from engine.features.audit import keys as audit
from engine.features.dead_letters import stored as dead_letters
from engine.features.event_groups import keys as event_groups
from engine.features.growing import stored as growing
from engine.features.inspection import keys as inspection
from engine.features.policy import keys as policy
from engine.features.questions import stored as questions
from engine.features.ray_events import keys as ray_events
from engine.features.reach import stored as reach
from engine.features.rules import stored as rules
from engine.features.signals import keys as signals
from engine.features.token_revocation import stored as token_revocation
from engine.features.windows.core import aggregation_window as windows
from engine.store.stored_kinds import FeatureData

FEATURES: Final[Sequence[FeatureData]] = (
    FeatureData("audit", audit.INDEXES),
    token_revocation.DATA,
    FeatureData("policy", policy.INDEXES),
    FeatureData("windows", judge_kinds=windows.KINDS),
    rules.DATA,
    actions.DATA,
    reach.DATA,
    FeatureData("signals", signals.INDEXES),
    questions.DATA,
    growing.DATA,
    dead_letters.DATA,
    FeatureData("event groups", event_groups.INDEXES),
    FeatureData("inspection", inspection.INDEXES),
    FeatureData("events of Ray", ray_events.INDEXES),
)
