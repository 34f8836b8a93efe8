"""The check of the sources' settings, before the engine starts and by `engine doctor`."""

from __future__ import annotations

from engine.config import Config
from engine.features.sources.core import sources_of
from engine.features.sources.readers import require_library


def look(config: Config) -> str:
    """The names of the sources, "" where there are none. Raises ConfigError: a source cannot be used."""
    sources = sources_of(config.sources)
    for source in sources:
        require_library(source)
    return f"sources: {', '.join(source.name for source in sources)}" if sources else ""
