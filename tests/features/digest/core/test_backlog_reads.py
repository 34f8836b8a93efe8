"""The newest pending messages are named once each, in memory or in storage, and reading them changes nothing."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.core.inbox.inbox import ARCHIVED, READ, InboxLimits
from engine.core.mailbox.broadcast_log import BroadcastMirror
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.retry import RetryPolicy
from engine.core.model.category import Category, PolicyTerms
from engine.core.model.envelope import Envelope, Merge
from engine.core.model.message import Message
from engine.core.policy.profile import Profile
from engine.core.policy.user_state import UserState
from engine.core.shard.inbox_counts import InboxCounts
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import ShardOutput
from engine.core.shard.user_handlers import RequestContext
from engine.core.wire.records import ReadBacklog
from engine.features.digest.core.backlog_reads import read_backlog
from tests.support.mailbox_states import state_of
from tests.support.mailboxes import KEY, mailbox

STORE = MailboxStore(Config(), BroadcastMirror())
CONTEXT = RequestContext(Config(), STORE, InboxCounts(STORE, ShardOutput(None)), "edge-0/1", "e1", "connected", 0)
POLICY = RetryPolicy(rtt_initial_ms=250, factor=1.8, first_ms=100, cap_ms=2000, tries=3)


def read(box: Mailbox, limit: int = 100, bytes_max: int = 1 << 20) -> tuple[list[int], list[int], bool]:
    hot, cold, older, _ = page(box, limit, bytes_max)
    return hot, cold, older


def page(box: Mailbox, limit: int, bytes_max: int = 1 << 20, before: int = 0) -> tuple[list[int], list[int], bool, int]:
    answer = read_backlog(box, ReadBacklog(1, KEY, limit, bytes_max, before=before), CONTEXT)
    cold = [seq for first, last in answer.cold for seq in range(last, first - 1, -1)]
    return [row.seq for row in answer.rows], cold, answer.older, answer.before


def pages(box: Mailbox, limit: int) -> list[int]:
    """The numbers of all pages."""
    found, older, before = list[int](), True, 0
    while older:
        hot, cold, older, before = page(box, limit, before=before)
        found += sorted([*hot, *cold], reverse=True)
    return found


@given(st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)), st.integers(0, 30), st.integers(1, 40))
def test_the_newest_pending_messages_are_read_and_nothing_else(
    acked: set[int], lost: set[int], refused: set[int], spilled: int, limit: int
) -> None:
    box = mailbox(1000, 30)
    box.settle(acked, None, 1000, POLICY)
    for seq in lost - acked:
        box.supersede(seq)
    box.refuse(refused)
    box.spilled = spilled
    box.cool()
    before = deepcopy(state_of(box))
    hot, cold, older = read(box, limit)
    pending = [seq for seq in range(30, 0, -1) if seq not in acked | lost | refused]
    found = sorted([*hot, *cold], reverse=True)
    assert found == pending[: len(found)]
    assert set(hot) == {seq for seq in found if seq in box.hot}
    assert older or found == pending
    looked_at = 30 - pending[len(found)] if found != pending else 30
    assert len(found) == limit or found == pending or looked_at >= 4 * limit, "what is acknowledged one by one is not walked for ever"
    assert state_of(box) == before
    assert pages(box, limit) == pending


def test_a_read_is_bounded_by_bytes() -> None:
    box = mailbox(1000, 30)
    size = len(box.hot[30].envelope.body)
    hot, _, older = read(box, bytes_max=3 * size)
    assert (hot, older) == ([30, 29, 28], True)


def test_numbers_acknowledged_one_by_one_are_not_walked_for_ever() -> None:
    box = mailbox(1000, 100)
    box.settle(range(2, 101), None, 1000, POLICY)
    assert read(box, limit=5) == ([], [], True)


def test_signs_of_the_user_and_the_profile_come_along() -> None:
    box = mailbox(1000, 1)
    profile = Profile(locale="zh")
    box.user_state = UserState(profile=profile, events={"seen.it": 7})
    box.left_ms, box.seen_ms = 5, 9
    answer = read_backlog(box, ReadBacklog(1, KEY, 10, 1000), CONTEXT)
    assert (answer.profile, answer.active_ms, answer.epoch) == (profile, [5, 9, 7], "e1")


def kept(count: int) -> Mailbox:
    """Messages of an inbox, of which the even ones are acknowledged."""
    box = Mailbox(KEY, 0)
    box.inbox_limits = InboxLimits(messages_max=50, keep_ms=10**9, pinned_max=2, numbers_max=100)
    terms = PolicyTerms("news", Category(cap=3))
    for seq in range(1, count + 1):
        box.append(Message(seq, Envelope(f"m{seq}", b"", 1, True, b"body", policy_terms=terms), 10**6, 0), b"", 10)
    box.settle(range(2, count + 1, 2), None, 0, POLICY)
    return box


def unread(box: Mailbox, limit: int = 100) -> tuple[list[tuple[int, bool]], list[int], list[int], bool]:
    answer = read_backlog(box, ReadBacklog(1, KEY, limit, 1 << 20, unread=True), CONTEXT)
    assert all(row.terms is not None and row.terms.category == "news" for row in answer.rows)
    cold = [seq for first, last in answer.cold for seq in range(last, first - 1, -1)]
    return [(row.seq, row.expires_ms > 0) for row in answer.rows], cold, answer.acked, answer.older


def test_unread_messages_of_the_inbox_follow_the_pending_ones_where_they_are_wanted() -> None:
    box = kept(7)
    assert read(box)[0] == [7, 5, 3, 1]
    assert unread(box) == ([(7, True), (5, True), (3, True), (1, True), (6, False), (4, False), (2, False)], [], [], False)
    assert unread(box, limit=6) == ([(7, True), (5, True), (3, True), (1, True), (6, False), (4, False)], [], [], True)
    assert unread(box, limit=2)[3]
    assert box.inbox is not None
    box.inbox.mark(READ, [6], box.inbox_limits, on=True)
    box.inbox.mark(ARCHIVED, [4], box.inbox_limits, on=True)
    assert unread(box)[0][4:] == [(2, False)]


def test_acknowledged_bodies_that_are_in_storage_only_are_named_by_their_numbers() -> None:
    box = kept(4)
    assert box.inbox is not None
    box.inbox.release(4)
    box.spilled = 4
    box.cool()
    assert unread(box) == ([], [4, 3, 2, 1], [4, 2], False)


def test_a_message_of_a_window_has_no_key_to_be_replaced_by() -> None:
    box = Mailbox(KEY, 0)
    for seq, merge in enumerate((None, Merge(300), Merge(300, True)), 1):
        box.append(Message(seq, Envelope(f"m{seq}", b"", 1, True, b"body", "likes", merge), 10**6, 0), b"", 10)
    rows = read_backlog(box, ReadBacklog(1, KEY, 10, 1 << 20), CONTEXT).rows
    assert {row.seq: row.collapse for row in rows} == {1: "likes", 2: "", 3: ""}


def test_a_row_says_when_its_message_was_accepted() -> None:
    box = mailbox(1000, 2)
    box.hot[1].accepted_ms = 7
    rows = read_backlog(box, ReadBacklog(1, KEY, 10, 1 << 20), CONTEXT).rows
    assert {row.seq: row.accepted_ms for row in rows}[1] == 7
