"""The times at which a user wants a digest by mail: a local time on some days of the week, so daily, weekly, or anything between."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from engine.core.policy.quiet_hours import ALL_DAYS, DAY_MINUTES


class MailDigest(Struct, frozen=True, array_like=True):
    """When.

    Args:
        at: minutes since midnight, 0..1439.
        days: bit 0 is Monday; not 0.
    """

    at: Annotated[int, Meta(ge=0, lt=DAY_MINUTES)]
    days: Annotated[int, Meta(ge=1, le=ALL_DAYS)] = ALL_DAYS
