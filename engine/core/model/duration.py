"""Parser of human-readable durations: `250ms`, `5s`, `15m`, `2h`, `7d`, `1h30m`."""

from __future__ import annotations

import re
from typing import Final

from engine.config import DURATION_S_MAX
from engine.errors import Invalid

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration, a sequence of numbers with units; the sum is rounded.

    Raises:
        Invalid: the text has another form, it is too long, or a number lacks its unit, since a default unit would be ambiguous.
    """
    compact = text.strip().lower()
    if len(compact) > 64 or not _WHOLE.fullmatch(compact):
        raise Invalid(f"a duration looks like 250ms, 5s, 15m, 2h, 7d or 1h30m; this is {text[:64]!r}")
    duration_ms = round(sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(compact)))
    if duration_ms > DURATION_S_MAX * 1000:
        raise Invalid(f"at most {DURATION_S_MAX // 86_400}d; this is {compact}")
    return duration_ms
