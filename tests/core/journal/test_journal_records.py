"""Pages: what a mailbox writes of itself can be read again, whatever happened to it."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from engine.core.journal.journal_records import Adopted, Handled, keys_of, spill_of
from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.retry import RetryPolicy
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.policy.user_state import Counters, UserState
from engine.core.wire.records import WEBSOCKET
from tests.support.stored import read_page

POLICY = RetryPolicy(100, 1.8, 100, 2000, 3)


def _append(mailbox: Mailbox, _seq: int) -> None:
    seq = mailbox.head + 1
    mailbox.append(Message(seq, Envelope(f"id-{seq}", b"", 1, seq % 3 > 0, b"x"), 10**6, 0), b"", 256)


def _cool(mailbox: Mailbox, seq: int) -> None:
    mailbox.spilled = max(mailbox.spilled, min(seq, mailbox.head))
    mailbox.cool()


def _die(mailbox: Mailbox, seq: int) -> None:
    mailbox.refuse([seq])


def _acknowledge(mailbox: Mailbox, seq: int) -> None:
    mailbox.settle([seq], next(iter(mailbox.connections.values())), 0, POLICY)


def _acknowledge_through(mailbox: Mailbox, seq: int) -> None:
    mailbox.settle_through(min(seq, mailbox.head), next(iter(mailbox.connections.values())), 0, POLICY)


def _supersede(mailbox: Mailbox, seq: int) -> None:
    if seq <= mailbox.head:
        mailbox.supersede(seq)


def _read(mailbox: Mailbox, seq: int) -> None:
    """A range of the offline stream comes back, without what nobody kept."""
    if mailbox.cold:
        last = min(seq, mailbox.cold[1])
        mailbox.loaded(
            mailbox.cold[0], last, [Message(seq, Envelope(f"id-{seq}", b"", 1, True, b"x"), 10**6, 0)] if mailbox.is_cold(seq) else []
        )


_ACTS: tuple[Callable[[Mailbox, int], None], ...] = (_append, _append, _cool, _die, _acknowledge, _acknowledge_through, _supersede, _read)


def _mailbox() -> Mailbox:
    mailbox = Mailbox("t:u", 0)
    mailbox.connections["edge-0/a", 1] = Attachment(("edge-0/a", 1), WEBSOCKET, "s", "d", 0, 0)
    return mailbox


@given(st.lists(st.tuples(st.sampled_from(_ACTS), st.integers(1, 7)), min_size=15, max_size=30))
def test_a_page_can_be_read_whatever_happened(acts: list[tuple[Callable[[Mailbox, int], None], int]]) -> None:
    mailbox = _mailbox()
    for _ in range(6):
        _append(mailbox, 0)
    for act, seq in acts:
        act(mailbox, seq)
        page = read_page(mailbox.key, spill_of(mailbox).page)
        assert (page.head, page.floor) == (mailbox.head, mailbox.floor) or mailbox.dying
        assert mailbox.cold is None or mailbox.floor < mailbox.cold[0] <= mailbox.cold[1] <= mailbox.head


def test_acknowledging_by_id_what_is_out_of_memory_leaves_a_page_that_can_be_read() -> None:
    mailbox = _mailbox()
    mailbox.user_state = UserState(counters=Counters(last={"post.liked": (5, 1000)}))
    for _ in range(4):
        _append(mailbox, 0)
    _cool(mailbox, 4)
    mailbox.settle([1, 2], None, 0, POLICY)
    assert (mailbox.floor, mailbox.cold) == (2, (3, 4))
    page = read_page(mailbox.key, spill_of(mailbox).page)
    assert page.floor == 2
    assert page.user_state == mailbox.user_state


def test_a_page_names_the_expiry_of_a_refused_pending_message() -> None:
    mailbox = _mailbox()
    _append(mailbox, 0)
    _die(mailbox, 1)
    assert read_page(mailbox.key, spill_of(mailbox).page).oldest_expires_ms == 10**6


def test_keys_of_records_are_in_the_order_of_the_records() -> None:
    users = [f"t:u{number}" for number in range(50)]
    records = [Adopted(1, 0, [(user, 1) for user in users[:20]]), *(Handled(user, 1, []) for user in [*users[10:], *users])]
    assert keys_of(records) == users
