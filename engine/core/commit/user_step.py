"""Notes: what the journal says about a user and not about messages, applied to the mailbox at commit and at replay alike."""

from __future__ import annotations

from msgspec import Struct

from engine.core.journal.journal_records import Decided, Noticed, Profiled, Remembered
from engine.core.mailbox.mailbox import Mailbox
from engine.core.policy.user_state import UserState


class UserChange(Struct):
    """A record on its way (`engine.core.shard.user_requests`): whom to answer, with what once it is durable, and with what when it is
    not."""

    mailbox: Mailbox
    session: str
    record: Profiled | Noticed
    done: Struct
    failed: Struct


def user_state_of(mailbox: Mailbox) -> UserState:
    """What is known of the user, to be added to."""
    if mailbox.user_state is None:
        mailbox.user_state = UserState()
    return mailbox.user_state


def apply_note(mailbox: Mailbox, record: Profiled | Noticed | Decided | Remembered, decisions_max: int) -> None:
    """What a journalled record says is so."""
    if isinstance(record, Decided):
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
