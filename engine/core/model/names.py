"""Validation of names, and generation of UUIDv7 ids.

Names arrive in tokens, publish requests and frames. They end up in Redis keys, JSON frames and log lines, so the same
few rules apply everywhere: bounded length, no line terminators, no characters without a UTF-8 encoding.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_TENANT: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_EVENT_TYPE: Final = re.compile(r"[A-Za-z0-9_/:-]+(?:\.[A-Za-z0-9_/:-]+)*")
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

RANDOM_BITS: Final = 74
"""Random bits of a UUIDv7: all but the 48 of the time, 4 of the version and 2 of the variant."""


def is_tenant(text: str) -> bool:
    """1 to 64 of `A-Z a-z 0-9 _ . -`: no colon, so that `tenant:user` is unambiguous."""
    return _TENANT.fullmatch(text) is not None


def is_group(text: str) -> bool:
    """1 to 64 of `A-Z a-z 0-9 _ . -`: the name of a group of consumers."""
    return _TENANT.fullmatch(text) is not None


def is_user(text: str, chars_max: int) -> bool:
    """Any text of 1 to `chars_max` characters without control characters, line separators and lone surrogates."""
    # Printable text contains none of them; this check covers nearly every user and is ten times as fast as the expression.
    return 0 < len(text) <= chars_max and (text.isprintable() or _FORBIDDEN.search(text) is None)


def is_id(text: str, chars_max: int) -> bool:
    """Printable text of 1 to `chars_max` characters."""
    return 0 < len(text) <= chars_max and text.isprintable()


def is_topic(text: str, chars_max: int) -> bool:
    """Printable text of 1 to `chars_max` characters without spaces and `*`, which stands for "whatever follows" in tokens."""
    return is_id(text, chars_max) and "*" not in text and not any(char.isspace() for char in text)


@lru_cache(maxsize=4096)  # publishers use few types, each often; `chars_max` bounds the length of an entry
def _is_dotted(text: str) -> bool:
    return _EVENT_TYPE.fullmatch(text) is not None


def is_event_type(text: str, chars_max: int) -> bool:
    """Words of `A-Z a-z 0-9 _ - / :` joined by single dots, together at most `chars_max` characters: `post.liked`.

    With `/` and `:` the types of CloudEvents that are URIs or paths are event types too.
    """
    return len(text) <= chars_max and _is_dotted(text)


def uuid7(now_ms: int, random_bits: int) -> str:
    """A UUID of version 7 (RFC 9562, section 5.7), in lower case with dashes; sorts by time as text.

    Args:
        now_ms: milliseconds since the epoch, below 2**48.
        random_bits: `RANDOM_BITS` bits; higher bits are ignored.
    """
    text = f"{now_ms << 80 | 7 << 76 | (random_bits >> 62 & 0xFFF) << 64 | 2 << 62 | random_bits & 0x3FFF_FFFF_FFFF_FFFF:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
