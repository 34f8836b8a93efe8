"""`Finding`: what one check of `engine doctor` has found."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Finding(Struct, frozen=True):
    """`failed` keeps an engine from starting or serving, `warning` does not. `advice` says what to do; "" when there is nothing."""

    check: str
    level: Literal["ok", "warning", "failed"]
    found: str
    advice: str = ""
