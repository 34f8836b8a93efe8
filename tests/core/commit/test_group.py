"""The queue of posts and its groups; the answer to the repeat of an id, and a stored message that joins its mailbox."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.config import Config
from engine.core.commit.first_result import NEVER
from engine.core.commit.group import Group, PostQueue, apply_stored, repeated
from engine.core.commit.judge import NO_JUDGE, Answer, Pending
from engine.core.journal.journal_records import StoredMessage
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import PRIORITIES
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.wire.records import ACCEPTED, CONFLICT, DUPLICATE, SUPPRESSED, Post

DIGEST = b"digest.."
ENVELOPE = Envelope("m", DIGEST, 1, True, b"x")

CONFIG = Config(recent_ids=8)


@pytest.mark.parametrize(
    ("seq", "digest", "status", "answered"),
    [(5, DIGEST, DUPLICATE, 5), (NEVER, DIGEST, SUPPRESSED, 0), (5, b"another.", CONFLICT, 5), (NEVER, b"another.", CONFLICT, 0)],
)
def test_a_repeat_gets_the_first_answer_and_another_payload_a_conflict(seq: int, digest: bytes, status: int, answered: int) -> None:
    answer = repeated(Pending("edge-0/1", Post(1, "t:u", True, 1000, ENVELOPE)), seq, digest)
    assert (answer.status, answer.seq) == (status, answered)


def test_a_message_that_a_mailbox_is_past_is_not_applied_again() -> None:
    mailbox = Mailbox("t:u", 0)
    for _ in range(2):
        apply_stored(mailbox, StoredMessage("t:u", 1, ENVELOPE, 1000, 0), CONFIG, NO_JUDGE)
    assert (mailbox.head, list(mailbox.hot)) == (1, [1])


def test_numbers_missing_before_a_stored_message_are_gone() -> None:
    mailbox = Mailbox("t:u", 0)
    apply_stored(mailbox, StoredMessage("t:u", 1, ENVELOPE, 1000, 0), CONFIG, NO_JUDGE)
    apply_stored(mailbox, StoredMessage("t:u", 4, ENVELOPE, 1000, 0), CONFIG, NO_JUDGE)
    assert (mailbox.head, list(mailbox.hot), mailbox.gone) == (4, [1, 4], [(2, 3)])


def test_the_effect_of_a_timer_is_remembered_under_an_id_of_its_own() -> None:
    mailbox = Mailbox("t:u", 0)
    apply_stored(mailbox, StoredMessage("t:u", 1, ENVELOPE, 1000, 0, 0, "3-a"), CONFIG, NO_JUDGE)
    assert mailbox.recent == {"m": (1, DIGEST), timer_effect_id("3-a"): (1, DIGEST)}


class Queue(RuleBasedStateMachine):
    """One queue, a storage that keeps the ids of what it was given, and mailboxes that remember only their last id themselves."""

    keys = ("t:a", "t:b")

    def __init__(self) -> None:
        super().__init__()
        self.mailboxes = {key: Mailbox(key, 0) for key in self.keys}
        self.queue = PostQueue(self.mailboxes, Config(recent_ids=1))
        self.stored: dict[tuple[str, str], bytes] = {}
        self.first: dict[tuple[str, str], tuple[bytes, int]] = {}  # what the accepted post of an id was, and its number
        self.waiting: list[Pending] = []  # without an answer, in order of arrival
        self.group: Group | None = None
        self.ref = 0

    def answered(self, answers: list[Answer]) -> None:
        for answer in answers:
            self.waiting.remove(answer.pending)  # an answer too many raises
            post = answer.pending.post
            identity = post.key, post.envelope.id
            if answer.status == ACCEPTED:
                assert identity not in self.first, "accepted twice"
                assert answer.seq == 1 + max((seq for (key, _), (_, seq) in self.first.items() if key == post.key), default=0)
                self.first[identity] = post.envelope.digest, answer.seq
            else:
                digest, seq = self.first[identity]
                assert (answer.status, answer.seq) == (DUPLICATE if digest == post.envelope.digest else CONFLICT, seq)

    @rule(
        key=st.sampled_from(keys),
        id=st.sampled_from("uvwxyz"),
        digest=st.sampled_from([DIGEST, b"another."]),
        priority=st.sampled_from(range(len(PRIORITIES))),
    )
    def a_post_arrives(self, key: str, id: str, digest: bytes, priority: int) -> None:
        self.ref += 1
        pending = Pending("edge-0/1", Post(self.ref, key, True, 1000, Envelope(id, digest, priority, True, b"x" * self.ref)))
        self.waiting.append(pending)
        self.queue.add(pending, self.ref)

    @precondition(lambda self: self.group is None)
    @rule(records_max=st.integers(1, 4))
    def a_group_is_built(self, records_max: int) -> None:
        before = sorted(self.waiting, key=lambda pending: pending.post.envelope.priority)
        self.group, at_once = self.queue.build([], records_max, 1 << 20, 0)
        taken = [answer.pending for answer in (*at_once, *(self.group.answers if self.group is not None else ()))]
        assert all(pending in before[:records_max] for pending in taken), "by priority, then by arrival"
        self.answered(at_once)
        while self.group is not None:
            hits = {index: self.stored[identity] for index, identity in enumerate(self.group.ids) if identity in self.stored}
            if not hits:
                return
            self.group, at_once = self.queue.known(hits, 0)
            self.answered(at_once)

    @precondition(lambda self: self.group is not None)
    @rule()
    def it_is_committed(self) -> None:
        assert self.group is not None
        self.stored |= dict(zip(self.group.ids, self.group.values, strict=True))
        committed, touched, _ = self.queue.committed()
        assert committed is self.group
        assert set(touched) == {record.key for record in committed.records}
        self.group = None
        self.answered(committed.answers)

    @precondition(lambda self: self.group is not None)
    @rule()
    def it_is_refused(self) -> None:
        for answer in self.queue.refused().answers:
            self.waiting.remove(answer.pending)  # its publisher is answered "unavailable"
        self.group = None

    @rule()
    def storage_is_away_and_nothing_waits_any_longer(self) -> None:
        in_group = [answer.pending for answer in self.group.answers] if self.group is not None else []
        dropped = self.queue.drop_waiting()
        assert sorted(pending.post.ref for pending in [*dropped, *in_group]) == sorted(pending.post.ref for pending in self.waiting)
        self.waiting = in_group

    @invariant()
    def bytes_count_what_waits_and_what_is_in_the_group(self) -> None:
        assert len(self.queue) == len(self.waiting) - (len(self.group.answers) if self.group is not None else 0)
        assert (self.queue.bytes == 0) == (not self.waiting)

    @invariant()
    def mailboxes_have_what_was_accepted_and_nothing_else(self) -> None:
        for key, mailbox in self.mailboxes.items():
            accepted = [seq for (of, _), (_, seq) in self.first.items() if of == key]
            assert list(mailbox.hot) == sorted(accepted) == list(range(1, mailbox.head + 1))

    @invariant()
    def mailboxes_of_posts_that_wait_must_stay_in_memory(self) -> None:
        assert self.queue.busy() == {pending.post.key for pending in self.waiting}


TestQueue = Queue.TestCase
