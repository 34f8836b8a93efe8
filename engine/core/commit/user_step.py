"""Changes of a user's state: journal records about users instead of messages, applied in the same way at commit and at replay."""

from __future__ import annotations

from msgspec import Struct

from engine.core.journal.journal_records import Decided, Erased, Noticed, Profiled, Remembered
from engine.core.mailbox.mailbox import Mailbox
from engine.core.policy.user_state import UserState


class UserChange(Struct):
    """A record for the next group (`engine.core.shard.user_requests`), the link session that asked for it, and the answer for either
    outcome: `done` once the record is durable, `failed` when storage is unavailable."""

    mailbox: Mailbox
    session: str
    record: Profiled | Noticed | Erased
    done: Struct
    failed: Struct


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
