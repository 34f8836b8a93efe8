"""The book of inboxes: what is acknowledged stays in the inbox with its body, what was marked stays marked, and a revision names one pair
of counts for ever.

The marks are `seen`, since reading acknowledges. At the end of a world the inbox of every user is compared with the journal: of its newest
messages, all that were to be kept and that no client refused are there, and everything that is there has its body, in memory or in the
offline stream. Nothing is said of what may have been gone before: it expired, was trimmed, or is represented by another message. What has
expired leaves when that is noticed, and a crash brings it back until it is noticed again, without the marks that were set meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.core.inbox.inbox import SEEN, Inbox, inbox_of
from engine.core.model.routing import slot_of
from engine.store.keys import offline_key, page_key
from tests.sim.redis import MiniRedis
from tests.sim.windowbook import Broken
from tests.support.stored import decode_page

if TYPE_CHECKING:
    from tests.sim.books import Books
    from tests.sim.known import User


class InboxBook:
    def __init__(self) -> None:
        self.seen_through = 0  # an answer said that everything up to here is marked
        self._counts: dict[int, tuple[int, int]] = {}  # by revision

    def counted(self, unread: int, unseen: int, revision: int) -> None:
        """Somebody was told these counts. Raises Broken when others have the same revision."""
        known = self._counts.setdefault(revision, (unread, unseen))
        if known != (unread, unseen):
            raise Broken(f"revision {revision} is of {known}, and of {(unread, unseen)}")


def check_inbox(books: Books, user: User, core: Any, server: MiniRedis, inbox_max: int, offline_max: int, now_ms: int) -> int:
    """Compare the inbox that the user's shard has with the books; returns how many messages are in it.

    Raises:
        Broken: a message is not there, has no body, or has lost its mark; or connections wait for counts that nobody will send.
    """
    inbox, mailbox = _inbox_of(user.key, core, server)
    held = frozenset(() if inbox is None else inbox.upto(user.head))
    kept = [seq for seq, message in sorted(user.messages.items()) if message.retain]
    for seq in kept[-inbox_max:]:
        message = user.messages[seq]
        gone = message.replaced or message.expires_ms <= now_ms or seq <= user.head - offline_max or books.broadcasts.is_gone(message.pos)
        if seq not in held and not gone and not _is_refused(user, seq):
            raise Broken(f"{seq} is acknowledged, and not in the inbox, which has {sorted(held)}")
    if inbox is None:
        return 0
    stream = server.data.get(offline_key(user.key).encode())
    stored = frozenset(() if stream is None else (entry_id[0] for entry_id in stream.entries))
    for seq in held:
        in_memory = mailbox is not None and mailbox.kept(seq) is not None
        if not in_memory and seq not in stored:
            raise Broken(f"{seq} is in the inbox, and its body nowhere")
        # It may have been away when the mark was answered, and a crash have taken what sent it away.
        came_back = seq in user.messages and (user.messages[seq].expires_ms <= now_ms or _is_refused(user, seq))
        if seq <= user.inbox.seen_through and not came_back and not inbox.flags(seq) & SEEN:
            raise Broken(f"{seq} was marked, and is not any more")
    if mailbox is not None and user.key not in core.mailbox_store.counts_due:
        wanting = [connection for connection in mailbox.connections.values() if connection.counts]
        if wanting and inbox.told != inbox.counts():
            raise Broken(f"connections were told {inbox.told}, and the counts are {inbox.counts()}")
    return len(held)


def _is_refused(user: User, seq: int) -> bool:
    """Whether somebody refused the message for good, or it went to the dead letters."""
    return seq in user.refused or user.messages[seq].id in user.dead


def _inbox_of(key: str, core: Any, server: MiniRedis) -> tuple[Inbox | None, Any]:
    """The user's inbox, and the mailbox if it is in memory."""
    mailbox = core.mailboxes.get(key)
    if mailbox is not None:
        return mailbox.inbox, mailbox
    page = server.cmd_hget(page_key(slot_of(key)).encode(), key.encode())
    stored = None if page is None else decode_page(key, page).inbox
    return (None if stored is None else inbox_of(stored)), None
