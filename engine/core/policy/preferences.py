"""A change of what a user may change in a profile, as an edge has checked it. The judge of a shard applies it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from engine.core.policy.profile import MailDigest, QuietHours

MAPS: Final = ("categories", "types", "targets", "channels", "quiet_categories")
NO_MAIL_DIGEST: Final = 1 << len(MAPS)


class PreferencesPatch(Struct, frozen=True, array_like=True):
    """A checked patch.

    Args:
        zone, locale, quiet: new values; None leaves what there is.
        categories, types, targets, channels: choices by name; UNCHOSEN removes one.
        quiet_categories: quiet hours by category; None removes those of one.
        cleared: bit i: everything of MAPS[i] is removed; of the bit behind them: the digest by mail is.
        mail_digest: new times of it; None leaves what there is.
    """

    zone: str | None = None
    locale: str | None = None
    quiet: tuple[QuietHours, ...] | None = None
    categories: dict[str, int] = {}
    types: dict[str, int] = {}
    targets: dict[str, int] = {}
    cleared: int = 0
    channels: dict[str, int] = {}
    quiet_categories: dict[str, tuple[QuietHours, ...] | None] = {}
    mail_digest: MailDigest | None = None
