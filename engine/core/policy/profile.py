"""A user's profile, as shards keep it: time zone, language, quiet hours, what the user chose for types, targets, categories and channels,
and the level that rules refer to.

The application sets all of it; users set all but the level (`engine.core.policy.preferences`). A type is a whole event type, or its
beginning with `.*` behind it; the most specific one decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from engine.core.model.category import CHOICES, DIGEST, INBOX, OFF, ON, PreferenceChoice
from engine.core.policy.mail_digest import MailDigest
from engine.core.policy.quiet_hours import QuietHours

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
UNCHOSEN: Final = -1
"""In place of a choice: the user has made none."""


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


def channel_choice(profile: Profile, category: str, channel: str) -> int:
    """How the user wants messages of this category by this channel: ON, OFF, DIGEST or UNCHOSEN. `*` stands for all other categories.

    DIGEST is as ON for a user without a digest by mail, who would not be told otherwise.
    """
    choices = profile.channels
    choice = choices.get(f"{category}/{channel}", choices.get(f"*/{channel}", UNCHOSEN)) if choices else UNCHOSEN
    return ON if choice == DIGEST and profile.mail_digest is None else choice


def mail_digest_shown(wanted: MailDigest | None) -> dict[str, Any] | None:
    """The times of a digest by mail in JSON; None for none."""
    return None if wanted is None else {"at": _clock(wanted.at), "days": days_shown(wanted.days)}


def days_shown(days: int) -> list[str]:
    """The names of days that are bits."""
    return [day for bit, day in enumerate(DAYS) if days >> bit & 1]


def types_by_choice(profile: Profile) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The entries of each choice. Of two choices for the same entry the later one here holds, which is the one for less."""
    return (ON, profile.on_types), (DIGEST, profile.digest_types), (INBOX, profile.inbox_types), (OFF, profile.muted_types)


def type_choice(profile: Profile, type: str) -> tuple[int, str]:
    """The choice for an event type, UNCHOSEN for none, and the entry that decides: the type itself, else the longest beginning."""
    found, entry, longest = UNCHOSEN, "", -1
    for choice, patterns in types_by_choice(profile):
        for pattern in patterns:
            if pattern == type:
                length = len(type)
            elif pattern.endswith(".*") and type.startswith(pattern[:-1]):
                length = len(pattern) - 2  # less than the type's, which goes on behind the dot
            else:
                continue
            if length >= longest:
                found, entry, longest = choice, pattern, length
    return found, entry


def target_names(target: Any) -> tuple[str, ...]:
    """The names by which a `target` can be muted: a text by itself; an object with an `id` by that, and with a `kind` by `kind:id` too."""
    if isinstance(target, str):
        return (target,)
    if isinstance(target, Mapping) and isinstance(target.get("id"), str | int):
        name = str(target["id"])
        return (name, f"{target['kind']}:{name}") if isinstance(target.get("kind"), str) else (name,)
    return ()


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
