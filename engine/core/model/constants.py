"""Constants shared by several packages: priorities, the latest instants, the last sequence number and the storage format version."""

from __future__ import annotations

from typing import Final

AT_MAX_MS: Final = (1 << 48) - 1
"""Latest due time of a timer, ms since the epoch: the range of six levels of 256 slots, some 8 900 years, about the year 10889."""

TS_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: beyond it, a publisher's time is not in milliseconds."""

SEQ_MAX: Final = (1 << 53) - 1
"""Sequence numbers stay exact in every JSON reader (RFC 8259, section 6)."""

REASON_CHARS_MAX: Final = 1024
"""Of the reason that a client gives by `POST /v1/nack`."""

HIGH: Final = 0
NORMAL: Final = 1
LOW: Final = 2
PRIORITIES: Final = ("high", "normal", "low")

FORMAT_VERSION: Final = b"\x03"
"""First byte of every value in storage that holds messages (`engine.core.journal.stored_formats`)."""
