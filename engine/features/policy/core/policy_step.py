"""Applies the contact policy (`engine.features.policy.core.contact_policy`) to the messages of one journal group, before they are numbered.

    post or fired timer --> repeat? --> policy --DELIVER---> numbered, or counted in its window
                                               --SUPPRESS--> answered; only the reason is stored
                                               --DEFER-----> answered with a time: the edge schedules a publisher's message, the
                                                             scheduler moves its timer. The policy is applied again when it fires
                                               --DIGEST----> counted in the user's digest, a window of its own
                                               --INBOX-----> numbered, and settled at once: it is in the inbox, and sent to nobody

A message that waits in a window (`engine.features.windows.core.window_step`, which extends `PolicyStep`) has not been delivered. When it
arrives only the user's profile is applied; quiet hours and limits are applied to what the window sends when it closes. Quiet hours then
keep the window open until they end; a limit closes it without a message. Without windows there is no digest: its messages are delivered.

Counters. The messages of a group count for those after them: `PolicyStep` counts on copies. The mailbox counts when the message is added to
it, at commit or replay, from the journalled message alone (`PolicyJudge.count`). So a refused group has counted nothing, and a crash
counts nothing twice.

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

from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from engine.config import Config
from engine.core.commit.judge import Answer, Events, Judge, JudgeStep, Pending
from engine.core.commit.user_step import user_state_of
from engine.core.journal.journal_records import Decided, StoredMessage
from engine.core.mailbox.broadcast_log import LOST, Broadcast
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.category import PolicyTerms
from engine.core.model.constants import HIGH
from engine.core.model.envelope import Envelope, Merge
from engine.core.model.step import GONE, StepTerms
from engine.core.policy.conditions import Again, Conditions, Drop, Go
from engine.core.policy.profile import NO_PROFILE, Profile
from engine.core.policy.user_state import Counters, TimelineEntry
from engine.core.wire.records import ACCEPTED, DEFERRED, DUPLICATE, MERGED, SUPPRESSED, UNREADABLE, Timer
from engine.features.policy.core.choices import target_names
from engine.features.policy.core.contact_policy import (
    NONE_YET,
    Decision,
    Facts,
    Verdict,
    evaluate,
    limited,
    muted,
    record,
    unwanted_by,
    wished,
)
from engine.features.policy.core.local_times import quiet_until
from engine.features.policy.core.timer_conditions import Known, at_fire, progress

NO_TERMS: Final = PolicyTerms()

DIGEST: Final = "\ndigest"
"""The collapse key of a user's digest; no publisher can use it. Its summary is a message with the number of messages of each type."""

_DIGEST_TEXT: Final = "{count} notifications"

ZoneOf = Callable[[str], tzinfo]
"""The time zone of a name. Never raises: an unknown name is UTC."""

_EVENTS: Final = {
    Decision.SUPPRESS: ("suppressed", SUPPRESSED),
    Decision.DEFER: ("deferred", DEFERRED),
    Decision.DIGEST: ("digested", MERGED),
    Decision.INBOX: ("inboxed", ACCEPTED),
}
"""By decision: the event of the timeline, and the status of the answer."""


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


def in_digest(envelope: Envelope, digest_ms: int) -> Envelope:
    """The message with the collapse key and window of its user's digest, in place of its own. `digest_ms`: window length, ms."""
    return msgspec.structs.replace(envelope, collapse=DIGEST, merge=Merge(digest_ms, False, _DIGEST_TEXT))


class Merged(Struct, frozen=True, gc=False):
    """The outcome of a message with a window: ACCEPTED, to be delivered; MERGED, counted in a window that ends at `until_ms`; DUPLICATE,
    with the number of its first delivery, 0 for none."""

    status: int
    until_ms: int = 0
    seq: int = 0


ALONE: Final = Merged(ACCEPTED)


