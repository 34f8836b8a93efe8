"""Preferences of a user: what the user has chosen, and what the application leaves to users (docs/PROTOCOL-PUBLISHING.md, "Preferences").

A change names only what it changes, so it is idempotent, and so is retried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypedDict

from msgspec import Struct

PATH: Final = "/v1/preferences"

Wish = Literal["on", "inbox", "digest", "off"]


class CategoryPreference(Struct):
    """A category of the application.

    Attributes:
        may: what the user may choose.
        default: what holds for a user who has not chosen.
        choice: what holds now.
        title: for people; "" when it has none.
    """

    may: list[Wish]
    default: Wish
    choice: Wish
    title: str = ""
    channels: dict[str, Wish] = {}


class UserPreferences(Struct):
    """What a user has chosen.

    Attributes:
        zone: IANA time zone, of the quiet hours.
        locale: language tag; "" for none.
        quiet: quiet hours, `{"from": "22:00", "to": "07:00", "days": ["mon", ...]}`.
        categories, types, targets: choices by name; a type may end in `.*`, targets are muted (`off`).
        channels: `on`, `off` or, for mail, `digest`, by `category/channel`, such as `news/email`, or `*/email` for all others.
        quiet_categories: quiet hours of a category, in place of `quiet`.
        mail_digest: the times of a digest by mail, `{"at": "08:00", "days": ["mon", ...]}`; None: there is none.
        available: all categories, by name; read only.
    """

    user: str
    zone: str
    locale: str
    quiet: list[dict[str, Any]]
    categories: dict[str, Wish]
    types: dict[str, Wish]
    targets: dict[str, Wish]
    available: dict[str, CategoryPreference]
    channels: dict[str, Wish] = {}
    quiet_categories: dict[str, list[dict[str, Any]]] = {}
    mail_digest: dict[str, Any] | None = None


class PreferenceChanges(TypedDict, total=False):
    """Members of `UserPreferences` that are changed; None removes a choice, or a whole member."""

    zone: str | None
    locale: str | None
    quiet: list[dict[str, Any]] | None
    categories: Mapping[str, Wish | None] | None
    types: Mapping[str, Wish | None] | None
    targets: Mapping[str, Literal["off"] | None] | None
    channels: Mapping[str, Literal["on", "off", "digest"] | None] | None
    quiet_categories: Mapping[str, list[dict[str, Any]] | None] | None
    mail_digest: Mapping[str, Any] | None
