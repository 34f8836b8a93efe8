"""Reads a profile from JSON, and says the path of what is invalid.

    {"zone": "Europe/Berlin", "locale": "de-AT", "level": "vip",
     "quiet": [{"from": "22:00", "to": "07:30"}, {"from": "13:00", "to": "15:00", "days": ["sat", "sun"]}],
     "mute": {"types": ["post.liked", "promo.*"], "targets": ["thread:9"]},
     "digest": {"types": ["forum.*"]},
     "inbox": {"types": ["forum.joined"]},
     "on": {"types": ["forum.mention"]},
     "categories": {"news": "off", "social": "digest"}}

`engine.core.policy.profile.shown` gives this form again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from engine.core.model.category import CHOICES, INBOX
from engine.core.model.names import is_event_type, is_id
from engine.core.policy.profile import ALL_DAYS, DAYS, MailDigest, Profile, QuietHours
from engine.errors import Invalid
from engine.features.policy.core.local_times import QUIET_MAX, never_end

LEVEL_CHARS_MAX: Final = 32
NO_INBOX: Final = "this engine keeps no inbox"
LOCALE_PATTERN: Final = "^([A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3})?$"

_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_LEVEL: Final = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)


class ProfileLimits(Struct, frozen=True):
    """How much one profile may hold: entries of each list, and characters of each of them. `inbox`: whether there is an inbox to choose."""

    entries_max: int
    chars_max: int
    inbox: bool = True


class QuietText(Struct, forbid_unknown_fields=True):
    """Quiet hours in JSON."""

    from_: str = msgspec.field(name="from")
    to: str
    days: tuple[str, ...] = DAYS


class MailDigestText(Struct, forbid_unknown_fields=True):
    """The times of a digest by mail in JSON."""

    at: str
    days: tuple[str, ...] = DAYS


class _MuteText(Struct, forbid_unknown_fields=True):
    types: list[str] = []
    targets: list[str] = []


class _TypesText(Struct, forbid_unknown_fields=True):
    types: list[str] = []


class ProfileText(Struct, forbid_unknown_fields=True):
    """A profile in JSON."""

    zone: str = "UTC"
    locale: str = ""
    level: str = ""
    quiet: list[QuietText] = []
    mute: _MuteText = msgspec.field(default_factory=_MuteText)
    digest: _TypesText = msgspec.field(default_factory=_TypesText)
    inbox: _TypesText = msgspec.field(default_factory=_TypesText)
    on: _TypesText = msgspec.field(default_factory=_TypesText)
    categories: dict[str, str] | UnsetType = UNSET


profile_decoder: Final = msgspec.json.Decoder(ProfileText)


def parse_profile(text: ProfileText, check_zone: Callable[[str], object], limits: ProfileLimits) -> Profile:
    """A profile from JSON.

    Args:
        text: as in the module's text; what is left out is the default.
        check_zone: raises Invalid when there is no zone of this name.
        limits: of its lists.

    Raises:
        Invalid: with the path of what is wrong.
    """
    categories = text.categories or {}
    check_zone(text.zone)
    if text.level and not (len(text.level) <= LEVEL_CHARS_MAX and _LEVEL.fullmatch(text.level)):
        raise Invalid(f"1 to {LEVEL_CHARS_MAX} of a-z 0-9 _ -", "$.level")
    check_locale(text.locale)
    if len(categories) > limits.entries_max:
        raise Invalid(f"at most {limits.entries_max}", "$.categories")
    for name, choice in categories.items():
        if not is_id(name, limits.chars_max):
            raise Invalid(f"names are printable text of 1 to {limits.chars_max} characters", "$.categories")
        if choice not in CHOICES:
            raise Invalid(f"one of {', '.join(CHOICES)}", f"$.categories.{name}")
        if choice == CHOICES[INBOX] and not limits.inbox:
            raise Invalid(NO_INBOX, f"$.categories.{name}")
    if text.inbox.types and not limits.inbox:
        raise Invalid(NO_INBOX, "$.inbox.types")
    return Profile(
        text.zone,
        text.level,
        parse_quiet(text.quiet),
        _types(text.mute.types, "$.mute.types", limits),
        _names(text.mute.targets, "$.mute.targets", limits),
        _types(text.digest.types, "$.digest.types", limits),
        text.locale,
        {name: CHOICES.index(choice) for name, choice in categories.items()},
        _types(text.on.types, "$.on.types", limits),
        _types(text.inbox.types, "$.inbox.types", limits),
    )


def check_locale(text: str) -> None:
    """Raises Invalid unless it is a language tag, or empty."""
    if re.fullmatch(LOCALE_PATTERN[1:-1], text) is None:
        raise Invalid("a language tag of BCP 47, such as en, zh-CN or de-AT", "$.locale")


def parse_quiet(texts: Sequence[QuietText], path: str = "$.quiet") -> tuple[QuietHours, ...]:
    """The quiet hours of a request body. Raises Invalid, with the path of what is wrong."""
    if len(texts) > QUIET_MAX:
        raise Invalid(f"at most {QUIET_MAX} intervals", path)
    found = tuple(_quiet(quiet, f"{path}[{index}]") for index, quiet in enumerate(texts))
    if never_end(found):
        raise Invalid("at least a minute of the week without quiet hours: what comes in them waits for their end", path)
    return found


def check_type(text: str, path: str, chars_max: int) -> None:
    """Raises Invalid unless it is an event type, or the beginning of some."""
    if not is_event_type(text.removesuffix(".*"), chars_max):
        raise Invalid("an event type such as post.liked, or the beginning of some: post.*", path)


def _quiet(text: QuietText, path: str) -> QuietHours:
    begin, end = _minute(text.from_, f"{path}.from"), _minute(text.to, f"{path}.to")
    if begin == end:
        raise Invalid("a time other than `from` is needed: an interval is shorter than a day", f"{path}.to")
    return QuietHours(begin, end, _days(text.days, path))


def parse_mail_digest(text: MailDigestText) -> MailDigest:
    """The times of a digest by mail. Raises Invalid, with the path of what is wrong."""
    return MailDigest(_minute(text.at, "$.mail_digest.at"), _days(text.days, "$.mail_digest"))


def _days(names: Sequence[str], path: str) -> int:
    """Days as bits; all for none."""
    days = 0
    for index, day in enumerate(names):
        if day not in DAYS:
            raise Invalid(f"allowed are {', '.join(DAYS)}", f"{path}.days[{index}]")
        days |= 1 << DAYS.index(day)
    return days or ALL_DAYS


def _minute(text: str, path: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise Invalid("a time of day such as 22:30", path)
    return int(found[1]) * 60 + int(found[2])


def _types(texts: Sequence[str], path: str, limits: ProfileLimits) -> tuple[str, ...]:
    kept = _names(texts, path, limits)
    for index, text in enumerate(texts):
        check_type(text, f"{path}[{index}]", limits.chars_max)
    return kept


def _names(texts: Sequence[str], path: str, limits: ProfileLimits) -> tuple[str, ...]:
    if len(texts) > limits.entries_max:
        raise Invalid(f"at most {limits.entries_max}", path)
    for index, text in enumerate(texts):
        if not is_id(text, limits.chars_max):
            raise Invalid(f"printable text of 1 to {limits.chars_max} characters", f"{path}[{index}]")
    return tuple(dict.fromkeys(texts))
