"""What a user chose for a type, a channel or a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.core.model.category import DIGEST, INBOX, OFF, ON
from engine.core.policy.profile import UNCHOSEN, Profile


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


def channel_choice(profile: Profile, category: str, channel: str) -> int:
    """How the user wants messages of this category by this channel: ON, OFF, DIGEST or UNCHOSEN. `*` stands for all other categories.

    DIGEST is as ON for a user without a digest by mail, who would not be told otherwise.
    """
    choices = profile.channels
    choice = choices.get(f"{category}/{channel}", choices.get(f"*/{channel}", UNCHOSEN)) if choices else UNCHOSEN
    return ON if choice == DIGEST and profile.mail_digest is None else choice


def target_names(target: Any) -> tuple[str, ...]:
    """The names by which a `target` can be muted: a text by itself; an object with an `id` by that, and with a `kind` by `kind:id` too."""
    if isinstance(target, str):
        return (target,)
    if isinstance(target, Mapping) and isinstance(target.get("id"), str | int):
        name = str(target["id"])
        return (name, f"{target['kind']}:{name}") if isinstance(target.get("kind"), str) else (name,)
    return ()
