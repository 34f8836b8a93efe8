"""Group commit: everything that arrived while the last append was under way becomes one journal entry.

A group is built from pending posts, the highest priority first and each priority in its order of arrival. Each is judged
(`engine.core.commit.policy_step`), then numbered, in that order too; numbers stay invisible until `PostQueue.committed`. So a high post
waits for one
append at most, whatever waits beside it, and no message of its user that is still to be numbered goes before it. At most one group is under
way, so a number given to a group that storage never took can be given again. States of a group: built -> committed (visible, publishers
answered), -> rebuilt (storage knew some of the ids), -> refused (storage is away and the group was rolled back: publishers hear
"unavailable")."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.commit.broadcast_step import Adoption, number
from engine.core.commit.policy_step import PERSON_LIMITS, PolicyLimits, PolicyStep, ZoneOf, count, decided, facts_of, said, utc
from engine.core.commit.subscription_step import SubscriptionChange
from engine.core.commit.user_step import UserChange, apply_note
from engine.core.commit.window_step import ALONE, Events, WindowStep, apply_window
from engine.core.journal.journal_records import Decided, Handled, StoredMessage, Topics, message_of
from engine.core.mailbox.aggregation_window import in_digest
from engine.core.mailbox.conflation import DEFAULTS, ConflationLimits, judge, remember
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import MESSAGE_BYTES
from engine.core.model.constants import FORMAT_VERSION, PRIORITIES
from engine.core.model.message import Collapsing, Message, counted, timer_effect_id
from engine.core.policy.conditions import Drop
from engine.core.policy.contact_policy import Decision, Reason, Verdict
from engine.core.wire.records import ACCEPTED, CONFLICT, DEFERRED, DUPLICATE, MERGED, SUPPRESSED, Post

_encoder = msgspec.msgpack.Encoder()


class Pending(Struct, gc=False):
    """A post waiting for its commit: whom to answer, or the durable timer whose effect it is."""

    session: str
    post: Post
    timer: str = ""
    unmet: Drop | None = None  # why the timer's own conditions turn it down

    @property
    def dedupe_id(self) -> str:
        """What makes it the same post again: a timer takes effect once whatever message it carries."""
        return timer_effect_id(self.timer) if self.timer else self.post.envelope.id


class Answer(Struct, gc=False):
    """What became of a pending post."""

    pending: Pending
    status: int
    seq: int = 0
    detail: str = ""
    retry_ms: int = 0
    until_ms: int = 0  # of a DEFERRED one


class Group(Struct):
    """One journal entry on its way."""

    number: int
    payload: bytes
    ids: list[tuple[str, str]]  # (mailbox key, id) to be remembered for 24 h
    values: list[bytes]  # what is remembered of each
    records: Events
    answers: list[Answer]  # to give once the group is committed
    handled: list[Handled]
    owners: list[int]  # ids[i] belongs to posts[owners[i]]
    adoptions: Sequence[Adoption] = ()
    changes: Sequence[SubscriptionChange] = ()  # of subscriptions
    closing: Sequence[Mailbox] = ()  # with windows that are over
    notes: Sequence[UserChange] = ()  # to be written down about users
    posts: list[Pending] = []  # whose effect the records are

    def take(self, pending: Pending, seq: int, reason: str = "") -> None:
        """The group has the effect of this post, and with it the number `seq`: 0 for none, `NEVER` and why for what is suppressed."""
        if pending.post.idempotent or pending.timer:
            self.ids.append((pending.post.key, pending.dedupe_id))
            self.values.append(idempotency_value(pending.post.envelope.digest, seq, reason or pending.timer))
            self.owners.append(len(self.posts))
        self.posts.append(pending)


NEVER: Final = -1
"""As a sequence number: the message was suppressed, and so is every repeat of it."""

Given = dict[tuple[str, str], tuple[int, bytes] | tuple[int, bytes, str]]
"""What a group has for a (mailbox key, id): the sequence number and the digest, and why for `NEVER`."""


def idempotency_value(digest: bytes, seq: int, timer: str) -> bytes:
    """What storage remembers of an id: `<digest in hex>|<seq>|<scheduled id>`, where `seq` is `NEVER` the reason instead of the last."""
    return b"%b|%d|%b" % (digest.hex().encode(), seq, timer.encode())


def parse_idempotency_value(value: bytes) -> tuple[bytes, int, str]:
    """The inverse of `idempotency_value`. Raises ValueError when malformed."""
    digest, seq, timer = value.split(b"|", 2)
    return bytes.fromhex(digest.decode()), int(seq), timer.decode()


class PostQueue:
    """Posts on their way into the journal, a lane for each priority. `mailboxes` must hold every key that is added.

    `bytes` is what the posts in it take in memory, those of the group under way included.
    """

    def __init__(
        self,
        mailboxes: Mapping[str, Mailbox],
        recent_max: int,
        conflation: ConflationLimits = DEFAULTS,
        windows_max: int = 16,
        judging: PolicyLimits = PERSON_LIMITS,
        zone_of: ZoneOf = utc,
    ) -> None:
        self._mailboxes = mailboxes
        self._recent_max = recent_max
        self._windows_max = windows_max
        self._conflation = conflation
        self._judging = judging
        self._zone_of = zone_of
        self._lanes: tuple[deque[tuple[Pending, int]], ...] = tuple(deque() for _ in PRIORITIES)
        self._number = 0
        self._group_bytes = 0
        self.bytes = 0
        self.group: Group | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lanes))

    def add(self, pending: Pending, now_ms: int) -> None:
        """A post whose mailbox is in memory."""
        self._lanes[pending.post.envelope.priority].append((pending, now_ms))
        self.bytes += len(pending.post.envelope.body) + MESSAGE_BYTES

    def busy(self) -> set[str]:
        """Keys of the mailboxes that posts are on their way to, and decisions about posts."""
        keys = {pending.post.key for lane in self._lanes for pending, _ in lane}
        if self.group is not None:
            keys.update(record.key for record in self.group.records)
            keys.update(mailbox.key for mailbox in self.group.closing)
            keys.update(adoption.mailbox.key for adoption in self.group.adoptions)
            keys.update(change.mailbox.key for change in self.group.changes)
            keys.update(note.mailbox.key for note in self.group.notes)
        return keys

    @property
    def oldest_ms(self) -> int:
        """When the oldest waiting post arrived; 0 when none waits."""
        return min((lane[0][1] for lane in self._lanes if lane), default=0)

    def build(
        self,
        handled: Sequence[Handled],
        records_max: int,
        bytes_max: int,
        now_ms: int,
        adoptions: Sequence[Adoption] = (),
        changes: Sequence[SubscriptionChange] = (),
        closing: Sequence[Mailbox] = (),
        notes: Sequence[UserChange] = (),
    ) -> tuple[Group | None, list[Answer]]:
        """The next group, and answers that need no commit. `None` when there is nothing to write."""
        assert self.group is None, "one group at a time"
        taken: list[Pending] = []
        size = 0
        for lane in self._lanes:
            while lane and len(taken) < records_max and size < bytes_max:
                pending = lane.popleft()[0]
                size += len(pending.post.envelope.body) + MESSAGE_BYTES
                taken.append(pending)
        self._group_bytes = size
        self._number += 1
        return self._assemble(
            taken, Group(self._number, b"", [], [], [], [], list(handled), [], adoptions, changes, closing, notes), now_ms
        )

    def _assemble(self, taken: Iterable[Pending], group: Group, now_ms: int) -> tuple[Group | None, list[Answer]]:
        """Number these posts and put them into a group that so far has what rides along."""
        at_once: list[Answer] = []
        heads: dict[str, int] = {}
        given: Given = {}
        newest: dict[tuple[str, str], Collapsing] = {}
        judge = PolicyStep(self._zone_of, self._judging.counted_max, now_ms)
        merging = WindowStep(group.records, heads, self._windows_max, now_ms, judge)
        particular = _Particular(group, at_once, heads, merging, judge, self._judging.digest_ms, now_ms)
        for mailbox in group.closing:
            merging.close_due(mailbox)
        for pending in taken:
            post = pending.post
            key, envelope = post.key, post.envelope
            mailbox = self._mailboxes[key]
            dedupe_id = pending.dedupe_id
            known = mailbox.recent.get(dedupe_id)
            if known is not None:
                at_once.append(repeated(pending, known[0], known[1]))
                continue
            if given and (before := given.get((key, dedupe_id))) is not None:
                group.answers.append(repeated(pending, *before))
                continue
            if not envelope.retain and not mailbox.connections:
                at_once.append(Answer(pending, SUPPRESSED, 0, "nobody is connected and retain is false"))
                continue
            if envelope.merge is None and envelope.policy_terms is None and mailbox.user_state is None and pending.unmet is None:
                # Nearly always: nothing decides about the post but its own fields.
                seq = heads[key] = heads.get(key, mailbox.head) + 1
            else:
                seq = particular.take(pending, mailbox, given)
                if not seq:
                    continue
            given[(key, dedupe_id)] = (seq, envelope.digest)
            group.take(pending, seq)
            stored = StoredMessage(key, seq, envelope, post.expires_ms, now_ms, 0, pending.timer)
            if envelope.collapse and envelope.merge is None:
                self._collapse(stored, mailbox, newest)
            group.records.append(stored)
            group.answers.append(Answer(pending, ACCEPTED, seq))
        if not (group.records or group.handled or group.adoptions or group.changes or group.notes):
            self._settle_bytes()
            return None, at_once + group.answers
        adopted = number(group.adoptions, heads, now_ms)
        topics = [Topics(change.mailbox.key, change.topics) for change in group.changes]
        group.payload = FORMAT_VERSION + _encoder.encode(
            [*group.records, *adopted, *topics, *(note.record for note in group.notes), *group.handled]
        )
        self.group = group
        return group, at_once

    def _collapse(self, stored: StoredMessage, mailbox: Mailbox, newest: dict[tuple[str, str], Collapsing]) -> None:
        """Set in the record which older message it stands for. `newest` are the ones of the group so far."""
        envelope = stored.envelope
        collapse = envelope.collapse
        older = newest.get((stored.key, collapse)) or mailbox.collapsing.get(collapse)
        verdict = judge(mailbox, older, envelope.priority, envelope.retain, self._conflation)
        stored.supersedes, stored.count = verdict.supersedes, verdict.count
        if verdict.count > 1:
            stored.envelope = msgspec.structs.replace(envelope, body=counted(envelope.body, verdict.count))
        newest[stored.key, collapse] = Collapsing(stored.seq, verdict.count, envelope.priority, envelope.retain)

    def known(self, hits: Mapping[int, bytes], now_ms: int) -> tuple[Group | None, list[Answer]]:
        """Storage took nothing, because it remembers some of the group's ids: {index into `ids`: value}. Builds it again."""
        group, self.group = self.group, None
        assert group is not None, "no group is under way"
        answers: list[Answer] = []
        remembered: dict[int, bytes] = {group.owners[index]: value for index, value in hits.items()}
        left = []
        for index, pending in enumerate(group.posts):
            value = remembered.get(index)
            if value is None:
                left.append(pending)
                continue
            try:
                digest, seq, timer = parse_idempotency_value(value)
            except ValueError:
                # Nobody can tell what the first payload was; refusing the id is the one answer that repeats nothing.
                answers.append(Answer(pending, CONFLICT, 0, "what is remembered of this id cannot be read"))
                continue
            answers.append(repeated(pending, seq, digest, "" if pending.timer else timer))
        posts = {id(pending) for pending in group.posts}
        followers = [answer.pending for answer in group.answers if id(answer.pending) not in posts]
        again = Group(group.number, b"", [], [], [], [], group.handled, [], group.adoptions, group.changes, group.closing, group.notes)
        rebuilt, at_once = self._assemble([*left, *followers], again, now_ms)
        return rebuilt, answers + at_once

    def committed(self) -> tuple[Group, list[Mailbox], list[tuple[Mailbox, Message]]]:
        """The group is in the journal: its posts join their mailboxes.

        Returns the group, the mailboxes, each once, and the messages in memory that newer ones superseded.
        """
        group = self._end()
        touched: dict[str, Mailbox] = {}
        superseded: list[tuple[Mailbox, Message]] = []
        for record in group.records:
            mailbox = touched[record.key] = self._mailboxes[record.key]
            if isinstance(record, StoredMessage):
                older = apply_stored(mailbox, record, self._recent_max, self._conflation.keys_max, self._judging.counted_max)
                if older is not None:
                    superseded.append((mailbox, older))
            elif isinstance(record, Decided):
                apply_note(mailbox, record, self._judging.decisions_max)
            else:
                apply_window(mailbox, record, self._recent_max)
        return group, list(touched.values()), superseded

    def refused(self) -> Group:
        """Storage is away and the group was rolled back."""
        return self._end()

    def drop_waiting(self) -> list[Pending]:
        """Everything that waits, to be answered "unavailable"."""
        dropped = [pending for lane in self._lanes for pending, _ in lane]
        for lane in self._lanes:
            lane.clear()
        self.bytes = self._group_bytes
        return dropped

    def _end(self) -> Group:
        group = self.group
        assert group is not None, "no group is under way"
        self.group = None
        self._settle_bytes()
        return group

    def _settle_bytes(self) -> None:
        """The posts of the last group are on their way no more."""
        self.bytes -= self._group_bytes
        self._group_bytes = 0


