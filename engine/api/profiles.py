"""Profiles at the edge: read from a request, asked of the shard that owns the user, told.

Who looks after users (scope `publish` or `admin`) writes them; a user may read its own.
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
    """The profile of a request.

    Raises:
        Problem: 422, with the path of what is wrong.
    """
    try:
        return parse_profile(body, time_zones.zone, ProfileLimits(config.profile_entries_max, config.id_chars_max))
    except Invalid as error:
        raise media_types.unacceptable(error) from None


async def get(requests: ShardClient, key: str) -> ProfileIs:
    """A user's profile, and when they were last active.

    Raises:
        Unavailable: the shard or its storage did not answer.
    """
    return _good(await requests.get_profile(key))


async def put(requests: ShardClient, key: str, profile: Profile | None) -> ProfileIs:
    """Keep a profile, None to forget it; it is durable then. Raises likewise."""
    return _good(await requests.set_profile(key, profile))


def told(answer: ProfileIs) -> dict[str, Any]:
    """As clients see it, the way it is written; who has none has the one that wants nothing in particular."""
    return shown(answer.profile or NO_PROFILE)


def _good(answer: ProfileIs) -> ProfileIs:
    if answer.status != OK:
        raise Unavailable("durable storage did not answer")
    return answer
