"""Numbers that several packages name: priorities, and how far an instant reaches."""

from __future__ import annotations

from typing import Final

AT_MAX_MS: Final = (1 << 48) - 1
"""The last instant a timer may be due, ms since the epoch: what six levels of 256 slots reach, some 8 900 years."""
"""Latest due time a wheel takes: about the year 10889."""


HIGH: Final = 0
NORMAL: Final = 1
LOW: Final = 2
PRIORITIES: Final = ("high", "normal", "low")

FORMAT_VERSION: Final = b"\x01"
"""First byte of every value in storage that holds messages (`engine.core.journal.stored_formats`)."""
