"""Records by which an edge asks a shard about one user, and their answers; a part of `engine.core.batch`."""

from __future__ import annotations

from msgspec import Struct

from engine.core.profile import Profile


class SetProfile(Struct, array_like=True, tag=13, gc=False):
    """A user's profile is to be this one from now on; None: nobody's in particular. Answered by `ProfileIs`, after it is durable."""

    ref: int
    key: str
    profile: Profile | None


class GetProfile(Struct, array_like=True, tag=14, gc=False):
    """Which profile has a user, and when were they last active? Answered by `ProfileIs`."""

    ref: int
    key: str


class ProfileIs(Struct, array_like=True, tag=48, gc=False):
    """Answer to `SetProfile` and `GetProfile`: OK or UNAVAILABLE, the profile, and when the user was last active, 0 for never."""

    ref: int
    status: int
    profile: Profile | None = None
    active_ms: int = 0
