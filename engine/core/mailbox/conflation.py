"""Conflation: for a user who is behind, the newest message of a collapse key stands for the older ones (`collapse` in PROTOCOL.md).

A new message supersedes the newest pending one of its key when nobody has been sent that one, the new one is worth at least as much
(priority, retention), and the user is behind: every connection has something unsent before it, or nobody is connected and more than a
threshold is waiting. Who keeps up gets every message.

The decision is made once, when the group is built, and rides in the new message's journal record (`Stored.supersedes`). So commit and
replay do the same: the older number is gone, announced by a gap like every number that is; both happen, or neither. A number that was
sent between building and commit is gone too, and revoked where it was sent. How many messages the new one stands for is a member of its
body, `count`.

Only the newest message of each of the last `keys_max` keys is remembered, in the mailbox and its page. Forgetting one costs a conflation,
never a message. A mailbox with `gaps_max` separate gaps conflates no more until some are told: each costs room in every page.
"""

from __future__ import annotations

from msgspec import Struct

from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.message import Collapsing


class ConflationLimits(Struct, frozen=True):
    """See the module's text. `offline_min`: messages waiting for a user who is not connected."""

    offline_min: int = 100
    keys_max: int = 64
    gaps_max: int = 256


DEFAULTS = ConflationLimits()


class Conflation(Struct, frozen=True, gc=False):
    """`supersedes`: the number of the older message, 0 for none. `count`: how many messages the new one stands for."""

    supersedes: int
    count: int


ALONE = Conflation(0, 1)


def judge(mailbox: Mailbox, known: Collapsing | None, priority: int, retain: bool, limits: ConflationLimits) -> Conflation:
    """Does a new message of this priority and retention supersede `known`, the newest of its key?

    `known` may be of the group under way: then its number is above the mailbox's head, and surely unsent.
    """
    if known is None or priority > known.priority or (known.retain and not retain) or len(mailbox.gone) >= limits.gaps_max:
        return ALONE
    if not _is_behind(mailbox, limits.offline_min) or not (known.seq > mailbox.head or _is_unsent(mailbox, known.seq)):
        return ALONE
    return Conflation(known.seq, known.count + 1)


def remember(mailbox: Mailbox, key: str, message: Collapsing, keys_max: int) -> None:
    """The newest message of a key is committed; the key not heard of for longest makes room."""
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
