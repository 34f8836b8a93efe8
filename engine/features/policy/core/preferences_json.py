"""Preferences in JSON, and what the application leaves to users.

    {"zone": "Europe/Berlin", "locale": "de", "quiet": [{"from": "22:00", "to": "07:00", "days": [...]}],
     "categories": {"news": "off"}, "types": {"forum.*": "digest", "forum.mention": "on"}, "targets": {"thread:9": "off"},
     "channels": {"alert/email": "digest", "*/apprise": "off"}, "quiet_categories": {"alert": []},
     "mail_digest": {"at": "08:00", "days": ["mon"]},
     "available": {"news": {"title": "Weekly news", "may": ["on", "inbox", "digest", "off"], "default": "on", "choice": "off"},
                   "alert": {..., "channels": {"email": "digest"}}}}

`available` is read only: the categories of the rules file, the choices that a user has for each, and the choice that holds now; also for
each channel by which the category's steps tell users. The level is not shown, and users cannot change it: it is the application's.

A change is a JSON merge patch (RFC 7396): members that are named are set, or removed by null; all others stay. `parse_patch` checks it, and
the shard applies it (`engine.features.policy.core.changed_profiles`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from engine.core.model.category import ANY_CHOICE, CHOICES, DIGEST, INBOX, OFF, ON, Category
from engine.core.model.defined_categories import DefinedCategories
from engine.core.model.names import is_id
from engine.core.model.step import CHANNELS, DIGEST_CHANNEL
from engine.core.policy.preferences import MAPS, NO_MAIL_DIGEST, PreferencesPatch
from engine.core.policy.profile import (
    NO_PROFILE,
    UNCHOSEN,
    Profile,
    QuietHours,
    mail_digest_shown,
    quiet_shown,
)
from engine.errors import Invalid
from engine.features.policy.core.choices import channel_choice, types_by_choice
from engine.features.policy.core.profile_json import (
    NO_INBOX,
    MailDigestText,
    ProfileLimits,
    QuietText,
    check_locale,
    check_type,
    parse_mail_digest,
    parse_quiet,
)

MOST_FIRST: Final = (ON, INBOX, DIGEST, OFF)
"""The choices in the order in which people are shown them."""

_READ_ONLY: Final[Mapping[str, str]] = {
    "user": "it is read only",
    "available": "it is read only: the rules file defines categories",
    "level": "only the application may set it",
}
_Choices = dict[str, str | None]
NOTHING: Final = PreferencesPatch()


class PatchText(Struct, forbid_unknown_fields=True):
    """A change of preferences in JSON."""

    zone: str | UnsetType | None = UNSET
    locale: str | UnsetType | None = UNSET
    quiet: list[QuietText] | UnsetType | None = UNSET
    categories: _Choices | UnsetType | None = UNSET
    types: _Choices | UnsetType | None = UNSET
    targets: _Choices | UnsetType | None = UNSET
    channels: _Choices | UnsetType | None = UNSET
    quiet_categories: dict[str, list[QuietText] | None] | UnsetType | None = UNSET
    mail_digest: MailDigestText | UnsetType | None = UNSET
    user: Raw | UnsetType = UNSET
    available: Raw | UnsetType = UNSET
    level: Raw | UnsetType = UNSET


patch_decoder: Final = msgspec.json.Decoder(PatchText)


def parse_patch(
    text: PatchText, categories: Mapping[str, Category], check_zone: Callable[[str], object], limits: ProfileLimits
) -> PreferencesPatch:
    """A patch from JSON.

    Args:
        text: a merge patch of what `preferences_of` returns.
        categories: by name, those that are defined.
        check_zone: raises Invalid when there is no zone of this name.
        limits: entries of each map, and characters of each name.

    Raises:
        Invalid: with the path of what is wrong, or of what the application does not leave to users.
    """
    for name, reason in _READ_ONLY.items():
        if getattr(text, name) is not UNSET:
            raise Invalid(reason, f"$.{name}")
    zone = None if text.zone is UNSET else NO_PROFILE.zone if text.zone is None else text.zone
    if zone is not None:
        check_zone(zone)
    locale = None if text.locale is UNSET else text.locale or ""
    check_locale(locale or "")
    quiet = None if text.quiet is UNSET else parse_quiet(text.quiet or [])
    chosen, types, targets, channels = (_choices(getattr(text, name), f"$.{name}", limits) for name in MAPS[:4])
    quiet_categories = _quiet_categories(text.quiet_categories, categories, limits)
    for name, choice in chosen.items():
        _check_category(name, choice, categories)
    for name in types:
        check_type(name, f"$.types.{name}", limits.chars_max)
    for name, choice in targets.items():
        if choice not in (OFF, UNCHOSEN):
            raise Invalid("off, or null for not muted", f"$.targets.{name}")
    for name, choice in channels.items():
        _check_channel(name, choice, categories)
    cleared = sum(1 << bit for bit, name in enumerate(MAPS) if getattr(text, name) is None)
    cleared |= NO_MAIL_DIGEST if text.mail_digest is None else 0
    mail_digest = parse_mail_digest(text.mail_digest) if isinstance(text.mail_digest, MailDigestText) else None
    return PreferencesPatch(zone, locale, quiet, chosen, types, targets, cleared, channels, quiet_categories, mail_digest)


def _quiet_categories(
    written: Mapping[str, list[QuietText] | None] | UnsetType | None, categories: Mapping[str, Category], limits: ProfileLimits
) -> dict[str, tuple[QuietHours, ...] | None]:
    found: dict[str, tuple[QuietHours, ...] | None] = {}
    for name, texts in (written or {}).items():
        path = f"$.quiet_categories.{name}"
        if texts is not None:
            _known_category(name, path, categories)
        found[name] = None if texts is None else parse_quiet(texts, path)
    if len(found) > limits.entries_max:
        raise Invalid(f"at most {limits.entries_max}", "$.quiet_categories")
    return found


def _check_channel(name: str, choice: int, categories: Mapping[str, Category]) -> None:
    path = f"$.channels.{name}"
    if choice == UNCHOSEN:
        return
    category, _, channel = name.rpartition("/")
    if channel not in CHANNELS:
        raise Invalid(f"CATEGORY/CHANNEL is needed; channels are {', '.join(CHANNELS)}", path)
    if choice not in ((ON, OFF, DIGEST) if channel == DIGEST_CHANNEL else (ON, OFF)):
        raise Invalid(f"on, off, or null for no choice; {DIGEST_CHANNEL} may be digest", path)
    if category != "*" and _known_category(category, path, categories).mandatory and choice != ON:
        raise Invalid(f"the category {category} cannot be {CHOICES[choice]}", path)


def _choices(written: _Choices | UnsetType | None, path: str, limits: ProfileLimits) -> dict[str, int]:
    if not written:  # absent, or removed as a whole
        return {}
    if len(written) > limits.entries_max:
        raise Invalid(f"at most {limits.entries_max}", path)
    choices: dict[str, int] = {}
    for name, choice in written.items():
        if not is_id(name, limits.chars_max):
            raise Invalid(f"names are printable text of 1 to {limits.chars_max} characters", path)
        if choice is not None and choice not in CHOICES:
            raise Invalid(f"one of {', '.join(CHOICES)}, or null for no choice", f"{path}.{name}")
        if choice == CHOICES[INBOX] and not limits.inbox:
            raise Invalid(NO_INBOX, f"{path}.{name}")
        choices[name] = UNCHOSEN if choice is None else CHOICES.index(choice)
    return choices


def _check_category(name: str, choice: int, categories: Mapping[str, Category]) -> None:
    if choice == UNCHOSEN:
        return  # also of one that is not defined any more
    category = _known_category(name, f"$.categories.{name}", categories)
    if not may_choose(category, choice):
        raise Invalid(
            f"the category {name} cannot be {CHOICES[choice]}: users may choose {', '.join(may(category))}", f"$.categories.{name}"
        )


def _known_category(name: str, path: str, categories: Mapping[str, Category]) -> Category:
    category = categories.get(name)
    if category is None:
        raise Invalid(f"no category has this name; defined are {', '.join(sorted(categories))}", path)
    return category


def may_choose(category: Category, choice: int) -> bool:
    """Whether a user may choose this for the category."""
    return choice == ON if category.mandatory else category.allows(choice)


def may(category: Category, offered: int = ANY_CHOICE) -> list[str]:
    """The names of what a user may choose for the category, of what the engine offers (bits)."""
    return [CHOICES[choice] for choice in MOST_FIRST if offered >> choice & 1 and may_choose(category, choice)]


def choice_for(profile: Profile, name: str, category: Category) -> int:
    """What holds for a category: the user's choice where there is one and it is allowed, else the default."""
    choice = profile.categories.get(name, UNCHOSEN)
    return choice if choice != UNCHOSEN and may_choose(category, choice) else category.default


