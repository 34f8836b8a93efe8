"""The settings of the history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.config import Config, Section, SettingRule


def rules(config: Config) -> Iterator[SettingRule]:
    """See `Section`."""
    yield (
        not config.history_url or config.history_url.startswith(("sqlite:///", "postgresql://")),
        "history_url: sqlite:///FILE (a relative one is in data_dir) or postgresql://USER:PASSWORD@HOST/DATABASE; empty for no history",
    )


SECTION: Final = Section(
    "what has become of every message, in a relational database (docs/HISTORY.md); none by default",
    {
        "history_url": "sqlite:///FILE, on one machine, or postgresql://USER:PASSWORD@HOST/DATABASE; empty for no history",
        "history_ttl_s": "rows older than this are deleted",
    },
    rules,
)
