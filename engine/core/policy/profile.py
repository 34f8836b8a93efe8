"""A user's profile, as shards keep it: time zone, language, quiet hours, what the user chose for types, targets, categories and channels,
and the level that rules refer to.

The application sets all of it; users set all but the level (`engine.core.policy.preferences`). A type is a whole event type, or its
beginning with `.*` behind it; the most specific one decides.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from engine.core.model.category import CHOICES, PreferenceChoice

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
UNCHOSEN: Final = -1
"""In place of a choice: the user has made none."""

DAY_MINUTES: Final = 24 * 60
ALL_DAYS: Final = 0b111_1111


class QuietHours(Struct, frozen=True, array_like=True):
    """One interval of every chosen day, `begin` included, `end` not; an `end` at or before `begin` is the next day's.

    Args:
        begin: minutes since midnight, 0..1439.
        end: minutes since midnight, 0..1439, not equal to `begin`.
        days: bit 0 is Monday; the day on which the interval begins.
    """

    begin: Annotated[int, Meta(ge=0, lt=DAY_MINUTES)]
    end: Annotated[int, Meta(ge=0, lt=DAY_MINUTES)]
    days: Annotated[int, Meta(ge=0, le=ALL_DAYS)] = ALL_DAYS


class MailDigest(Struct, frozen=True, array_like=True):
    """The times at which a user wants a digest by mail: a local time on some days of the week.

    Args:
        at: minutes since midnight, 0..1439.
        days: bit 0 is Monday; not 0.
    """

    at: Annotated[int, Meta(ge=0, lt=DAY_MINUTES)]
    days: Annotated[int, Meta(ge=1, le=ALL_DAYS)] = ALL_DAYS


class Profile(Struct, frozen=True, array_like=True):
    """A user's preferences, as they are stored; the defaults restrict nothing."""

    zone: str = "UTC"
    level: str = ""
    quiet: tuple[QuietHours, ...] = ()
    muted_types: tuple[str, ...] = ()
    muted_targets: tuple[str, ...] = ()
    digest_types: tuple[str, ...] = ()
    locale: str = ""  # language tag of BCP 47
    categories: dict[str, PreferenceChoice] = {}
    on_types: tuple[str, ...] = ()
    inbox_types: tuple[str, ...] = ()
    channels: dict[str, PreferenceChoice] = {}  # ON, OFF or DIGEST by `category/channel`, see `channel_choice`
    quiet_categories: dict[str, tuple[QuietHours, ...]] = {}  # in place of `quiet`
    mail_digest: MailDigest | None = None

    def quiet_for(self, category: str) -> tuple[QuietHours, ...]:
        """The quiet hours of messages of this category."""
        return self.quiet_categories.get(category, self.quiet)

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        texts = (
            *self.muted_types,
            *self.muted_targets,
            *self.digest_types,
            *self.inbox_types,
            *self.on_types,
            *self.categories,
            *self.channels,
        )
        intervals = len(self.quiet) + sum(1 + len(quiet) for quiet in self.quiet_categories.values())
        return 500 + 100 * intervals + sum(70 + len(text) for text in texts)


NO_PROFILE: Final = Profile()


def shown(profile: Profile) -> dict[str, Any]:
    """The profile in JSON, as applications write it."""
    return {
        "zone": profile.zone,
        **({"locale": profile.locale} if profile.locale else {}),
        "level": profile.level,
        "quiet": quiet_shown(profile.quiet),
        "mute": {"types": list(profile.muted_types), "targets": list(profile.muted_targets)},
        "digest": {"types": list(profile.digest_types)},
        **({"inbox": {"types": list(profile.inbox_types)}} if profile.inbox_types else {}),
        **({"on": {"types": list(profile.on_types)}} if profile.on_types else {}),
        **({"categories": {name: CHOICES[choice] for name, choice in profile.categories.items()}} if profile.categories else {}),
    }


def quiet_shown(hours: tuple[QuietHours, ...]) -> list[dict[str, Any]]:
    """Quiet hours in JSON."""
    return [{"from": _clock(quiet.begin), "to": _clock(quiet.end), "days": days_shown(quiet.days)} for quiet in hours]


def mail_digest_shown(wanted: MailDigest | None) -> dict[str, Any] | None:
    """The times of a digest by mail in JSON; None for none."""
    return None if wanted is None else {"at": _clock(wanted.at), "days": days_shown(wanted.days)}


def days_shown(days: int) -> list[str]:
    """The names of days that are bits."""
    return [day for bit, day in enumerate(DAYS) if days >> bit & 1]


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