class PolicyStep(JudgeStep):
    """Applies the policy to the messages of one group."""

    def __init__(self, config: Config, zone_of: ZoneOf, records: Events, heads: dict[str, int], now_ms: int) -> None:
        super().__init__(records, heads, now_ms)
        self.config = config
        self._zone_of = zone_of
        self._counters: dict[str, Counters] = {}  # as they are once the group is committed

    def decide(self, pending: Pending, mailbox: Mailbox) -> Answer | None:
        post, facts, digested, inboxed = pending.post, None, None, None
        envelope = post.envelope
        if (unmet := pending.unmet) is not None:
            event = "step_skipped" if unmet.of_step else "suppressed"
            return Answer(pending, SUPPRESSED, 0, self._note(post.key, envelope, event, unmet.reason, unmet.detail))
        if envelope.policy_terms is not None or mailbox.user_state is not None:
            facts = facts_of(envelope)
            verdict = self.message(mailbox, envelope, facts, post.expires_ms)
            if verdict is not None and verdict.decision is Decision.DIGEST:
                digested, envelope = verdict, in_digest(envelope, self.config.digest_ms)
            elif verdict is not None and verdict.decision is Decision.INBOX:
                inboxed = verdict
            elif verdict is not None and verdict.decision is not Decision.DELIVER:
                return self._answer(pending, verdict)
        merged = ALONE if envelope.merge is None else self.offer(mailbox, envelope, post.expires_ms, pending.timer)
        if merged.status == DUPLICATE:
            return Answer(pending, DUPLICATE, merged.seq)
        if merged.status == MERGED:
            if digested is not None:
                self.against(post.key, post.envelope, digested, merged.until_ms)
            return Answer(pending, MERGED, 0, f"window until {merged.until_ms}")
        if inboxed is not None:
            return self._answer(pending, inboxed)
        if facts is not None:
            self.delivered(mailbox, facts)
        return None

    def end_due(self, mailbox: Mailbox, envelope: Envelope) -> None:
        """Close the window of the message's key if its time is over. What that sends counts before the message."""

    def waits_until(self, mailbox: Mailbox, envelope: Envelope, expires_ms: int) -> int:
        """When the window ends in which the message would wait, ms; 0: it would be delivered now."""
        return 0

    def has_digest(self, mailbox: Mailbox, envelope: Envelope, expires_ms: int) -> bool:
        """Whether the message may go into the digest: not if it would open one that is sent after it expires."""
        return True

    def offer(self, mailbox: Mailbox, envelope: Envelope, expires_ms: int, timer: str) -> Merged:
        """Add a message to its window. When it is delivered as well, the caller assigns the mailbox's next number."""
        return ALONE

    def message(self, mailbox: Mailbox, envelope: Envelope, facts: Facts, expires_ms: int) -> Verdict | None:
        """The verdict on a message; None: deliver."""
        if envelope.merge is not None:
            self.end_due(mailbox, envelope)
        held = self.waits_until(mailbox, envelope, expires_ms) > 0
        verdict = self._on_arrival(mailbox, facts, held=held, digest=True)
        if verdict is None or verdict.decision is not Decision.DIGEST or self.has_digest(mailbox, envelope, expires_ms):
            return verdict
        return self._on_arrival(mailbox, facts, held=held, digest=False)

    def _on_arrival(self, mailbox: Mailbox, facts: Facts, *, held: bool, digest: bool) -> Verdict | None:
        """As `message`. `held`: it would wait in a window, so only the user's profile is applied; what is wanted in the inbox only waits
        too."""
        profile, inbox, active_ms = profile_of(mailbox), mailbox.inbox_limits is not None, mailbox.seen_ms
        if held:
            verdict = wished(facts, profile, active_ms, digest=digest, inbox=inbox)
            return None if verdict is not None and verdict.decision is Decision.INBOX else verdict
        zone = self._zone(profile)
        return evaluate(facts, profile, zone, self._known(mailbox), self.now_ms, active_ms, digest=digest, inbox=inbox)

    def summary(self, mailbox: Mailbox, facts: Facts) -> Verdict:
        """The verdict on what a window sends. It has waited already, so it is not added to the digest."""
        profile = profile_of(mailbox)
        verdict = wished(facts, profile, mailbox.seen_ms, digest=False, inbox=mailbox.inbox_limits is not None)
        return verdict or limited(facts, profile, self._zone(profile), self._known(mailbox), self.now_ms)

    def delivered(self, mailbox: Mailbox, facts: Facts) -> None:
        """Count a message that the group delivers."""
        self.decisions["delivered", "", facts.category] += 1
        if not counts(facts.limits.counts, facts.priority):
            return
        counters = self._counters.get(mailbox.key)
        if counters is None:
            counters = self._counters[mailbox.key] = self._known(mailbox).copy()
        record(counters, facts, self.now_ms, self.config.counted_max)

    def against(self, key: str, envelope: Envelope, verdict: Verdict, until_ms: int = 0) -> str:
        """Record a verdict other than DELIVER. Returns its reason as text."""
        reason = verdict.reasons[-1]
        return self._note(key, envelope, _EVENTS[verdict.decision][0], reason.code, reason.detail, until_ms or verdict.until_ms)

    def _answer(self, pending: Pending, verdict: Verdict) -> Answer:
        reason = self.against(pending.post.key, pending.post.envelope, verdict)
        return Answer(pending, _EVENTS[verdict.decision][1], 0, reason, until_ms=verdict.until_ms)

    def _note(self, key: str, envelope: Envelope, event: str, code: str, detail: str, until_ms: int = 0) -> str:
        """Record and count a decision. Returns the reason as `<code>: <sentence>`."""
        reason, terms = f"{code}: {detail}", envelope.policy_terms or NO_TERMS
        self.decisions[event, code, terms.category] += 1
        self.records.append(Decided(key, TimelineEntry(envelope.id, self.now_ms, event, reason, until_ms)))
        return reason

    def _known(self, mailbox: Mailbox) -> Counters:
        counters = self._counters.get(mailbox.key)
        if counters is not None:
            return counters
        user_state = mailbox.user_state
        return NONE_YET if user_state is None or user_state.counters is None else user_state.counters

    def _zone(self, profile: Profile) -> tzinfo:
        return self._zone_of(profile.zone) if profile.quiet or profile.quiet_categories else UTC


