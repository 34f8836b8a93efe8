"""The delivery conditions that a message carries, in addition to the user's profile: its category's limits and `unless_active`.

The edge copies them from the rules into the message's envelope, so shards need no rules; `engine.core.policy.contact_policy` applies them.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from engine.core.model.constants import AT_MAX_MS

DAY_MS: Final = 86_400_000
SPAN_MAX_MS: Final = 365 * DAY_MS  # longest period over which a limit counts: a year, as long as users remember a message
CAP_MAX: Final = 100  # delivery times per category in a user's page, 9 bytes each

Instant = Annotated[int, Meta(ge=0, le=AT_MAX_MS)]  # ms since the epoch, up to the range of a timer wheel
Span = Annotated[int, Meta(ge=0, le=AT_MAX_MS)]  # ms


class Category(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The limits of a category of notifications (`engine.core.policy.contact_policy`). The defaults limit nothing.

    Args:
        cap: maximum number per user within `cap_ms`, up to CAP_MAX; 0 for no cap.
        cap_ms: rolling window of the cap, ms.
        same_type_ms: minimum interval between two messages of the same type, ms; 0 for none.
        quiet: whether quiet hours defer it.
        mandatory: exempt from mutes and every other limit, for messages that must reach the user.
    """

    cap: Annotated[int, Meta(ge=0, le=CAP_MAX)] = 0
    cap_ms: Span = DAY_MS
    same_type_ms: Span = 0
    quiet: bool = True
    mandatory: bool = False


class PolicyTerms(Struct, frozen=True, array_like=True, gc=False):
    """The inputs of the contact policy that a message carries, in addition to its user's profile, so that shards need no rules.

    Args:
        category: name of the category it counts towards, "" for none.
        limits: limits of that category at the time of publishing.
        unless_active_since_ms: not delivered when the user was active after this, ms since the epoch; 0 for no such condition.
    """

    category: str = ""
    limits: Category = Category()
    unless_active_since_ms: Instant = 0
