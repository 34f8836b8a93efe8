"""Group commit: the posts that arrive during one append form the next journal entry.

`GroupBuilder` takes pending posts by priority, and within a priority in order of arrival. It asks the judge (`engine.core.commit.judge`)
about special ones, and assigns sequence numbers in that order; numbers become visible with `PostQueue.committed`. So a post
of high priority waits for one append at most, and no message of its user that is not numbered yet is placed before it. At most one group is
being appended, so the numbers of a group that storage did not store are assigned again.

States of a group:

    built -> committed    visible, publishers are answered
          -> rebuilt      storage has some of the ids already: built again without those posts
          -> refused      storage is unavailable and the group was rolled back: publishers are answered "unavailable"
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from engine.config import Config
from engine.core.commit.broadcast_step import Adoption, number
from engine.core.commit.first_result import NEVER, packed_result, unpacked_result
from engine.core.commit.judge import NO_JUDGE, Answer, Events, Judge, JudgeStep, Pending
from engine.core.commit.user_step import UserChange, apply_note
from engine.core.journal.journal_records import Decided, Erased, Handled, Record, StoredMessage, message_of
from engine.core.mailbox.conflation import decide, remember
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import MESSAGE_BYTES
from engine.core.model.constants import PRIORITIES
from engine.core.model.message import Collapsing, Message, counted, timer_effect_id
from engine.core.model.routing import slot_of
from engine.core.model.sealed import sealed
from engine.core.wire.records import ACCEPTED, CONFLICT, DEFERRED, DUPLICATE, SUPPRESSED

_encoder = msgspec.msgpack.Encoder()


class Riders(NamedTuple):
    """What a group carries beside posts and settlements."""

    adoptions: Sequence[Adoption] = ()
    due: Sequence[Mailbox] = ()  # for which the judge has something to do
    notes: Sequence[UserChange] = ()  # changes of users' state


NO_RIDERS: Final = Riders()


class Group(Struct):
    """A journal entry of each slot that it has something of, and what depends on their commit."""

    number: int
    payloads: dict[int, bytes]  # by slot
    ids: list[tuple[str, str]]  # (mailbox key, id) that storage keeps for 24 h
    values: list[bytes]  # stored with each id, `first_result.packed_result`
    records: Events
    answers: list[Answer]  # to give once the group is committed
    handled: list[Handled]
    owners: list[int]  # ids[i] belongs to posts[owners[i]]
    riders: Riders = NO_RIDERS
    posts: list[Pending] = []  # that the records are the effect of
    conflated: int = 0  # messages that supersede older ones
    only_messages: bool = True  # every record is a StoredMessage
    decisions: Mapping[tuple[str, str, str], int] = {}  # of the contact policy, see `JudgeStep.decisions`


NOBODY_CONNECTED: Final = "nobody is connected and retain is false"
"""Why a post is suppressed that the policy does not decide about, and of which nothing is stored."""

PostOutcome = tuple[int, bytes] | tuple[int, bytes, str]
"""The outcome of a post in its group: the sequence number, the digest of its payload and, with `NEVER`, the reason."""


class GroupBuilder:
    """Builds one group, and is discarded with it: call `judge_due`, `add`, `finish`, each once.

    Reads the mailboxes and changes none of them; what the group changes is applied when it is committed. Writes to `group` alone. Its
    working state (numbers given, ids taken, copies of state) ends with it, so a group that is rolled back leaves no trace.

    Args:
        group: holds everything but the effect of posts; gets their records, ids and answers, and the payloads.
        mailboxes: must hold the key of every post.
        now_ms: when the group is built.

    Attributes:
        immediate: answers that need no commit.
    """

    def __init__(self, group: Group, mailboxes: Mapping[str, Mailbox], config: Config, judge: Judge, now_ms: int) -> None:
        self.immediate: list[Answer] = []
        self._group = group
        self._mailboxes = mailboxes
        self._config = config
        self._judge = judge
        self._now_ms = now_ms
        self._heads: dict[str, int] = {}  # mailbox key -> newest number given
        self._outcomes: dict[tuple[str, str], PostOutcome] = {}
        self._newest: dict[tuple[str, str], Collapsing] = {}  # by (mailbox key, collapse key)
        self._step: JudgeStep | None = None

    def _judging(self) -> JudgeStep:
        """The step that decides about special posts, made with the first of them: most groups have none."""
        if self._step is None:
            group = self._group
            self._step = self._judge.step(group.records, self._heads, self._now_ms)
            group.only_messages, group.decisions = False, self._step.decisions
        return self._step

    def judge_due(self) -> None:
        """Let the judge do what is due. Before any post is added, so that what it sends is numbered first."""
        step = self._judging()
        for mailbox in self._group.riders.due:
            step.at_deadline(mailbox)

    def add(self, posts: Iterable[Pending]) -> None:
        """Decide about each post, in this order, and number those that are delivered."""
        mailboxes, heads, outcomes, now_ms = self._mailboxes, self._heads, self._outcomes, self._now_ms
        records, answers = self._group.records, self._group.answers
        for pending in posts:
            post = pending.post
            key, envelope, timer = post.key, post.envelope, pending.timer
            mailbox = mailboxes[key]
            dedupe_id = timer_effect_id(timer) if timer else envelope.id
            known = mailbox.recent.get(dedupe_id)
            if known is not None:
                self.immediate.append(repeated(pending, known[0], known[1]))
                continue
            identity = (key, dedupe_id)
            outcome = outcomes.get(identity)
            if outcome is not None:
                answers.append(repeated(pending, *outcome))
                continue
            if not envelope.retain and not mailbox.connections:
                self.immediate.append(Answer(pending, SUPPRESSED, 0, NOBODY_CONNECTED))
                continue
            if not (envelope.merge is None and envelope.policy_terms is None and mailbox.user_state is None and pending.unmet is None):
                answer = self._judging().decide(pending, mailbox)
                if answer is not None:
                    self._judged(answer, identity, mailbox)
                    continue
            seq = heads[key] = heads.get(key, mailbox.head) + 1
            self._take_effect(pending, identity, seq)
            stored = StoredMessage(key, seq, envelope, post.expires_ms, now_ms, 0, timer)
            if envelope.collapse and envelope.merge is None:
                self._collapse(stored, mailbox)
            records.append(stored)
            answers.append(Answer(pending, ACCEPTED, seq))

    def finish(self) -> bool:
        """Number the adopted broadcasts and encode the payloads. False when there is nothing to write."""
        group, mailboxes = self._group, self._mailboxes
        by_slot: defaultdict[int, list[Record]] = defaultdict(list)
        for settled in group.handled:
            key = settled.key  # its mailbox may have left memory when the group is built again
            by_slot[mailboxes[key].slot if key in mailboxes else slot_of(key)].append(settled)
        for record in group.records:
            by_slot[mailboxes[record.key].slot].append(record)
        if group.riders.adoptions:
            for slot, adopted in number(group.riders.adoptions, self._heads, self._judge, self._now_ms):
                by_slot[slot].append(adopted)
        for note in group.riders.notes:
            if isinstance(note.record, Erased):
                note.record.head = self._heads.get(note.record.key, note.mailbox.head)
            by_slot[note.mailbox.slot].append(note.record)
        for slot, records in by_slot.items():
            group.payloads[slot] = sealed(_encoder.encode(records))
        return bool(by_slot)

    def _take_effect(self, pending: Pending, identity: tuple[str, str], seq: int, reason: str = "") -> None:
        """The group has the effect of this post. `seq`: its number, 0 for none, `NEVER` when it is suppressed, with the reason."""
        post, group = pending.post, self._group
        digest = post.envelope.digest
        self._outcomes[identity] = (seq, digest, reason) if reason else (seq, digest)
        if post.idempotent or pending.timer:
            group.ids.append(identity)
            group.values.append(packed_result(digest, seq, reason))
            group.owners.append(len(group.posts))
        group.posts.append(pending)

    def _judged(self, answer: Answer, identity: tuple[str, str], mailbox: Mailbox) -> None:
        """Carry out a decision other than to deliver. A message for the inbox only supersedes none of its collapse key: those are sent."""
        pending, status, key = answer.pending, answer.status, identity[0]
        if status == DUPLICATE:
            self.immediate.append(answer)
            return
        if status == ACCEPTED:
            post = pending.post
            answer.seq = self._heads[key] = self._heads.get(key, mailbox.head) + 1
            stored = StoredMessage(key, answer.seq, post.envelope, post.expires_ms, self._now_ms, 0, pending.timer, inbox_only=True)
            self._group.records.append(stored)
        if status == SUPPRESSED:
            self._take_effect(pending, identity, NEVER, answer.detail)
        elif status != DEFERRED:
            self._take_effect(pending, identity, answer.seq)
        self._group.answers.append(answer)

    def _collapse(self, stored: StoredMessage, mailbox: Mailbox) -> None:
        """Set in the record which older message it supersedes."""
        envelope = stored.envelope
        collapse = envelope.collapse
        older = self._newest.get((stored.key, collapse)) or mailbox.collapsing.get(collapse)
        verdict = decide(mailbox, older, envelope.priority, envelope.retain, self._config)
        stored.supersedes, stored.count = verdict.supersedes, verdict.count
        self._group.conflated += verdict.supersedes > 0
        if verdict.count > 1:
            stored.envelope = msgspec.structs.replace(envelope, body=counted(envelope.body, verdict.count))
        self._newest[stored.key, collapse] = Collapsing(stored.seq, verdict.count, envelope.priority, envelope.retain)


class PostQueue:
    """Posts that wait for the journal, in one queue per priority, and the group that is being appended.

    `mailboxes` must hold the key of every post that is added. `bytes` is the memory of these posts, those of the current group included.
    `lanes` are the queues: the shard looks into them for whether anything waits.
    """

    def __init__(self, mailboxes: Mapping[str, Mailbox], config: Config, judge: Judge = NO_JUDGE) -> None:
        self._mailboxes = mailboxes
        self._config = config
        self._judge = judge
        self.lanes: tuple[deque[tuple[Pending, int]], ...] = tuple(deque() for _ in PRIORITIES)
        self._number = 0
        self._group_bytes = 0
        self.bytes = 0
        self.group: Group | None = None

    def __len__(self) -> int:
        return sum(map(len, self.lanes))

    def add(self, pending: Pending, now_ms: int) -> None:
        """Append a post; its mailbox is in memory."""
        envelope = pending.post.envelope
        self.lanes[envelope.priority].append((pending, now_ms))
        self.bytes += len(envelope.body) + MESSAGE_BYTES

    def busy(self) -> set[str]:
        """Keys of the mailboxes with waiting posts or with records in the current group. These must stay in memory."""
        keys = {pending.post.key for lane in self.lanes for pending, _ in lane}
        if self.group is not None:
            keys.update(record.key for record in self.group.records)
            keys.update(mailbox.key for mailbox in self.group.riders.due)
            keys.update(adoption.mailbox.key for adoption in self.group.riders.adoptions)
            keys.update(note.mailbox.key for note in self.group.riders.notes)
        return keys

    @property
    def oldest_ms(self) -> int:
        """When the oldest waiting post arrived; 0 when none waits."""
        return min((lane[0][1] for lane in self.lanes if lane), default=0)

    def build(
        self, handled: list[Handled], records_max: int, bytes_max: int, now_ms: int, riders: Riders = NO_RIDERS
    ) -> tuple[Group | None, list[Answer]]:
        """The next group, and answers that need no commit. `None` when there is nothing to write."""
        assert self.group is None, "one group at a time"
        taken: list[Pending] = []
        size = 0
        for lane in self.lanes:
            while lane and len(taken) < records_max and size < bytes_max:
                pending = lane.popleft()[0]
                size += len(pending.post.envelope.body) + MESSAGE_BYTES
                taken.append(pending)
        self._group_bytes = size
        self._number += 1
        group = Group(self._number, {}, [], [], [], [], handled, [], riders)
        return self._assemble(taken, group, now_ms)

    def _assemble(self, posts: Iterable[Pending], group: Group, now_ms: int) -> tuple[Group | None, list[Answer]]:
        """Add the posts to a group that already holds all other records."""
        builder = GroupBuilder(group, self._mailboxes, self._config, self._judge, now_ms)
        if group.riders.due:
            builder.judge_due()
        builder.add(posts)
        self.group = group
        if builder.finish():
            return group, builder.immediate
        self._end()
        return None, builder.immediate + group.answers

    def known(self, hits: Mapping[int, bytes], now_ms: int) -> tuple[Group | None, list[Answer]]:
        """Storage has some of the group's ids, {index into `ids`: value}, and stored nothing. Build the group again without them."""
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
                digest, seq, timer = unpacked_result(value)
            except ValueError:
                # The first payload is unknown. CONFLICT is the only answer that cannot deliver the message twice.
                answers.append(Answer(pending, CONFLICT, 0, "what is remembered of this id cannot be read"))
                continue
            answers.append(repeated(pending, seq, digest, "" if pending.timer else timer))
        posts = {id(pending) for pending in group.posts}
        followers = [answer.pending for answer in group.answers if id(answer.pending) not in posts]
        again = Group(group.number, {}, [], [], [], [], group.handled, [], group.riders)
        rebuilt, at_once = self._assemble([*left, *followers], again, now_ms)
        return rebuilt, answers + at_once

    def committed(self) -> tuple[Group, dict[str, Mailbox], list[tuple[Mailbox, Message]]]:
        """The group is in the journal: add its messages to their mailboxes.

        Returns the group, the mailboxes by key, and the messages in memory that newer ones superseded.
        """
        group, config = self._end(), self._config
        touched: dict[str, Mailbox] = {}
        superseded: list[tuple[Mailbox, Message]] = []
        for record in group.records:
            mailbox = touched[record.key] = self._mailboxes[record.key]
            if isinstance(record, StoredMessage):
                older = apply_stored(mailbox, record, config, self._judge)
                if older is not None:
                    superseded.append((mailbox, older))
            elif isinstance(record, Decided):
                apply_note(mailbox, record, config.decisions_max)
            else:
                self._judge.apply(mailbox, record)
        return group, touched, superseded

    def refused(self) -> Group:
        """Drop the group: storage is unavailable and it was rolled back."""
        return self._end()

    def drop_waiting(self) -> list[Pending]:
        """Remove and return all waiting posts, to be answered "unavailable"."""
        dropped = [pending for lane in self.lanes for pending, _ in lane]
        for lane in self.lanes:
            lane.clear()
        self.bytes = self._group_bytes
        return dropped

    def _end(self) -> Group:
        group = self.group
        assert group is not None, "no group is under way"
        self.group = None
        self.bytes -= self._group_bytes
        self._group_bytes = 0
        return group


