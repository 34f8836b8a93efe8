"""Mailboxes with messages, as a shard has them."""

from __future__ import annotations

from engine.core.mailbox.mailbox import Mailbox, Message
from engine.core.model.envelope import Envelope

KEY = "t:ann"


def mailbox(now_ms: int, count: int, ttl_ms: int = 60_000, key: str = KEY) -> Mailbox:
    """The numbers 1 to `count`, published now."""
    box = Mailbox(key, now_ms)
    for seq in range(1, count + 1):
        box.append(Message(seq, Envelope(f"m{seq}", b"", 1, True, b'"id":"m%d"' % seq), now_ms + ttl_ms, now_ms), b"digest..", 64)
    return box
