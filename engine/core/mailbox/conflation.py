"""Conflation: for a user who is behind, the newest message of a collapse key replaces the older ones (`collapse`).

A new message supersedes the newest pending one of its key when that one was sent on no connection, the new one has at least its priority
and retention, and the user is behind: every connection is silent or has unsent messages before it, or there is no connection and at least
a threshold of messages is pending. A user who keeps up gets every message.

The decision is made once, when the group is built, and is stored in the new message's journal record (`Stored.supersedes`). So commit and
replay have the same effect: the older number is gone, announced by a gap like every gone number; both happen, or neither. A number that
was sent between building and commit is gone too, and revoked on the connections that it was sent on. The `count` member of the body is the
number of messages that the new one replaces, itself included.

Only the newest message of each of the last `keys_max` keys is stored, in the mailbox and its page. Evicting one costs a conflation,
never a message. A mailbox with `gaps_max` separate gaps stops conflating until some are settled: each takes space in every page.
"""

from __future__ import annotations

from msgspec import Struct

from engine.config import Config
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.message import Collapsing


class Conflation(Struct, frozen=True, gc=False):
    """`supersedes`: the number of the older message, 0 for none. `count`: how many messages the new one represents, itself included."""

    supersedes: int
    count: int


ALONE = Conflation(0, 1)


def decide(mailbox: Mailbox, known: Collapsing | None, priority: int, retain: bool, config: Config) -> Conflation:
    """Decide whether a new message of this priority and retention supersedes `known`, the newest of its key. Returns `ALONE` if not.

    `known` may be in the group being built: then its number is above the mailbox's head, and it is unsent.
    """
    if known is None or priority > known.priority or (known.retain and not retain) or len(mailbox.gone) >= config.gaps_max:
        return ALONE
    if not _is_behind(mailbox, config.conflate_offline_min) or not (known.seq > mailbox.head or _is_unsent(mailbox, known.seq)):
        return ALONE
    return Conflation(known.seq, known.count + 1)


def remember(mailbox: Mailbox, key: str, message: Collapsing, keys_max: int) -> None:
    """Store the newest committed message of a key. Above `keys_max` keys, evicts the least recently updated."""
    collapsing = mailbox.collapsing
    collapsing.pop(key, None)
    collapsing[key] = message
    if len(collapsing) > keys_max:
        del collapsing[next(iter(collapsing))]


def _is_behind(mailbox: Mailbox, offline_min: int) -> bool:
    if not mailbox.connections:
        return mailbox.pending_count() >= offline_min
    return mailbox.is_behind()


def _is_unsent(mailbox: Mailbox, seq: int) -> bool:
    message = mailbox.hot.get(seq)
    if message is None:
        if not mailbox.is_cold(seq) or seq in mailbox.cold_attempts:
            return False
    elif message.attempts:
        return False
    return all(connection.sent < seq for connection in mailbox.connections.values())
