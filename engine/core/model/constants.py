"""Constants shared by several packages: priorities, the latest instant and the storage format version."""

from __future__ import annotations

from typing import Final

AT_MAX_MS: Final = (1 << 48) - 1
"""Latest due time of a timer, ms since the epoch: the range of six levels of 256 slots, some 8 900 years, about the year 10889."""


HIGH: Final = 0
NORMAL: Final = 1
LOW: Final = 2
PRIORITIES: Final = ("high", "normal", "low")

FORMAT_VERSION: Final = b"\x01"
"""First byte of every value in storage that holds messages (`engine.core.journal.stored_formats`)."""
