"""A user's profile: time zone, language, quiet hours, what the user chose for types, targets and categories, and the level that rules
refer to.

    {"zone": "Europe/Berlin", "locale": "de-AT", "level": "vip",
     "quiet": [{"from": "22:00", "to": "07:30"}, {"from": "13:00", "to": "15:00", "days": ["sat", "sun"]}],
     "mute": {"types": ["post.liked", "promo.*"], "targets": ["thread:9"]},
     "digest": {"types": ["forum.*"]},
     "inbox": {"types": ["forum.joined"]},
     "on": {"types": ["forum.mention"]},
     "categories": {"news": "off", "social": "digest"}}

`parse_profile` reads this JSON, with the path of what is invalid in its errors; `Profile` is the stored form, and `shown` gives the
JSON form again. A type is a whole event type, or its beginning with `.*` behind it; the most specific one decides. The application sets
all of it; users set all but the level (`engine.core.policy.preferences`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from engine.core.model.category import CHOICES, DIGEST, INBOX, OFF, ON, Choice
from engine.core.model.names import is_event_type, is_id
from engine.core.policy.quiet_hours import ALL_DAYS, QUIET_MAX, QuietHours
from engine.errors import Invalid

T = TypeVar("T")

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LEVEL_CHARS_MAX: Final = 32
NO_INBOX: Final = "this engine keeps no inbox"
UNCHOSEN: Final = -1
"""In place of a choice: the user has made none."""

_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
LOCALE_PATTERN: Final = "^([A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3})?$"
_LEVEL: Final = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)


class Profile(Struct, frozen=True, array_like=True):
    """A user's preferences, as they are stored; the defaults restrict nothing."""

    zone: str = "UTC"
    level: str = ""
    quiet: tuple[QuietHours, ...] = ()
    muted_types: tuple[str, ...] = ()
    muted_targets: tuple[str, ...] = ()
    digest_types: tuple[str, ...] = ()
    locale: str = ""  # language tag of BCP 47
    categories: dict[str, Choice] = {}
    on_types: tuple[str, ...] = ()
    inbox_types: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        texts = (*self.muted_types, *self.muted_targets, *self.digest_types, *self.inbox_types, *self.on_types, *self.categories)
        return 500 + 100 * len(self.quiet) + sum(70 + len(text) for text in texts)


NO_PROFILE: Final = Profile()


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


class _MuteText(Struct, forbid_unknown_fields=True):
    types: list[str] = []
    targets: list[str] = []


class _TypesText(Struct, forbid_unknown_fields=True):
    types: list[str] = []


class _ProfileText(Struct, forbid_unknown_fields=True):
    zone: str = "UTC"
    locale: str = ""
    level: str = ""
    quiet: list[QuietText] = []
    mute: _MuteText = msgspec.field(default_factory=_MuteText)
    digest: _TypesText = msgspec.field(default_factory=_TypesText)
    inbox: _TypesText = msgspec.field(default_factory=_TypesText)
    on: _TypesText = msgspec.field(default_factory=_TypesText)
    categories: dict[str, Literal["on", "digest", "off", "inbox"]] = {}


_text: Final = msgspec.json.Decoder(_ProfileText)
_kept: Final = msgspec.msgpack.Decoder(Profile)
encode: Final = msgspec.msgpack.Encoder().encode
"""Encodes a profile for storage."""


def decode(blob: bytes) -> Profile:
    """A stored profile. Raises what `engine.core.wire.records.UNREADABLE` lists when it is corrupt."""
    return _kept.decode(blob)


def parse_profile(body: bytes, check_zone: Callable[[str], object], limits: ProfileLimits) -> Profile:
    """A profile from JSON.

    Args:
        body: an object as in the module's text; what is left out is the default.
        check_zone: raises Invalid when there is no zone of this name.
        limits: of its lists.

    Raises:
        Invalid: with the path of what is wrong.
    """
    text = decode_text(_text, body)
    check_zone(text.zone)
    if text.level and not (len(text.level) <= LEVEL_CHARS_MAX and _LEVEL.fullmatch(text.level)):
        raise Invalid(f"1 to {LEVEL_CHARS_MAX} of a-z 0-9 _ -", "$.level")
    check_locale(text.locale)
    _names(list(text.categories), "$.categories", limits)
    if not limits.inbox:
        if text.inbox.types:
            raise Invalid(NO_INBOX, "$.inbox.types")
        for name, choice in text.categories.items():
            if choice == CHOICES[INBOX]:
                raise Invalid(NO_INBOX, f"$.categories.{name}")
    return Profile(
        text.zone,
        text.level,
        parse_quiet(text.quiet),
        _types(text.mute.types, "$.mute.types", limits),
        _names(text.mute.targets, "$.mute.targets", limits),
        _types(text.digest.types, "$.digest.types", limits),
        text.locale,
        {name: CHOICES.index(choice) for name, choice in text.categories.items()},
        _types(text.on.types, "$.on.types", limits),
        _types(text.inbox.types, "$.inbox.types", limits),
    )