class _Particular:
    """Posts of a group that somebody limits, of users with wishes, and those that name a window."""

    def __init__(
        self,
        group: Group,
        at_once: list[Answer],
        heads: dict[str, int],
        merging: WindowStep,
        judge: PolicyStep,
        digest_ms: int,
        now_ms: int,
    ) -> None:
        self._group = group
        self._at_once = at_once
        self._heads = heads
        self._merging = merging
        self._judge = judge
        self._digest_ms = digest_ms
        self._now_ms = now_ms

    def take(self, pending: Pending, mailbox: Mailbox, given: Given) -> int:
        """The number under which the post is delivered; 0 when it is not: then its answer, and what is to be written, is in the group."""
        post, facts, digested = pending.post, None, None
        envelope = post.envelope
        if pending.unmet is not None:
            self._turn_away(pending, Verdict(Decision.SUPPRESS, (Reason(pending.unmet.reason, pending.unmet.detail),)), given)
            return 0
        if envelope.policy_terms is not None or mailbox.user_state is not None:
            facts = facts_of(envelope)
            verdict = self._judge.message(mailbox, facts, held=self._merging.holds(mailbox, envelope))
            if verdict is not None and verdict.decision is Decision.DIGEST:
                digested, envelope = verdict, in_digest(envelope, self._digest_ms)
            elif verdict is not None and verdict.decision is not Decision.DELIVER:
                self._turn_away(pending, verdict, given)
                return 0
        merged = ALONE if envelope.merge is None else self._merging.offer(mailbox, envelope, post.expires_ms, pending.timer)
        if merged.status == DUPLICATE:
            self._at_once.append(Answer(pending, DUPLICATE, merged.seq))
            return 0
        if merged.status == MERGED:
            given[(post.key, pending.dedupe_id)] = (0, envelope.digest)
            self._group.take(pending, 0)
            if digested is not None:
                self._group.records.append(decided(post.key, envelope.id, digested, self._now_ms, merged.until_ms))
            self._group.answers.append(Answer(pending, MERGED, 0, f"window until {merged.until_ms}"))
            return 0
        if facts is not None:
            self._judge.delivered(mailbox, facts)
        seq = self._heads[post.key] = self._heads.get(post.key, mailbox.head) + 1
        return seq

    def _turn_away(self, pending: Pending, verdict: Verdict, given: Given) -> None:
        """A message that is not taken now, or never: why is written down with the group, and then answered."""
        post, reason = pending.post, said(verdict)
        self._group.records.append(decided(post.key, post.envelope.id, verdict, self._now_ms))
        if verdict.decision is Decision.DEFER:
            self._group.answers.append(Answer(pending, DEFERRED, 0, reason, until_ms=verdict.until_ms))
            return
        given[(post.key, pending.dedupe_id)] = (NEVER, post.envelope.digest, reason)
        self._group.take(pending, NEVER, reason)
        self._group.answers.append(Answer(pending, SUPPRESSED, 0, reason))


