"""The settings of events of Ray."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from engine.config import Config, Section, SettingRule


def rules(config: Config) -> Iterator[SettingRule]:
    """See `Section`."""
    for user in config.ray_events_users:
        yield (
            0 < len(user) <= config.id_chars_max and user.isprintable(),
            f"ray_events_users: {user!r} is not allowed; allowed are names of users: 1 to {config.id_chars_max} characters without control "
            "characters",
        )
    secret = config.ray_events_secret
    yield (
        not secret or re.fullmatch(r"[A-Za-z0-9_-]{32,128}", secret) is not None,
        "ray_events_secret: 32 to 128 of A-Z, a-z, 0-9, _ and - are needed (openssl rand -hex 32)",
    )
    for name in ("ray_events_users", "ray_events_secret"):
        yield not getattr(config, name) or bool(config.ray_events), f"{name}: needed is ray_events, the tenant of these events"


SECTION: Final = Section(
    "what happens on the Ray cluster, as events for rules (docs/RAY-EVENTS.md); off by default",
    {
        "ray_events": "tenant that is told of the ends of jobs; whoever may submit a job may then notify its users",
        "ray_events_users": "users to notify of nodes, of Serve, and of jobs whose metadata name nobody (`notify`)",
        "ray_events_secret": "Ray exports its events to /v1/ray-events/SECRET of an edge; empty: no deaths of actors and nodes",
    },
    rules,
)