class PolicyJudge(Judge):
    """Applies the policy to the messages of one shard."""

    def __init__(self, config: Config, zone_of: ZoneOf) -> None:
        self.config = config
        self.zone_of = zone_of

    def step(self, records: Events, heads: dict[str, int], now_ms: int) -> PolicyStep:
        return PolicyStep(self.config, self.zone_of, records, heads, now_ms)

    def count(self, mailbox: Mailbox, stored: StoredMessage) -> None:
        """Count a journalled message as the group counted it."""
        terms = stored.envelope.policy_terms
        assert terms is not None, "the message has no policy terms"
        if counts(terms.limits.counts, stored.envelope.priority) and not stored.inbox_only:
            user_state = user_state_of(mailbox)
            if user_state.counters is None:
                user_state.counters = Counters()
            record(user_state.counters, facts_of(stored.envelope), stored.accepted_ms, self.config.counted_max)

    def quiet_until(self, mailbox: Mailbox, now_ms: int) -> int:
        profile = profile_of(mailbox)
        return quiet_until(profile.quiet, self.zone_of(profile.zone), now_ms) if profile.quiet else 0

    def unwanted(self, mailbox: Mailbox, broadcast: Broadcast) -> bool:
        profile = None if mailbox.user_state is None else mailbox.user_state.profile
        if profile is None:
            return False
        facts = _facts(broadcast)
        if not profile.inbox_types:
            return muted(facts, profile) is not None
        verdict = wished(facts, profile, mailbox.seen_ms, digest=False, inbox=mailbox.inbox_limits is not None)
        return verdict is not None and verdict.decision is Decision.SUPPRESS

    def inbox_only(self, mailbox: Mailbox, broadcasts: Sequence[Broadcast]) -> frozenset[int]:
        profile = profile_of(mailbox)
        if not profile.inbox_types:  # nearly always; categories are not for broadcasts
            return frozenset()
        inbox = mailbox.inbox_limits is not None
        verdicts = (
            (broadcast.pos, wished(_facts(broadcast), profile, mailbox.seen_ms, digest=False, inbox=inbox))
            for broadcast in broadcasts
            if broadcast.envelope is not LOST
        )
        return frozenset(pos for pos, verdict in verdicts if verdict is not None and verdict.decision is Decision.INBOX)

    def at_fire(self, timer: Timer, conditions: Conditions, mailbox: Mailbox, number: int | None, now_ms: int) -> Go | Drop | Again:
        if conditions.step is not None:
            known = self._known_of_step(timer.envelope, conditions.since_ms, conditions.step, mailbox, number, now_ms)
            return at_fire(conditions, known, now_ms)
        # After the clock was set back, an activity in the future counts as one of now; otherwise the timer would wait until that time.
        mailbox.seen_ms = min(mailbox.seen_ms, now_ms)
        events = {} if mailbox.user_state is None else mailbox.user_state.events
        return at_fire(conditions, Known(mailbox.seen_ms, events, mailbox.topics), now_ms)

    def _known_of_step(
        self, envelope: Envelope, since_ms: int, terms: StepTerms, mailbox: Mailbox, number: int | None, now_ms: int
    ) -> Known:
        come = progress(mailbox, terms, number or 0)
        if come == GONE or (terms.step.unless and come >= terms.step.unless):
            return Known(progress=come)  # which decides: most steps end so, and the user's wishes take longer to look up
        facts, profile = facts_of(envelope), profile_of(mailbox)
        quiet = profile.quiet_for(facts.category) if facts.limits.quiet and not facts.limits.mandatory else ()
        until_ms = put_off_ms = 0
        if quiet:
            zone = self.zone_of(profile.zone)
            until_ms = quiet_until(quiet, zone, now_ms)
            if not terms.seq and facts.priority != HIGH:
                put_off_ms = quiet_until(quiet, zone, since_ms)
        unwanted = unwanted_by(facts, profile, terms.step, inbox=mailbox.inbox_limits is not None)
        sought = not terms.sid or number is not None
        return Known(progress=come, unwanted=unwanted, quiet_until_ms=until_ms, put_off_ms=put_off_ms, sought=sought)


def counts(limited: bool, priority: int) -> bool:
    """Whether a message is counted; `limited`: a limit of its category depends on that."""
    return limited and priority != HIGH


def profile_of(mailbox: Mailbox) -> Profile:
    """The user's profile; NO_PROFILE for a user without one."""
    user_state = mailbox.user_state
    return NO_PROFILE if user_state is None or user_state.profile is None else user_state.profile


def _facts(broadcast: Broadcast) -> Facts:
    facts: Facts | None = broadcast.facts
    if facts is None:
        facts = broadcast.facts = facts_of(broadcast.envelope)
    return facts
