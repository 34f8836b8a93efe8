"""Read pending messages of a user, the newest first, for a digest or an export. For a digest there are, behind them, acknowledged messages
of the inbox that are unread. Read-only: nothing is acknowledged, loaded or sent.

Bodies that are only in the offline stream are named by their numbers. The edge reads them there (`engine.store.pending_bodies`), so that a
user who comes back after thousands of messages costs the shard no memory. What is acknowledged in between may still be in the digest.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.inbox.inbox import UNREAD
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.shard.user_handlers import RequestContext
from engine.core.wire.records import BacklogIs, BacklogRow, ReadBacklog

_LOOKS_PER_ROW = 4
"""Numbers looked at for each message that is asked for: between the pending ones there may be many acknowledged one by one."""


def read_backlog(mailbox: Mailbox, asked: ReadBacklog, context: RequestContext) -> BacklogIs:
    """The answer to a read."""
    rows: list[BacklogRow] = []
    cold: list[int] = []
    seq, left, size = min(asked.before - 1, mailbox.head) if asked.before else mailbox.head, asked.limit, 0
    looks = asked.limit * _LOOKS_PER_ROW
    while seq > mailbox.floor and left and looks and size < asked.bytes_max:
        looks -= 1
        gap = mailbox.gap_at(seq)
        if gap is not None:
            seq = gap[0] - 1
            continue
        message = mailbox.hot.get(seq)
        if message is not None:
            rows.append(_row(message, message.expires_ms))
            size += len(message.envelope.body)
            left -= 1
        elif mailbox.is_cold(seq):
            cold.append(seq)
            left -= 1
        seq -= 1
    older = seq > mailbox.floor
    before = seq + 1 if older else 0
    acked: list[int] = []
    if asked.unread and mailbox.inbox is not None and not older:
        for seq in _unread(mailbox, asked.limit + len(rows) + len(cold) + 1):
            if not left or size >= asked.bytes_max:
                older = True
                break
            left -= 1
            message = mailbox.kept(seq)
            if message is None:
                acked.append(seq)
            else:
                rows.append(_row(message, 0))
                size += len(message.envelope.body)
    user_state = mailbox.user_state
    events = [] if user_state is None else list(user_state.events.values())
    signs = [at_ms for at_ms in (mailbox.left_ms, mailbox.seen_ms, *events) if at_ms]
    profile = None if user_state is None else user_state.profile
    return BacklogIs(asked.ref, context.data_epoch, rows, _ranges([*cold, *acked]), older, profile, signs, acked, before)


def row_of(seq: int, envelope: Envelope, expires_ms: int, accepted_ms: int) -> BacklogRow:
    """The row of a message. It has no collapse key when the message is of a window: a newer summary does not replace an older one."""
    collapse = envelope.collapse if envelope.merge is None else ""
    return BacklogRow(seq, expires_ms, collapse, bytes(envelope.body), envelope.policy_terms, accepted_ms)


def _row(message: Message, expires_ms: int) -> BacklogRow:
    return row_of(message.seq, message.envelope, expires_ms, message.accepted_ms)


def _unread(mailbox: Mailbox, count_max: int) -> list[int]:
    """The acknowledged among the newest messages of the inbox that are neither read nor archived, the newest first."""
    if mailbox.inbox is None:
        return []
    unread = mailbox.inbox.select(mailbox.head + 1, count_max, UNREAD)
    return [seq for seq in unread if not mailbox.is_pending(seq)]


def _ranges(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """As inclusive ranges, the highest first."""
    ranges: list[tuple[int, int]] = []
    for seq in sorted(seqs, reverse=True):
        if ranges and ranges[-1][0] == seq + 1:
            ranges[-1] = seq, ranges[-1][1]
        else:
            ranges.append((seq, seq))
    return ranges