def apply_stored(mailbox: Mailbox, stored: StoredMessage, config: Config, judge: Judge) -> Message | None:
    """Add a journalled message to its mailbox, at commit or replay. No effect when the mailbox has reached its number.

    Returns the message it supersedes, when that was in memory.
    """
    if stored.seq <= mailbox.head:
        return None
    if stored.seq > mailbox.head + 1:
        first, mailbox.head = mailbox.head + 1, stored.seq - 1
        mailbox.lose(first, mailbox.head)
    envelope = stored.envelope
    mailbox.append(message_of(stored), envelope.digest, config.recent_ids)
    if stored.inbox_only:
        mailbox.settle_unsent(stored.seq)
    if stored.timer:
        mailbox.remember(timer_effect_id(stored.timer), stored.seq, envelope.digest, config.recent_ids)
        if mailbox.user_state is not None:
            mailbox.user_state.took_effect(stored.timer)
    if envelope.policy_terms is not None:
        judge.count(mailbox, stored)
    if not stored.count:
        return None
    remember(mailbox, envelope.collapse, Collapsing(stored.seq, stored.count, envelope.priority, envelope.retain), config.collapse_keys_max)
    return mailbox.supersede(stored.supersedes) if stored.supersedes else None


def repeated(pending: Pending, seq: int, digest: bytes, detail: str = "") -> Answer:
    """The answer to a post with an id that was used before, with this number and payload."""
    if digest != pending.post.envelope.digest:
        return Answer(pending, CONFLICT, max(seq, 0), "the same id was used with a different payload")
    if seq == NEVER:
        return Answer(pending, SUPPRESSED, 0, detail)
    return Answer(pending, DUPLICATE, seq, detail)
