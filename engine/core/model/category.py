"""The terms under which a message may reach its user, beside the user's profile: its category's limits and `unless_active`.

The edge copies them from the rules into the message's envelope, so shards need no rules; `engine.core.policy.contact_policy` applies them.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from engine.core.model.constants import AT_MAX_MS

DAY_MS: Final = 86_400_000
SPAN_MAX_MS: Final = 365 * DAY_MS  # how far back a limit looks: a year, as long as anybody remembers being told
CAP_MAX: Final = 100  # times of a category that a user's page holds: 9 bytes each

Instant = Annotated[int, Meta(ge=0, le=AT_MAX_MS)]  # ms since the epoch, as far as a wheel reaches
Span = Annotated[int, Meta(ge=0, le=AT_MAX_MS)]  # ms


class Category(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What a category of notifications may do to a user (`engine.core.policy.contact_policy`). The defaults limit nothing.

    Args:
        cap: at most so many per user within `cap_ms`, up to CAP_MAX; 0 for no cap.
        cap_ms: the rolling window of the cap.
        same_type_ms: the same type comes at most once in this time; 0 for always.
        quiet: do quiet hours hold it back.
        mandatory: neither mutes nor anything else hold it back: what a user must be told.
    """

    cap: Annotated[int, Meta(ge=0, le=CAP_MAX)] = 0
    cap_ms: Span = DAY_MS
    same_type_ms: Span = 0
    quiet: bool = True
    mandatory: bool = False


class PolicyTerms(Struct, frozen=True, array_like=True, gc=False):
    """What a message is judged by beside its user's wishes: it travels with the message, so shards need no rules.

    Args:
        category: by whose name it counts, "" for none.
        limits: of that category, as they were when the message was published.
        unless_active_since_ms: not when the user has been active after this; 0 for no such condition.
    """

    category: str = ""
    limits: Category = Category()
    unless_active_since_ms: Instant = 0
