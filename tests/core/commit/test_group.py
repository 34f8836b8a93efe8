"""What is remembered of an id, the answer to its repeat, and a stored message that joins its mailbox."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.commit.group import NEVER, Pending, apply_stored, idempotency_value, parse_idempotency_value, repeated
from engine.core.journal.journal_records import StoredMessage
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.wire.records import CONFLICT, DUPLICATE, SUPPRESSED, Post

DIGEST = b"digest.."
ENVELOPE = Envelope("m", DIGEST, 1, True, b"x")


@given(st.binary(max_size=8), st.integers(NEVER, 1 << 53), st.text(max_size=20))
def test_what_is_remembered_of_an_id_is_read_as_it_was_written(digest: bytes, seq: int, timer: str) -> None:
    assert parse_idempotency_value(idempotency_value(digest, seq, timer)) == (digest, seq, timer)


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
        apply_stored(mailbox, StoredMessage("t:u", 1, ENVELOPE, 1000, 0), 8)
    assert (mailbox.head, list(mailbox.hot)) == (1, [1])


def test_numbers_missing_before_a_stored_message_are_gone() -> None:
    mailbox = Mailbox("t:u", 0)
    apply_stored(mailbox, StoredMessage("t:u", 1, ENVELOPE, 1000, 0), 8)
    apply_stored(mailbox, StoredMessage("t:u", 4, ENVELOPE, 1000, 0), 8)
    assert (mailbox.head, list(mailbox.hot), mailbox.gone) == (4, [1, 4], [(2, 3)])


def test_the_effect_of_a_timer_is_remembered_under_an_id_of_its_own() -> None:
    mailbox = Mailbox("t:u", 0)
    apply_stored(mailbox, StoredMessage("t:u", 1, ENVELOPE, 1000, 0, 0, "3-a"), 8)
    assert mailbox.recent == {"m": (1, DIGEST), timer_effect_id("3-a"): (1, DIGEST)}
