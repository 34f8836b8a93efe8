"""The delivery conditions that a message carries, in addition to the user's profile: its category's limits and `unless_active`.

The edge copies them from the rules into the message's envelope, so shards need no rules; the contact policy applies them.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from engine.core.model.constants import AT_MAX_MS

DAY_MS: Final = 86_400_000
SPAN_MAX_MS: Final = 365 * DAY_MS  # longest period over which a limit counts: a year, as long as users remember a message
CAP_MAX: Final = 100  # delivery times per category in a user's page, 9 bytes each

ON: Final = 0
DIGEST: Final = 1
OFF: Final = 2
INBOX: Final = 3
CHOICES: Final = ("on", "digest", "off", "inbox")
"""The names of ON, DIGEST, OFF and INBOX: what a user may want to become of the messages of a type or category. INBOX: into the inbox,
where they count as unread, without being sent to connections."""

ANY_CHOICE: Final = 1 << ON | 1 << DIGEST | 1 << OFF | 1 << INBOX

PreferenceChoice = Annotated[int, Meta(ge=ON, le=INBOX)]
Instant = Annotated[int, Meta(ge=0, le=AT_MAX_MS)]  # ms since the epoch, up to the range of a timer wheel
Span = Annotated[int, Meta(ge=0, le=AT_MAX_MS)]  # ms


class Category(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The limits of a category of notifications for the contact policy. The defaults limit nothing.

    Args:
        cap: maximum number per user within `cap_ms`, up to CAP_MAX; 0 for no cap.
        cap_ms: rolling window of the cap, ms.
        same_type_ms: minimum interval between two messages of the same type, ms; 0 for none.
        quiet: whether quiet hours defer it.
        mandatory: exempt from mutes and every other limit, for messages that must reach the user.
        inbox_ms: how long its messages stay in the inbox, ms; 0: they do not; -1: as long as those without a category.
        total_cap: maximum number per user within `total_ms` of all categories together that have this limit; 0: it has none.
        total_ms: rolling window of that, ms.
        user_may: the choices that the user has, each a bit; one that is not among them has no effect (`engine.core.policy.preferences`).
        default: the choice of a user who has made none.
        steps_ms: how long after a message the last of its steps is due, ms; 0: it has none, or they are due at once.
    """

    cap: Annotated[int, Meta(ge=0, le=CAP_MAX)] = 0
    cap_ms: Span = DAY_MS
    same_type_ms: Span = 0
    quiet: bool = True
    mandatory: bool = False
    inbox_ms: Annotated[int, Meta(ge=-1, le=SPAN_MAX_MS)] = -1
    total_cap: Annotated[int, Meta(ge=0, le=CAP_MAX)] = 0
    total_ms: Span = DAY_MS
    user_may: Annotated[int, Meta(ge=0, le=ANY_CHOICE)] = ANY_CHOICE
    default: PreferenceChoice = ON
    steps_ms: Span = 0

    @property
    def counts(self) -> bool:
        """Whether what was delivered of it is counted: some limit depends on that."""
        return bool(self.cap or self.same_type_ms or self.total_cap)

    def allows(self, choice: int) -> bool:
        """Whether the user may choose this."""
        return bool(self.user_may >> choice & 1)


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
