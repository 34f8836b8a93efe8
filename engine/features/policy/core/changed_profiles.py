"""Preferences: the part of a profile that its user may change. A change is checked by the edge, which has the rules, and applied by the
shard, which owns the profile:

    edge    checks the request: does the application leave these choices to users -> `PreferencesPatch`
    shard   waits for a group -> when the group is built, `patched` (the profile as it is by then, or as an earlier change of the same group
            leaves it) -> journalled as the whole profile -> committed: applied, and answered with it
                                                          -> refused: answered "unavailable"; a repeat is built on the profile of then

So two devices that change different members at once lose nothing, without a revision to compare and without a retry; of two changes to one
member the later one holds. A patch applied twice is as one applied once, so a request whose answer was lost is repeated. The journal has
whole profiles: replay knows no patches. The answer waits for the journal, so what was answered survives every crash.

Whether a choice has an effect is decided with each message (`engine.features.policy.core.contact_policy.chosen`), by the limits that the
message carries. A choice for a category that the rules no longer define, or no longer leave to users, stays in the profile without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from engine.core.commit.user_step import UserChange
from engine.core.journal.journal_records import Profiled
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.category import DIGEST, INBOX, OFF, ON
from engine.core.policy.preferences import MAPS, NO_MAIL_DIGEST, PreferencesPatch
from engine.core.policy.profile import NO_PROFILE, UNCHOSEN, Profile
from engine.core.shard.user_handlers import RequestContext
from engine.core.wire.records import OK, OVERLOADED, UNAVAILABLE, ChangeProfile, GetProfile, ProfileIs, SetProfile
from engine.features.policy.core.choices import types_by_choice

_LISTS: Final = {
    "categories": "categories", "on_types": "types", "digest_types": "types", "inbox_types": "types", "muted_types": "types",
    "muted_targets": "targets", "channels": "channels", "quiet_categories": "quiet_categories",
}  # fmt: skip
"""The lists of a profile, with the member of preferences that each is of."""


def get_profile(mailbox: Mailbox, asked: GetProfile, _context: RequestContext) -> ProfileIs:
    """The profile as it is."""
    profile = None if mailbox.user_state is None else mailbox.user_state.profile
    return ProfileIs(asked.ref, OK, profile, mailbox.seen_ms)


def change_profile(mailbox: Mailbox, asked: ChangeProfile | SetProfile, context: RequestContext) -> UserChange:
    """The change of the user. Its record and its answer have the profile once the group is built."""
    done, failed = ProfileIs(asked.ref, OK, None, mailbox.seen_ms), ProfileIs(asked.ref, UNAVAILABLE)
    return UserChange(mailbox, context.session, Profiled(mailbox.key, None), done, failed, partial(changed, asked=asked))


def changed(before: Profile | None, asked: ChangeProfile | SetProfile) -> tuple[Profile | None, int]:
    """The profile after a change, and the status of the answer."""
    if isinstance(asked, SetProfile):
        if asked.profile is None or before is None:
            return asked.profile, OK
        kept = before.categories if asked.keep_categories else asked.profile.categories
        own = {"channels": before.channels, "quiet_categories": before.quiet_categories, "mail_digest": before.mail_digest}
        return msgspec.structs.replace(asked.profile, categories=kept, **own), OK
    after = patched(before or NO_PROFILE, asked.patch)
    if outgrown(before or NO_PROFILE, after, asked.entries_max):
        return before, OVERLOADED
    return after, OK


def patched(profile: Profile, patch: PreferencesPatch) -> Profile:
    """The profile with the patch applied."""
    types = {name: choice for choice, names in types_by_choice(profile) for name in names}
    targets = dict.fromkeys(profile.muted_targets, OFF)
    before: tuple[dict[str, Any], ...] = (profile.categories, types, targets, profile.channels, profile.quiet_categories)
    categories, types, targets, channels, quiet_categories = (
        {name: value for name, value in ({} if patch.cleared >> bit & 1 else old | getattr(patch, MAPS[bit])).items() if _is_kept(value)}
        for bit, old in enumerate(before)
    )
    return msgspec.structs.replace(
        profile,
        zone=profile.zone if patch.zone is None else patch.zone,
        locale=profile.locale if patch.locale is None else patch.locale,
        quiet=profile.quiet if patch.quiet is None else patch.quiet,
        categories=categories,
        on_types=_named(types, ON),
        digest_types=_named(types, DIGEST),
        inbox_types=_named(types, INBOX),
        muted_types=_named(types, OFF),
        muted_targets=tuple(targets),
        channels=channels,
        quiet_categories=quiet_categories,
        mail_digest=patch.mail_digest or (None if patch.cleared & NO_MAIL_DIGEST else profile.mail_digest),
    )


def _is_kept(value: Any) -> bool:
    return value is not None and value != UNCHOSEN


def _named(choices: Mapping[str, int], wanted: int) -> tuple[str, ...]:
    return tuple(name for name, choice in choices.items() if choice == wanted)


def outgrown(before: Profile, after: Profile, entries_max: int) -> str:
    """The member of a change that adds to a list of choices which has more than `entries_max` entries then; "" for none."""
    return next((of for name, of in _LISTS.items() if len(getattr(after, name)) > max(entries_max, len(getattr(before, name)))), "")