def decode_text(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """What a request body holds. Raises Invalid, with the path of what is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `")
        raise Invalid(what, place.rstrip("`") or "$") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"malformed JSON: {error}") from None


def check_locale(text: str) -> None:
    """Raises Invalid unless it is a language tag, or empty."""
    if re.fullmatch(LOCALE_PATTERN[1:-1], text) is None:
        raise Invalid("a language tag of BCP 47, such as en, zh-CN or de-AT", "$.locale")


def parse_quiet(texts: Sequence[QuietText]) -> tuple[QuietHours, ...]:
    """The quiet hours of a request body. Raises Invalid, with the path of what is wrong."""
    if len(texts) > QUIET_MAX:
        raise Invalid(f"at most {QUIET_MAX} intervals", "$.quiet")
    return tuple(_quiet(quiet, f"$.quiet[{index}]") for index, quiet in enumerate(texts))


def shown(profile: Profile) -> dict[str, Any]:
    """The profile as `parse_profile` reads it."""
    return {
        "zone": profile.zone,
        **({"locale": profile.locale} if profile.locale else {}),
        "level": profile.level,
        "quiet": quiet_shown(profile),
        "mute": {"types": list(profile.muted_types), "targets": list(profile.muted_targets)},
        "digest": {"types": list(profile.digest_types)},
        **({"inbox": {"types": list(profile.inbox_types)}} if profile.inbox_types else {}),
        **({"on": {"types": list(profile.on_types)}} if profile.on_types else {}),
        **({"categories": {name: CHOICES[choice] for name, choice in profile.categories.items()}} if profile.categories else {}),
    }


def quiet_shown(profile: Profile) -> list[dict[str, Any]]:
    """Its quiet hours as `parse_quiet` reads them."""
    return [
        {"from": _clock(quiet.begin), "to": _clock(quiet.end), "days": [day for bit, day in enumerate(DAYS) if quiet.days >> bit & 1]}
        for quiet in profile.quiet
    ]


def type_choice(profile: Profile, type: str) -> tuple[int, str]:
    """The choice for an event type, UNCHOSEN for none, and the entry that decides: the type itself, else the longest beginning. Of two
    choices for the same entry, the one for less holds: off before inbox before digest before on."""
    found, entry, longest = UNCHOSEN, "", -1
    for choice, patterns in (
        (OFF, profile.muted_types),
        (INBOX, profile.inbox_types),
        (DIGEST, profile.digest_types),
        (ON, profile.on_types),
    ):
        for pattern in patterns:
            if pattern == type:
                length = len(type)
            elif pattern.endswith(".*") and type.startswith(pattern[:-1]):
                length = len(pattern) - 2  # less than the type's, which goes on behind the dot
            else:
                continue
            if length > longest:
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


def _quiet(text: QuietText, path: str) -> QuietHours:
    begin, end = _minute(text.from_, f"{path}.from"), _minute(text.to, f"{path}.to")
    if begin == end:
        raise Invalid("a time other than `from` is needed: an interval is shorter than a day", f"{path}.to")
    days = 0
    for index, day in enumerate(text.days):
        if day not in DAYS:
            raise Invalid(f"allowed are {', '.join(DAYS)}", f"{path}.days[{index}]")
        days |= 1 << DAYS.index(day)
    return QuietHours(begin, end, days if text.days else ALL_DAYS)


def _minute(text: str, path: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise Invalid("a time of day such as 22:30", path)
    return int(found[1]) * 60 + int(found[2])


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def check_type(text: str, path: str, chars_max: int) -> None:
    """Raises Invalid unless it is an event type, or the beginning of some."""
    if not is_event_type(text.removesuffix(".*"), chars_max):
        raise Invalid("an event type such as post.liked, or the beginning of some: post.*", path)


def _types(texts: Sequence[str], path: str, limits: ProfileLimits) -> tuple[str, ...]:
    kept = _names(texts, path, limits)
    for index, text in enumerate(kept):
        check_type(text, f"{path}[{index}]", limits.chars_max)
    return kept


def _names(texts: Sequence[str], path: str, limits: ProfileLimits) -> tuple[str, ...]:
    kept = tuple(dict.fromkeys(texts))
    if len(texts) > limits.entries_max:
        raise Invalid(f"at most {limits.entries_max}", path)
    for index, text in enumerate(kept):
        if not is_id(text, limits.chars_max):
            raise Invalid(f"printable text of 1 to {limits.chars_max} characters", f"{path}[{index}]")
    return kept
