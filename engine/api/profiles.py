"""`/v1/users/{user}/profile`: parse a profile, store it at the shard that owns the user, read it.

Tokens with scope `publish` or `admin` may write every profile; a user may read its own.
"""

from __future__ import annotations

from typing import Any

from engine.api import time_zones
from engine.config import Config
from engine.core.policy.profile import NO_PROFILE, Profile, ProfileLimits, parse_profile, shown
from engine.core.wire.records import OK, ProfileIs
from engine.errors import Invalid, Unavailable
from engine.gateway.shard_client import ShardClient
from engine.publish import media_types


def read(body: bytes, config: Config) -> Profile:
    """The profile in a request body.

    Raises:
        Problem: 422, with the path of what is wrong.
    """
    try:
        return parse_profile(body, time_zones.zone, ProfileLimits(config.profile_entries_max, config.id_chars_max))
    except Invalid as error:
        raise media_types.unacceptable(error) from None


async def get(shard_client: ShardClient, key: str) -> ProfileIs:
    """A user's profile, and when they were last active.

    Raises:
        Unavailable: the shard or its storage did not answer.
    """
    return _good(await shard_client.get_profile(key))


async def put(shard_client: ShardClient, key: str, profile: Profile | None) -> ProfileIs:
    """Store a profile, None to remove it; durable on return. Raises as `get`."""
    return _good(await shard_client.set_profile(key, profile))


def as_json(answer: ProfileIs) -> dict[str, Any]:
    """The profile in the form in which it is written; the default profile for a user without one."""
    return shown(answer.profile or NO_PROFILE)


def _good(answer: ProfileIs) -> ProfileIs:
    if answer.status != OK:
        raise Unavailable("durable storage did not answer")
    return answer
