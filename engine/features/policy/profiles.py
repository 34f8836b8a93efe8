"""`/v1/users/{user}/profile` and `/v1/preferences`: parse a profile or a change of one, store it at the shard that owns the user, read it.

Tokens with scope `publish` or `admin` may write every profile; a user may read its own, and change the part of it that is theirs, the
preferences (`engine.features.policy.core.preferences_json`).

A `PUT` of a profile replaces all of it but the choices for categories, unless it names these, and what users choose by channel, and quiet
hours by category: an application that does not know of them would subscribe its users anew to what they have unsubscribed from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from msgspec import UNSET

from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.category import ANY_CHOICE, INBOX
from engine.core.model.routing import split_key
from engine.core.policy.preferences import PreferencesPatch
from engine.core.policy.profile import NO_PROFILE, Profile, shown
from engine.core.wire.records import OK, OVERLOADED, ChangeProfile, GetProfile, ProfileIs, SetProfile
from engine.errors import Invalid, Unavailable
from engine.features.policy import time_zones
from engine.features.policy.core.changed_profiles import outgrown, patched
from engine.features.policy.core.preferences_json import NOTHING, PatchText, parse_patch, patch_decoder, preferences_of
from engine.features.policy.core.profile_json import ProfileLimits, ProfileText, parse_profile, profile_decoder
from engine.gateway.shard_client import ShardClient
from engine.publish import media_types
from engine.publish.category_book import CategoryBook


def read(body: bytes, config: Config) -> tuple[Profile, bool]:
    """The profile in a request body, and whether it names choices for categories, if only none.

    Raises:
        Problem: 400, it is no JSON; 422, with the path of what is wrong.
    """
    text = decode_body(profile_decoder, body, ProfileText)
    try:
        return parse_profile(text, time_zones.zone, _limits(config)), text.categories is not UNSET
    except Invalid as error:
        raise media_types.unacceptable(error) from None


def _limits(config: Config) -> ProfileLimits:
    return ProfileLimits(config.profile_entries_max, config.id_chars_max, inbox=config.inbox_max > 0)


async def ask_profile(shard_client: ShardClient, key: str) -> ProfileIs:
    """The answer of the user's shard, whatever its status. Raises Overloaded, Unavailable."""
    return await shard_client.ask(ProfileIs, lambda ref: GetProfile(ref, key))


async def ask_change(shard_client: ShardClient, key: str, patch: PreferencesPatch, entries_max: int) -> ProfileIs:
    """Likewise, to a change of what the user has chosen; durable with the answer, which is OVERLOADED when it would be too much."""
    return await shard_client.ask(ProfileIs, lambda ref: ChangeProfile(ref, key, patch, entries_max))


async def get(shard_client: ShardClient, key: str) -> ProfileIs:
    """A user's profile, and when they were last active.

    Raises:
        Unavailable: the shard or its storage did not answer.
    """
    return _good(await ask_profile(shard_client, key))


async def put(shard_client: ShardClient, key: str, profile: Profile | None, *, keep_categories: bool = False) -> ProfileIs:
    """Store a profile, None to remove it; durable on return. `keep_categories`: the choices for categories stay. Raises as `get`."""
    return _good(await shard_client.ask(ProfileIs, lambda ref: SetProfile(ref, key, profile, keep_categories)))


class Preferences:
    """The endpoints of preferences.

    Args:
        category_book: the categories that users may choose for.
        times_changed: (mailbox key, profile): called when the zone, or the times of the digest by mail, were changed.
    """

    def __init__(
        self,
        config: Config,
        shard_client: ShardClient,
        category_book: CategoryBook,
        times_changed: Callable[[str, Profile], Awaitable[None]],
    ) -> None:
        self._config = config
        self._shard_client = shard_client
        self._category_book = category_book
        self._times_changed = times_changed

    async def get(self, key: str) -> dict[str, Any]:
        """The answer to `GET /v1/preferences`. Raises Unavailable: the shard or its storage did not answer."""
        return self._shown(key, await get(self._shard_client, key))

    async def kept_rows(self, key: str) -> AsyncIterator[bytes]:
        """What the user has chosen, in JSON: one row, none for a user without a profile. Raises as `get`."""
        answer = await get(self._shard_client, key)
        if answer.profile is not None:
            chosen = self._shown(key, answer)
            del chosen["available"]
            yield msgspec.json.encode(chosen)

    async def change(self, key: str, body: bytes) -> dict[str, Any]:
        """The answer to `PATCH /v1/preferences`; durable on return.

        Raises:
            Problem: 400, it is no JSON; 422, with the path of what is wrong, or not left to users.
            Unavailable: the shard or its storage did not answer, or the rules cannot be read.
        """
        patch = self._patch(split_key(key)[0], body)
        if patch == NOTHING:
            return await self.get(key)
        return self._shown(key, await self.apply(key, patch))

    async def apply(self, key: str, patch: PreferencesPatch, entries_max: int = 0) -> ProfileIs:
        """Apply a patch; durable on return. `entries_max`: choices of a kind; 0: as many as are set. Raises as `change`."""
        entries_max = entries_max or self._config.profile_entries_max
        answer = await ask_change(self._shard_client, key, patch, entries_max)
        if answer.status == OVERLOADED:
            before = answer.profile or NO_PROFILE
            member = outgrown(before, patched(before, patch), entries_max)
            raise media_types.unacceptable(Invalid(f"at most {entries_max} choices of a kind: remove some with null", f"$.{member}"))
        told = _good(answer)
        if told.profile is not None and (patch.mail_digest is not None or patch.zone is not None):
            await self._times_changed(key, told.profile)
        return told

    def _patch(self, tenant: str, body: bytes) -> PreferencesPatch:
        text = decode_body(patch_decoder, body, PatchText)
        try:
            return parse_patch(text, self._category_book.in_use(tenant).categories, time_zones.zone, _limits(self._config))
        except Invalid as error:
            if self._category_book.unread():
                raise Unavailable("the rules file, which defines categories, cannot be used") from error
            raise media_types.unacceptable(error) from None

    def _offered(self) -> int:
        return ANY_CHOICE if self._config.inbox_max else ANY_CHOICE & ~(1 << INBOX)

    def _shown(self, key: str, answer: ProfileIs) -> dict[str, Any]:
        defined = self._category_book.in_use(split_key(key)[0])
        return {
            "user": split_key(key)[1],
            **preferences_of(answer.profile or NO_PROFILE, defined, self._offered()),
        }


def as_json(answer: ProfileIs) -> dict[str, Any]:
    """The profile in the form in which it is written; the default profile for a user without one."""
    return shown(answer.profile or NO_PROFILE)


def _good(answer: ProfileIs) -> ProfileIs:
    if answer.status != OK:
        raise Unavailable("durable storage did not answer")
    return answer
