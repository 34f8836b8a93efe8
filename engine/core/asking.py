"""Records by which an edge asks a shard about one user, and their answers; a part of `engine.core.batch`."""

from __future__ import annotations

from msgspec import Struct

from engine.core.judging import Instant
from engine.core.profile import Profile


class Settle(Struct, array_like=True, tag=7, gc=False):
    """`POST /v1/ack`: acknowledge without a connection. `seq` -1 when only ids are given. Answered by `Settled`."""

    ref: int
    key: str
    seq: int
    ids: list[str]


class Settled(Struct, array_like=True, tag=37, gc=False):
    """Answer to `Settle`. `error` is empty, or says why nothing was acknowledged."""

    ref: int
    error: str = ""


class Probe(Struct, array_like=True, tag=8, gc=False):
    """`GET /v1/heartbeat`. Answered by `Probed`."""

    ref: int
    key: str
    client: str
    seq: int


class Probed(Struct, array_like=True, tag=38, gc=False):
    """Answer to `Probe`: is any connection of the user attached, and its newest sequence."""

    ref: int
    online: bool
    seq: int


class Subscribe(Struct, array_like=True, tag=12, gc=False):
    """Subscribe a user to these topics and end its subscription to those. With neither: which ones are there? Answered by `Subscribed`."""

    ref: int
    key: str
    add: list[str]
    remove: list[str]


class Subscribed(Struct, array_like=True, tag=47, gc=False):
    """Answer to `Subscribe`: OK, OVERLOADED (too many topics) or UNAVAILABLE, and the user's subscriptions now, sorted."""

    ref: int
    status: int
    topics: list[str]


class SetProfile(Struct, array_like=True, tag=13, gc=False):
    """A user's profile is to be this one from now on; None: nobody's in particular. Answered by `ProfileIs`, after it is durable."""

    ref: int
    key: str
    profile: Profile | None


class GetProfile(Struct, array_like=True, tag=14, gc=False):
    """Which profile has a user, and when were they last active? Answered by `ProfileIs`."""

    ref: int
    key: str


class Happened(Struct, array_like=True, tag=18, gc=False):
    """An event of a user has come. Answered by `Followed`, after it is durable.

    Args:
        at_ms: when; 0 when it was not the user's own, and only `follow` is asked.
        event: its name, when some rule asks for it later; else "".
        follow: by inactivity rule, the scheduled id of a timer that is to follow the user from now on, unless one does already.
        ended: scheduled ids of timers that were named as following, and are gone: cancelled, or fired.
        delivery: identifies an event whose publisher does not say when it happened: a repeat of it is none. "" where `at_ms` tells.
    """

    ref: int
    key: str
    at_ms: Instant
    event: str = ""
    follow: dict[str, str] = {}
    ended: list[str] = []
    delivery: str = ""


class Followed(Struct, array_like=True, tag=52, gc=False):
    """Answer to `Happened`: OK or UNAVAILABLE, and by inactivity rule the scheduled id of the timer that follows the user."""

    ref: int
    status: int
    timers: dict[str, str] = {}


class ProfileIs(Struct, array_like=True, tag=48, gc=False):
    """Answer to `SetProfile` and `GetProfile`: OK or UNAVAILABLE, the profile, and when the user was last active, 0 for never."""

    ref: int
    status: int
    profile: Profile | None = None
    active_ms: int = 0


class Trace(Struct, array_like=True, tag=16, gc=False):
    """What is known of a user's message? Answered by `Traced`."""

    ref: int
    key: str
    id: str


class Explained(Struct, array_like=True, tag=49, gc=False):
    """Answer to `Explain`: deliver, defer, digest, merge, suppress, duplicate or conflict, and why, the deciding reason last but for what
    follows from it: [(a word for programs, a sentence for people)].

    `until_ms`: when what is deferred, merged or digested comes, or when a delayed message is due; 0 for now. `seq` of a duplicate's first.
    """

    ref: int
    decision: str
    reasons: list[tuple[str, str]]
    until_ms: int = 0
    seq: int = 0


class Step(Struct, array_like=True, gc=False):
    """One thing that happened to a message. `at_ms`: 0 where that is not known any more."""

    at_ms: int
    event: str
    reason: str = ""
    until_ms: int = 0


class Traced(Struct, array_like=True, tag=50, gc=False):
    """Answer to `Trace`: where the message is now, "" when nothing is known, its number, 0 for none, and what happened to it."""

    ref: int
    state: str
    seq: int
    steps: list[Step]
