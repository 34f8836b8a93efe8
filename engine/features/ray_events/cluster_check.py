"""The check of the settings before the engine starts, and by `engine doctor`.

It does not import Ray, which reads its environment when it is imported: `engine up` sets that later.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from engine.config import Config
from engine.errors import ConfigError

_OF_THE_JOBS_API: Final = ("aiohttp", "opencensus")
"""Packages that Ray's Jobs API and its dashboard need, of `ray[default]`."""


def look(config: Config) -> str:
    """What is watched, "" where `ray_events` is empty.

    Raises:
        ConfigError: the cluster cannot be watched.
    """
    if not config.ray_events:
        return ""
    if not config.address:
        raise ConfigError("ray_events: needed is address, a cluster with a dashboard; the engine's own local Ray has none")
    if missing := [name for name in _OF_THE_JOBS_API if find_spec(name) is None]:
        raise ConfigError(
            "ray_events: following jobs needs pip install 'ray-notification-engine[ray-events]' "
            f"where the engine runs; missing: {', '.join(missing)}"
        )
    exported = "deaths of actors and nodes" if config.ray_events_secret else "no deaths, since ray_events_secret is empty"
    return f"tenant {config.ray_events} is told of jobs and Serve; {exported}"
