"""The check of the settings before the engine starts, and by `engine doctor`."""

from __future__ import annotations

from engine.config import Config
from engine.errors import ConfigError
from engine.features.ray_events.ray_apis import require_jobs_api


def look(config: Config) -> str:
    """What is watched, "" where `ray_events` is empty.

    Raises:
        ConfigError: the cluster cannot be watched.
    """
    if not config.ray_events:
        return ""
    if not config.address:
        raise ConfigError("ray_events: needed is address, a cluster with a dashboard; the engine's own local Ray has none")
    require_jobs_api()
    exported = "deaths of actors and nodes" if config.ray_events_secret else "no deaths, since ray_events_secret is empty"
    return f"tenant {config.ray_events} is told of jobs and Serve; {exported}"