def preferences_of(profile: Profile, defined: DefinedCategories, offered: int = ANY_CHOICE) -> dict[str, Any]:
    """The preferences in a profile, as JSON. `offered`: the choices that the engine has, as bits."""
    titles = defined.titles
    types = ((name, choice) for choice, names in types_by_choice(profile) for name in names)
    return {
        "zone": profile.zone,
        "locale": profile.locale,
        "quiet": quiet_shown(profile.quiet),
        "categories": {name: CHOICES[choice] for name, choice in profile.categories.items()},
        "types": {name: CHOICES[choice] for name, choice in types},
        "targets": dict.fromkeys(profile.muted_targets, CHOICES[OFF]),
        "channels": {name: CHOICES[choice] for name, choice in profile.channels.items()},
        "quiet_categories": {name: quiet_shown(hours) for name, hours in profile.quiet_categories.items()},
        "mail_digest": mail_digest_shown(profile.mail_digest),
        "available": {
            name: {
                **({"title": titles[name]} if name in titles else {}),
                "may": may(category, offered),
                "default": CHOICES[category.default],
                "choice": CHOICES[choice_for(profile, name, category)],
                **({"channels": channels} if (channels := _channels(profile, name, defined)) else {}),
            }
            for name, category in sorted(defined.categories.items())
        },
    }


def _channels(profile: Profile, name: str, defined: DefinedCategories) -> dict[str, str]:
    """How the user is told of a category by each channel of its steps: at once, in a digest or not."""
    category = defined.categories[name]
    return {channel: CHOICES[_by_channel(profile, name, channel, category)] for channel in sorted(defined.channels_of(name))}


def _by_channel(profile: Profile, name: str, channel: str, category: Category) -> int:
    choice = channel_choice(profile, name, channel)
    if category.mandatory:
        return ON
    in_app = choice_for(profile, name, category)
    if OFF in (choice, in_app):
        return OFF
    return DIGEST if choice == DIGEST else ON if ON in (choice, in_app) else OFF
