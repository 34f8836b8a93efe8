"""Totals over the mailboxes of a shard, updated with every change: a sum over a million mailboxes takes 0.2 s."""

from __future__ import annotations

from typing import Final

MESSAGE_BYTES: Final = 480
"""Bytes of memory of a message without its body: the message, its envelope with id and digest, its numbers, and its entries in two tables
(the mailbox, and the flight of a connection). Measured with CPython 3.11; see the test of this module."""

MAILBOX_BYTES: Final = 1300
"""Bytes of memory of an empty mailbox and its table entry."""

RECENT_BYTES: Final = 180
"""Bytes of memory of one id in `Mailbox.recent`."""


class Memory:
    """The totals of one shard.

    Attributes:
        messages: messages in memory.
        cold: numbers in the cold ranges of mailboxes in memory.
        windows: open aggregation windows of mailboxes in memory.
        bytes: bytes of memory of mailboxes and their messages.
        freed_bytes: bytes that left memory since the start; only grows.
        low_spilled: messages of low priority that left memory for the offline stream since the start.
    """

    __slots__ = ("bytes", "cold", "freed_bytes", "low_spilled", "messages", "windows")

    def __init__(self) -> None:
        self.messages = 0
        self.cold = 0
        self.windows = 0
        self.bytes = 0
        self.freed_bytes = 0
        self.low_spilled = 0

    def remove(self, messages: int, size: int) -> None:
        """Subtract `messages` messages that left memory; `size` is the total of their bodies in bytes."""
        size += messages * MESSAGE_BYTES
        self.messages -= messages
        self.bytes -= size
        self.freed_bytes += size

    def resize(self, delta: int) -> None:
        """Add `delta` bytes (may be negative): the change in size of a mailbox without its messages."""
        self.bytes += delta
        if delta < 0:
            self.freed_bytes -= delta
