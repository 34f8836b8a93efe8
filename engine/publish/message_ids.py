"""Ids for messages without a publisher's own, and for timers: UUIDv7, in order within a process, unguessable, about a microsecond each.

Order within one millisecond follows RFC 9562, section 6.2, method 2: the last 48 bits start at a random value and grow by
random steps, so only they have to be written anew. Entropy is read from the operating system in blocks, because one system
call per id costs more than the id.

Timers have the same 128 bits in 22 characters in place of 36, as storage has the id of a timer in several places: base64 without padding,
but with its characters in the order of their codes, so that these ids sort as the UUIDs do.
"""

from __future__ import annotations

import os
import time
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from typing import Final

from engine.core.model.names import uuid7

_BLOCK_BYTES: Final = 4096
_PREFIX_CHARS: Final = len("018bcfe5-6800-7abc-8def-")
_LOW_END: Final = 1 << 48
_SHORT_CHARS: Final = 22
_IN_ORDER: Final = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz",
)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MessageIds:
    """Call it for a new id. Ids of one source grow, even when the clock steps back. Not for several threads at once.

    Args:
        clock_ms: milliseconds since the epoch.
        entropy: so many random bytes; `os.urandom` outside of tests.
    """

    __slots__ = ("_clock_ms", "_last_ms", "_low", "_prefix", "_words")

    def __init__(self, clock_ms: Callable[[], int] = _wall_clock_ms, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._clock_ms = clock_ms
        self._words = _words(entropy)
        self._last_ms = -1
        self._prefix = ""
        self._low = 0

    def __call__(self) -> str:
        now_ms = self._clock_ms()
        if now_ms > self._last_ms:
            self._begin(now_ms)
        else:
            self._low += 1 + next(self._words)
            if self._low >= _LOW_END:  # tens of thousands of ids in one millisecond: borrow the next one
                self._begin(self._last_ms + 1)
        return f"{self._prefix}{self._low:012x}"

    def short(self) -> str:
        """A new id in 22 characters: letters, digits, `-` and `_`."""
        return short_id(self())

    def _begin(self, now_ms: int) -> None:
        """A millisecond begins: draw its random part. The top bit of what grows stays zero, which leaves room for steps."""
        words = self._words
        self._last_ms = now_ms
        self._low = (next(words) << 32 | next(words)) >> 17
        self._prefix = uuid7(now_ms, (next(words) << 32 | next(words)) << 48)[:_PREFIX_CHARS]


def short_id(uuid: str) -> str:
    """The UUID in 22 characters: letters, digits, `-` and `_`. The order of these texts is that of the UUIDs."""
    return b2a_base64(bytes.fromhex(uuid.replace("-", "")), newline=False)[:_SHORT_CHARS].translate(_IN_ORDER).decode()


def _words(entropy: Callable[[int], bytes]) -> Iterator[int]:
    """Random 32-bit words without end."""
    while True:
        yield from memoryview(entropy(_BLOCK_BYTES)).cast("I")
