"""What the mailboxes of a shard hold in memory, in bytes: counted as it changes, because adding it up would take seconds."""

from __future__ import annotations

from typing import Final

MESSAGE_BYTES: Final = 380
"""Memory of a message beside its body: the object, its numbers and id, a place in two tables. Measured with CPython 3.11."""

MAILBOX_BYTES: Final = 1300
"""Memory of an empty mailbox and its place among the others."""

RECENT_BYTES: Final = 180
"""Memory of a remembered id."""


class Memory:
    """Of one shard. `freed_bytes` only grows: what left."""

    __slots__ = ("bytes", "freed_bytes", "low_spilled", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.freed_bytes = 0
        self.low_spilled = 0  # messages of low priority that left memory for the offline stream

    def remove(self, messages: int, size: int) -> None:
        """So many messages, of `size` bytes together, are in memory no more."""
        size += messages * MESSAGE_BYTES
        self.messages -= messages
        self.bytes -= size
        self.freed_bytes += size

    def resize(self, delta: int) -> None:
        """A mailbox beside its messages takes so many bytes more, or less."""
        self.bytes += delta
        if delta < 0:
            self.freed_bytes -= delta
