"""The features that have an actor of their own. `engine.routes` lists those of an edge, `engine.actors.shard_features` those of a shard.

Such an actor needs no place. The controller creates it, drains it last when the engine stops, and replaces its process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from engine.api.actor_feature import StatusLine
from engine.config import Config
from engine.features.history import figures as history
from engine.features.ray_events import figures as ray_events
from engine.features.sources import figures as sources
from engine.features.sources.core import sources_of


class FeatureActor(Struct, frozen=True):
    """One kind of actor.

    Attributes:
        role: its name without the index. The status lists it as `<role>s`; Ray shows the class `<Role>`.
        module: has the class `<Role>`, an `engine.api.actor_feature.Work`. Only the actor's process loads it.
        count: how many an engine with this configuration has. Edges ask the first one only.
        line: the line of `engine status` about such an actor, from its row of the status; None: there is nothing to tell.
    """

    role: str
    module: str
    count: Callable[[Config], int]
    line: Callable[[Mapping[str, Any]], StatusLine | None]

    @property
    def class_name(self) -> str:
        """Of the work and of the actor."""
        return self.role.capitalize()


FEATURES: Final[Sequence[FeatureActor]] = (
    FeatureActor("archivist", "engine.features.history.archivist", lambda config: 1 if config.history_url else 0, history.line),
    FeatureActor("watcher", "engine.features.ray_events.watcher", lambda config: 1 if config.ray_events else 0, ray_events.line),
    FeatureActor("ingester", "engine.features.sources.ingester", lambda config: len(sources_of(config.sources)), sources.line),
)

FEATURE_ROLES: Final = tuple(actor.role for actor in FEATURES)
