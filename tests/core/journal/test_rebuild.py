"""What memory holds, put behind whatever storage still has, gives the mailbox back."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from engine.core.commit.group import apply_stored
from engine.core.commit.judge import NO_JUDGE
from engine.core.inbox.inbox import InboxLimits
from engine.core.journal.journal_records import Handled, Record, StoredMessage
from engine.core.journal.rebuild import payloads
from engine.core.mailbox.broadcast_log import BroadcastMirror
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.retry import RetryPolicy
from engine.core.model.envelope import Envelope
from engine.core.model.routing import slot_of
from engine.core.shard.mailbox_store import MailboxStore
from tests.support.shard_world import small_config
from tests.support.stored import decode_journal

CONFIG = small_config(recent_ids=64, hot_messages_max=1024)

KEY = "t:u"
RETRY = RetryPolicy(250, 1.8, 100, 2000, 3)
FAR_MS = 10**12


def stored(seq: int) -> StoredMessage:
    return StoredMessage(
        KEY, seq, Envelope(f"m{seq}", b"digest%02d" % seq, 1, True, b'"id":"m%d"' % seq), FAR_MS, 0, 0, f"7-{seq}" if seq % 3 == 0 else ""
    )


def replayed(records: list[StoredMessage | Handled]) -> Mailbox:
    mailbox_store = MailboxStore(CONFIG, BroadcastMirror())
    mailbox_store.replay(slot_of(KEY), {KEY: None}, records, 0)
    return mailbox_store.mailboxes[KEY]


@given(
    acts=st.lists(st.one_of(st.just("post"), st.integers(1, 30), st.integers(-30, -1)), max_size=40),
    kept=st.integers(0, 80),
    bytes_max=st.integers(1, 2000),
)
@example(acts=["post", "post", "post", 2], kept=0, bytes_max=1)
def test_a_rescued_mailbox_is_as_it_was_whatever_storage_has_kept(acts: list[str | int], kept: int, bytes_max: int) -> None:
    """A positive number acknowledges one message, a negative one everything up to it."""
    mailbox = Mailbox(KEY, 0)
    journal: list[StoredMessage | Handled] = []
    for act in acts:
        if act == "post":
            record = stored(mailbox.head + 1)
            apply_stored(mailbox, record, CONFIG, NO_JUDGE)
            journal.append(record)
            continue
        assert isinstance(act, int)
        if act > 0:
            mailbox.settle([act], None, 0, RETRY)
        else:
            mailbox.settle_through(min(-act, mailbox.head), None, 0, RETRY)
        journal.append(Handled(KEY, mailbox.floor, sorted(mailbox.acked)))
    rescue = [record for payload in payloads([mailbox], bytes_max) for record in decode_journal(payload)]
    back = replayed(journal[:kept] + rescue)
    assert (back.head, back.floor, back.acked, back.gone) == (mailbox.head, mailbox.floor, mailbox.acked, [])
    assert {seq: message.envelope.body for seq, message in back.hot.items()} == {
        seq: message.envelope.body for seq, message in mailbox.hot.items()
    }
    for seq in back.hot:
        assert back.recent[f"m{seq}"] == mailbox.recent[f"m{seq}"], "a publisher that repeats itself is still recognised"
        assert back.recent.get(f"timer:7-{seq}") == mailbox.recent.get(f"timer:7-{seq}")


def test_numbers_whose_messages_nobody_has_are_gone_and_not_given_again() -> None:
    mailbox = Mailbox(KEY, 0)
    for seq in range(1, 9):
        apply_stored(mailbox, stored(seq), CONFIG, NO_JUDGE)
    del mailbox.hot[5], mailbox.hot[6]  # they had left memory for a stream that has lost them
    mailbox.cold = (5, 6)
    rescue = [record for payload in payloads([mailbox], 1000) for record in decode_journal(payload)]
    back = replayed([stored(seq) for seq in range(1, 4)] + rescue)
    assert back.head == 8
    assert back.gone == [(5, 6)]
    assert sorted(back.hot) == [1, 2, 3, 4, 7, 8]


def test_a_rescued_inbox_counts_what_no_checkpoint_has_written_once() -> None:
    def store(records: list[Record]) -> MailboxStore:
        mailbox_store = MailboxStore(small_config(InboxLimits(5, 1000, 2, 700)), BroadcastMirror())
        mailbox_store.replay(slot_of(KEY), {KEY: None}, records, 0)
        return mailbox_store

    before = store([stored(1), Handled(KEY, 1, [])])
    after = store([record for payload in payloads(before.mailboxes.values(), 1000) for record in decode_journal(payload)])
    assert after.memory.unwritten_bytes > 0
    assert after.take_checkpoint(True, 1) is not None
    assert not after.fill_checkpoint(1, 0)
    assert not after.checkpoint_done()
    assert after.memory.unwritten_bytes == 0