def apply_stored(
    mailbox: Mailbox,
    stored: StoredMessage,
    recent_max: int,
    keys_max: int = DEFAULTS.keys_max,
    counted_max: int = PERSON_LIMITS.counted_max,
) -> Message | None:
    """A journalled message joins its mailbox, at commit or replay; nothing when the mailbox is past it already.

    Returns the message it supersedes, when that was in memory.
    """
    if stored.seq <= mailbox.head:
        return None
    if stored.seq > mailbox.head + 1:
        first, mailbox.head = mailbox.head + 1, stored.seq - 1
        mailbox.lose(first, mailbox.head)
    envelope = stored.envelope
    mailbox.append(message_of(stored), envelope.digest, recent_max)
    if stored.timer:
        mailbox.remember(timer_effect_id(stored.timer), stored.seq, envelope.digest, recent_max)
        if mailbox.user_state is not None:
            mailbox.user_state.took_effect(stored.timer)
    if envelope.policy_terms is not None:
        count(mailbox, stored, counted_max)
    if not stored.count:
        return None
    remember(mailbox, envelope.collapse, Collapsing(stored.seq, stored.count, envelope.priority, envelope.retain), keys_max)
    return mailbox.supersede(stored.supersedes) if stored.supersedes else None


def repeated(pending: Pending, seq: int, digest: bytes, detail: str = "") -> Answer:
    """The answer to a post whose id was used before, with this number and payload."""
    if digest != pending.post.envelope.digest:
        return Answer(pending, CONFLICT, max(seq, 0), "the same id was used with a different payload")
    if seq == NEVER:
        return Answer(pending, SUPPRESSED, 0, detail)
    return Answer(pending, DUPLICATE, seq, detail)
