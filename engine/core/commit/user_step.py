"""Changes of a user's state: journal records about users instead of messages, applied in the same way at commit and at replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from engine.core.inbox.inbox import ARCHIVED, READ, inbox_of
from engine.core.journal.journal_records import Decided, Erased, Inboxed, Marked, Noticed, Profiled, Remembered, Topics
from engine.core.mailbox.mailbox import Mailbox
from engine.core.policy.profile import Profile
from engine.core.policy.user_state import UserState
from engine.core.wire.records import OK, OVERLOADED, ProfileIs, Subscribe, Subscribed

MakeProfile = Callable[[Profile | None], tuple[Profile | None, int]]
"""The profile of a user, None for the default -> after the change, and the status of the answer."""


class UserChange(Struct):
    """A record for the next group (`engine.core.shard.user_requests`), the link session that asked for it, and the answer for either
    outcome: `done` once the record is durable, `failed` when storage is unavailable. `change`: what makes the topics or the profile of the
    record, from those that the user has when the group is built. `applied`: completes `done` once the mailbox has the record."""

    mailbox: Mailbox
    session: str
    record: Profiled | Noticed | Erased | Marked | Topics
    done: Struct
    failed: Struct
    change: MakeProfile | Subscribe | None = None
    applied: Callable[[], None] | None = None


def settle_changes(changes: Iterable[UserChange], log_head: int, topics_max: int) -> None:
    """Make the profiles and topics of the changes of a group, in their order: each follows from the one before it.

    Args:
        log_head: of the broadcast log; a subscription made now covers what follows it, and where the mailbox is, which may come from a
            shard that had read more.
        topics_max: of one user.
    """
    profiles: dict[str, Profile | None] = {}
    topics: dict[str, dict[str, int]] = {}
    for change in changes:
        record, asked, done = change.record, change.change, change.done
        if isinstance(record, Erased):
            profiles[record.key], topics[record.key] = None, {}
        elif isinstance(asked, Subscribe) and isinstance(done, Subscribed):
            position = max(log_head, change.mailbox.log_pos)
            subscribed, done.status = _subscribed(topics.get(asked.key, change.mailbox.topics), asked, position, topics_max)
            done.topics = sorted(subscribed)
            change.record = Topics(asked.key, subscribed)
            topics[asked.key] = subscribed
        elif callable(asked) and isinstance(done, ProfileIs):
            key, user_state = record.key, change.mailbox.user_state
            before = profiles.get(key, None if user_state is None else user_state.profile)
            done.profile, done.status = asked(before)
            change.record = Profiled(key, done.profile)
            profiles[key] = done.profile


def _subscribed(before: dict[str, int], asked: Subscribe, position: int, topics_max: int) -> tuple[dict[str, int], int]:
    """The topics after a change, and the status of the answer. Subscribing again keeps the first position, so a request repeated because
    its answer was lost changes nothing."""
    after = {topic: since for topic, since in before.items() if topic not in asked.remove}
    for topic in asked.add:
        after.setdefault(topic, position)
    if len(after) > topics_max and len(after) > len(before):
        return before, OVERLOADED
    return after, OK


def user_state_of(mailbox: Mailbox) -> UserState:
    """The user's state; creates it when the mailbox has none."""
    if mailbox.user_state is None:
        mailbox.user_state = UserState()
    return mailbox.user_state


def apply_note(mailbox: Mailbox, record: Profiled | Noticed | Erased | Decided | Remembered, decisions_max: int) -> None:
    """Apply a journalled record to the mailbox's user state."""
    if isinstance(record, Erased):
        mailbox.erase()
    elif isinstance(record, Decided):
        user_state_of(mailbox).note(record.entry, decisions_max)
    elif isinstance(record, Remembered):
        mailbox.user_state = record.user_state
        mailbox.seen_ms = max(mailbox.seen_ms, record.seen_ms)
    elif isinstance(record, Noticed):
        if not record.delivery or user_state_of(mailbox).is_new(record.delivery):
            mailbox.seen_ms = max(mailbox.seen_ms, record.at_ms)
            if record.event:
                user_state_of(mailbox).notice(record.event, record.at_ms)
        if record.follow:
            user_state_of(mailbox).follow(record.follow, record.ended)
    elif record.profile is not None:
        user_state_of(mailbox).profile = record.profile
    elif mailbox.user_state is not None:
        mailbox.user_state.profile = None


def acknowledged_by(mailbox: Mailbox, record: Marked | Inboxed) -> list[int]:
    """The pending numbers that a mark of the inbox acknowledges: those that are read or archived by it."""
    if isinstance(record, Marked) and record.on and record.mark in (READ, ARCHIVED):
        return [seq for seq in record.seqs if mailbox.is_pending(seq)]
    return []


def apply_mark(mailbox: Mailbox, record: Marked | Inboxed) -> None:
    """Apply a journalled record to the user's inbox."""
    limits = mailbox.inbox_limits
    if limits is None:
        return
    if isinstance(record, Marked):
        if mailbox.inbox is not None:
            mailbox.inbox.mark(record.mark, record.seqs, limits, on=record.on)
        return
    before, mailbox.inbox = mailbox.inbox, inbox_of(record.inbox)
    if before is not None:
        mailbox.inbox.counted_bytes = before.counted_bytes
        for message in before.unwritten.values():
            mailbox.inbox.keep(message)
