"""The setting of sources; `sources_check` examines its value."""

from __future__ import annotations

from typing import Final

from engine.config import Section

SECTION: Final = Section(
    "where notifications and events are read from (docs/SOURCES.md); none by default",
    {
        "sources": "JSON of the tables [[source]], for the environment; in engine.toml write these tables instead",
    },
)
