"""Applies the contact policy (`engine.core.policy.contact_policy`) to the messages of one journal group, before they are numbered.

    post or fired timer --> repeat? --> policy --DELIVER---> numbered, or counted in its window
                                               --SUPPRESS--> answered; only the reason is stored
                                               --DEFER-----> answered with a time: the edge schedules a publisher's message, the
                                                             scheduler moves its timer. The policy is applied again when it fires
                                               --DIGEST----> counted in the user's digest, a window of its own
                                               --INBOX-----> numbered, and settled at once: it is in the inbox, and sent to nobody

A message that waits in a window (`engine.core.mailbox.aggregation_window`) has not been delivered. When it arrives only the user's profile
is applied; quiet hours and limits are applied to what the window sends when it closes. Quiet hours then keep the window open until they
end; a limit closes it without a message.

Counters. The messages of a group count for those after them: `PolicyStep` counts on copies. The mailbox counts when the message is added to
it, at commit or replay, from the journalled message alone (`count`). So a refused group has counted nothing, and a crash counts nothing
twice.

    decision                     carried out by                       a process dies
    SUPPRESS                     the shard: a journalled reason       before the append: decided again; after it: a repeat gets the reason
    DEFER a publisher's message  the edge: schedules it under its id  before the timer is stored: no answer was given, the repeat is decided
                                 before the 202                       anew; after it: a repeat finds the id
    DEFER a fired timer          the scheduler moves it (`FireAgain`) before it is moved: it fires again and is decided again
    DEFER a window's end         the shard: a record leaves the       page and journal have it
                                 window open (`Extended`)
    DEFER a broadcast            the shard: the mailbox does not      the successor's mailbox is behind, and waits again
                                 adopt, its cursor stays
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from engine.core.commit.user_step import user_state_of
from engine.core.journal.journal_records import Decided, StoredMessage
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.category import PolicyTerms
from engine.core.model.constants import HIGH
from engine.core.model.envelope import Envelope
from engine.core.policy.contact_policy import NONE_YET, Counters, Decision, Facts, Verdict, evaluate, limited, record, wished
from engine.core.policy.profile import NO_PROFILE, Profile, target_names
from engine.core.policy.user_state import TimelineEntry
from engine.core.wire.records import UNREADABLE

ZoneOf = Callable[[str], tzinfo]
"""The time zone of a name. Never raises: an unknown name is UTC."""

NO_TERMS: Final = PolicyTerms()

_EVENTS: Final = {
    Decision.SUPPRESS: "suppressed",
    Decision.DEFER: "deferred",
    Decision.DIGEST: "digested",
    Decision.INBOX: "inboxed",
    Decision.SKIP: "step_skipped",
}


def utc(_name: str) -> tzinfo:
    """Every zone is UTC."""
    return UTC


class _Named(Struct):
    type: str = ""
    target: Any = None
    ask: Raw | UnsetType = UNSET


_named: Final = msgspec.json.Decoder(_Named)


def facts_of(envelope: Envelope) -> Facts:
    """The facts of a message that the contact policy depends on."""
    try:
        named = _named.decode(b"{%b}" % envelope.body)
    except UNREADABLE:  # a number beyond what Python reads, in the target
        named = _Named()
    terms = envelope.policy_terms or NO_TERMS
    return Facts(
        type=named.type,
        category=terms.category,
        limits=terms.limits,
        priority=envelope.priority,
        targets=target_names(named.target),
        unless_active_since_ms=terms.unless_active_since_ms,
        retain=envelope.retain,
        asks=named.ask is not UNSET,
    )


class PolicyStep:
    """Applies the policy to the messages of one group.

    Args:
        counted_max: categories, and types, that are counted per user.
        now_ms: when the group is built.

    Attributes:
        decisions: what was decided about how many messages, by (event of the timeline or `delivered`, code of the reason, category).
    """

    def __init__(self, zone_of: ZoneOf, counted_max: int, now_ms: int) -> None:
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        self._zone_of = zone_of
        self._counted_max = counted_max
        self._now_ms = now_ms
        self._counters: dict[str, Counters] = {}  # as they are once the group is committed

    def message(self, mailbox: Mailbox, facts: Facts, *, held: bool = False) -> Verdict | None:
        """The verdict on a message; None: deliver. `held`: it would wait in a window, so only the user's profile is applied; what
        is wanted in the inbox only waits too."""
        profile, inbox = profile_of(mailbox), mailbox.inbox_limits is not None
        if held:
            verdict = wished(facts, profile, mailbox.seen_ms, inbox=inbox)
            return None if verdict is not None and verdict.decision is Decision.INBOX else verdict
        return evaluate(facts, profile, self._zone(profile), self._known(mailbox), self._now_ms, mailbox.seen_ms, inbox=inbox)

    def summary(self, mailbox: Mailbox, facts: Facts) -> Verdict:
        """The verdict on what a window sends. It has waited already, so it is not added to the digest."""
        profile = profile_of(mailbox)
        verdict = wished(facts, profile, mailbox.seen_ms, digest=False, inbox=mailbox.inbox_limits is not None)
        return verdict or limited(facts, profile, self._zone(profile), self._known(mailbox), self._now_ms)

    def delivered(self, mailbox: Mailbox, facts: Facts) -> None:
        """Count a message that the group delivers."""
        self.decisions["delivered", "", facts.category] += 1
        if not counts(facts.limits.counts, facts.priority):
            return
        counters = self._counters.get(mailbox.key)
        if counters is None:
            counters = self._counters[mailbox.key] = self._known(mailbox).copy()
        record(counters, facts, self._now_ms, self._counted_max)

    def decided(self, key: str, envelope: Envelope, verdict: Verdict, until_ms: int = 0) -> Decided:
        """The record of a verdict other than DELIVER."""
        event, terms = _EVENTS[verdict.decision], envelope.policy_terms or NO_TERMS
        self.decisions[event, verdict.reasons[-1].code, terms.category] += 1
        return Decided(key, TimelineEntry(envelope.id, self._now_ms, event, reason_text(verdict), until_ms or verdict.until_ms))

    def _known(self, mailbox: Mailbox) -> Counters:
        counters = self._counters.get(mailbox.key)
        if counters is not None:
            return counters
        user_state = mailbox.user_state
        return NONE_YET if user_state is None or user_state.counters is None else user_state.counters

    def _zone(self, profile: Profile) -> tzinfo:
        return self._zone_of(profile.zone) if profile.quiet or profile.quiet_categories else UTC


def counts(limited: bool, priority: int) -> bool:
    """Whether a message is counted; `limited`: a limit of its category depends on that."""
    return limited and priority != HIGH


def reason_text(verdict: Verdict) -> str:
    """The deciding reason as `<code>: <sentence>`."""
    reason = verdict.reasons[-1]
    return f"{reason.code}: {reason.detail}"


def count(mailbox: Mailbox, stored: StoredMessage, counted_max: int) -> None:
    """Count a journalled message that was added to its mailbox, as the group counted it."""
    terms = stored.envelope.policy_terms
    assert terms is not None, "the message has no policy terms"
    if counts(terms.limits.counts, stored.envelope.priority) and not stored.inbox_only:
        user_state = user_state_of(mailbox)
        if user_state.counters is None:
            user_state.counters = Counters()
        record(user_state.counters, facts_of(stored.envelope), stored.accepted_ms, counted_max)


def profile_of(mailbox: Mailbox) -> Profile:
    """The user's profile; NO_PROFILE for a user without one."""
    user_state = mailbox.user_state
    return NO_PROFILE if user_state is None or user_state.profile is None else user_state.profile
